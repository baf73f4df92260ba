"""A graph as a file and back, nothing lost: columns in compact JSON, schema "hemiola.graph/1".

`docs/reference/graph.md` describes the file. Numbers that JSON lacks (infinities, not-a-number,
as in an attention mask) are written as {"float": "-inf"}.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import DAMAGED, GraphError, InputError
from hemiola.core.graph import KINDS, PHASES, Buffer, Graph, Operations, Parameter, Signature
from hemiola.trace.atomic import replacing
from hemiola.trace.results import read_bytes, wrong_schema

__all__ = ["GRAPH_SCHEMA", "read_graph", "write_graph"]

GRAPH_SCHEMA = "hemiola.graph/1"

_INTEGERS = {
    "kind": np.int8, "phase": np.int8, "micro_step": np.int16, "module": np.int64, "forward": np.int64,
    "signature": np.int64, "dep_start": np.int64, "dep": np.int64,
}  # fmt: skip


class _Columns(msgspec.Struct, forbid_unknown_fields=True):
    names: list[str]
    name: list[int]
    kind: list[int]
    phase: list[int]
    micro_step: list[int]
    flop: list[float]
    read_bytes: list[float]
    written_bytes: list[float]
    module: list[int]
    forward: list[int]
    signature: list[int]
    dep_start: list[int]
    dep: list[int]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    name: str
    source: str
    samples: int
    saved_bytes: float
    optimizer_bytes: float
    kinds: list[str]
    phases: list[str]
    modules: list[str]
    blocks: list[str]
    parameters: list[Parameter]
    buffers: list[Buffer]
    signatures: list[Signature]
    operations: _Columns


class _Head(msgspec.Struct):
    schema: str = ""


def write_graph(graph: Graph, path: Path) -> None:
    """Write a graph; one whose name ends in ".gz" is compressed.

    Raises:
        InputError: if the path cannot be written.
        GraphError: if the graph is none.
    """
    graph.check()
    columns = graph.operations
    names = {name: i for i, name in enumerate(dict.fromkeys(columns.name))}
    arrays = {
        column: getattr(columns, column).tolist()
        for column in (*_INTEGERS, "flop", "read_bytes", "written_bytes")
    }
    file = _File(
        schema=GRAPH_SCHEMA,
        name=graph.name,
        source=graph.source,
        samples=graph.samples,
        saved_bytes=graph.saved_bytes,
        optimizer_bytes=graph.optimizer_bytes,
        kinds=list(KINDS),
        phases=list(PHASES),
        modules=list(graph.modules),
        blocks=list(graph.blocks),
        parameters=list(graph.parameters),
        buffers=list(graph.buffers),
        signatures=[_each(signature, _packed) for signature in graph.signatures],
        operations=_Columns(names=list(names), name=[names[name] for name in columns.name], **arrays),
    )
    content = msgspec.json.encode(file)
    with replacing(path) as stream:
        stream.write(content + b"\n")


def read_graph(path: Path) -> Graph:
    """Read a graph and check it.

    Raises:
        InputError: if the file is missing, damaged, of a newer Hemiola, or no graph.
    """
    content = read_bytes(path)
    try:
        schema = msgspec.json.decode(content, type=_Head).schema
    except DAMAGED as error:
        raise wrong_schema(path, GRAPH_SCHEMA, str(error)) from error
    _check_schema(path, schema)
    try:
        return _graph(msgspec.json.decode(content, type=_File)).check()
    except msgspec.DecodeError as error:
        raise InputError(f"{str(path)!r} is damaged: {error}", "capture the model again") from error
    except (GraphError, OverflowError, IndexError, ValueError, TypeError, RecursionError) as error:
        what = error.what if isinstance(error, GraphError) else str(error)
        raise InputError(f"{str(path)!r} is damaged: {what}", "capture the model again") from error


def _check_schema(path: Path, schema: str) -> None:
    if schema == GRAPH_SCHEMA:
        return
    family, _, version = schema.rpartition("/")
    if family == GRAPH_SCHEMA.rpartition("/")[0] and version.isdecimal():
        raise InputError(
            f"{str(path)!r} is of schema {schema!r}; this Hemiola reads {GRAPH_SCHEMA!r}",
            "read it with the Hemiola that wrote it, or capture the model again",
        )
    raise wrong_schema(path, GRAPH_SCHEMA, f"its schema is {schema!r}")


def _graph(file: _File) -> Graph:
    if tuple(file.kinds) != KINDS or tuple(file.phases) != PHASES:
        raise GraphError("its list of kinds or phases is not this schema's", "")
    columns = file.operations
    if columns.name and min(columns.name) < 0:
        raise IndexError("a name's index is negative")
    operations = Operations(
        name=tuple(columns.names[i] for i in columns.name),
        flop=_floats(columns.flop),
        read_bytes=_floats(columns.read_bytes),
        written_bytes=_floats(columns.written_bytes),
        **{column: np.array(getattr(columns, column), dtype=kind) for column, kind in _INTEGERS.items()},
    )
    return Graph(
        name=file.name,
        operations=operations,
        modules=tuple(file.modules),
        blocks=tuple(file.blocks),
        signatures=tuple(_each(signature, _unpacked) for signature in file.signatures),
        parameters=tuple(file.parameters),
        buffers=tuple(file.buffers),
        samples=file.samples,
        saved_bytes=file.saved_bytes,
        optimizer_bytes=file.optimizer_bytes,
        source=file.source,
    )


def _floats(values: list[float]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


def _each(signature: Signature, change: Any) -> Signature:
    """The signature with every value changed; itself where nothing does."""
    arguments = tuple(change(value) for value in signature.arguments)
    keywords = {name: change(value) for name, value in signature.keywords.items()}
    return Signature(signature.operation, arguments, keywords)


def _packed(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return [_packed(item) for item in value] if isinstance(value, list) else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"float"}:
        return float(value["float"])
    return [_unpacked(item) for item in value] if isinstance(value, list) else value
