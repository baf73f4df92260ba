"""A job's timeline as Chakra traces, one per rank. Knows the timeline and Chakra's nodes, no files.

Every transfer becomes exactly one communication node (where Chakra has its collective), which waits
for what produced it and for which its consumers wait; the converter of Chakra itself gives a gloo
job none of these (issue 215 there). What the schema has no place for stands in attributes named
"hemiola_...", from which `from_chakra` restores the timeline without loss.
`docs/reference/traces.md` lists the attributes and the rules by which dependencies are inferred.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hemiola.core.job_timeline import SPAN_KINDS, Ints, Iterations, JobTimeline, TransferLog
from hemiola.trace.jobs.chakra.nodes import (
    COLLECTIVES,
    COMM_COLL,
    COMM_RECV,
    COMM_SEND,
    COMP,
    Attribute,
    ChakraNode,
    ChakraTrace,
    write_et,
)
from hemiola.trace.jobs.timeline_json import timeline_to_json, without_spans

__all__ = ["to_chakra", "write_chakra"]


# In which order a rank's spans and transfers went, for graphs that have to run in it again. No files.

_COMMUNICATION = SPAN_KINDS.index("communication")


class RankOrder:
    """One rank's spans as lanes, and its transfers.

    Attributes:
        rows: the rank's spans in the order of the timeline.
        parent: by span the span of the same lane inside which it lies.
        previous: by span the span of the same lane that began before it.
        alone_s: by span how long it ran without the spans inside it.
        span_of: by transfer its communication span, the first if there are several.
        bare: transfers without one.
    """

    def __init__(self, timeline: JobTimeline, rows: Ints, transfers: Ints) -> None:
        self.timeline = timeline
        self.rows = rows.tolist()
        self.parent: dict[int, int] = {}
        self.previous: dict[int, int] = {}
        self._start_s: list[float] = timeline.spans.start_s.tolist()
        self._end_s: list[float] = timeline.spans.end_s.tolist()
        self.alone_s = {row: self._end_s[row] - self._start_s[row] for row in self.rows}
        self.span_of: dict[int, int] = {}
        kinds, lanes, of = (
            column.tolist() for column in (timeline.spans.kind, timeline.spans.lane, timeline.spans.transfer)
        )
        by_lane: dict[int, list[int]] = {}
        for row in sorted(self.rows, key=lambda row: (self._start_s[row], -self._end_s[row], row)):
            by_lane.setdefault(lanes[row], []).append(row)
            if kinds[row] == _COMMUNICATION and of[row] >= 0:
                self.span_of.setdefault(of[row], row)
        for lane in by_lane.values():
            self._nest(lane)
        self.bare = [transfer for transfer in transfers.tolist() if transfer not in self.span_of]
        self.transfers = transfers.tolist()
        self.works = [row for lane in by_lane.values() for row in lane if kinds[row] != _COMMUNICATION]

    def node_of(self, transfer: int) -> int:
        """The id of a transfer's node."""
        row = self.span_of.get(transfer)
        return len(self._start_s) + transfer + 1 if row is None else row + 1

    def start_s(self, row: int) -> float:
        """When a span began."""
        return self._start_s[row]

    def end_s(self, row: int) -> float:
        """When a span ended."""
        return self._end_s[row]

    def _nest(self, lane: list[int]) -> None:
        open_: list[int] = []
        for at, row in enumerate(lane):
            while open_ and self._end_s[open_[-1]] <= self._start_s[row]:
                open_.pop()
            if open_ and self._end_s[row] <= self._end_s[open_[-1]]:
                self.parent[row] = open_[-1]
                self.alone_s[open_[-1]] = max(
                    0.0, self.alone_s[open_[-1]] - (self._end_s[row] - self._start_s[row])
                )
            if at:
                self.previous[row] = lane[at - 1]
            open_.append(row)


def inferred(order: RankOrder) -> dict[int, list[int]]:
    """By node the nodes that it waits for, as times and lanes say: the lane, producers and consumers."""
    waits: dict[int, list[int]] = {row + 1: [before + 1] for row, before in order.previous.items()}
    by_end = sorted((order.end_s(row), row) for row in order.works)
    by_start = sorted((order.start_s(row), row) for row in order.works)
    for transfer in order.transfers:
        node = order.node_of(transfer)
        producer = _producer(order, transfer, by_end)
        if producer is not None:
            waits.setdefault(node, []).append(producer + 1)
        consumer = _consumer(order, transfer, by_start)
        if consumer is not None:
            waits.setdefault(consumer + 1, []).append(node)
    return {node: list(dict.fromkeys(before)) for node, before in waits.items()}


def _begin(order: RankOrder, transfer: int) -> tuple[float, int]:
    row = order.span_of.get(transfer)
    if row is None:
        return float(order.timeline.transfers.first_byte_s[transfer]), 0
    return order.start_s(row), row


