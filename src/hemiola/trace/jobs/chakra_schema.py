"""The messages of a Chakra `.et` file, made at run time from their field numbers. Knows protobuf, no traces.

Facts: MLCommons Chakra, `schema/protobuf/et_def.proto` (schema 0.0.4). Only the fields that Hemiola
reads are named; what a newer schema adds is kept by protobuf as unknown fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from hemiola.core.errors import InputError

__all__ = [
    "COLLECTIVES",
    "COMM_COLL",
    "COMM_RECV",
    "COMM_SEND",
    "COMP",
    "VALUE_KINDS",
    "Messages",
    "messages",
]

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
        _message(file, f"{scalar.capitalize()}List", [("values", 1, scalar, True)])
    _attribute(file)
    _message(
        file,
        "IOInfo",
        [(name, at + 1, "string", False) for at, name in enumerate(("values", "shapes", "types"))],
    )
    _message(file, "GlobalMetadata", [("version", 1, "string", False), ("attr", 2, "AttributeProto", True)])
    _message(
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


def _attribute(file: Any) -> None:
    fields = [("name", 1, "string", False), ("doc_string", 2, "string", False)]
    for at, kind in enumerate(VALUE_KINDS):
        scalar, what = kind.split("_")
        fields.append((kind, 3 + at, scalar if what == "val" else f"{scalar.capitalize()}List", False))
    message = _message(file, "AttributeProto", fields)
    message.oneof_decl.add(name="value")
    for field in message.field[2:]:
        field.oneof_index = 0


def _message(file: Any, name: str, fields: list[tuple[str, int, str, bool]]) -> Any:
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
