"""Chakra execution traces as values, and their `.et` files (protobuf), read and written without loss.

An `.et` file is a GlobalMetadata message and then ChakraNode messages, each with its length before it.
Knows the format; what its nodes mean on a timeline is `chakra_from` and `chakra_to`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec

from hemiola.core.errors import InputError
from hemiola.trace.atomic import replacing
from hemiola.trace.jobs.chakra_schema import messages
from hemiola.trace.jobs.opening import decoding, opened

__all__ = ["IO", "Attribute", "ChakraTrace", "ChakraNode", "read_et", "stream_nodes", "write_et"]

_LARGEST = 1 << 31  # protobuf's own limit on one message
_BLOCK = 1 << 20


class Attribute(msgspec.Struct, frozen=True):
    """A named value.

    Attributes:
        name, doc_string: as in the file.
        kind: which of the schema's kinds of value it is ("int64_val", "bool_list", ...); "" for none of them.
        value: it; lists are tuples; None for no value.
        unknown: bytes of fields that a newer schema has added.
    """

    name: str
    kind: str = ""
    value: Any = None
    doc_string: str = ""
    unknown: bytes = b""


class IO(msgspec.Struct, frozen=True):
    """What goes into or comes out of a node, as text that its writer has chosen."""

    values: str = ""
    shapes: str = ""
    types: str = ""
    unknown: bytes = b""


class ChakraNode(msgspec.Struct, frozen=True):
    """An operation or a communication.

    Attributes:
        id: within its trace.
        name: of the operation.
        type: number of the schema's node type (4: computation, 5: send, 6: receive, 7: collective).
        ctrl_deps, data_deps: ids of nodes that it waits for.
        start_micros, duration_micros: 0 also where it is not known, as in the file.
        inputs, outputs: None where the file has none.
        attributes: everything else, in the file's order.
        unknown: bytes of fields that a newer schema has added.
    """

    id: int
    name: str = ""
    type: int = 0
    ctrl_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    start_micros: int = 0
    duration_micros: int = 0
    inputs: IO | None = None
    outputs: IO | None = None
    attributes: tuple[Attribute, ...] = ()
    unknown: bytes = b""

    def get(self, name: str) -> Any:
        """The value of an attribute; None if it is not there."""
        return next((entry.value for entry in self.attributes if entry.name == name), None)


class ChakraTrace(msgspec.Struct, frozen=True):
    """What one rank did, as a graph.

    Attributes:
        version: as the file says; "" if it does not.
        metadata: facts about the whole.
        nodes: in the file's order, which need not be that of their dependencies.
        unknown: bytes of fields of the metadata that a newer schema has added.
    """

    version: str
    metadata: tuple[Attribute, ...]
    nodes: tuple[ChakraNode, ...]
    unknown: bytes = b""

    def get(self, name: str) -> Any:
        """The value of a fact about the whole; None if it is not there."""
        return next((entry.value for entry in self.metadata if entry.name == name), None)


def read_et(path: Path) -> ChakraTrace:
    """Read an `.et` file, whole.

    Raises:
        InputError: naming the byte, if it is cut off or no such file; or if protobuf is missing.
    """
    head, nodes = stream_nodes(path)
    return msgspec.structs.replace(head, nodes=tuple(nodes))


def stream_nodes(path: Path) -> tuple[ChakraTrace, Iterator[ChakraNode]]:
    """The head of an `.et` file, as a trace without nodes, and its nodes one by one, however many.

    Raises:
        InputError: as `read_et`; for a node when it is reached.
    """
    parts = _parts(path)
    return next(parts), parts


def _parts(path: Path) -> Iterator[Any]:
    kinds = messages()
    with opened(path) as stream:
        at, blob = 0, _message(stream, path, 0)
        if blob is None:
            raise InputError(f"{str(path)!r} is empty", "copy it again")
        with decoding(f"{path}: byte {at}", "Chakra .et file"):
            yield _head(_parsed(kinds.metadata, blob))
        while True:
            at += len(blob) + len(_varint(len(blob)))
            blob = _message(stream, path, at)
            if blob is None:
                return
            with decoding(f"{path}: byte {at}", "Chakra .et file"):
                node = _node(_parsed(kinds.node, blob))
            yield node


def _message(stream: BufferedReader, path: Path, at: int) -> bytes | None:
    length = shift = 0
    while True:
        byte = stream.read(1)
        if not byte:
            if not shift:
                return None
            raise _cut(path, at)
        length |= (byte[0] & 127) << shift
        shift += 7
        if byte[0] < 128:
            break
        if shift > 63:
            raise _cut(path, at)
    if length >= _LARGEST:
        raise _cut(path, at)
    blocks, left = [], length
    while left:  # by blocks: a length that is damage must not reserve memory
        block = stream.read(min(left, _BLOCK))
        if not block:
            raise _cut(path, at)
        blocks.append(block)
        left -= len(block)
    return b"".join(blocks)


def _cut(path: Path, at: int) -> InputError:
    return InputError(
        f"{str(path)!r} is no whole Chakra .et file: the message at byte {at} is cut off or damaged",
        "copy it again, or convert it again from its source",
    )


def _parsed(kind: Any, blob: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(blob)
    except DecodeError as error:
        raise ValueError(str(error)) from error


def _head(message: Any) -> ChakraTrace:
    attributes = tuple(_attribute(entry) for entry in message.attr)
    return ChakraTrace(message.version, attributes, (), _unknown(message))


def _node(message: Any) -> ChakraNode:
    return ChakraNode(
        message.id, message.name, message.type, tuple(message.ctrl_deps), tuple(message.data_deps),
        message.start_time_micros, message.duration_micros,
        _io(message.inputs) if message.HasField("inputs") else None,
        _io(message.outputs) if message.HasField("outputs") else None,
        tuple(_attribute(entry) for entry in message.attr), _unknown(message),
    )  # fmt: skip


def _io(message: Any) -> IO:
    return IO(message.values, message.shapes, message.types, _unknown(message))


def _attribute(message: Any) -> Attribute:
    kind = message.WhichOneof("value") or ""
    value: Any = getattr(message, kind) if kind else None
    if kind.endswith("_list"):
        value = tuple(value.values)
    return Attribute(message.name, kind, value, message.doc_string, _unknown(message))


def _unknown(message: Any) -> bytes:
    """The fields that this schema does not name: what is left when all that it names are gone."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    if not len(UnknownFieldSet(message)):
        return b""
    rest = type(message).FromString(message.SerializeToString())
    for field in rest.DESCRIPTOR.fields:
        rest.ClearField(field.name)
    return bytes(rest.SerializeToString())