def _producer(order: RankOrder, transfer: int, by_end: list[tuple[float, int]]) -> int | None:
    """The last span that had ended when the transfer was handed over (or began, where that is not known)."""
    sent = order.timeline.transfers
    handed_s = float(sent.enqueue_s[transfer])
    if math.isnan(handed_s):
        handed_s = float(sent.first_byte_s[transfer])
    place = bisect_right(by_end, (handed_s, len(order.timeline.spans))) - 1
    if place < 0:
        return None
    row = by_end[place][1]
    return row if order.start_s(row) < _begin(order, transfer)[0] else None


def _consumer(order: RankOrder, transfer: int, by_start: list[tuple[float, int]]) -> int | None:
    """The first span that began when the last byte was there and its consumer, if known, had gone on."""
    sent = order.timeline.transfers
    released_s = float(sent.released_s[transfer])
    ready_s = max(float(sent.last_byte_s[transfer]), -math.inf if math.isnan(released_s) else released_s)
    place = bisect_right(by_start, (ready_s, -1))
    if place == len(by_start):
        return None
    row = by_start[place][1]
    return row if order.start_s(row) > _begin(order, transfer)[0] else None


CHAKRA_VERSION = "0.0.4"

_POINT_TO_POINT = {"send": COMM_SEND, "recv": COMM_RECV}


def to_chakra(timeline: JobTimeline) -> tuple[ChakraTrace, ...]:
    """A trace for each rank, in the order of the timeline's ranks.

    Raises:
        InputError: if a fact or an attribute is no plain JSON value.
    """
    return tuple(_Rank(timeline, place).trace() for place in range(len(timeline.ranks)))


