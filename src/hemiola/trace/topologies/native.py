"""Hemiola's own topology file: TOML, with hostlists for names and units on every quantity.

`docs/reference/topologies.md` describes it. Unknown keys are errors; a key left out takes a
default that is written into `Topology.source`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import FormatError, HemiolaError, InputError, TopologyError
from hemiola.core.hostlist import MAX_NAMES, expand
from hemiola.core.topology import Hosts, Level, MeasuredLink, Topology
from hemiola.core.units import parse_duration, parse_rate
from hemiola.trace.topologies.hardware import BUS, FABRIC, LATENCY

__all__ = ["read_native"]

_Table = Mapping[str, Any]
_Rows = NDArray[np.int64]

_HOST_KEYS = ("names", "gpus", "gpu_type", "nic", "latency", "fabric", "island", "bus")
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
    columns: list[list[Any]] = [[] for _ in _HOST_KEYS[1:]]
    for number, table in enumerate(tables, start=1):
        where = f"{path}: [[hosts]] {number}"
        _only(table, _HOST_KEYS, where)
        group = _names(table, "names", where)
        names += group
        if len(names) > MAX_NAMES:
            raise InputError(f"{where}: more than {MAX_NAMES:,} hosts", "split the cluster")
        for column, value in zip(columns, _host_values(table, where, assumed), strict=True):
            column += [value] * len(group)
    gpus, types, nic, latency, fabric, island, bus = columns
    return Hosts(
        names=tuple(names),
        gpus=np.array(gpus, dtype=np.int64),
        gpu_types=tuple(types),
        nic_bytes_per_s=np.array(nic, dtype=float),
        nic_latency_s=np.array(latency, dtype=float),
        fabric_bytes_per_s=np.array(fabric, dtype=float),
        island_gpus=np.array(island, dtype=np.int64),
        bus_bytes_per_s=np.array(bus, dtype=float),
    )


def _host_values(table: _Table, where: str, assumed: dict[str, str]) -> list[Any]:
    """One group's values in the order of `_HOST_KEYS`, without its names."""
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
