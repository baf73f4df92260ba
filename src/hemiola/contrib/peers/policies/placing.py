"""Where the peers' simulators put a job: counts of GPUs per host, always the first host that will do.

The same first fit serves real GPUs (a placement rule) and a cluster imagined empty (a packing).
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, cast

from hemiola.core.decisions import Placement
from hemiola.core.errors import PolicyError
from hemiola.core.topology import Topology
from hemiola.sched.index import CountIndex, lowest, members
from hemiola.sched.inventory import GpuPool, Inventory, pick
from hemiola.sched.job_state import JobState
from hemiola.sched.placement import BestFit, Rule
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView

__all__ = ["Emptiest", "Pairs", "PeerPacking", "PeerPolicy", "Progress", "placed", "progress_of", "scheme"]


Pairs = tuple[tuple[int, int], ...]
EVERYWHERE = -1


def first_fit(hosts: CountIndex, switches: list[int], size: int, gpus: int) -> Pairs | None:
    """(host, GPUs) for a job under the first switch that can hold all of it, or None.

    Up to a host's `size`: the first host with so many free. More: the first wholly idle hosts,
    and for the remainder the first other host of that switch, which may be partly used.
    """
    whole, rest = divmod(gpus, size)
    if not whole or gpus == size:
        enough = _with_at_least(hosts, gpus)
        for within in switches:
            if found := enough & within:
                return ((lowest(found), gpus),)
        return None
    for within in switches:
        idle = hosts.buckets[size] & within
        if idle.bit_count() < whole:
            continue
        pairs = tuple((host, size) for host, _ in zip(members(idle), range(whole), strict=False))
        if not rest:
            return pairs
        taken = sum(hosts.bits[host] for host, _ in pairs)
        if others := _with_at_least(hosts, rest) & within & ~taken:
            return (*pairs, (lowest(others), rest))
    return None


def _with_at_least(hosts: CountIndex, gpus: int) -> int:
    found = 0
    for bucket in hosts.buckets[gpus:]:
        found |= bucket
    return found


@dataclass(frozen=True)
class FirstSwitch(Rule):
    """Tiresias's and Muri's "yarn": all under one switch, the first host that will do, never split further."""

    name = "yarn"
    says = "the first hosts under one switch that hold it whole"

    def choose(self, inventory: Inventory, pool: GpuPool, job: JobState, widest: int) -> Placement | None:
        switches = inventory.domain_hosts[0] if inventory.domain_hosts else [EVERYWHERE]
        pairs = first_fit(pool.hosts, switches, pool.largest, job.gpus)
        return None if pairs is None else placed(inventory, pairs)


@dataclass(frozen=True)
class Emptiest(Rule):
    """Pollux's Tiresias: again and again the host with most free GPUs, until the job is complete."""

    name = "emptiest-first"
    says = "the hosts with most free GPUs, whatever the spread"

    def choose(self, inventory: Inventory, pool: GpuPool, job: JobState, widest: int) -> Placement | None:
        pairs: list[tuple[int, int]] = []
        left = job.gpus
        for host, free in pool.hosts.descending():
            pairs.append((host, min(free, left)))
            left -= pairs[-1][1]
            if not left:
                return placed(inventory, tuple(pairs))
        return None


def placed(inventory: Inventory, pairs: Pairs, own: Placement | None = None) -> Placement:
    """So many GPUs of each of these hosts, ranks in this order; `own` GPUs count as free."""
    mine = {} if own is None else dict(zip(own.hosts, own.masks, strict=True))
    masks, islands = inventory.masks, inventory.island_masks
    return Placement(
        tuple([host for host, _ in pairs]),
        tuple([pick(masks[host] | mine.get(host, 0), count, islands[host]) for host, count in pairs]),
    )


class PeerPacking:
    """A cluster of equal hosts, imagined empty, into which jobs are packed by first fit.

    Attributes:
        free: GPUs not yet given away.
    """

    __slots__ = ("_counts", "_hosts", "_missed", "_size", "_switches", "_total", "free")

    def __init__(self, inventory: Inventory) -> None:
        self._size = max(mask.bit_count() for mask in inventory.all_masks)
        self._switches = inventory.domain_hosts[0] if inventory.domain_hosts else [EVERYWHERE]
        self._total = self._size * len(inventory.all_masks)
        self.empty()

    def empty(self) -> None:
        """Give everything back."""
        hosts = self._total // self._size
        self._hosts = CountIndex(hosts, self._size)
        self._hosts.buckets[self._size] = (1 << hosts) - 1
        self._hosts.occupied = 1 << self._size
        self._counts = [self._size] * hosts
        self._missed: set[int] = set()
        self.free = self._total

    def take(self, gpus: int) -> Pairs | None:
        """Where the next job goes, or None: then no other job of that size fits either."""
        if gpus > self.free or gpus in self._missed:
            return None
        pairs = first_fit(self._hosts, self._switches, self._size, gpus)
        if pairs is None:
            self._missed.add(gpus)
            return None
        for host, count in pairs:
            left = self._counts[host] - count
            self._hosts.move(host, left + count, left)
            self._counts[host] = left
        self.free -= gpus
        return pairs


SCHEMES: dict[str, Rule] = {"yarn": FirstSwitch(), "count": BestFit()}
"""The peers' placement schemes by name; "count" looks at numbers only, so any free GPUs will do."""


def scheme(name: str) -> Rule:
    """The rule behind a scheme's name.

    Raises:
        PolicyError: there is no such scheme.
    """
    if name not in SCHEMES:
        raise PolicyError(f"placement={name!r} is none of this peer's", f"choose one of {', '.join(SCHEMES)}")
    return SCHEMES[name]


def largest_job(name: str, topology: Topology) -> int:
    """GPUs of the largest job that a scheme could ever place."""
    if name == "count" or not topology.levels:
        return topology.gpus
    level = topology.levels[0]
    per_switch = [0] * len(level.domains)
    for domain, gpus in zip(level.domain_of_host.tolist(), topology.hosts.gpus.tolist(), strict=True):
        per_switch[domain] += gpus
    return max(per_switch)


# What the peers' policies share: a placement scheme by name, and the largest job that it can hold.


@dataclass(frozen=True)
class PeerPolicy(Policy, ABC):
    """A policy of Tiresias's or Muri's simulator.

    Args:
        placement: "yarn" (all under one switch) or "count" (numbers only).
    """

    placement: str = "yarn"

    def __post_init__(self) -> None:
        scheme(self.placement)

    @property
    def rule(self) -> Rule:
        """The rule behind `placement`."""
        return scheme(self.placement)

    def largest(self, topology: Topology) -> int:
        """GPUs of the largest job that it could ever start."""
        return largest_job(self.placement, topology)


# What a peer's policies are told of a job's progress, to the last bit as the peer would count it.


class Progress(Protocol):
    """Part of the estimates under a peer's semantics."""

    def remaining_s(self, job: JobState, now: float) -> float:
        """Seconds of work left, as the peer predicts them."""

    def attained_s(self, jobs: Iterable[JobState], now: float) -> list[float]:
        """Seconds in which each of them held GPUs."""


def progress_of(view: ClusterView, policy: str) -> Progress:
    """The progress of the view's jobs.

    Raises:
        PolicyError: under semantics that do not count as a peer does.
    """
    if not hasattr(view.estimates, "attained_s"):
        raise PolicyError(
            f"the policy {policy!r} of a peer's simulator runs only under that peer's semantics",
            "add --semantics tiresias-sim, muri-sim or pollux-sim",
        )
    return cast(Progress, view.estimates)
