"""Write Hemiola's own topology file, so that reading it gives an equal topology.

Quantities are written as people say them where that is exact ("100gbit"), else in full.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from hemiola.core.errors import InputError
from hemiola.core.hostlist import compress
from hemiola.core.topology import Hosts, Level, Topology
from hemiola.core.units import parse_duration, parse_rate
from hemiola.trace.atomic import replacing

__all__ = ["topology_text", "write_topology"]

_DURATIONS = (("us", 1e-6), ("ms", 1e-3), ("s", 1.0))
_NETWORK = (("gbit", 1.25e8), ("mbit", 1.25e5))
_INSIDE = (("GB/s", 1e9), ("MB/s", 1e6))

_Units = tuple[tuple[str, float], ...]


def write_topology(topology: Topology, path: str | Path) -> None:
    """Write a topology as TOML; one whose name ends in ".gz" is compressed.

    Raises:
        InputError: the file cannot be written.
        TopologyError: the topology cannot be.
    """
    try:
        content = topology_text(topology.check()).encode()
    except UnicodeError as error:
        raise InputError(
            f"cannot write {str(path)!r}: {error}",
            "give names that are Unicode text, without half characters",
        ) from error
    with replacing(Path(path)) as stream:
        stream.write(content)


def topology_text(topology: Topology) -> str:
    """The TOML that `write_topology` writes."""
    lines = ["[cluster]", f"name = {_quoted(topology.name)}"]
    if topology.source:
        lines.append(f"source = {_quoted(topology.source)}")
    lines += _host_lines(topology.hosts)
    inner: Level | None = None
    for level in topology.levels:
        lines += _level_lines(level, inner, topology.hosts)
        inner = level
    for link in topology.measured:
        lines += ["", "[[measured]]", f"link = {_quoted(link.name)}", f'rate = "{_rate(link.bytes_per_s)}"']
        lines += [f'low = "{_rate(link.low)}"', f'high = "{_rate(link.high)}"']
    return "\n".join(lines) + "\n"


def _host_lines(hosts: Hosts) -> Iterator[str]:
    """One [[hosts]] table for each run of neighbours that are alike."""
    columns = [
        hosts.gpus.tolist(),
        hosts.gpu_types,
        *(getattr(hosts, f"{name}_bytes_per_s").tolist() for name in ("nic", "fabric", "bus")),
        hosts.nic_latency_s.tolist(),
        hosts.island_gpus.tolist(),
    ]
    rows = zip(hosts.names, zip(*columns, strict=True), strict=True)
    for (gpus, kind, nic, fabric, bus, latency, island), group in groupby(rows, key=lambda row: row[1]):
        yield from ("", "[[hosts]]", f"names = {_name_list([name for name, _ in group])}", f"gpus = {gpus}")
        yield from (
            f"gpu_type = {_quoted(kind)}",
            f'nic = "{_rate(nic)}"',
            f'latency = "{_duration(latency)}"',
        )
        yield from (
            f'fabric = "{_rate(fabric, _INSIDE)}"',
            f"island = {island}",
            f'bus = "{_rate(bus, _INSIDE)}"',
        )


def _level_lines(level: Level, inner: Level | None, hosts: Hosts) -> Iterator[str]:
    yield from ("", "[[level]]", f"name = {_quoted(level.name)}", f'latency = "{_duration(level.latency_s)}"')
    key, names, place = "hosts", hosts.names, level.domain_of_host
    if inner is not None and len(np.unique(inner.domain_of_host)) == len(inner.domains):
        key, names = "children", inner.domains
        place = np.empty(len(names), dtype=np.int64)
        place[inner.domain_of_host] = level.domain_of_host
    members: list[list[str]] = [[] for _ in level.domains]
    for name, domain in zip(names, place.tolist(), strict=True):
        members[domain].append(name)
    for domain, below, uplink in zip(level.domains, members, level.uplink_bytes_per_s.tolist(), strict=True):
        yield from ("", "[[level.domain]]", f"name = {_quoted(domain)}")
        yield from (f"{key} = {_name_list(below)}", f'uplink = "{_rate(uplink)}"')


def _name_list(names: Sequence[str]) -> str:
    try:
        return _quoted(compress(names))
    except InputError:
        return f"[{', '.join(map(_quoted, names))}]"


def _quoted(text: str) -> str:
    """A TOML basic string: JSON's escapes, and DEL, which TOML wants escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _rate(rate_bytes_per_s: float, units: _Units = _NETWORK) -> str:
    if np.isinf(rate_bytes_per_s):
        return "unlimited"
    return _shortest(rate_bytes_per_s, units, parse_rate, "B/s")


def _duration(duration_s: float) -> str:
    return _shortest(duration_s, _DURATIONS, parse_duration, "s")


def _shortest(value: float, units: _Units, parse: Callable[[str], float], plain: str) -> str:
    """The first short text that reads back as exactly this value, else all its digits."""
    texts = (f"{value / scale:.6g}{unit}" for unit, scale in units)
    return next((text for text in texts if parse(text) == value), f"{value!r}{plain}")