class _Rank:
    """One rank's part of the timeline."""

    def __init__(self, timeline: JobTimeline, place: int) -> None:
        self._timeline = timeline
        self._place = place
        self._rows = np.flatnonzero(timeline.spans.rank == place)
        self._transfers = np.flatnonzero(timeline.transfers.rank == place)
        self._order = RankOrder(timeline, self._rows, self._transfers)
        self._base_s = float(timeline.spans.start_s.min()) if len(timeline.spans) else 0.0

    def trace(self) -> ChakraTrace:
        stated, across = self._dependencies()
        guessed = inferred(self._order)
        nodes = [self._span_node(int(row), stated, guessed) for row in self._order.rows]
        nodes += [self._bare_node(int(transfer), guessed) for transfer in self._order.bare]
        return ChakraTrace(CHAKRA_VERSION, self._metadata(across), tuple(nodes))

    def _dependencies(self) -> tuple[dict[int, list[int]], list[int]]:
        """By span the spans of this rank it waits for, and the pairs that end here but begin on another rank."""
        stated: dict[int, list[int]] = {}
        across: list[int] = []
        owner = self._timeline.spans.rank
        pairs = self._timeline.dependencies
        for before, after in pairs[owner[pairs[:, 1]] == self._place].tolist() if len(pairs) else ():
            if owner[before] == self._place:
                stated.setdefault(after, []).append(before)
            else:
                across += (before, after)
        return stated, across

    def _span_node(self, row: int, stated: dict[int, list[int]], guessed: dict[int, list[int]]) -> ChakraNode:
        timeline, spans = self._timeline, self._timeline.spans
        kind = SPAN_KINDS[spans.kind[row]]
        waits = [before + 1 for before in dict.fromkeys(stated.get(row, ()))]
        extra = [before for before in guessed.get(row + 1, ()) if before not in waits]
        attributes = [
            Attribute("is_cpu_op", "bool_val", not timeline.lanes[spans.lane[row]].startswith("stream")),
            Attribute("tid", "int64_val", int(spans.lane[row])),
        ]
        transfer = int(spans.transfer[row])
        node_type = COMP
        is_first = self._order.span_of.get(transfer, -1) == row
        if is_first:
            node_type, said = self._communication(transfer, row)
            attributes += said
        attributes += self._kept(row, extra)
        again = kind == "communication" and transfer >= 0 and not is_first  # its bytes are on another node
        busy = kind != "wait" and not again
        return ChakraNode(
            id=row + 1,
            name=timeline.names[spans.name[row]],
            type=node_type,
            ctrl_deps=(self._order.parent[row] + 1,) if row in self._order.parent else (),
            data_deps=(*waits, *extra),
            start_micros=round((float(spans.start_s[row]) - self._base_s) * 1e6),
            duration_micros=round(self._order.alone_s[row] * 1e6) if busy else 0,
            attributes=tuple(attributes),
        )

    def _kept(self, row: int, extra: list[int]) -> list[Attribute]:
        spans = self._timeline.spans
        columns = (spans.lane, spans.name, spans.kind, spans.iteration, spans.transfer, spans.operation)
        kept = [
            Attribute("hemiola_span", "int64_list", (row, *(int(column[row]) for column in columns))),
            Attribute("hemiola_s", "double_list", (float(spans.start_s[row]), float(spans.end_s[row]))),
        ]
        if extra:
            kept.append(Attribute("hemiola_inferred", "uint64_list", tuple(extra)))
        if self._timeline.attributes and self._timeline.attributes[row]:
            kept.append(Attribute("hemiola_attributes", "string_val", _json(self._timeline.attributes[row])))
        return kept

    def _bare_node(self, transfer: int, guessed: dict[int, list[int]]) -> ChakraNode:
        """The node of a transfer that no span shows."""
        timeline, sent = self._timeline, self._timeline.transfers
        node_type, said = self._communication(transfer, -1)
        id_ = self._order.node_of(transfer)
        first_s = float(sent.first_byte_s[transfer])
        return ChakraNode(
            id=id_,
            name=timeline.names[sent.name[transfer]],
            type=node_type,
            data_deps=tuple(guessed.get(id_, ())),
            start_micros=max(0, round((first_s - self._base_s) * 1e6)),
            duration_micros=round((float(sent.last_byte_s[transfer]) - first_s) * 1e6),
            attributes=(Attribute("is_cpu_op", "bool_val", True), *said),
        )

    def _communication(self, transfer: int, row: int) -> tuple[int, list[Attribute]]:
        """Node type and attributes of a transfer; a computation where Chakra does not have its collective."""
        timeline, sent = self._timeline, self._timeline.transfers
        collective = timeline.names[sent.collective[transfer]]
        said = []
        size_bytes = float(sent.size_bytes[transfer])
        if size_bytes < 1 << 63:
            said.append(Attribute("comm_size", "int64_val", round(size_bytes)))
        if sent.group[transfer] >= 0:
            said.append(Attribute("pg_name", "string_val", str(int(sent.group[transfer]))))
        if collective in _POINT_TO_POINT:
            return _POINT_TO_POINT[collective], said + self._ends(transfer, row, collective)
        if collective not in COLLECTIVES:
            return COMP, []
        said.insert(0, Attribute("comm_type", "int64_val", COLLECTIVES.index(collective)))
        return COMM_COLL, [*said, Attribute("involved_dim", "bool_list", (True,))]

    def _ends(self, transfer: int, row: int, collective: str) -> list[Attribute]:
        """Who sends and who receives, as far as it is known."""
        timeline = self._timeline
        me = timeline.ranks[self._place].rank
        told = timeline.attributes[row] if timeline.attributes and row >= 0 else {}
        other = told.get("Dst Rank" if collective == "send" else "Src Rank")
        group = timeline.transfers.group[transfer]
        if other is None and group >= 0 and len(timeline.groups[group]) == 2:
            other = next((rank for rank in timeline.groups[group] if rank != me), None)
        ends = (
            {"comm_src": me, "comm_dst": other}
            if collective == "send"
            else {"comm_src": other, "comm_dst": me}
        )
        return [
            Attribute(name, "int32_val", rank)
            for name, rank in ends.items()
            if isinstance(rank, int) and 0 <= rank < 1 << 31
        ]

    def _metadata(self, across: list[int]) -> tuple[Attribute, ...]:
        timeline = self._timeline
        iterations = np.flatnonzero(timeline.iterations.rank == self._place)
        rest = replace(
            without_spans(timeline),
            transfers=TransferLog(
                *(column[self._transfers] for column in timeline.transfers.columns().values())
            ),
            iterations=Iterations(*(column[iterations] for column in timeline.iterations.columns().values())),
        )
        groups = {str(number): list(group) for number, group in enumerate(timeline.groups)}
        return (
            Attribute("schema", "string_val", f"hemiola-chakra.{CHAKRA_VERSION}"),
            Attribute("rank", "int64_val", timeline.ranks[self._place].rank),
            Attribute("process_groups", "string_val", _json(groups)),
            Attribute("hemiola_job", "string_val", timeline_to_json(rest).decode()),
            Attribute("hemiola_place", "int64_val", self._place),
            Attribute("hemiola_with_attributes", "bool_val", bool(timeline.attributes)),
            Attribute("hemiola_transfers", "int64_list", tuple(self._transfers.tolist())),
            Attribute("hemiola_iterations", "int64_list", tuple(iterations.tolist())),
            Attribute("hemiola_across", "int64_list", tuple(across)),
        )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# A job's timeline as Chakra `.et` files, one per rank, named as Chakra's tools expect them.


def write_chakra(timeline: JobTimeline, path: Path) -> tuple[Path, ...]:
    """Write "job.0.et", "job.1.et", ... for the path "job.et" (or "job.0.et.gz" ... for "job.et.gz").

    Returns:
        The files, in the order of the timeline's ranks.

    Raises:
        InputError: if a file cannot be written, a value cannot be kept, or protobuf is missing.
    """
    packed = ".gz" if path.suffix == ".gz" else ""
    stem = path.name.removesuffix(packed).removesuffix(".et")
    written = []
    for rank, trace in zip(timeline.ranks, to_chakra(timeline), strict=True):
        written.append(path.with_name(f"{stem}.{rank.rank}.et{packed}"))
        write_et(trace, written[-1])
    return tuple(written)
