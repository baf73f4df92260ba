"""Levels from labels: each host says in which rack, pod, ... it is, and the uplinks follow.

Labels may be reused: rack "1" of block "a" and rack "1" of block "b" are two racks, as in Kueue
and in the Lingjun trace, and are then named "a/1" and "b/1".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import InputError
from hemiola.core.topology import MAX_HOSTS, Hosts, Level, Topology
from hemiola.trace.topologies.options import TopologyOptions

__all__ = [
    "BUS",
    "FABRIC",
    "HARDWARE_OPTIONS",
    "KEEP",
    "LATENCY",
    "LEVEL_OPTIONS",
    "make_hosts",
    "make_levels",
    "only_usable",
    "ratios_of",
]

LEVEL_OPTIONS = ("oversubscription", "levels")

Uplink = Callable[[int, str, float], float]
Ints = NDArray[np.int64]


def ratios_of(options: TopologyOptions, levels: int) -> list[float]:
    """Oversubscription of each level, narrow to wide; levels that are not named have 1.

    Raises:
        InputError: more numbers than levels.
    """
    ratios = options.numbers("oversubscription", "1")
    if len(ratios) > max(levels, 1):
        raise InputError(
            f"{options.where} has {levels} levels, but oversubscription has {len(ratios)} numbers",
            "give at most one per level, narrow to wide, such as 4+2",
        )
    return ratios + [1.0] * (levels - len(ratios))


def make_levels(
    hosts: Hosts,
    names: Sequence[str],
    labels: Sequence[Sequence[str]],
    options: TopologyOptions,
    uplink: Uplink | None = None,
) -> tuple[Level, ...]:
    """The levels above these hosts.

    Args:
        hosts: their NICs are what the narrowest level's uplinks carry.
        names: one per level, narrow to wide; the option `levels` replaces them.
        labels: one row per level, narrow to wide, with one label per host.
        options: `LEVEL_OPTIONS`.
        uplink: (level, domain, bytes/s of all links below) -> bytes/s of its uplink; without, the
            sum below divided by the level's oversubscription.
    """
    names = _renamed(options, names)
    ratios = ratios_of(options, len(names))
    give: Uplink = uplink or (lambda level, domain, below: below / ratios[level])
    levels: list[Level] = []
    inner: Ints = np.arange(len(hosts))
    rates = hosts.nic_bytes_per_s
    for number, name in enumerate(names):
        domains, place = _domains(labels[number:])
        parent = np.empty(len(rates), dtype=np.int64)
        parent[inner] = place
        below = np.bincount(parent, weights=rates, minlength=len(domains))
        rates = np.array([give(number, d, float(b)) for d, b in zip(domains, below, strict=True)])
        levels.append(Level(name, domains, place, rates))
        inner = place
    return tuple(levels)


def _renamed(options: TopologyOptions, names: Sequence[str]) -> Sequence[str]:
    given = options.words("levels")
    if given and len(given) != len(names):
        raise InputError(
            f"{options.where} has {len(names)} levels, but levels names {len(given)}",
            f"name them narrow to wide, such as levels={'+'.join(names) or '...'}",
        )
    return given or names


def _domains(labels: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], Ints]:
    """Names of the first row's domains, and the domain of each host; a domain is a path upwards."""
    paths = list(zip(*labels, strict=True))
    index = {path: i for i, path in enumerate(dict.fromkeys(paths))}
    plain = tuple(path[0] for path in index)
    reused = len(set(plain)) < len(plain)
    names = tuple("/".join(reversed(path)) for path in index) if reused else plain
    return names, np.array([index[path] for path in paths], dtype=np.int64)


# The columns of hosts, from what a file says and what the options say of the rest.

NIC = "100gbit"
LATENCY = "5us"
FABRIC = "150GB/s"
BUS = "12GB/s"

HARDWARE_OPTIONS = ("gpus_per_host", "gpu_type", "nic", "latency", "fabric", "island", "bus")


