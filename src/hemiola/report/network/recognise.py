"""Tells topologies and strategies from other files, by their content, and reads them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from hemiola.core.errors import InputError
from hemiola.core.collective.schedule import SCHEMA, CollectiveSchedule
from hemiola.core.topology import Topology
from hemiola.trace.jobs.json_stream import JsonStream
from hemiola.trace.jobs.opening import decoding, looks_like_json, opened, read_all
from hemiola.trace.msccl import read_msccl
from hemiola.trace.strategy_json import read_strategy
from hemiola.trace.struct_json import as_text
from hemiola.trace.topologies import GENERATORS, read_topology
from hemiola.trace.topologies.native import read_native

__all__ = ["Kind", "read_any_strategy", "recognise", "topology_of"]

Kind = Literal["topology", "strategy", ""]

_BEGIN = 1 << 16
"""Bytes in which a file has to say what it is."""
_TOML = re.compile(rb"^[ \t]*\[\[\s*hosts\s*\]\]", re.MULTILINE)
_XML = re.compile(
    rb"\A(?:\xef\xbb\xbf)?\s*(?:(?:<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>]*>)\s*)*<algo[\s/>]", re.DOTALL
)
_LISTS = ("moves", "traceEvents", "nodes", "")
"""Members of files of JSON that are too long to be read whole."""


def recognise(path: Path) -> Kind:
    """What a file holds; "" if it is neither, a folder, or cannot be read: whoever reads jobs says why.

    A generator's line ("flat:hosts=4,...") is a topology too.
    """
    if not path.is_file():
        return "topology" if str(path).partition(":")[0] in GENERATORS and not path.is_dir() else ""
    try:
        with opened(path) as stream:
            begin = stream.read(_BEGIN)
        if _TOML.search(begin):
            return "topology"
        return "strategy" if _XML.match(begin) or _schema(path) == SCHEMA else ""
    except InputError:
        return ""


def _schema(path: Path) -> object:
    """The file's schema, if it is JSON and says one before its long lists of something else."""
    if not looks_like_json(path):
        return None
    with JsonStream(path, _LISTS).members() as members:
        for key, value in members:
            if key == "schema" or (key in _LISTS and key != "moves"):
                return value if key == "schema" else None
    return None


def topology_of(path: Path) -> Topology:
    """The topology of a file of Hemiola's own, or of a generator's line.

    Raises:
        InputError, FormatError, TopologyError: as `read_native` and `read_topology`.
    """
    if not path.is_file():
        return read_topology(str(path))
    with decoding(str(path), "text"):
        text = read_all(path).decode()
    return read_native(text, as_text(path))


def read_any_strategy(path: Path) -> CollectiveSchedule:
    """A strategy from Hemiola's JSON or MSCCL's XML; whether it is right is for `CollectiveSchedule.verify` to say.

    Raises:
        InputError, StrategyError: as `read_strategy` and `read_msccl`.
    """
    return read_strategy(path) if looks_like_json(path) else read_msccl(path)
