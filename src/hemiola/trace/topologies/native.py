"""Hemiola's own topology file: TOML, with hostlists for names and units on every quantity.

`docs/reference/topologies.md` describes it. Unknown keys are errors; a key left out takes a
default that is written into `Topology.source`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import FormatError, HemiolaError, InputError, TopologyError
from hemiola.core.hostlist import MAX_NAMES, compress, expand
from hemiola.core.resources import Resources
from hemiola.core.topology import Hosts, Level, MeasuredLink, Topology
from hemiola.core.units import parse_duration, parse_rate, parse_size
from hemiola.trace.atomic import replacing
from hemiola.trace.topologies.levels import BUS, FABRIC, LATENCY

__all__ = ["read_native", "topology_text", "write_topology"]


_Table = Mapping[str, Any]
_Rows = NDArray[np.int64]

_HOST_KEYS = (
    "names",
    "gpus",
    "gpu_type",
    "nic",
    "latency",
    "fabric",
    "island",
    "bus",
    "cpus",
    "memory",
    "bandwidth",
)
_DEFAULTS = {"gpu_type": "", "latency": LATENCY, "fabric": FABRIC, "bus": BUS}
_DOMAIN_KEYS = ("name", "hosts", "children", "uplink")
_INT_MAX = 1_000_000_000


def read_native(text: str, path: str) -> Topology:
    """The topology that a file of Hemiola's own describes, checked.

    Raises:
        FormatError: not TOML.
        InputError: a key that is unknown, missing or of the wrong type; a quantity without a unit.
        TopologyError: a cluster that cannot be.
    """
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FormatError(f"{path} is not TOML: {error}", "mend the line it names") from error
    _only(table, ("cluster", "hosts", "level", "measured"), path)
    cluster = _only(_get(table, "cluster", dict, path, {}), ("name", "source"), f"{path}: [cluster]")
    assumed: dict[str, str] = {}
    hosts = _hosts(_tables(table, "hosts", path), path, assumed)
    levels: list[Level] = []
    for level in _tables(table, "level", path):
        levels.append(_level(level, hosts, levels[-1] if levels else None, path))
    source = _source(path, _get(cluster, "source", str, path, ""), assumed)
    name = _get(cluster, "name", str, f"{path}: [cluster]", "cluster")
    measured = tuple(_measured(each, path) for each in _tables(table, "measured", path))
    return Topology(name, hosts, tuple(levels), source, measured).check()


def _measured(table: _Table, path: str) -> MeasuredLink:
    where = f"{path}: [[measured]]"
    _only(table, ("link", "rate", "low", "high"), where)
    rates = [_quantity(table, key, parse_rate, where) for key in ("rate", "low", "high")]
    return MeasuredLink(_get(table, "link", str, where), *rates)


def _source(path: str, origin: str, assumed: Mapping[str, str]) -> str:
    assumptions = ", ".join(f"{key}={value}" for key, value in assumed.items())
    return "; ".join(
        part for part in (f"topology file {path}", origin, assumptions and f"assumed: {assumptions}") if part
    )


def _hosts(tables: Sequence[_Table], path: str, assumed: dict[str, str]) -> Hosts:
    names: list[str] = []
    columns: list[list[Any]] = [[] for _ in range(8)]
    for number, table in enumerate(tables, start=1):
        where = f"{path}: [[hosts]] {number}"
        _only(table, _HOST_KEYS, where)
        group = _names(table, "names", where)
        names += group
        if len(names) > MAX_NAMES:
            raise InputError(f"{where}: more than {MAX_NAMES:,} hosts", "split the cluster")
        for column, value in zip(columns, _host_values(table, where, assumed), strict=True):
            column += [value] * len(group)
    gpus, types, nic, latency, fabric, island, bus, resources = columns
    return Hosts(
        names=tuple(names),
        gpus=np.array(gpus, dtype=np.int64),
        gpu_types=tuple(types),
        nic_bytes_per_s=np.array(nic, dtype=float),
        nic_latency_s=np.array(latency, dtype=float),
        fabric_bytes_per_s=np.array(fabric, dtype=float),
        island_gpus=np.array(island, dtype=np.int64),
        bus_bytes_per_s=np.array(bus, dtype=float),
        resources=tuple(resources),
    )


def _host_values(table: _Table, where: str, assumed: dict[str, str]) -> list[Any]:
    """One group's values in the order of `_HOST_KEYS`, without its names; what it has beside GPUs together."""
    full = {**_DEFAULTS, **table}
    assumed.update({key: value for key, value in _DEFAULTS.items() if value and key not in table})
    gpus = _whole(full, "gpus", where)
    return [
        gpus,
        _get(full, "gpu_type", str, where),
        _quantity(full, "nic", parse_rate, where),
        _quantity(full, "latency", parse_duration, where),
        _quantity(full, "fabric", parse_rate, where),
        _whole(full, "island", where) if "island" in table else max(gpus, 1),
        _quantity(full, "bus", parse_rate, where),
        Resources(
            cpus=_count(table, "cpus", where) if "cpus" in table else None,
            memory_bytes=_quantity(table, "memory", parse_size, where) if "memory" in table else None,
            bandwidth_bytes_per_s=_quantity(table, "bandwidth", parse_rate, where)
            if "bandwidth" in table
            else None,
        ),
    ]


