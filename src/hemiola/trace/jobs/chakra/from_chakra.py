"""Chakra traces as a job's timeline: Hemiola's own restored exactly, others' read as far as they go.

Knows the timeline and Chakra's nodes, no files. Where a trace has no start times, each node starts
as early as its dependencies allow; the timeline's facts say so.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from hemiola.core.errors import InputError
from hemiola.core.job_timeline import Iterations, JobTimeline, Spans, TimelineBuilder, TransferLog
from hemiola.trace.jobs.chakra.nodes import (
    COLLECTIVES,
    COMM_COLL,
    COMM_RECV,
    COMM_SEND,
    ChakraNode,
    ChakraTrace,
)
from hemiola.trace.jobs.collectives import collective_of
from hemiola.trace.jobs.json_stream import decoding
from hemiola.trace.jobs.timeline_json import timeline_from_json

__all__ = ["from_chakra"]

_METADATA = 1
_KINDS = {2: "copy", 3: "copy", 4: "compute", 8: "input", 9: "input"}
_TIMED = "start times are the traces'"
_SCHEDULED = (
    "the traces have no start times: every node starts as early as its data dependencies allow, ranks apart"
)


def from_chakra(
    traces: Sequence[ChakraTrace], ranks: Sequence[int] = (), *, source: str = "Chakra"
) -> JobTimeline:
    """The timeline of a job from the traces of its ranks.

    Args:
        traces: one for each rank.
        ranks: their numbers, for traces that do not say them; 0, 1, 2, ... if left out.
        source: what the timeline says of where it came from, unless a trace tells it itself.

    Raises:
        InputError: if the traces are of different jobs, or their dependencies go round in a circle.
    """
    with decoding(source, "Chakra trace"):
        ours = [trace.get("hemiola_job") is not None for trace in traces]
        if any(ours):
            if not all(ours):
                raise InputError("some traces were written by Hemiola and some not", "give traces of one job")
            return _restored(traces)
        return _foreign(traces, ranks or range(len(traces)), source)


def _restored(traces: Sequence[ChakraTrace]) -> JobTimeline:
    heads = [timeline_from_json(trace.get("hemiola_job").encode(), "hemiola_job") for trace in traces]
    first = replace(heads[0], transfers=TransferLog.empty(), iterations=Iterations.empty())
    for head in heads[1:]:
        differs = first.difference(replace(head, transfers=first.transfers, iterations=first.iterations))
        if differs:
            raise InputError(f"the traces are of different jobs: {differs}", "give the traces of one job")
    transfers, transfer_rows = _joined(traces, "hemiola_transfers", [head.transfers for head in heads])
    iterations, _ = _joined(traces, "hemiola_iterations", [head.iterations for head in heads])
    nodes = [
        (trace, node) for trace in traces for node in trace.nodes if node.get("hemiola_span") is not None
    ]
    nodes.sort(key=lambda pair: int(pair[1].get("hemiola_span")[0]))
    places = {int(node.get("hemiola_span")[0]): place for place, (_, node) in enumerate(nodes)}
    if len(places) != len(nodes):
        raise InputError("two traces are of one rank", "give one trace of each rank")
    with_attributes = bool(traces[0].get("hemiola_with_attributes"))
    return replace(
        first,
        spans=Spans.from_rows([_span(trace, node, transfer_rows) for trace, node in nodes]),
        transfers=transfers,
        iterations=iterations,
        dependencies=np.array(_stated(traces, nodes, places), dtype=np.int64).reshape(-1, 2),
        attributes=tuple(_said(node) for _, node in nodes) if with_attributes else (),
    ).check()


def _joined(traces: Sequence[ChakraTrace], name: str, tables: list[Any]) -> tuple[Any, dict[int, int]]:
    rows = np.array([row for trace in traces for row in trace.get(name)], dtype=np.int64)
    columns = [
        np.concatenate(parts) for parts in zip(*(table.columns().values() for table in tables), strict=True)
    ]
    if any(len(column) != len(rows) for column in columns):
        raise ValueError(f"{name} does not fit hemiola_job")
    order = np.argsort(rows, kind="stable")
    return type(tables[0])(*(column[order] for column in columns)), {
        int(row): place for place, row in enumerate(rows[order])
    }


def _span(trace: ChakraTrace, node: ChakraNode, transfer_rows: dict[int, int]) -> tuple[float, ...]:
    _, lane, name, kind, iteration, transfer, operation = node.get("hemiola_span")
    start_s, end_s = node.get("hemiola_s")
    place = transfer_rows[transfer] if transfer >= 0 else -1
    return (trace.get("hemiola_place"), lane, name, kind, start_s, end_s, iteration, place, operation)


def _stated(
    traces: Sequence[ChakraTrace], nodes: list[tuple[ChakraTrace, ChakraNode]], places: dict[int, int]
) -> list[tuple[int, int]]:
    pairs = []
    for place, (_, node) in enumerate(nodes):
        guessed = set(node.get("hemiola_inferred") or ())
        pairs += [(places[before - 1], place) for before in node.data_deps if before not in guessed]
    for trace in traces:
        across = trace.get("hemiola_across")
        pairs += [
            (places[before], places[after])
            for before, after in zip(across[::2], across[1::2], strict=True)
            if before in places  # its rank's trace may not be among those given
        ]
    return pairs


def _said(node: ChakraNode) -> dict[str, Any]:
    text = node.get("hemiola_attributes")
    return msgspec.json.decode(text, type=dict[str, Any]) if text else {}


def _foreign(traces: Sequence[ChakraTrace], ranks: Sequence[int], source: str) -> JobTimeline:
    builder = TimelineBuilder("Chakra traces")
    facts: dict[str, Any] = {"version": traces[0].version} if traces[0].version else {}
    facts |= {entry.name: _plain(entry.value) for entry in traces[0].metadata}
    missing, left_out, untimed = 0, 0, 0
    told = [
        node.start_micros for trace in traces for node in trace.nodes if _is_work(node) and node.start_micros
    ]
    earliest = min(told, default=0)
    error_s = math.inf if len(traces) > 1 else 0.0  # nothing says how their clocks differ
    for trace, number in zip(traces, ranks, strict=True):
        nodes = [node for node in trace.nodes if _is_work(node)]
        left_out += len(trace.nodes) - len(nodes)
        untimed += sum(not node.start_micros for node in nodes)
        starts = [max(node.start_micros - earliest, 0) for node in nodes] if told else _scheduled(nodes)
        place = builder.rank(number, clock_error_s=error_s)
        rows = {
            node.id: _add(builder, place, node, start * 1e-6)
            for node, start in zip(nodes, starts, strict=True)
        }
        if len(rows) != len(nodes):
            raise InputError(
                f"two nodes of rank {number} have one id", "convert the trace again from its source"
            )
        for node in nodes:
            for before in dict.fromkeys(node.data_deps):
                if before in rows and before != node.id:
                    builder.depend(rows[before], rows[node.id])
                else:
                    missing += 1
    facts |= {"times": _TIMED if told else _SCHEDULED, "metadata_nodes_left_out": left_out}
    if missing:
        facts["dependencies_on_nodes_not_in_the_trace"] = missing
    if told and untimed:
        facts["nodes_without_start_time"] = untimed
    return builder.build(facts=facts, source=source)


def _is_work(node: ChakraNode) -> bool:
    return node.type != _METADATA


def _add(builder: TimelineBuilder, place: int, node: ChakraNode, start_s: float) -> int:
    end_s = start_s + node.duration_micros * 1e-6
    collective = _collective(node)
    transfer = -1
    if collective:
        size = node.get("comm_size")
        group = node.get("pg_name")
        transfer = builder.transfer(
            place,
            node.name if group in (None, "") else f"{node.name} of group {group}",  # whose ranks are not told
            collective,
            float(size) if size is not None else math.nan,
            math.nan,
            start_s,
            end_s,
        )
    said = {"id": node.id, "ctrl_deps": list(node.ctrl_deps)}
    said |= {entry.name: _plain(entry.value) for entry in node.attributes}
    kind = "communication" if collective else _KINDS.get(node.type, "other")
    return builder.span(
        place,
        _lane(node),
        node.name,
        kind,
        start_s,
        end_s,
        transfer=transfer,
        attributes=said,
    )


def _collective(node: ChakraNode) -> str:
    """What a communication node sends; "" for others, and for calls that only ask a GPU for communication."""
    if node.type in (COMM_SEND, COMM_RECV):
        return "send" if node.type == COMM_SEND else "recv"
    number = node.get("comm_type")
    if node.type != COMM_COLL:
        return ""
    if number is None:  # a GPU's kernel still says it by its name; the CPU's part only asks for it
        return (collective_of(node.name) or "unknown") if node.get("is_cpu_op") is False else ""
    if not 0 <= number < len(COLLECTIVES):
        raise InputError(
            f"node {node.id} has the unknown comm_type {number}", f"it goes to {len(COLLECTIVES) - 1}"
        )
    return COLLECTIVES[number]


def _lane(node: ChakraNode) -> str:
    on_cpu = node.get("is_cpu_op")
    where = "stream" if on_cpu is False else "thread"
    number = node.get("stream") if node.get("stream") is not None and on_cpu is False else node.get("tid")
    return f"{where} {number}" if number is not None else ("GPU" if on_cpu is False else "CPU")


def _scheduled(nodes: list[ChakraNode]) -> list[int]:
    """Earliest starts in microseconds: every node after the ends of its data dependencies.

    Control dependencies say who called whom, and go round in circles in traces that Chakra's own tools
    wrote; its feeder resolves data dependencies only, and so does this.
    """
    place = {node.id: at for at, node in enumerate(nodes)}
    after: list[list[int]] = [[] for _ in nodes]
    waiting = [0] * len(nodes)
    for at, node in enumerate(nodes):
        for before in node.data_deps:
            if before in place and before != node.id:
                after[place[before]].append(at)
                waiting[at] += 1
    start = [0] * len(nodes)
    ready = deque(at for at, count in enumerate(waiting) if not count)
    done = 0
    while ready:
        at = ready.popleft()
        done += 1
        for later in after[at]:
            start[later] = max(start[later], start[at] + nodes[at].duration_micros)
            waiting[later] -= 1
            if not waiting[later]:
                ready.append(later)
    if done < len(nodes):
        stuck = next(nodes[at].id for at, count in enumerate(waiting) if count)
        raise InputError(
            f"the data dependencies of node {stuck} go round in a circle",
            "convert the trace again from its source",
        )
    return start


def _plain(value: Any) -> Any:
    """The value as JSON can keep it."""
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
