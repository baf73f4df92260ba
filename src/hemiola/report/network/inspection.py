"""Shows a topology or a schedule wherever it is asked for: terminal, page, JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from hemiola.core.collective.schedule import SCHEDULE_SCHEMA, CollectiveSchedule
from hemiola.core.errors import InputError
from hemiola.core.topology import Topology
from hemiola.report.document import write_page
from hemiola.report.network.figures import HostGroup, NetworkFigures, Rate, network_figures
from hemiola.report.network.page import render_network
from hemiola.report.network.schedule_page import (
    ScheduleFigures,
    ScheduleTable,
    render_schedule,
    schedule_figures,
)
from hemiola.report.network.words import NetworkTable
from hemiola.trace.atomic import replacing
from hemiola.trace.jobs.json_stream import JsonStream, decoding, looks_like_json, opened, read_all
from hemiola.trace.msccl import read_msccl
from hemiola.trace.struct_json import as_text, read_schedule
from hemiola.trace.topologies import GENERATORS, read_topology
from hemiola.trace.topologies.native import read_native

if TYPE_CHECKING:
    from rich.console import Console

    from hemiola.core.errors import ScheduleError


__all__ = [
    "NETWORK_SCHEMA",
    "SCHEDULE_FIGURES_SCHEMA",
    "network_as_json",
    "read_any_schedule",
    "recognise",
    "schedule_as_json",
    "show_schedule",
    "show_topology",
]


# A network's and a schedule's figures as JSON. What is not known, and what is unlimited, is null.

NETWORK_SCHEMA = "hemiola.network-inspection/1"
SCHEDULE_FIGURES_SCHEMA = "hemiola.strategy-inspection/1"


def write_json(value: dict[str, Any], path: Path) -> None:
    """Write figures.

    Raises:
        InputError: if the path cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    with replacing(path) as stream:
        stream.write(text + b"\n")


def network_as_json(figures: NetworkFigures) -> dict[str, Any]:
    """A topology's figures as plain values; rates in bytes/s, hosts and domains by their names."""
    topology, slowest = figures.topology, figures.slowest
    return {
        "schema": NETWORK_SCHEMA,
        "name": topology.name,
        "source": topology.source,
        "measured": figures.is_measured,
        "hosts": len(topology.hosts),
        "gpus": topology.gpus,
        "median_bytes_per_s": _finite(figures.median_bytes_per_s),
        "slowest": {"link": slowest.name, **_rate(slowest.rate), "hosts": slowest.hosts},
        "groups": [_group(figures, group) for group in figures.groups],
        "levels": [
            {
                "name": level.name,
                "domains": [
                    {
                        "names": [level.domains[number] for number in one.numbers],
                        "hosts_each": one.hosts,
                        "uplink": _rate(one.uplink),
                        "oversubscription": one.oversubscription or None,
                    }
                    for one in every
                ],
            }
            for level, every in zip(topology.levels, figures.domains, strict=True)
        ],
    }


def _group(figures: NetworkFigures, group: HostGroup) -> dict[str, Any]:
    return {
        "hosts": [figures.topology.hosts.names[host] for host in group.hosts],
        "out": _rate(group.out),
        "in": _rate(group.into),
        "latency_s": group.latency_s,
        "gpus_each": group.gpus,
        "gpu_type": group.gpu_type,
    }


def _rate(rate: Rate) -> dict[str, float | None]:
    low, high = (rate.low, rate.high) if rate.is_measured else (math.nan, math.nan)
    return {"bytes_per_s": _finite(rate.bytes_per_s), "low": _finite(low), "high": _finite(high)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def schedule_as_json(figures: ScheduleFigures) -> dict[str, Any]:
    """A schedule's figures as plain values; what is sent as a multiple of the data."""
    schedule = figures.schedule
    value: dict[str, Any] = {
        "schema": SCHEDULE_FIGURES_SCHEMA,
        **{
            name: getattr(schedule, name) for name in ("name", "collective", "ranks", "chunks", "chunk_bytes")
        },
        **{name: getattr(schedule, name) for name in ("weights", "in_place", "root", "source")},
        "moves": len(schedule.moves),
        "problem": figures.problem.what if figures.problem else None,
    }
    if figures.problem:
        return value
    return value | {
        "hops": figures.hops,
        "busiest": figures.busiest,
        "moves_sent": figures.sent,
        "groups": [
            {"ranks": one.ranks, "sends": one.sends, "receives": one.receives, "to": one.to, "from": one.of}
            for one in figures.groups
        ],
        "between": [
            {"from": source, "to": target, "share": share}
            for (source, target), share in sorted((figures.between or {}).items())
        ],
        "trees": [
            {"share": tree.share, "root": tree.root, "parents": tree.parents, "chunks": tree.chunks}
            for tree in figures.trees
        ],
    }


# Tells topologies and schedules from other files, by their content, and reads them.

Kind = Literal["topology", "schedule", ""]

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
        return "schedule" if _XML.match(begin) or _schema(path) == SCHEDULE_SCHEMA else ""
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


def read_any_schedule(path: Path) -> CollectiveSchedule:
    """A schedule from Hemiola's JSON or MSCCL's XML; whether it is right is for `CollectiveSchedule.verify` to say.

    Raises:
        InputError, ScheduleError: as `read_schedule` and `read_msccl`.
    """
    return read_schedule(path) if looks_like_json(path) else read_msccl(path)


def show_topology(
    path: Path, console: Console, *, report: Path | None, json: Path | None, title: str
) -> None:
    """Write a topology's page and figures where that is asked for, and print it.

    Raises:
        HemiolaError: if it cannot be read, or a path cannot be written.
    """
    figures = network_figures(topology_of(path))
    _write(report, lambda: render_network(figures, title), json, lambda: network_as_json(figures))
    console.print(NetworkTable(figures))


def show_schedule(
    path: Path, console: Console, *, report: Path | None, json: Path | None, title: str
) -> ScheduleError | None:
    """Write a schedule's page and figures where that is asked for, and print it.

    Returns:
        Why it is not right, if it is not.

    Raises:
        HemiolaError: if it cannot be read, or a path cannot be written.
    """
    figures = schedule_figures(read_any_schedule(path))
    _write(report, lambda: render_schedule(figures, title), json, lambda: schedule_as_json(figures))
    console.print(ScheduleTable(figures))
    return figures.problem


def _write(report: Path | None, page: Callable[[], str], json: Path | None, value: Callable[[], Any]) -> None:
    if report is not None:
        write_page(page(), report)
    if json is not None:
        write_json(value(), json)
