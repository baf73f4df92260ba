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

from hemiola.contrib.peers.policies.placing import Emptiest, PeerPolicy, Progress, progress_of, scheme
from hemiola.core.decisions import Decision, Start, Stop, WakeAt
from hemiola.core.topology import Topology
from hemiola.sched.job_state import ENDED, RUNNING, JobState
from hemiola.sched.placement import Rule, find
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView, Index

__all__ = ["Dlas", "DlasGpu", "MuriTiresias", "PolluxTiresias"]


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
        heads: of those of one queue and size, the one that was served most at the last instant.
    """

    def __init__(self, count: int) -> None:
        self.queues: list[list[JobState]] = [[] for _ in range(count)]
        self.level: dict[int, int] = {}
        self.climbing: dict[int, JobState] = {}
        self.heads: dict[tuple[int, int], tuple[JobState, float]] = {}
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
        gpu_time: whether service is GPU-seconds; else it is seconds.
        running_first: whether those that run stand before those that wait in their queue.
    """

    limits: ClassVar[tuple[float, ...]]
    gpu_time: ClassVar[bool] = True
    running_first: ClassVar[bool] = True

    @abstractmethod
    def rule_for(self) -> Rule:
        """Which GPUs a job gets, once their number is granted."""

    def next_step_s(self, gpus: int, limit: float, attained_s: float, now: float) -> float:
        """When a running job is looked at again by itself; infinity for never."""
        return math.inf

    def decide(self, view: ClusterView) -> Iterator[Decision]:
        """1. Steps down. 2. Grants along the queues. 3. Stops and starts. 4. The next step down."""
        progress: Progress = progress_of(view, self.name)
        rungs: KeptRungs = view.index(Rungs(len(self.limits) + 1))
        rungs.drop_ended()
        for job in self._due(rungs, progress, view.now):
            rungs.demote(job)
        starting, stopping = self._grant(rungs, view)
        for job in stopping:
            yield Stop(job.id, "jobs with less attained service, or longer in its queue, take the GPUs")
        rule = self.rule_for()
        for job in starting:
            placement = find(view.inventory, job, rule)
            if placement is not None:
                yield Start(job.id, placement, f"least attained service first; {rule.says}")
        self._note_heads(rungs, progress, view.now)
        wake_s = self._wake_s(rungs, view.now)
        if wake_s < math.inf:
            yield WakeAt(max(wake_s, view.now), "", "then a job's attained service reaches a limit")

    def _due(self, rungs: KeptRungs, progress: Progress, now: float) -> list[JobState]:
        """Running jobs that have reached their queue's limit, in order of arrival.

        Jobs of one queue and size gain alike, so while no head is due, nobody behind it is.
        """
        heads = [head for head, _ in rungs.heads.values()]
        if all(head.index in rungs.climbing for head in heads) and not self._past(
            rungs, progress, heads, now
        ):
            return []
        due = self._past(rungs, progress, list(rungs.climbing.values()), now)
        return sorted(due, key=lambda job: job.index)

    def _past(self, rungs: KeptRungs, progress: Progress, jobs: list[JobState], now: float) -> list[JobState]:
        limits, level, gpu_time = self.limits, rungs.level, self.gpu_time
        return [
            job
            for job, attained_s in zip(jobs, progress.attained_s(jobs, now), strict=True)
            if attained_s * (job.gpus if gpu_time else 1) >= limits[level[job.index]]
        ]

    def _grant(self, rungs: KeptRungs, view: ClusterView) -> tuple[list[JobState], list[JobState]]:
        """Who must start and who must stop."""
        if len(view.waiting) <= 1 and view.wanted_gpus <= view.free:
            return list(view.waiting.values()), []
        return self._walk(rungs, view.topology.gpus)

    def _walk(self, rungs: KeptRungs, free: int) -> tuple[list[JobState], list[JobState]]:
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

    def _note_heads(self, rungs: KeptRungs, progress: Progress, now: float) -> None:
        level, heads = rungs.level, rungs.heads
        heads.clear()
        climbing = rungs.climbing.values()
        for job, attained_s in zip(climbing, progress.attained_s(climbing, now), strict=True):
            group = (level[job.index], job.gpus)
            head = heads.get(group)
            if head is None or attained_s > head[1]:
                heads[group] = (job, attained_s)

    def _wake_s(self, rungs: KeptRungs, now: float) -> float:
        """When the first job is looked at again: the head of its queue and size is the first there."""
        return min(
            (
                self.next_step_s(gpus, self.limits[level], attained_s, now)
                for (level, gpus), (_, attained_s) in rungs.heads.items()
            ),
            default=math.inf,
        )

    def card(self) -> dict[str, str]:
        unit = "GPU-seconds" if self.gpu_time else "seconds"
        return {
            "order": f"queues by attained {unit}, cut at {'/'.join(f'{limit:g}' for limit in self.limits)}",
            "backfill": "whoever fits by number, no reservation",
            "preemption": "of whoever the queues do not reach",
            "promotion": "never",
        }


# Four ladders of attained service: Tiresias's simulator has two, Muri's and Pollux's one each.

TIRESIAS_LIMITS = (3250.0, 7200.0)
POLLUX_LIMITS = (16 * 3600.0,)


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
    gpu_time = False

    def next_step_s(self, gpus: int, limit: float, attained_s: float, now: float) -> float:
        return limit - attained_s + now


@dataclass(frozen=True)
class DlasGpu(CountedLadder):
    """Attained service in GPU-seconds.

    The peer subtracts seconds from GPU-seconds when it sets its timer, so it looks late; the step
    down then happens at whichever instant first sees the limit reached.
    """

    name = "dlas-gpu"
    source = "Tiresias's simulator, --schedule dlas-gpu"

    def next_step_s(self, gpus: int, limit: float, attained_s: float, now: float) -> float:
        return math.ceil((limit - attained_s) / gpus) + now


@dataclass(frozen=True)
class MuriTiresias(CountedLadder):
    """Muri's Tiresias-L: attained service in GPU-seconds, the timer at the crossing, rounded up."""

    name = "tiresias"
    source = "Muri's simulator (SIGCOMM'22), --schedule dlas-gpu"

    def next_step_s(self, gpus: int, limit: float, attained_s: float, now: float) -> float:
        return max(math.ceil(limit / gpus) - attained_s + now, math.nextafter(now, math.inf))


@dataclass(frozen=True)
class PolluxTiresias(Ladder):
    """Tiresias as Pollux's simulator has it: two queues cut at 16 GPU-hours, in order of entry."""

    name = "tiresias"
    source = "Pollux's simulator (OSDI'21), policy tiresias"
    limits = POLLUX_LIMITS
    running_first = False

    def rule_for(self) -> Rule:
        return Emptiest()

    def card(self) -> dict[str, str]:
        return {**super().card(), "placement": f"{Emptiest.name}: {Emptiest.says}"}
