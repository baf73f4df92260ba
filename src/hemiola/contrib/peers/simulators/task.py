"""One job as a peer's simulator counts it: when it held GPUs, and what it did with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from hemiola.core.decisions import Placement
from hemiola.core.job import Job
from hemiola.sched.job_state import JobState

__all__ = ["PeerEstimates", "PeerTask"]


class PeerTask(ABC):
    """The account of one job; how its work shrinks is the peer's business.

    Attributes:
        index: order of arrival.
        start_s: since when it holds GPUs.
        resume_s: until then its span does no work, as the timeline shows it.
        version: counts its spans; what was predicted in an older one is void.
        checkpoint_s: time with GPUs in which the peer counts no progress.
        ideal_s: run time alone, never stopped.
    """

    exposed_s = 0.0
    lost_s = 0.0

    def __init__(self, job: Job, index: int, tiers: int) -> None:
        self.job = job
        self.index = index
        self.placement: Placement | None = None
        self.tier = 0
        self.start_s = 0.0
        self.resume_s = 0.0
        self.version = 0
        self.first_start_s: float | None = None
        self.finish_s: float | None = None
        self.checkpoint_s = 0.0
        self.ideal_s = job.duration_s
        self.tiers_s = [0.0] * tiers

    @property
    def useful_s(self) -> float:
        """Time with GPUs in which it made progress."""
        return sum(self.tiers_s) - self.checkpoint_s

    def begin(self, placement: Placement, tier: int, now: float) -> None:
        """It gets GPUs."""
        self.placement = placement
        self.tier = tier
        self.start_s = self.resume_s = now
        if self.first_start_s is None:
            self.first_start_s = now

    def end(self, now: float) -> None:
        """It gives them back."""
        self.tiers_s[self.tier] += now - self.start_s
        self.placement = None
        self.version += 1

    @abstractmethod
    def attained_s(self, now: float) -> float:
        """Seconds in which it held GPUs."""

    @abstractmethod
    def remaining_s(self, now: float) -> float:
        """Seconds of work left, as the peer predicts them."""


class PeerEstimates:
    """What policies are told under a peer's rules: every placement runs alike, and progress to the bit.

    Args:
        switch_s: what a pre-emption costs a job.
    """

    def __init__(self, switch_s: float = 0.0) -> None:
        self._tasks: Mapping[str, PeerTask] = {}
        self._switch_s = switch_s

    def watch(self, tasks: Mapping[str, PeerTask]) -> None:
        """Tell from now on what a driver keeps in these accounts."""
        self._tasks = tasks

    def slowdown(self, job: JobState, tier: int) -> float:
        """1: the peer's policies know of no slower tier."""
        return 1.0

    def speed_at(self, job: JobState, gpus: int) -> float:
        """In proportion to its GPUs."""
        return gpus / job.asked_gpus

    def switch_s(self, job: JobState) -> float:
        """Seconds to save and load the job once."""
        return self._switch_s

    def demand(self, job: JobState) -> tuple[float, float, float]:
        """(compute_s, traffic_bytes, hidden_s): nothing is sent."""
        return 1.0, 0.0, 0.0

    def remaining_s(self, job: JobState, now: float) -> float:
        """Seconds of work left."""
        return self._tasks[job.id].remaining_s(now)

    def attained_s(self, jobs: Iterable[JobState], now: float) -> list[float]:
        """Seconds in which each of them held GPUs."""
        tasks = self._tasks
        return [tasks[job.id].attained_s(now) for job in jobs]
