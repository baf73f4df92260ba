"""Where a job's ranks stand, and the links between them: what collectives and flows are laid over.

Ranks fill hosts in the order given. A link is one direction of a host's network interface, of a domain's
uplink, or of what joins the GPUs of one host. A collective loads both directions alike, so only the
outgoing one is kept; a parameter server does not, and has the incoming ones beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import InputError
from hemiola.core.hardware import Hardware
from hemiola.core.topology import Topology

__all__ = ["RankLink", "RankPlaces", "place_ranks"]


@dataclass(frozen=True, slots=True)
class RankLink:
    """One link between these ranks, outgoing.

    Attributes:
        name: "n3 nic", "rack r0 uplink", "n3 fabric".
        bytes_per_s: bandwidth, per direction.
        hosts: the hosts below it, as places in `RankPlaces.counts`.
        inside: ranks below it.
        inner: whether it joins ranks of one host, instead of a domain with the rest.
    """

    name: str
    bytes_per_s: float
    hosts: frozenset[int]
    inside: int
    inner: bool = False


@dataclass(frozen=True, eq=False)
class RankPlaces:
    """Ranks on hosts.

    Attributes:
        topology: where.
        counts: (index of the host, its ranks), for hosts that have any.
        links: outgoing links between these ranks; link i's other direction has the number i + len(links).
        latency_s: of one hop between hosts.
    """

    topology: Topology
    counts: tuple[tuple[int, int], ...]
    links: tuple[RankLink, ...]
    latency_s: float

    @cached_property
    def ranks(self) -> int:
        """All of them."""
        return sum(count for _, count in self.counts)

    @cached_property
    def host_of(self) -> tuple[int, ...]:
        """The place in `counts` of each rank's host."""
        return tuple(i for i, (_, count) in enumerate(self.counts) for _ in range(count))

    @cached_property
    def ranks_below(self) -> tuple[frozenset[int], ...]:
        """The ranks below every outgoing link."""
        of_host: list[list[int]] = [[] for _ in self.counts]
        for rank, host in enumerate(self.host_of):
            of_host[host].append(rank)
        return tuple(frozenset(rank for host in link.hosts for rank in of_host[host]) for link in self.links)

    @cached_property
    def bytes_per_s(self) -> NDArray[np.float64]:
        """Of every link, first outgoing, then incoming."""
        rates = np.array([link.bytes_per_s for link in self.links])
        return np.concatenate([rates, rates])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of every link, first outgoing, then incoming."""
        out = tuple(link.name for link in self.links)
        return out + tuple(f"{name} in" for name in out)


def place_ranks(
    topology: Topology,
    ranks: int,
    placement: tuple[int, ...] | None = None,
    hardware: Hardware | None = None,
) -> RankPlaces:
    """Put ranks on hosts in order.

    Args:
        placement: ranks per host; None fills each host's GPUs before the next one's.
        hardware: of the ranks: no GPU sends to another of its host faster than its own NVLink, and without
            one it takes the bus. None, or a processor: what the topology says.

    Raises:
        InputError: no ranks, more ranks than GPUs, a placement that does not fit.
    """
    if ranks < 1:
        raise InputError(f"{ranks} ranks", "give 1 or more")
    gpus = topology.hosts.gpus
    if ranks > topology.gpus:
        raise InputError(
            f"{ranks} ranks on {topology.name!r}, which has {topology.gpus} GPUs",
            "give fewer ranks, or a larger topology",
        )
    before = np.concatenate([[0], np.cumsum(gpus)[:-1]])
    counts = np.clip(ranks - before, 0, gpus)
    if placement is not None:
        counts = _checked(topology, ranks, placement)
    chosen = tuple((int(host), int(counts[host])) for host in np.flatnonzero(counts))
    levels, latency_s = _uplinks(topology, chosen)
    links = (*_nics(topology, chosen), *levels, *_inner(topology, chosen, hardware))
    return RankPlaces(topology, chosen, links, latency_s)


def _checked(topology: Topology, ranks: int, placement: tuple[int, ...]) -> NDArray[np.int64]:
    gpus = topology.hosts.gpus
    if len(placement) > len(gpus) or min(placement, default=0) < 0 or sum(placement) != ranks:
        raise InputError(
            f"the placement {placement} of {ranks} ranks on {len(gpus)} hosts",
            "give the ranks of each host in order; together they are all ranks",
        )
    counts = np.zeros(len(gpus), dtype=np.int64)
    counts[: len(placement)] = placement
    full = np.flatnonzero(counts > gpus)
    if full.size:
        host = int(full[0])
        raise InputError(
            f"{counts[host]} ranks on host {topology.hosts.names[host]!r}, which has {gpus[host]} GPUs",
            "give it no more ranks than GPUs",
        )
    return counts


def _nics(topology: Topology, counts: tuple[tuple[int, int], ...]) -> list[RankLink]:
    hosts = topology.hosts
    if len(counts) < 2:
        return []
    return [
        RankLink(f"{hosts.names[host]} nic", float(hosts.nic_bytes_per_s[host]), frozenset([i]), count)
        for i, (host, count) in enumerate(counts)
    ]


def _uplinks(topology: Topology, counts: tuple[tuple[int, int], ...]) -> tuple[list[RankLink], float]:
    """The uplinks of every level that the ranks cross, and the latency of one hop over them."""
    if len(counts) < 2:
        return [], 0.0
    latency_s = max(float(topology.hosts.nic_latency_s[host]) for host, _ in counts)
    links: list[RankLink] = []
    for level in topology.levels:
        below: dict[int, list[int]] = {}
        for i, (host, _) in enumerate(counts):
            below.setdefault(int(level.domain_of_host[host]), []).append(i)
        if len(below) == 1:
            break
        latency_s += level.latency_s
        for domain, own in below.items():
            name = f"{level.name} {level.domains[domain]} uplink"
            rate = float(level.uplink_bytes_per_s[domain])
            links.append(RankLink(name, rate, frozenset(own), sum(counts[i][1] for i in own)))
    return links, latency_s


def _inner(
    topology: Topology, counts: tuple[tuple[int, int], ...], hardware: Hardware | None
) -> list[RankLink]:
    """What one GPU sends to another of its host: its fabric, or the bus where they touch several islands."""
    hosts = topology.hosts
    own = hardware.fabric_bytes_per_s if hardware is not None and hardware.kind == "gpu" else np.inf
    found = []
    for i, (host, count) in enumerate(counts):
        if count > 1:
            fabric, bus = float(hosts.fabric_bytes_per_s[host]), float(hosts.bus_bytes_per_s[host])
            if count > int(hosts.island_gpus[host]):
                word, rate = "bus", bus
            else:
                word, rate = ("fabric", min(fabric, own)) if own else ("bus", min(fabric, bus))
            found.append(RankLink(f"{hosts.names[host]} {word}", rate, frozenset([i]), count, True))
    return found
