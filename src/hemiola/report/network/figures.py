"""What a topology comes to: which hosts and uplinks are alike, which is slowest, where the network is narrow.

Hosts are alike if one rate lies within all their intervals, out and in, each taken at least `SLACK` wide; without
measurements, if their rates are equal. Knows no drawing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from hemiola.core.topology import Level, Topology

__all__ = [
    "APART",
    "SLACK",
    "SLOW",
    "Domains",
    "HostGroup",
    "LinkName",
    "NetworkFigures",
    "Rate",
    "are_apart",
    "is_slow",
    "joined",
    "network_figures",
]

SLACK = 0.03
"""Share of a measured rate that another may be off and still be alike."""
APART = 0.10
"""Share by which a host's two directions have to differ to be told apart."""
SLOW = 0.80
"""A link below this share of the median is slow; an uplink below this share of what its hosts send, narrow."""
LATENCY_RATIO = 2.0
"""Hosts whose measured latencies differ by a larger factor are not alike."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Of one direction of a link, bytes/s; the interval is the rate itself where nothing was measured."""

    bytes_per_s: float
    low: float
    high: float

    @property
    def is_measured(self) -> bool:
        """Whether there is an interval."""
        return self.low < self.high

    @property
    def reach(self) -> tuple[float, float]:
        """Which rates are alike to it."""
        if not self.is_measured:
            return self.low, self.high
        return min(self.low, self.bytes_per_s * (1 - SLACK)), max(self.high, self.bytes_per_s * (1 + SLACK))


@dataclass(frozen=True, slots=True)
class HostGroup:
    """Hosts that are alike.

    Attributes:
        hosts: their indices.
        out, into: the median rate, and from the lowest to the highest of their intervals.
        latency_s: median.
        gpus: of each.
        gpu_type: "" where it is not known.
    """

    hosts: tuple[int, ...]
    out: Rate
    into: Rate
    latency_s: float
    gpus: int
    gpu_type: str

    @property
    def slower(self) -> Rate:
        """Of its two directions."""
        return min(self.out, self.into, key=lambda rate: rate.bytes_per_s)

    @property
    def is_apart(self) -> bool:
        """Whether its directions differ."""
        return are_apart(self.out, self.into)


@dataclass(frozen=True, slots=True)
class Domains:
    """Domains of one level with uplinks that are alike, and as many hosts behind each.

    Attributes:
        level: "rack".
        numbers: their indices in the level.
        hosts: below each.
        uplink: as a group's rate.
        below_bytes_per_s: what the hosts below each could send together, median.
    """

    level: str
    numbers: tuple[int, ...]
    hosts: int
    uplink: Rate
    below_bytes_per_s: float

    @property
    def oversubscription(self) -> float:
        """How many times what the uplink carries the hosts below it could send; 0 for an unlimited uplink."""
        return (
            self.below_bytes_per_s / self.uplink.bytes_per_s
            if math.isfinite(self.uplink.bytes_per_s)
            else 0.0
        )


@dataclass(frozen=True, slots=True)
class LinkName:
    """One link by its name: "h3 out", or "h3" for both directions, or "rack 0 uplink"."""

    name: str
    rate: Rate
    hosts: int

    @property
    def each_bytes_per_s(self) -> float:
        """Its share for each host behind it."""
        return self.rate.bytes_per_s / self.hosts


@dataclass(frozen=True)
class NetworkFigures:
    """A topology's figures.

    Attributes:
        topology: of which.
        out, into: of every host.
        uplinks: of every domain, by level.
        groups: hosts that are alike, the slowest first.
        domains: domains that are alike, by level, the narrowest first.
        median_bytes_per_s: of the hosts that have a limit, each by its slower direction.
        slowest: the link with least for each host behind it.
    """

    topology: Topology
    out: tuple[Rate, ...]
    into: tuple[Rate, ...]
    uplinks: tuple[tuple[Rate, ...], ...]
    groups: tuple[HostGroup, ...]
    domains: tuple[tuple[Domains, ...], ...]
    median_bytes_per_s: float
    slowest: LinkName

    @property
    def is_measured(self) -> bool:
        """Whether any of its links was."""
        return bool(self.topology.measured)

    def median_uplink(self, level: int) -> float:
        """Of a level's uplinks that have a limit, bytes/s."""
        return _usual(rate.bytes_per_s for rate in self.uplinks[level])


def is_slow(rate: Rate, median_bytes_per_s: float) -> bool:
    """Whether a link is well below the others of its kind."""
    return math.isfinite(median_bytes_per_s) and rate.bytes_per_s < SLOW * median_bytes_per_s


def _usual(rates: Iterable[float]) -> float:
    """The median of those that have a limit; unlimited if none has."""
    limited = [rate for rate in rates if math.isfinite(rate)]
    return median(limited) if limited else math.inf