def make_hosts(
    options: TopologyOptions,
    names: Sequence[str],
    gpus: Sequence[int | None] | None = None,
    gpu_types: Sequence[str] | None = None,
    nic: str = NIC,
) -> Hosts:
    """Hosts from columns of a file, filled up with options.

    Args:
        options: `HARDWARE_OPTIONS`; one that would contradict the file is refused.
        names: of the hosts.
        gpus: GPUs per host; None where the file is silent.
        gpu_types: type per host; "" where the file is silent.
        nic: the default bandwidth into the network.

    Raises:
        InputError: no number of GPUs for a host, or an option with nothing to fill.
    """
    count = len(names)
    if count > MAX_HOSTS:
        raise InputError(f"{options.where} has {count:,} hosts", f"give at most {MAX_HOSTS:,}")
    counts = np.array(_filled_gpus(options, names, gpus), dtype=np.int64)
    islands = np.maximum(counts, 1)
    if "island" in options:
        islands[:] = options.whole("island")
    else:
        options.assumed["island"] = "all GPUs of a host"
    return Hosts(
        names=tuple(names),
        gpus=counts,
        gpu_types=_filled_types(options, count, gpu_types),
        nic_bytes_per_s=np.full(count, options.rate("nic", nic)),
        nic_latency_s=np.full(count, options.duration("latency", LATENCY)),
        fabric_bytes_per_s=np.full(count, options.rate("fabric", FABRIC)),
        island_gpus=islands,
        bus_bytes_per_s=np.full(count, options.rate("bus", BUS)),
    )


def _filled_gpus(
    options: TopologyOptions, names: Sequence[str], gpus: Sequence[int | None] | None
) -> list[int]:
    known = list(gpus) if gpus is not None else [None] * len(names)
    silent = next((name for name, count in zip(names, known, strict=True) if count is None), None)
    if silent is None:
        _refuse_needless(options, "gpus_per_host", "every host's GPUs")
        return [count or 0 for count in known]
    if "gpus_per_host" not in options:
        raise InputError(
            f"{options.where} does not say how many GPUs host {silent!r} has", "add gpus_per_host=8"
        )
    given = options.whole("gpus_per_host", low=0)
    return [given if count is None else count for count in known]


def _filled_types(options: TopologyOptions, count: int, gpu_types: Sequence[str] | None) -> tuple[str, ...]:
    known = tuple(gpu_types) if gpu_types is not None else ("",) * count
    if all(known) and known:
        _refuse_needless(options, "gpu_type", "every host's GPU type")
        return known
    given = options.text("gpu_type", "")
    return tuple(gpu_type or given for gpu_type in known)


def _refuse_needless(options: TopologyOptions, key: str, what: str) -> None:
    if key in options:
        raise InputError(f"{options.where} gives {what} itself", f"leave {key} out, or edit the file")


# Hosts that a file describes and no job can use now: taken out of the topology, and counted in words.
#
# Links stay as wide as the file makes them: a switch has its uplink whether or not all hosts below it are up. Why a host
# cannot be used is each format's business.

KEEP = "add unusable=keep to count what cannot be used now"


def only_usable(
    topology: Topology, unusable: Mapping[str, str], path: str, told: Sequence[str] = (), remedy: str = KEEP
) -> Topology:
    """The topology without these hosts; its `left_out` and `source` say how many and why.

    Args:
        topology: with all hosts of the file.
        unusable: why, by name of the host; names that are no hosts count for nothing.
        path: of the file, for messages.
        told: what else was left out, in words.
        remedy: what to do where nothing is left.

    Raises:
        InputError: no host with GPUs is left.
    """
    names = topology.hosts.names
    gone = [row for row, name in enumerate(names) if name in unusable]
    if gone:
        told = [_in_words(gone, [unusable[names[row]] for row in gone], topology), *told]
    if not told:
        return topology
    rows = np.setdiff1d(np.arange(len(names)), gone)
    if not topology.hosts.gpus[rows].any():
        raise InputError(f"{path} leaves no GPU that a job can use: {'; '.join(told)}", remedy)
    return replace(
        topology,
        hosts=_only_hosts(topology.hosts, rows),
        levels=tuple(_only_level(level, rows) for level in topology.levels),
        source="; ".join([topology.source, *told]),
        left_out=(*topology.left_out, *told),
    )


def _in_words(rows: Sequence[int], whys: Sequence[str], topology: Topology) -> str:
    gpus = int(topology.hosts.gpus[np.array(rows)].sum())
    kinds = ", ".join(f"{count:,} {why}" for why, count in Counter(whys).most_common())
    return f"cluster: {len(rows):,} of {len(topology.hosts):,} hosts with {gpus:,} GPUs left out: {kinds}"


def _only_hosts(hosts: Hosts, rows: NDArray[np.int64]) -> Hosts:
    columns: dict[str, Any] = {field.name: getattr(hosts, field.name) for field in fields(hosts)}
    for name, column in columns.items():
        columns[name] = column[rows] if isinstance(column, np.ndarray) else tuple(column[row] for row in rows)
    return Hosts(**columns)


def _only_level(level: Level, rows: NDArray[np.int64]) -> Level:
    """The same level with the domains in which a host is left."""
    used, place = np.unique(level.domain_of_host[rows], return_inverse=True)
    names = tuple(level.domains[domain] for domain in used)
    return Level(level.name, names, place.astype(np.int64), level.uplink_bytes_per_s[used], level.latency_s)
