"""A job's timeline as Chakra traces, one per rank. Knows the timeline and Chakra's nodes, no files.

Every transfer becomes exactly one communication node (where Chakra has its collective), which waits
for what produced it and for which its consumers wait; the converter of Chakra itself gives a gloo
job none of these (issue 215 there). What the schema has no place for stands in attributes named
"hemiola_...", from which `chakra_from` restores the timeline without loss.
`docs/reference/traces.md` lists the attributes and the rules by which dependencies are inferred.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from hemiola.core.job_timeline import SPAN_KINDS, Iterations, JobTimeline, TransferLog
from hemiola.trace.jobs.chakra import Attribute, ChakraTrace, ChakraNode
from hemiola.trace.jobs.chakra_order import RankOrder, inferred
from hemiola.trace.jobs.chakra_schema import COLLECTIVES, COMM_COLL, COMM_RECV, COMM_SEND, COMP
from hemiola.trace.jobs.timeline_json import timeline_to_json, without_spans

__all__ = ["CHAKRA_VERSION", "to_chakra"]

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
