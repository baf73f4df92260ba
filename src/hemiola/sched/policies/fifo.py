"""First in, first out: the baseline of every cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hemiola.core.decisions import Decision
from hemiola.sched.job_state import JobState
from hemiola.sched.placement import Rule, TierAware
from hemiola.sched.policy import Policy, by_order
from hemiola.sched.queues import Order
from hemiola.sched.view import ClusterView

__all__ = ["ByArrival", "Fifo", "FifoBackfill"]


@dataclass(frozen=True)
class ByArrival(Order):
    """Earliest submission first."""

    says = "first in line"

    def waiting(self, job: JobState, now: float) -> float:
        return job.submit_s


ARRIVAL = ByArrival()


@dataclass(frozen=True)
class Fifo(Policy):
    """Strict order of arrival: the first that does not fit holds everyone behind it.

    Args:
        placement: which free GPUs a job gets.
    """

    placement: Rule = TierAware()
    name = "fifo"
    source = "every batch system's default"

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        return by_order(view, ARRIVAL, self.placement, backfill=False)

    def card(self) -> dict[str, str]:
        return {"order": "arrival", "backfill": "none: the head of the queue blocks", "preemption": "none"}


@dataclass(frozen=True)
class FifoBackfill(Policy):
    """Order of arrival, but whoever fits now starts now (aggressive back-filling, no reservation).

    Args:
        placement: which free GPUs a job gets.
    """

    placement: Rule = TierAware()
    name = "fifo-backfill"
    source = "in the style of Feitelson and Weil 1998, without the reservation of EASY"

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        return by_order(view, ARRIVAL, self.placement, backfill=True)

    def card(self) -> dict[str, str]:
        return {"order": "arrival", "backfill": "whoever fits, no reservation", "preemption": "none"}
