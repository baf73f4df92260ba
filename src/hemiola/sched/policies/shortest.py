"""Shortest first, in three forms. They know each job's true run time: oracles to measure others by.

Remaining time is work left at ideal speed, for jobs that run and jobs that wait alike, so that two
jobs never take turns at pre-empting each other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from hemiola.core.decisions import Decision
from hemiola.sched.job_state import JobState
from hemiola.sched.placement import Rule, TierAware
from hemiola.sched.policy import Policy, by_order
from hemiola.sched.queues import FALLING, Order
from hemiola.sched.view import ClusterView

__all__ = ["ByDuration", "ByRemaining", "ByRemainingService", "Sjf", "Srsf", "Srtf"]


@dataclass(frozen=True)
class ByDuration(Order):
    """Shortest run time first: the declared one where there is one, else the true one."""

    says = "shortest job first"

    def waiting(self, job: JobState, now: float) -> float:
        declared = job.job.estimate_s
        return job.work_s if declared is None else declared


@dataclass(frozen=True)
class ByRemaining(Order):
    """Least remaining time first."""

    says = "least remaining time first"
    knows_speed = True

    def waiting(self, job: JobState, now: float) -> float:
        return job.work_s - job.done_s

    def running(self, job: JobState, now: float) -> float:
        if job.settled_s == now or job.resume_s > now:  # what remaining_s says, sooner
            left = job.work_s - job.done_s
            return left if left > 0.0 else 0.0
        return job.remaining_s(now)

    def standing(self, job: JobState, now: float) -> float:
        left_s = self.running(job, now)
        return now + left_s if job.speed == 1.0 and job.resume_s <= now else left_s

    def kind(self, job: JobState, now: float) -> Hashable:
        return 0 if job.speed == 1.0 and job.resume_s <= now else FALLING


@dataclass(frozen=True)
class ByRemainingService(Order):
    """Least remaining time times GPUs first."""

    says = "least remaining service first"
    knows_speed = True

    def waiting(self, job: JobState, now: float) -> float:
        return (job.work_s - job.done_s) * job.gpus

    def running(self, job: JobState, now: float) -> float:
        return job.remaining_s(now) * job.gpus

    def standing(self, job: JobState, now: float) -> float:
        left_s = job.remaining_s(now)
        return now + left_s if job.speed == 1.0 and job.resume_s <= now else left_s * job.gpus

    def kind(self, job: JobState, now: float) -> Hashable:
        return job.gpus if job.speed == 1.0 and job.resume_s <= now else FALLING


DURATION, REMAINING, SERVICE = ByDuration(), ByRemaining(), ByRemainingService()


@dataclass(frozen=True)
class Sjf(Policy):
    """Shortest job first, without pre-emption; whoever fits may overtake.

    Args:
        placement: which free GPUs a job gets.
    """

    placement: Rule = TierAware()
    name = "sjf"
    source = "textbook; run times are the trace's own unless users declared them"

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        return by_order(view, DURATION, self.placement)

    def card(self) -> dict[str, str]:
        return {"order": "run time (oracle)", "backfill": "whoever fits", "preemption": "none"}


@dataclass(frozen=True)
class Srtf(Policy):
    """Shortest remaining time first, pre-emptive.

    Args:
        placement: which free GPUs a job gets.
    """

    placement: Rule = TierAware()
    name = "srtf"
    source = "textbook; oracle of remaining time"

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        return by_order(view, REMAINING, self.placement, preempt=True)

    def card(self) -> dict[str, str]:
        return {
            "order": "remaining time (oracle)",
            "backfill": "whoever fits",
            "preemption": "of longer remaining jobs, longest first, only as many as needed",
        }


@dataclass(frozen=True)
class Srsf(Policy):
    """Shortest remaining service (time x GPUs) first, pre-emptive.

    Args:
        placement: which free GPUs a job gets.
    """

    placement: Rule = TierAware()
    name = "srsf"
    source = "Tiresias (NSDI'19) section 3.1; oracle of remaining time"

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        return by_order(view, SERVICE, self.placement, preempt=True)

    def card(self) -> dict[str, str]:
        return {
            "order": "remaining time x GPUs (oracle)",
            "backfill": "whoever fits",
            "preemption": "of jobs with more remaining service, most first, only as many as needed",
        }
