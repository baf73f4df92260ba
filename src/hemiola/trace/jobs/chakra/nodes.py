"""Chakra execution traces as values, and their `.et` files (protobuf), read and written without loss.

An `.et` file is a GlobalMetadata message and then ChakraNode messages, each with its length before it.
Knows the format; what its nodes mean on a timeline is `from_chakra` and `to_chakra`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec

from hemiola.core.errors import InputError
from hemiola.trace.atomic import replacing
from hemiola.trace.jobs.json_stream import JsonStream, decoding, looks_like_json, opened

__all__ = [
    "CHAKRA_LIST",
    "COLLECTIVES",
    "COMM_COLL",
    "COMM_RECV",
    "COMM_SEND",
    "COMP",
    "IO",
    "VALUE_KINDS",
    "Attribute",
    "ChakraNode",
    "ChakraTrace",
    "messages",
    "read_chakra",
    "read_chakra_json",
    "read_et",
    "stream_nodes",
    "write_et",
]


# The messages of a Chakra `.et` file, made at run time from their field numbers. Knows protobuf, no
# traces.

COMP, COMM_SEND, COMM_RECV, COMM_COLL = 4, 5, 6, 7
"""The numbers of the node types that Hemiola writes, beside 1 (metadata)."""

COLLECTIVES = (
    "all-reduce", "reduce", "all-gather", "gather", "scatter", "broadcast", "all-to-all", "reduce-scatter",
    "reduce-scatter-block", "barrier",
)  # fmt: skip
"""The schema's kinds of collectives in Hemiola's words, by their numbers."""

_SCALARS = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64",
    "sfixed32", "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
VALUE_KINDS = tuple(f"{scalar}_{what}" for scalar in _SCALARS for what in ("val", "list"))
"""The kinds of an attribute's value; the first has field number 3."""

_PACKAGE = "ChakraProtoMsg"


@dataclass(frozen=True)
class Messages:
    """The classes of the two messages that a file consists of."""

    metadata: Any
    node: Any


@cache
def messages() -> Messages:
    """The message classes.

    Raises:
        InputError: if protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise InputError(
            "Chakra .et files need protobuf, which is not installed", "pip install 'hemiola[chakra]'"
        ) from error
    file = descriptor_pb2.FileDescriptorProto(name="hemiola_chakra.proto", package=_PACKAGE, syntax="proto3")
    for scalar in _SCALARS:
        _message_type(file, f"{scalar.capitalize()}List", [("values", 1, scalar, True)])
    _attribute_field(file)
    _message_type(
        file,
        "IOInfo",
        [(name, at + 1, "string", False) for at, name in enumerate(("values", "shapes", "types"))],
    )
    _message_type(
        file, "GlobalMetadata", [("version", 1, "string", False), ("attr", 2, "AttributeProto", True)]
    )
    _message_type(
        file,
        "Node",
        [
            ("id", 1, "uint64", False),
            ("name", 2, "string", False),
            ("type", 3, "int32", False),
            ("ctrl_deps", 4, "uint64", True),
            ("data_deps", 5, "uint64", True),
            ("start_time_micros", 6, "uint64", False),
            ("duration_micros", 7, "uint64", False),
            ("inputs", 8, "IOInfo", False),
            ("outputs", 9, "IOInfo", False),
            ("attr", 10, "AttributeProto", True),
        ],
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = [pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in ("GlobalMetadata", "Node")]
    return Messages(*(message_factory.GetMessageClass(descriptor) for descriptor in found))


def _attribute_field(file: Any) -> None:
    fields = [("name", 1, "string", False), ("doc_string", 2, "string", False)]
    for at, kind in enumerate(VALUE_KINDS):
        scalar, what = kind.split("_")
        fields.append((kind, 3 + at, scalar if what == "val" else f"{scalar.capitalize()}List", False))
    message = _message_type(file, "AttributeProto", fields)
    message.oneof_decl.add(name="value")
    for field in message.field[2:]:
        field.oneof_index = 0


def _message_type(file: Any, name: str, fields: list[tuple[str, int, str, bool]]) -> Any:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

    message = file.message_type.add(name=name)
    for label, number, kind, repeated in fields:
        field = message.field.add(
            name=label, number=number, label=Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
        )
        if kind in _SCALARS:
            field.type = getattr(Field, f"TYPE_{kind.upper()}")
        else:
            field.type, field.type_name = Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    return message


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


# Chakra's JSON form, read as the same values as `.et` files. Knows the format, not what nodes mean.

CHAKRA_LIST = "workload_graph"


def read_chakra(path: Path) -> ChakraTrace:
    """Read a file of either form: JSON if it begins with a brace, `.et` otherwise.

    Raises:
        InputError: if it is damaged or something else.
    """
    return read_chakra_json(path) if looks_like_json(path) else read_et(path)


def read_chakra_json(path: Path) -> ChakraTrace:
    """Read Chakra's JSON form: {"workload_graph": [{"Id", "Name", "NodeType", "data_deps", "runtime", ...}]}.

    What a node says beyond these becomes attributes, as does what stands beside the list.

    Raises:
        InputError: naming the byte or the node, if it is damaged or something else.
    """
    metadata: list[Attribute] = []
    nodes: list[ChakraNode] = []
    with JsonStream(path, [CHAKRA_LIST]).members() as members:
        for key, value in members:
            with decoding(f"{path}: node {len(nodes) + 1}", "Chakra JSON file"):
                if key == CHAKRA_LIST:
                    nodes.append(_json_node(value))
                else:
                    metadata.append(_json_attribute(key, value))
    if not nodes:
        raise InputError(f"{str(path)!r} holds no nodes in {CHAKRA_LIST!r}", "name a Chakra JSON file")
    return ChakraTrace("", tuple(metadata), tuple(nodes))


_JSON_FIELDS = {
    "Id": "id", "Name": "name", "NodeType": "type", "ctrlDeps": "ctrl_deps", "ctrl_deps": "ctrl_deps",
    "data_deps": "data_deps", "runtime": "duration_micros", "start_time_micros": "start_micros",
}  # fmt: skip


def _json_node(value: dict[str, Any]) -> ChakraNode:
    known = {_JSON_FIELDS[key]: entry for key, entry in value.items() if key in _JSON_FIELDS}
    rest = tuple(_json_attribute(key, entry) for key, entry in value.items() if key not in _JSON_FIELDS)
    return msgspec.convert({**known, "attributes": rest}, ChakraNode)


_SINGLE = {bool: "bool_val", int: "int64_val", float: "double_val", str: "string_val"}


def _json_attribute(name: str, value: Any) -> Attribute:
    """An attribute of the kind that the schema has for such a value; JSON text for what it has none for."""
    kind = _SINGLE.get(type(value), "")
    if not kind and isinstance(value, list) and value and type(value[0]) in _SINGLE:
        kind = _SINGLE[type(value[0])].replace("_val", "_list")
        if all(type(entry) is type(value[0]) for entry in value):
            return Attribute(name, kind, tuple(value))
        kind = ""
    if kind == "int64_val" and not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{name} is {value}, which is beyond 64 bits")
    if kind:
        return Attribute(name, kind, value)
    return Attribute(name, "string_val", msgspec.json.encode(value).decode(), doc_string="JSON")
