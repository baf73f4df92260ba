"""How full each link was over time: from what jobs sent and the tree of links that they crossed.

A job on several hosts crosses the network card of each of them, and the uplink of each domain
that holds some of its hosts but not all. Links without a limit cannot be full and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hemiola.core.timeline import TrafficLog
from hemiola.core.topology import Topology

__all__ = ["LinkLoad", "binned", "link_load", "links_of", "step_means"]


# Spans and steps put into equal bins of time: exact sums, so that nothing is lost by drawing less.

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def binned(
    row: Ints, start_s: Floats, end_s: Floats, weight: Floats, *, rows: int, edges_s: Floats
) -> Floats:
    """The mean weight of each row in each bin.

    Args:
        row: which row each span belongs to, 0 to rows - 1.
        start_s, end_s, weight: from, to, and how much it counts while it lasts.
        edges_s: the bins' equally spaced edges, one more than bins.

    Returns:
        An array of shape (rows, bins).
    """
    before = _ramps(row, start_s, weight, rows, edges_s) - _ramps(row, end_s, weight, rows, edges_s)
    return np.asarray(np.diff(before, axis=1) / (edges_s[1] - edges_s[0]))


def _ramps(row: Ints, time_s: Floats, weight: Floats, rows: int, edges_s: Floats) -> Floats:
    """At each edge, the sum of weight * max(0, edge - time) over the row's times."""
    edges = len(edges_s)
    first = np.searchsorted(edges_s, time_s, side="left")
    cell = row * (edges + 1) + first
    size = rows * (edges + 1)
    slope = np.bincount(cell, weights=weight, minlength=size).reshape(rows, edges + 1)[:, :-1]
    since = time_s - edges_s[0]
    offset = np.bincount(cell, weights=weight * since, minlength=size).reshape(rows, edges + 1)[:, :-1]
    return np.asarray(np.cumsum(slope, axis=1) * (edges_s - edges_s[0]) - np.cumsum(offset, axis=1))


def step_means(time_s: Floats, value: NDArray[np.generic], end_s: float, bins: int) -> tuple[Floats, Floats]:
    """A step series as it is, or (with more steps than bins) its mean in each of `bins` bins.

    Returns:
        Times and values, each value holding until the next time.
    """
    values = value.astype(np.float64)
    if len(time_s) <= bins or end_s <= time_s[0]:
        return np.append(time_s, end_s), np.append(values, values[-1:])
    edges = np.linspace(time_s[0], end_s, bins + 1)
    until = np.append(time_s[1:], end_s)
    row = np.zeros(len(time_s), dtype=np.int64)
    means = binned(row, time_s, np.maximum(until, time_s), values, rows=1, edges_s=edges)[0]
    return edges, np.append(means, means[-1:])


@dataclass(frozen=True, eq=False)
class LinkLoads:
    """All links of a topology: first each level's uplinks, wide to narrow, then the hosts' cards.

    Attributes:
        names: for people.
        bytes_per_s: capacity, each direction.
        first_of_level: number of the first uplink of each level, narrow to wide.
        first_card: number of host 0's card.
    """

    names: tuple[str, ...]
    bytes_per_s: NDArray[np.float64]
    first_of_level: tuple[int, ...]
    first_card: int


@dataclass(frozen=True, eq=False)
class LinkLoad:
    """Mean share of capacity in use: `share[link, bin]`, for the links kept, in the order of `LinkLoads`."""

    names: tuple[str, ...]
    edges_s: NDArray[np.float64]
    share: NDArray[np.float64]
    left_out: int


def links_of(topology: Topology) -> LinkLoads:
    """Every link, numbered."""
    names: list[str] = []
    capacity: list[NDArray[np.float64]] = []
    first: dict[int, int] = {}
    for number in reversed(range(len(topology.levels))):
        level = topology.levels[number]
        first[number] = len(names)
        names += [
            f"{domain} uplink" if level.name in domain else f"{level.name} {domain} uplink"
            for domain in level.domains
        ]
        capacity.append(np.asarray(level.uplink_bytes_per_s, dtype=np.float64))
    card = len(names)
    names += [f"{name} NIC" for name in topology.hosts.names]
    capacity.append(np.asarray(topology.hosts.nic_bytes_per_s, dtype=np.float64))
    order = tuple(first[number] for number in range(len(topology.levels)))
    return LinkLoads(tuple(names), np.concatenate(capacity), order, card)


def link_load(
    traffic: TrafficLog, topology: Topology, from_s: float, to_s: float, *, bins: int, most: int
) -> LinkLoad | None:
    """The load of the links that were used, at most the `most` busiest; None if nothing was sent."""
    links = links_of(topology)
    crossed = {hosts: np.array([*_crossed(hosts, topology, links)]) for hosts in set(traffic.hosts)}
    per_row = [crossed[hosts] for hosts in traffic.hosts]
    counts = np.array([len(rows) for rows in per_row], dtype=np.int64)
    if not counts.sum() or to_s <= from_s:
        return None
    link = np.concatenate(per_row).astype(np.int64)
    edges = np.linspace(from_s, to_s, bins + 1)
    spread = (np.repeat(column, counts) for column in (traffic.start_s, traffic.end_s, traffic.bytes_per_s))
    start_s, end_s, rate = spread
    if any(traffic.factors):
        pairs = zip(traffic.factors, counts.tolist(), strict=True)
        rate = rate * np.concatenate([factors or (1.0,) * count for factors, count in pairs])
    share = binned(link, start_s, end_s, rate, rows=len(links.names), edges_s=edges)
    share = np.maximum(share, 0.0) / links.bytes_per_s[:, None]
    used = np.flatnonzero((share.max(axis=1) > 1e-9) & np.isfinite(links.bytes_per_s))
    if not len(used):
        return None
    kept = np.sort(used[np.argsort(-share[used].mean(axis=1), kind="stable")[:most]])
    names = tuple(links.names[i] for i in kept)
    return LinkLoad(names, edges, share[kept], len(used) - len(kept))


def _crossed(hosts: tuple[int, ...], topology: Topology, links: LinkLoads) -> Iterator[int]:
    if len(hosts) < 2:
        return
    yield from (links.first_card + host for host in hosts)
    for level, first in zip(topology.levels, links.first_of_level, strict=True):
        domains = dict.fromkeys(level.domain_of_host[list(hosts)].tolist())
        if len(domains) > 1:
            yield from (first + domain for domain in domains)
