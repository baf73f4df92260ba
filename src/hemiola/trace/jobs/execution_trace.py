"""PyTorch execution traces (ExecutionTraceObserver, JSON): what ran, and through which tensors it hangs together.

They have no times. Joined to the Kineto trace of the same process, by the id of the recorded
function that both carry, they give a timeline its data dependencies.

Facts about the format: torch `execution_trace_observer.cpp`, schemas "1.0.2-chakra.0.0.4" up to
"1.1.1-chakra.0.0.4". A tensor is [its id, its storage's id, offset, elements, bytes of one, device].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hemiola.core.errors import InputError
from hemiola.core.job_timeline import JobTimeline
from hemiola.trace.jobs.json_stream import JsonStream, decoding
from hemiola.trace.jobs.kineto.timeline import KinetoJob

__all__ = [
    "EXECUTION_LIST",
    "ExecutionNode",
    "ExecutionTrace",
    "data_dependencies",
    "join",
    "read_execution_trace",
]

EXECUTION_LIST = "nodes"

_COMMUNICATION = ("gloo:", "nccl:", "mpi:", "ucc:", "c10d::", "record_param_comms")
_ONLY_READS = ("send",)


class ExecutionNode(msgspec.Struct, frozen=True):
    """One recorded function.

    Attributes:
        id: within its trace.
        name: of the operation.
        parent: id of the node that called it.
        record: id of the recorded function ("rf_id"); 0 for the process and its threads.
        reads, writes: ids of the storages of the tensors that go in and come out.
        attributes: what else the file says of it.
    """

    id: int
    name: str
    parent: int
    record: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    attributes: dict[str, Any]


class ExecutionTrace(msgspec.Struct, frozen=True):
    """What one process ran.

    Attributes:
        schema: of the file.
        pid: the process's id in the operating system.
        nodes: in the file's order.
        about: the file's other members.
    """

    schema: str
    pid: int
    nodes: tuple[ExecutionNode, ...]
    about: dict[str, Any]


def read_execution_trace(path: Path) -> ExecutionTrace:
    """Read one file.

    Raises:
        InputError: naming the byte or the node, if it is damaged, or of a schema that is not known.
    """
    about: dict[str, Any] = {}
    nodes: list[ExecutionNode] = []
    with JsonStream(path, [EXECUTION_LIST]).members() as members:
        for key, value in members:
            with decoding(f"{path}: node {len(nodes) + 1}", "execution trace"):
                if key == EXECUTION_LIST:
                    _known(str(about.get("schema", "")))
                    nodes.append(_node(value))
                else:
                    about[key] = value
    with decoding(str(path), "execution trace"):
        schema, pid = _known(str(about.pop("schema", ""))), int(about.pop("pid"))
    return ExecutionTrace(schema, pid, tuple(nodes), about)


def _known(schema: str) -> str:
    version = schema.partition("-")[0].split(".")
    if not schema.count("chakra") or not all(part.isdigit() for part in version):
        raise ValueError(f"its schema is {schema!r}, not 1.0.2-chakra.0.0.4 or later")
    if not (1, 0, 2) <= tuple(int(part) for part in version) < (2,):
        raise ValueError(f"its schema {schema!r} is not one of 1.0.2-chakra.0.0.4 to 1.x")
    return schema


def _node(value: dict[str, Any]) -> ExecutionNode:
    said = {entry["name"]: entry["value"] for entry in value.get("attrs", ())}
    return ExecutionNode(
        id=int(value["id"]),
        name=str(value["name"]),
        parent=int(value["ctrl_deps"]),
        record=int(said.get("rf_id", 0)),
        reads=tuple(dict.fromkeys(_storages(value["inputs"]["values"]))),
        writes=tuple(dict.fromkeys(_storages(value["outputs"]["values"]))),
        attributes=said,
    )


def _storages(values: Any) -> Iterator[int]:
    """The storages of all tensors in an argument list, however deep they lie in lists."""
    if isinstance(values, list):
        if len(values) == 6 and isinstance(values[5], str) and all(type(part) is int for part in values[:5]):
            if values[1]:
                yield values[1]
            return
        for value in values:
            yield from _storages(value)


def data_dependencies(trace: ExecutionTrace) -> list[tuple[int, int]]:
    """Pairs of node ids (writer, reader): who read what who had written last, in the order of recording.

    An operation writes what comes out of it, but a view of what goes in is no writing unless its schema
    says so ("!"); a collective, all but a send, writes the tensors that it is given. Nobody depends on
    a caller of theirs, nor on what a caller of theirs depends on already, collectives excepted: those
    must have their producers at hand.
    """
    parents = {node.id: node.parent for node in trace.nodes if node.parent != node.id}
    last: dict[int, int] = {}
    found: dict[int, set[int]] = {}
    for node in sorted(trace.nodes, key=lambda node: (node.record, node.id)):
        if not node.record:
            continue
        callers = set(_callers(node.id, parents))
        writers = {last[storage] for storage in node.reads if storage in last} - {node.id}
        sends = node.name.startswith(_COMMUNICATION)
        inherited = set().union(*(found.get(caller, ()) for caller in callers))
        found[node.id] = (writers - callers) | inherited if sends else writers - callers - inherited
        last |= dict.fromkeys(_written(node, sends), node.id)
    return [(writer, node) for node, writers in found.items() for writer in sorted(writers - {node})]


def _callers(node: int, parents: dict[int, int]) -> Iterator[int]:
    seen = {node}
    while (node := parents.get(node, node)) not in seen:  # damaged files can go round in a circle
        seen.add(node)
        yield node


def _written(node: ExecutionNode, sends: bool) -> set[int]:
    if sends:
        return set() if node.name.endswith(_ONLY_READS) else {*node.writes, *node.reads}
    in_place = "!" in str(node.attributes.get("op_schema", ""))
    return set(node.writes) if in_place else set(node.writes) - set(node.reads)


def join(job: KinetoJob, traces: Sequence[ExecutionTrace]) -> JobTimeline:
    """The timeline of Kineto traces with the data dependencies of execution traces of the same processes.

    Raises:
        InputError: if an execution trace is of a process that has no Kineto trace, or of another run.
    """
    names, name_of = job.timeline.names, job.timeline.spans.name
    pairs = [tuple(pair) for pair in job.timeline.dependencies.tolist()]
    linked: dict[str, Any] = {}
    for trace in traces:
        if trace.pid not in job.spans_of:
            raise InputError(
                f"the execution trace of process {trace.pid} has no Kineto trace beside it",
                f"give the Kineto trace of the same run; those given are of processes {sorted(job.spans_of)}",
            )
        spans = job.spans_of[trace.pid]
        span_of = {
            node.id: spans[node.record]
            for node in trace.nodes
            if node.record in spans and names[name_of[spans[node.record]]] == node.name
        }
        if not span_of:
            raise InputError(
                f"no operation of process {trace.pid} is in both its execution trace and its Kineto trace",
                "record both in one run: profile(..., execution_trace_observer=...)",
            )
        found = [
            (span_of[a], span_of[b]) for a, b in data_dependencies(trace) if a in span_of and b in span_of
        ]
        pairs += found
        linked[str(trace.pid)] = {
            "nodes": len(trace.nodes),
            "linked": len(span_of),
            "data_dependencies": len(found),
        }
    facts = job.timeline.facts | {"execution_traces": linked}
    dependencies = np.array(list(dict.fromkeys(pairs)), dtype=np.int64).reshape(-1, 2)
    source = f"{job.timeline.source}; data dependencies from {len(traces)} execution traces"
    return replace(job.timeline, dependencies=dependencies, facts=facts, source=source).check()
