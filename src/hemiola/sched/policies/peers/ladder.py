"""Least attained service in queues, as three peers' simulators have it.

A job enters the first queue; when its attained service has reached the queue's limit, it goes to
the end of the next, one step per instant; no job comes back. GPUs are given away by number along
the queues, and a miss is passed over. Whoever is not reached is stopped. Tiresias (NSDI'19) calls
it discretised LAS; its own simulator and Muri's keep three queues with those that run in front,
Pollux's keeps two in order of entry.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from hemiola.core.decisions import Decision, Start, Stop, WakeAt
from hemiola.core.topology import Topology
from hemiola.sched.job_state import ENDED, RUNNING, JobState
from hemiola.sched.placement import Rule, find
from hemiola.sched.policies.peers.placing import Emptiest, scheme
from hemiola.sched.policies.peers.policy import PeerPolicy
from hemiola.sched.policies.peers.progress import Progress, progress_of
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView, Index

__all__ = ["Dlas", "DlasGpu", "Ladder", "MuriTiresias", "PolluxTiresias"]

TIRESIAS_LIMITS = (3250.0, 7200.0)
POLLUX_LIMITS = (16 * 3600.0,)
ROUNDING_S = 1e-6


@dataclass(frozen=True)
class Rungs:
    """Asks for so many queues, kept from instant to instant."""

    count: int

    def build(self, view: ClusterView) -> KeptRungs:
        return KeptRungs(self.count)


class KeptRungs(Index):
    """The queues of one view.

    Attributes:
        queues: jobs in order, the first queue first.
        level: the queue of each job, by its index.
        climbing: running jobs that can still go down, by index.
    """

    def __init__(self, count: int) -> None:
        self.queues: list[list[JobState]] = [[] for _ in range(count)]
        self.level: dict[int, int] = {}
        self.climbing: dict[int, JobState] = {}
        self._left: dict[int, JobState] = {}

    def enter(self, job: JobState, now: float) -> None:
        """Append a newcomer to the first queue; note who runs."""
        if job.status == ENDED:
            return
        if job.index not in self.level:
            self.level[job.index] = 0
            self.queues[0].append(job)
        if job.status == RUNNING and self.level[job.index] < len(self.queues) - 1:
            self.climbing[job.index] = job

    def leave(self, job: JobState) -> None:
        """It no longer runs or waits as it did."""
        self.climbing.pop(job.index, None)
        self._left[job.index] = job

    def drop_ended(self) -> None:
        """Forget the jobs that ended."""
        for job in self._left.values():
            if job.status == ENDED:
                self.queues[self.level.pop(job.index)].remove(job)
        self._left.clear()

    def demote(self, job: JobState) -> None:
        """Put it at the end of the next queue."""
        level = self.level[job.index]
        self.queues[level].remove(job)
        self.queues[level + 1].append(job)
        self.level[job.index] = level + 1
        if level + 2 == len(self.queues):
            del self.climbing[job.index]


class Ladder(Policy, ABC):
    """Queues by attained service; GPUs by number.

    Attributes:
        limits: service at which a job leaves each queue but the last.
        running_first: whether those that run stand before those that wait in their queue.
    """

    limits: ClassVar[tuple[float, ...]]
    running_first: ClassVar[bool] = True

    @abstractmethod
    def service(self, job: JobState, attained_s: float) -> float:
        """Attained service in the unit of `limits`."""

    @abstractmethod
    def rule_for(self) -> Rule:
        """Which GPUs a job gets, once their number is granted."""

    def next_step_s(self, job: JobState, limit: float, attained_s: float, now: float) -> float:
        """When a running job is looked at again by itself; infinity for never."""
        return math.inf

    def decide(self, view: ClusterView) -> Iterator[Decision]:
        """1. Steps down. 2. Grants along the queues. 3. Stops and starts. 4. The next step down."""
        progress: Progress = progress_of(view, self.name)
        rungs: KeptRungs = view.index(Rungs(len(self.limits) + 1))
        rungs.drop_ended()
        for job in self._due(rungs, progress, view.now):
            rungs.demote(job)
        starting, stopping = self._grant(rungs, view.topology.gpus)
        for job in stopping:
            yield Stop(job.id, "jobs with less attained service, or longer in its queue, take the GPUs")
        rule = self.rule_for()
        for job in starting:
            placement = find(view.inventory, job, rule)
            if placement is not None:
                yield Start(job.id, placement, f"least attained service first; {rule.says}")
        wake_s = self._wake_s(rungs, progress, view.now)
        if wake_s < math.inf:
            yield WakeAt(max(wake_s, view.now), "", "then a job's attained service reaches a limit")

    def _due(self, rungs: KeptRungs, progress: Progress, now: float) -> list[JobState]:
        """Running jobs that have reached their queue's limit, in order of arrival."""
        limits, level = self.limits, rungs.level
        due = [
            job
            for index, job in rungs.climbing.items()
            if self.service(job, progress.attained_s(job, now)) >= limits[level[index]]
        ]
        return sorted(due, key=lambda job: job.index) if len(due) > 1 else due

    def _grant(self, rungs: KeptRungs, free: int) -> tuple[list[JobState], list[JobState]]:
        """Give away `free` GPUs along the queues: who must start, who must stop."""
        starting: list[JobState] = []
        stopping: list[JobState] = []
        for level, queue in enumerate(rungs.queues):
            runs: list[JobState] = []
            waits: list[JobState] = []
            for job in queue:
                if job.gpus <= free:
                    free -= job.gpus
                    runs.append(job)
                    if job.status != RUNNING:
                        starting.append(job)
                else:
                    waits.append(job)
                    if job.status == RUNNING:
                        stopping.append(job)
            if waits and self.running_first:
                rungs.queues[level] = runs + waits
        return starting, stopping

    def _wake_s(self, rungs: KeptRungs, progress: Progress, now: float) -> float:
        limits, level = self.limits, rungs.level
        return min(
            (
                self.next_step_s(job, limits[level[index]], progress.attained_s(job, now), now)
                for index, job in rungs.climbing.items()
            ),
            default=math.inf,
        )

    def card(self) -> dict[str, str]:
        return {
            "order": f"queues by attained service, cut at {'/'.join(f'{x:g}' for x in self.limits)}",
            "backfill": "whoever fits by number, no reservation",
            "preemption": "of whoever the queues do not reach",
            "promotion": "never",
        }


