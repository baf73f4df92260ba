"""Chakra's JSON form, read as the same values as `.et` files. Knows the format, not what nodes mean.

Facts: MLCommons Chakra, `src/feeder/json_node.cpp`, and the samples published beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hemiola.core.errors import InputError
from hemiola.trace.jobs.chakra import Attribute, ChakraTrace, ChakraNode, read_et
from hemiola.trace.jobs.json_stream import JsonStream
from hemiola.trace.jobs.opening import decoding, looks_like_json

__all__ = ["CHAKRA_LIST", "read_chakra", "read_chakra_json"]

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
