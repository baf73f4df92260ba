"""Tiresias (Gu et al., NSDI'19): least attained service in two dimensions, discretised.

Attained service is GPUs times seconds held (section 3.1). Jobs move down through queues as their
service crosses the thresholds, and up to the first queue again when they have waited PROMOTE
times as long as they have run (section 3.3). Within a queue: order of start, then of arrival.
The paper leaves the thresholds to the operator; the defaults are its simulator's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf

from hemiola.core.decisions import Decision, Start, Stop, WakeAt
from hemiola.core.errors import PolicyError
from hemiola.sched.job_state import RUNNING, WAITING, JobState
from hemiola.sched.placement import Rule, TierAware
from hemiola.sched.policy import Policy, by_order
from hemiola.sched.queues import Order
from hemiola.sched.view import ClusterView

__all__ = ["ByAttainedService", "Tiresias", "with_timers"]

EPSILON = 1e-9
SOONEST_S = 1e-3
"""A timer is never nearer than this: rounding must not set it to the present instant for ever."""


@dataclass(frozen=True)
class ByAttainedService(Order):
    """Lower queue first; within a queue those that run, then by arrival.

    Args:
        thresholds_gpu_s: service at which a job moves down one queue.
        promote: waiting time, as a multiple of time run, after which a job starts afresh in the
            first queue; 0 for never.
    """

    thresholds_gpu_s: tuple[float, ...]
    promote: float
    says = "least attained service first"

    def level(self, service_gpu_s: float) -> int:
        """The queue that a job with this service belongs to."""
        return bisect_right(self.thresholds_gpu_s, service_gpu_s * (1 + EPSILON) + EPSILON)

    def waiting(self, job: JobState, now: float) -> tuple[int, int, float]:
        if self.promote and now - job.since_s >= self.promote * job.served_s * (1 - EPSILON) > 0:
            job.mark = job.service_gpu_s(now)
        return self.level(job.service_gpu_s(now) - job.mark), 1, job.submit_s

    def running(self, job: JobState, now: float) -> tuple[int, int, float]:
        return self.level(job.service_gpu_s(now) - job.mark), 0, job.since_s

    def next_change_s(self, job: JobState, now: float) -> float | None:
        """When this job's queue changes if nothing else happens; None for never. Who is held waits for no promotion."""
        if job.status == RUNNING:
            service = job.service_gpu_s(now) - job.mark
            level = self.level(service)
            if level == len(self.thresholds_gpu_s):
                return None
            return now + (self.thresholds_gpu_s[level] - service) / job.gpus
        if job.status != WAITING or not self.promote or not job.served_s:
            return None
        return job.since_s + self.promote * job.served_s if job.service_gpu_s(now) > job.mark else None


def with_timers(
    view: ClusterView, order: ByAttainedService, decisions: Iterable[Decision]
) -> Iterator[Decision]:
    """The same decisions, with one timer per job whose queue will change by itself."""
    for job in [*(job for job in view.timers if job.wake_s <= view.now), *view.returned]:
        yield from _wake(view, order, job)
    for decision in decisions:
        yield decision
        if type(decision) is Start or type(decision) is Stop:
            yield from _wake(view, order, view.jobs[decision.job_id])


def _wake(view: ClusterView, order: ByAttainedService, job: JobState) -> Iterator[Decision]:
    """A timer for the job's next change of queue; none while an earlier one is on its way, which asks for it then."""
    at = order.next_change_s(job, view.now)
    if at is not None and not view.now < job.wake_s <= at:
        job.wake_s = at = max(at, view.now + SOONEST_S)
        what = (
            "its attained service crosses a threshold"
            if job.status == RUNNING
            else "it has waited long enough"
        )
        yield WakeAt(at, job.id, f"then {what}")


@dataclass(frozen=True)
class Tiresias(Policy):
    """Discretised two-dimensional least attained service, with promotion.

    Args:
        placement: which free GPUs a job gets.
        thresholds: attained service in GPU-seconds at which a job moves down, joined by "/".
        promote: waiting time over time run after which a job is promoted; 0 for never.
    """

    placement: Rule = TierAware()
    thresholds: str = "3250/7200"
    promote: float = 8.0
    name = "tiresias"
    source = "Gu et al., Tiresias, NSDI'19 (discretised 2D-LAS; thresholds of its simulator)"

    def __post_init__(self) -> None:
        limits = self.limits()
        if list(limits) != sorted(set(limits)) or not all(0 < limit < inf for limit in limits):
            raise PolicyError(f"thresholds {self.thresholds!r} do not ascend from above 0", "write 3250/7200")
        if not 0 <= self.promote < inf:
            raise PolicyError(f"promote is {self.promote}", "give 0 (never) or more")

    def limits(self) -> tuple[float, ...]:
        """The thresholds as numbers."""
        try:
            return tuple(float(part) for part in self.thresholds.split("/") if part)
        except ValueError:
            raise PolicyError(f"thresholds {self.thresholds!r} are not numbers", "write 3250/7200") from None

    @cached_property
    def order(self) -> ByAttainedService:
        """The order it keeps."""
        return ByAttainedService(self.limits(), self.promote)

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        order = self.order
        return with_timers(view, order, by_order(view, order, self.placement, preempt=True))

    def card(self) -> dict[str, str]:
        return {
            "order": f"attained service (GPU-s), queues cut at {self.thresholds}, FIFO within",
            "backfill": "whoever fits",
            "preemption": "of jobs in a lower queue, only as many as needed",
            "promotion": f"after waiting {self.promote:g}x the time run" if self.promote else "never",
        }