def network_figures(topology: Topology) -> NetworkFigures:
    """Look at a topology."""
    found = {link.name: Rate(link.bytes_per_s, link.low, link.high) for link in topology.measured}
    names, nic = topology.hosts.names, topology.hosts.nic_bytes_per_s.tolist()
    out, into = (
        tuple(
            found.get(f"{name} {way}", Rate(rate, rate, rate)) for name, rate in zip(names, nic, strict=True)
        )
        for way in ("out", "in")
    )
    uplinks = tuple(
        tuple(
            found.get(f"{level.name} {name} uplink", Rate(rate, rate, rate))
            for name, rate in zip(level.domains, level.uplink_bytes_per_s.tolist(), strict=True)
        )
        for level in topology.levels
    )
    slower = [min(a.bytes_per_s, b.bytes_per_s) for a, b in zip(out, into, strict=True)]
    return NetworkFigures(
        topology, out, into, uplinks, _host_groups(topology, out, into),
        tuple(_domains(topology, level, rates) for level, rates in zip(topology.levels, uplinks, strict=True)),
        _usual(slower), _slowest(topology, out, into, uplinks),
    )  # fmt: skip


def _host_groups(topology: Topology, out: Sequence[Rate], into: Sequence[Rate]) -> tuple[HostGroup, ...]:
    hosts = topology.hosts
    latency = hosts.nic_latency_s.tolist()
    kinds = zip(hosts.gpus.tolist(), hosts.gpu_types, strict=True)
    items: dict[Any, list[int]] = {}
    for host, kind in enumerate(kinds):
        items.setdefault((kind, out[host], into[host], latency[host]), []).append(host)
    found = [
        HostGroup(
            tuple(sorted(members)), joined([out[host] for host in members]), joined([into[host] for host in members]),
            median(latency[host] for host in members), int(hosts.gpus[members[0]]), hosts.gpu_types[members[0]],
        )
        for members in _alike(items)
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda group: (group.slower.bytes_per_s, group.hosts)))


def _alike(items: dict[Any, list[int]]) -> Iterable[list[int]]:
    """Members of items that are alike, put together: the fastest first, each with the first that it fits."""
    groups: list[tuple[Any, list[tuple[float, float]], list[float], list[int]]] = []
    for (kind, *rates, latency_s), members in sorted(items.items(), key=lambda item: -item[0][1].bytes_per_s):
        reaches = [rate.reach for rate in rates]
        measured = any(rate.is_measured for rate in rates)
        for what, common, latencies, all_members in groups:
            narrower = [(max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(common, reaches, strict=True)]
            near = _near([*latencies, latency_s]) if measured else latencies == [latency_s]
            if what == kind and near and all(low <= high for low, high in narrower):
                common[:] = narrower
                latencies[:] = (
                    [min(*latencies, latency_s), max(*latencies, latency_s)] if measured else latencies
                )
                all_members += members
                break
        else:
            groups.append((kind, reaches, [latency_s], list(members)))
    return [members for *_, members in groups]


def _near(latencies: Sequence[float]) -> bool:
    return max(latencies) <= LATENCY_RATIO * min(latencies)


def _domains(topology: Topology, level: Level, uplinks: Sequence[Rate]) -> tuple[Domains, ...]:
    counts = np.bincount(level.domain_of_host, minlength=len(level.domains)).tolist()
    nic = topology.hosts.nic_bytes_per_s
    below = np.bincount(level.domain_of_host, weights=nic, minlength=len(level.domains)).tolist()
    items: dict[Any, list[int]] = {}
    for number, rate in enumerate(uplinks):
        items.setdefault((counts[number], rate, 0.0), []).append(number)
    found = []
    for members in _alike(items):
        rate = joined([uplinks[number] for number in members])
        sent = median(below[number] for number in members)
        found.append(Domains(level.name, tuple(sorted(members)), counts[members[0]], rate, sent))
    return tuple(sorted(found, key=lambda one: (-one.oversubscription, one.numbers)))


def joined(rates: Sequence[Rate]) -> Rate:
    """The median of several, and the whole of their intervals."""
    return Rate(median(r.bytes_per_s for r in rates), min(r.low for r in rates), max(r.high for r in rates))


def _slowest(
    topology: Topology, out: Sequence[Rate], into: Sequence[Rate], uplinks: Sequence[Sequence[Rate]]
) -> LinkName:
    found = []
    for name, one, other in zip(topology.hosts.names, out, into, strict=True):
        slower = min(one, other, key=lambda rate: rate.bytes_per_s)
        ways = [(" out", one), (" in", other)] if are_apart(one, other) else [("", slower)]
        found += [LinkName(f"{name}{way}", rate, 1) for way, rate in ways]
    for level, rates in zip(topology.levels, uplinks, strict=True):
        counts = np.bincount(level.domain_of_host, minlength=len(level.domains)).tolist()
        rows = zip(level.domains, rates, counts, strict=True)
        found += [LinkName(f"{level.name} {name} uplink", rate, max(count, 1)) for name, rate, count in rows]
    return min(found, key=lambda link: link.each_bytes_per_s)


def are_apart(one: Rate, other: Rate) -> bool:
    """Whether a link's two directions differ so much that both are shown."""
    low, high = sorted((one.bytes_per_s, other.bytes_per_s))
    return low < (1 - APART) * high