def write_et(trace: ChakraTrace, path: Path, nodes: Iterable[ChakraNode] | None = None) -> None:
    """Write a trace as an `.et` file; compressed if the path ends in ".gz".

    Args:
        trace: the head, and the nodes unless they are given apart.
        path: where to.
        nodes: in place of the trace's, to write more than memory holds.

    Raises:
        InputError: if the path cannot be written, a value does not fit its kind, or protobuf is missing.
    """
    kinds = messages()
    with replacing(path) as stream, decoding(str(path), "Chakra .et file"):
        head = kinds.metadata(version=trace.version)
        _put_attributes(head, trace.metadata)
        head.MergeFromString(trace.unknown)
        for message in _lead(head, kinds.node, trace.nodes if nodes is None else nodes):
            blob = message.SerializeToString(deterministic=True)
            stream.write(_varint(len(blob)) + blob)


def _lead(head: Any, kind: Any, nodes: Iterable[ChakraNode]) -> Iterator[Any]:
    yield head
    for node in nodes:
        message = kind(
            id=node.id, name=node.name, type=node.type, ctrl_deps=node.ctrl_deps, data_deps=node.data_deps,
            start_time_micros=node.start_micros, duration_micros=node.duration_micros,
        )  # fmt: skip
        for target, io in ((message.inputs, node.inputs), (message.outputs, node.outputs)):
            if io is not None:
                target.SetInParent()
                target.values, target.shapes, target.types = io.values, io.shapes, io.types
                target.MergeFromString(io.unknown)
        _put_attributes(message, node.attributes)
        message.MergeFromString(node.unknown)
        yield message


def _put_attributes(message: Any, attributes: Iterable[Attribute]) -> None:
    for entry in attributes:
        target = message.attr.add(name=entry.name, doc_string=entry.doc_string)
        if entry.kind.endswith("_list"):
            values = getattr(target, entry.kind)
            values.SetInParent()
            values.values.extend(entry.value)
        elif entry.kind:
            setattr(target, entry.kind, entry.value)
        target.MergeFromString(entry.unknown)


def _varint(number: int) -> bytes:
    groups = []
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])
