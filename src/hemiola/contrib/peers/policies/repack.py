"""Tiresias's and Muri's simulators in order of arrival (fifo, fjf), or shortest first and packed anew at every instant.

In order of arrival whoever runs is left alone. Else all jobs, running or waiting, are offered GPUs in order as if the cluster
were empty; who finds room runs, the rest wait. The list is sorted in place and kept, so ties fall as they fell last time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hemiola.contrib.peers.policies.placing import (
    Pairs,
    PeerPacking,
    PeerPolicy,
    Progress,
    placed,
    progress_of,
)
from hemiola.core.decisions import Decision, Move, Start, Stop
from hemiola.sched.job_state import ENDED, RUNNING, JobState
from hemiola.sched.placement import Rule, find
from hemiola.sched.policies.fifo import ByArrival
from hemiola.sched.policy import by_order
from hemiola.sched.view import ClusterView, Index

__all__ = ["Fjf", "PeerSjf", "PeerSrsf", "PeerSrtf", "Shortest", "ShortestGpu", "TiresiasFifo"]


@dataclass(frozen=True)
class LiveJobs:
    """Asks for the list of live jobs that a re-packing policy keeps from instant to instant."""

    def build(self, view: ClusterView) -> KeptLine:
        return KeptLine(PeerPacking(view.inventory))


class KeptLine(Index):
    """Live jobs in the order of the last instant, newcomers behind.

    Attributes:
        jobs: the list; a policy sorts it in place.
        packing: room to pack them in.
        spots: where the last packing put each job that runs.
    """

    def __init__(self, packing: PeerPacking) -> None:
        self.jobs: list[JobState] = []
        self.packing = packing
        self.spots: dict[JobState, Pairs] = {}
        self._known = 0
        self._left: dict[int, JobState] = {}

    def enter(self, job: JobState, now: float) -> None:
        """Append a newcomer."""
        if job.index >= self._known and job.status != ENDED:
            self._known = job.index + 1
            self.jobs.append(job)

    def leave(self, job: JobState) -> None:
        """It may have ended."""
        self._left[job.index] = job

    def pack(self) -> dict[JobState, Pairs]:
        """Where first fit puts the jobs, in order, into the empty cluster; who is not in it finds no room."""
        packing, chosen = self.packing, {}
        packing.empty()
        for job in self.jobs:
            if not packing.free:
                break
            if (pairs := packing.take(job.gpus)) is not None:
                chosen[job] = pairs
        return chosen

    def drop_ended(self) -> None:
        """Forget the jobs that ended."""
        for job in self._left.values():
            if job.status == ENDED:
                self.jobs.remove(job)
        self._left.clear()


LINE = LiveJobs()


@dataclass(frozen=True)
class Repack(PeerPolicy, ABC):
    """Sort, then pack into the empty cluster."""

    says = "in order"

    @abstractmethod
    def key(self, progress: Progress, job: JobState, now: float) -> float:
        """What it sorts by, ascending."""

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        progress, line, now = progress_of(view, self.name), view.index(LINE), view.now
        line.drop_ended()
        line.jobs.sort(key=lambda job: self.key(progress, job, now))
        if self.placement == "count":
            return by_count(view, line.jobs, self.rule, self.says)
        return by_packing(view, line, f"{self.says}; {self.rule.says}")

    def card(self) -> dict[str, str]:
        return {
            "order": self.says,
            "backfill": "whoever finds room in the re-packed cluster",
            "preemption": "of whoever finds none; a job that lands elsewhere moves, at no cost",
        }


def by_count(view: ClusterView, jobs: list[JobState], rule: Rule, says: str) -> Iterator[Decision]:
    """Run the jobs whose numbers of GPUs fit one after the other; a miss is passed over."""
    free = view.topology.gpus
    starting: list[JobState] = []
    stopping: list[JobState] = []
    for job in jobs:
        if job.gpus <= free:
            free -= job.gpus
            if job.status != RUNNING:
                starting.append(job)
        elif job.status == RUNNING:
            stopping.append(job)
    for job in stopping:
        yield Stop(job.id, f"{says}, others go first")
    for job in starting:
        placement = find(view.inventory, job, rule)
        if placement is not None:
            yield Start(job.id, placement, f"{says}; {rule.says}")


def by_packing(view: ClusterView, line: KeptLine, says: str) -> Iterator[Decision]:
    """Run the jobs that first fit packs into the empty cluster, each where it was packed."""
    chosen, before = line.pack(), line.spots
    line.spots = chosen
    for job in [job for job in view.running.values() if job not in chosen]:
        yield Stop(job.id, f"{says}: no room in the cluster packed anew")
    moving = [job for job, spot in chosen.items() if job.status == RUNNING and before[job] != spot]
    yield from _move(view, moving, chosen, says)
    for job, pairs in chosen.items():
        if job.status != RUNNING:
            yield Start(job.id, placed(view.inventory, pairs), says)


def _move(
    view: ClusterView, left: list[JobState], chosen: dict[JobState, Pairs], says: str
) -> Iterator[Decision]:
    """Bring running jobs to where they were packed; where they block each other in a ring, one steps out."""
    while left:
        stuck: list[JobState] = []
        for job in left:
            if _has_room(view, job, chosen[job]):
                yield Move(job.id, placed(view.inventory, chosen[job], job.placement), f"packed anew: {says}")
            else:
                stuck.append(job)
        if len(stuck) == len(left):
            yield Stop(stuck.pop(0).id, "it steps out of a ring of jobs that take each other's places")
        left = stuck


def _has_room(view: ClusterView, job: JobState, pairs: Pairs) -> bool:
    assert job.placement is not None
    counts, own = view.inventory.counts, dict(zip(job.placement.hosts, job.placement.masks, strict=True))
    return all(counts[host] + own.get(host, 0).bit_count() >= count for host, count in pairs)


# What the re-packing policies sort by: GPUs, remaining time, or remaining service.


@dataclass(frozen=True)
class PeerSjf(Repack):
    """Fewest GPUs first (the peer's "smallest job first")."""

    name = "sjf"
    source = "Tiresias's simulator, --schedule sjf"
    says = "fewest GPUs first"

    def key(self, progress: Progress, job: JobState, now: float) -> float:
        return job.gpus


@dataclass(frozen=True)
class Shortest(Repack):
    """Least remaining time first."""

    name = "shortest"
    source = "Tiresias's simulator, --schedule shortest"
    says = "least remaining time first"

    def key(self, progress: Progress, job: JobState, now: float) -> float:
        return progress.remaining_s(job, now)


@dataclass(frozen=True)
class ShortestGpu(Repack):
    """Least remaining time times GPUs first."""

    name = "shortest-gpu"
    source = "Tiresias's simulator, --schedule shortest-gpu"
    says = "least remaining service first"

    def key(self, progress: Progress, job: JobState, now: float) -> float:
        return progress.remaining_s(job, now) * job.gpus


@dataclass(frozen=True)
class PeerSrtf(Repack):
    """Muri's SRTF: least remaining time first."""

    name = "srtf"
    source = "Muri's simulator (SIGCOMM'22), --schedule shortest"
    says = "least remaining time first"

    def key(self, progress: Progress, job: JobState, now: float) -> float:
        return progress.remaining_s(job, now)


@dataclass(frozen=True)
class PeerSrsf(Repack):
    """Muri's SRSF: least remaining time times GPUs first."""

    name = "srsf"
    source = "Muri's simulator (SIGCOMM'22), --schedule shortest-gpu"
    says = "least remaining service first"

    def key(self, progress: Progress, job: JobState, now: float) -> float:
        return progress.remaining_s(job, now) * job.gpus


# Tiresias's simulator, fifo and fjf: whoever runs is left alone, the rest start in order of arrival.

ARRIVAL = ByArrival()


@dataclass(frozen=True)
class TiresiasFifo(PeerPolicy):
    """First in, first out: the first that does not fit holds everyone behind it."""

    name = "fifo"
    source = "Tiresias's simulator, --schedule fifo"

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        return by_order(view, ARRIVAL, self.rule, backfill=False)

    def card(self) -> dict[str, str]:
        return {"order": "arrival", "backfill": "none: the head of the queue blocks", "preemption": "none"}


@dataclass(frozen=True)
class Fjf(PeerPolicy):
    """First fit: in order of arrival, whoever fits."""

    name = "fjf"
    source = "Tiresias's simulator, --schedule fjf"

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        return by_order(view, ARRIVAL, self.rule)

    def card(self) -> dict[str, str]:
        return {"order": "arrival", "backfill": "whoever fits, no reservation", "preemption": "none"}
