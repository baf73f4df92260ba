"""The running jobs that send over the network: which links each crosses, and who meets whom there.

For policies that set the jobs' shares of links. Links are numbered as in `cost.iteration`: hosts
first, then the uplinks of each level's domains. Knows neither rates nor laws of contention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import numpy as np

from hemiola.core.decisions import Pace, Placement
from hemiola.sched.index import members
from hemiola.sched.inventory import Inventory
from hemiola.sched.job_state import RUNNING, JobState
from hemiola.sched.view import ClusterView, Index

__all__ = ["CROSSING", "Crosser", "CrossingJobs", "crossed_links", "groups", "meetings", "pace"]


class Crosser:
    """A job that sends over the network.

    Attributes:
        job: the job.
        links: the links it crosses that have a limit; what has none is shared by nobody.
        alone_s: time to send one iteration's traffic over the slowest of them, alone.
        weight: its share of links, as last asked for.
    """

    __slots__ = ("alone_s", "job", "links", "weight")

    def __init__(self, job: JobState, links: tuple[int, ...], alone_s: float) -> None:
        self.job = job
        self.links = links
        self.alone_s = alone_s
        self.weight = 1.0


class CrossingJobs(Index):
    """All running jobs that send over links with a limit; an index.

    Attributes:
        changed: whether one came or went since `settle`.
    """

    def __init__(self, view: ClusterView) -> None:
        topology = view.topology
        uplinks = [level.uplink_bytes_per_s for level in topology.levels]
        self._bytes_per_s = np.concatenate([topology.hosts.nic_bytes_per_s, *uplinks]).tolist()
        self._first_link = [len(topology.hosts)]
        for level in topology.levels:
            self._first_link.append(self._first_link[-1] + len(level.domains))
        self._view = view
        self._all: dict[int, Crosser] = {}
        self.changed = False

    def enter(self, job: JobState, now: float) -> None:
        """Note a job that starts; every stay on GPUs begins with the neutral weight."""
        if job.status != RUNNING or job.tier == 0:
            return
        traffic_bytes = self._view.estimates.demand(job)[1]
        if traffic_bytes:
            assert job.placement is not None
            crossed = crossed_links(self._view.inventory, self._first_link, job.placement)
            links = tuple([link for link in crossed if self._bytes_per_s[link] < inf])
            if links:
                slowest = min(self._bytes_per_s[link] for link in links)
                self._all[job.index] = Crosser(job, links, traffic_bytes / slowest)
                self.changed = True

    def leave(self, job: JobState) -> None:
        """It leaves its GPUs, if it had any."""
        if self._all.pop(job.index, None) is not None:
            self.changed = True

    def refresh(self, job: JobState, now: float) -> None:
        """Its speed is of no interest here."""

    def links_of(self, placement: Placement) -> tuple[tuple[int, ...], float]:
        """The links with a limit that a job there would cross, and the slowest one's bytes per second."""
        crossed = crossed_links(self._view.inventory, self._first_link, placement)
        links = tuple([link for link in crossed if self._bytes_per_s[link] < inf])
        return links, min((self._bytes_per_s[link] for link in links), default=inf)

    def running(self) -> Iterator[Crosser]:
        """All crossers."""
        return iter(self._all.values())

    def settle(self) -> list[Crosser] | None:
        """All crossers in order of arrival; None if they are the same as last time, or the engine cannot pace jobs."""
        if not self.changed or Pace in self._view.cannot:
            return None
        self.changed = False
        return [self._all[index] for index in sorted(self._all)]


@dataclass(frozen=True)
class _CrossingJobsSpec:
    """Says that a policy needs `CrossingJobs`."""

    def build(self, view: ClusterView) -> CrossingJobs:
        """Empty; the view enters every job."""
        return CrossingJobs(view)


CROSSING = _CrossingJobsSpec()


def crossed_links(inventory: Inventory, first_link: list[int], placement: Placement) -> tuple[int, ...]:
    """The links between the hosts of a placement: their NICs, and the uplinks on the way.

    Args:
        first_link: number of the first uplink of each level.
    """
    links = list(placement.hosts)
    for level, domains in enumerate(inventory.domain_of):
        climbed = {domains[host] for host in placement.hosts}
        if len(climbed) == 1:
            break
        links += [first_link[level] + domain for domain in sorted(climbed)]
    return tuple(links)


def meetings(crossers: list[Crosser]) -> list[int]:
    """For each crosser the bitset of the others (by position) that use one of its links."""
    users: dict[int, int] = {}
    for position, crosser in enumerate(crossers):
        for link in crosser.links:
            users[link] = users.get(link, 0) | 1 << position
    met = []
    for position, crosser in enumerate(crossers):
        bits = 0
        for link in crosser.links:
            bits |= users[link]
        met.append(bits & ~(1 << position))
    return met


def groups(met: list[int]) -> Iterator[list[int]]:
    """The positions that hang together through meetings, each group ascending."""
    left = (1 << len(met)) - 1
    while left:
        group = fresh = left & -left
        while fresh:
            reached = 0
            for position in members(fresh):
                reached |= met[position]
            fresh = reached & ~group
            group |= reached
        left &= ~group
        yield list(members(group))


def pace(view: ClusterView, crossers: list[Crosser], weights: list[float], reason: str) -> Iterator[Pace]:
    """Ask for the weights that are not in force yet; where the engine cannot pace jobs, once."""
    for crosser, weight in zip(crossers, weights, strict=True):
        if weight != crosser.weight and Pace not in view.cannot:
            crosser.weight = weight
            yield Pace(crosser.job.id, weight, reason)