def _level(table: _Table, hosts: Hosts, inner: Level | None, path: str) -> Level:
    where = f"{path}: [[level]]"
    name = _get(_only(table, ("name", "latency", "domain"), where), "name", str, where)
    where = f"{path}: level {name!r}"
    rows_of = _membership(hosts, inner)
    place = np.full(len(hosts), -1, dtype=np.int64)
    domains: dict[str, float] = {}
    for number, domain in enumerate(_tables(table, "domain", where)):
        title = _get(_only(domain, _DOMAIN_KEYS, where), "name", str, where)
        here = f"{where}: {title!r}"
        if title in domains:
            raise TopologyError(f"{here} appears twice", "give every domain a name of its own")
        domains[title] = _quantity(domain, "uplink", parse_rate, here)
        rows = _members(domain, rows_of, here)
        if (twice := rows[place[rows] >= 0]).size:
            raise TopologyError(f"{here}: host {hosts.names[twice[0]]!r} is in two {name}s", "name it once")
        place[rows] = number
    latency_s = _quantity(table, "latency", parse_duration, where) if "latency" in table else 0.0
    return Level(name, tuple(domains), place, np.array(list(domains.values())), latency_s)


def _membership(hosts: Hosts, inner: Level | None) -> dict[str, dict[str, list[int]]]:
    """Rows of hosts by name, for each of the two ways to say what a domain holds."""
    children: dict[str, list[int]] = {}
    if inner is not None:
        children = {domain: [] for domain in inner.domains}
        for row in np.flatnonzero(inner.domain_of_host >= 0).tolist():
            children[inner.domains[inner.domain_of_host[row]]].append(row)
    return {"hosts": {name: [row] for row, name in enumerate(hosts.names)}, "children": children}


def _members(domain: _Table, rows_of: Mapping[str, Mapping[str, list[int]]], where: str) -> _Rows:
    """The rows of a domain's hosts."""
    if ("hosts" in domain) == ("children" in domain):
        raise InputError(f"{where} needs hosts or children, one of the two", 'write hosts = "n[0-7]"')
    key = "hosts" if "hosts" in domain else "children"
    names = _names(domain, key, where)
    stranger = next((name for name in names if name not in rows_of[key]), None)
    if stranger is not None:
        what = "host of [[hosts]]" if key == "hosts" else "domain of the level below"
        raise InputError(f"{where}: {key}: {stranger!r} is no {what}", f"name {key} that stand above it")
    return np.array([row for name in names for row in rows_of[key][name]], dtype=np.int64)


def _names(table: _Table, key: str, where: str) -> list[str]:
    """A hostlist, or a list of names as they are."""
    value = _get(table, key, (str, list), where)
    if isinstance(value, list):
        if not all(isinstance(name, str) for name in value):
            raise InputError(f"{where}: {key} must hold text", 'write ["n0", "n1"]')
        return value
    try:
        return expand(value)
    except HemiolaError as error:
        raise InputError(f"{where}: {key}: {error.what}", error.remedy) from error


def _quantity(table: _Table, key: str, parse: Callable[[str], float], where: str) -> float:
    text = _get(table, key, str, where)
    try:
        return parse(text)
    except HemiolaError as error:
        raise InputError(f"{where}: {key}: {error.what}", error.remedy) from error


def _whole(table: _Table, key: str, where: str) -> int:
    number: int = _get(table, key, int, where)
    if isinstance(number, bool) or not 0 <= number < _INT_MAX:
        raise InputError(f"{where}: {key} is {number}", "write a whole number")
    return number


def _count(table: _Table, key: str, where: str) -> float:
    number: float = _get(table, key, (int, float), where)
    if isinstance(number, bool) or not 0 <= number < _INT_MAX:
        raise InputError(f"{where}: {key} is {number}", "write a number, 0 or more")
    return float(number)


def _tables(table: _Table, key: str, where: str) -> list[_Table]:
    tables = _get(table, key, list, where, [])
    if not all(isinstance(item, dict) for item in tables):
        raise InputError(f"{where}: {key} must be tables", f"write [[{key}]]")
    return list(tables)


def _only(table: _Table, known: Sequence[str], where: str) -> _Table:
    stranger = next((key for key in table if key not in known), None)
    if stranger is not None:
        raise InputError(f"{where} has no key {stranger!r}", f"its keys are {', '.join(known)}")
    return table


def _get(table: _Table, key: str, kind: type | tuple[type, ...], where: str, default: Any = None) -> Any:
    value = table.get(key, default)
    if value is None:
        raise InputError(f"{where} does not say {key}", f"add {key} = ...")
    if not isinstance(value, kind):
        raise InputError(f"{where}: {key} is {value!r}", "write text in quotes, numbers without")
    return value


# Write Hemiola's own topology file, so that reading it gives an equal topology.

_DURATIONS = (("us", 1e-6), ("ms", 1e-3), ("s", 1.0))
_NETWORK = (("gbit", 1.25e8), ("mbit", 1.25e5))
_INSIDE = (("GB/s", 1e9), ("MB/s", 1e6))

_SIZES = (("GiB", 2.0**30), ("MiB", 2.0**20))

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
        hosts.resources,
    ]
    rows = zip(hosts.names, zip(*columns, strict=True), strict=True)
    for (gpus, kind, nic, fabric, bus, latency, island, beside), group in groupby(
        rows, key=lambda row: row[1]
    ):
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
        yield from _resource_lines(beside)


def _resource_lines(beside: Resources) -> Iterator[str]:
    """What is said of it."""
    if beside.cpus is not None:
        yield f"cpus = {beside.cpus!r}"
    if beside.memory_bytes is not None:
        yield f'memory = "{_shortest(beside.memory_bytes, _SIZES, parse_size, "B")}"'
    if beside.bandwidth_bytes_per_s is not None:
        yield f'bandwidth = "{_rate(beside.bandwidth_bytes_per_s)}"'


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