@dataclass(frozen=True)
class CountedLadder(PeerPolicy, Ladder, ABC):
    """A ladder that takes a placement scheme and ignores it: the peers choose no hosts here."""

    limits = TIRESIAS_LIMITS

    def rule_for(self) -> Rule:
        return scheme("count")

    def largest(self, topology: Topology) -> int:
        return topology.gpus

    def card(self) -> dict[str, str]:
        return {**Ladder.card(self), "placement": "by number of GPUs only, whatever `placement` says"}


@dataclass(frozen=True)
class Dlas(CountedLadder):
    """Attained service in seconds."""

    name = "dlas"
    source = "Tiresias's simulator, --schedule dlas"

    def service(self, job: JobState, attained_s: float) -> float:
        return attained_s

    def next_step_s(self, job: JobState, limit: float, attained_s: float, now: float) -> float:
        return limit - attained_s + now


@dataclass(frozen=True)
class DlasGpu(CountedLadder):
    """Attained service in GPU-seconds.

    The peer subtracts seconds from GPU-seconds when it sets its timer, so it looks late; the step
    down then happens at whichever instant first sees the limit reached.
    """

    name = "dlas-gpu"
    source = "Tiresias's simulator, --schedule dlas-gpu"

    def service(self, job: JobState, attained_s: float) -> float:
        return attained_s * job.gpus

    def next_step_s(self, job: JobState, limit: float, attained_s: float, now: float) -> float:
        return math.ceil((limit - attained_s) / job.gpus) + now


@dataclass(frozen=True)
class MuriTiresias(CountedLadder):
    """Muri's Tiresias-L: attained service in GPU-seconds, the timer at the crossing, rounded up."""

    name = "tiresias"
    source = "Muri's simulator (SIGCOMM'22), --schedule dlas-gpu"

    def service(self, job: JobState, attained_s: float) -> float:
        return attained_s * job.gpus + ROUNDING_S

    def next_step_s(self, job: JobState, limit: float, attained_s: float, now: float) -> float:
        return math.ceil(limit / job.gpus) - attained_s + now


@dataclass(frozen=True)
class PolluxTiresias(Ladder):
    """Tiresias as Pollux's simulator has it: two queues cut at 16 GPU-hours, in order of entry."""

    name = "tiresias"
    source = "Pollux's simulator (OSDI'21), policy tiresias"
    limits = POLLUX_LIMITS
    running_first = False

    def service(self, job: JobState, attained_s: float) -> float:
        return attained_s * job.gpus

    def rule_for(self) -> Rule:
        return Emptiest()

    def card(self) -> dict[str, str]:
        return {**super().card(), "placement": f"{Emptiest.name}: {Emptiest.says}"}
