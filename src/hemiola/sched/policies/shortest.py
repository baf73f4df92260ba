"""Shortest first, in three forms. They know each job's true run time: oracles to measure others by.

Only `sjf:knows=estimate` goes by what users declared, which is what a real scheduler has. Which of the two it is stands
in the policy's name and card, never in the data. Remaining time is work left at ideal speed, for jobs that run and jobs that wait alike, so that two
jobs never take turns at pre-empting each other.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from hemiola.core.decisions import Decision
from hemiola.core.errors import PolicyError
from hemiola.sched.job_state import JobState
from hemiola.sched.placement import Rule, TierAware
from hemiola.sched.policy import Policy, by_order
from hemiola.sched.queues import FALLING, Order
from hemiola.sched.view import ClusterView

__all__ = ["ByDuration", "ByEstimate", "ByRemaining", "ByRemainingService", "Sjf", "Srsf", "Srtf"]


@dataclass(frozen=True)
class ByDuration(Order):
    """Shortest true run time first, whatever users declared."""

    says = "shortest job first"

    def waiting(self, job: JobState, now: float) -> float:
        return job.work_s


@dataclass(frozen=True)
class ByEstimate(Order):
    """Shortest declared run time first; jobs that declared none go last, as nothing says that they are short."""

    says = "shortest declared job first"

    def waiting(self, job: JobState, now: float) -> float:
        declared_s = job.job.estimate_s
        return math.inf if declared_s is None else declared_s


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
KNOWLEDGE: dict[str, tuple[Order, str]] = {
    "truth": (DURATION, "run time (oracle)"),
    "estimate": (
        ByEstimate(),
        "run time declared at submission (time limit, requested time); jobs without one last",
    ),
}
"""What `sjf` may go by: the order, and how its card says it."""


@dataclass(frozen=True)
class Sjf(Policy):
    """Shortest job first, without pre-emption; whoever fits may overtake.

    Args:
        placement: which free GPUs a job gets.
        knows: "truth", each job's real run time (an oracle), or "estimate", the one declared at submission.
    """

    placement: Rule = TierAware()
    knows: str = "truth"
    name = "sjf"
    source = "textbook; oracle of run time, or by estimates"

    def __post_init__(self) -> None:
        if self.knows not in KNOWLEDGE:
            raise PolicyError(f"knows is {self.knows!r}", f"choose one of {', '.join(KNOWLEDGE)}")

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        return by_order(view, KNOWLEDGE[self.knows][0], self.placement)

    def card(self) -> dict[str, str]:
        return {"order": KNOWLEDGE[self.knows][1], "backfill": "whoever fits", "preemption": "none"}


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
