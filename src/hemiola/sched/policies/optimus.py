"""Optimus: one worker (and one server) more to whom it saves most time for what it takes, over and over.

In the style of Peng, Bao, Chen, Wu, Guo, "Optimus: an efficient dynamic resource scheduler for deep learning clusters",
EuroSys'18, section 4: every job begins with the least it can run with; then the job with the largest marginal gain
(Q / f - Q / f') / (dominant share of what is added) gets it, until no gain is above 0 or nothing is left; Q is the work left,
f the speed. Where the paper was left:

- *Speeds* are those of the cost model at every size; the paper fits them to a few runs, and the work left to a loss curve.
- *A step* is the next size that a job may have: servers follow workers (`core.resources.Roles`).
- *Placement* is a rule's (few hosts first); the paper spreads tasks evenly over the fewest servers.
- *Running jobs* that would get nothing are stopped, as in the paper, where each round begins from nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from hemiola.core.decisions import Decision
from hemiola.core.errors import PolicyError
from hemiola.sched.job_state import JobState
from hemiola.sched.optimise.offers import ClusterTotal
from hemiola.sched.placement import Rule, TierAware
from hemiola.sched.policies.fifo import ByArrival
from hemiola.sched.policy import Policy
from hemiola.sched.rounds import Rounds, RoundsEvery, Share, fill, reassign, sizes_of
from hemiola.sched.view import ClusterView

__all__ = ["Optimus", "marginal_gains"]

ARRIVAL = ByArrival()
Step = tuple[float, int, int]
"""(less gain, index of the job, GPUs that it would have)"""


def marginal_gains(view: ClusterView, jobs: list[JobState], shares: ClusterTotal) -> dict[int, int]:
    """GPUs of each job, by index: the least for as many as fit, the shortest first; then step by step by marginal gain."""
    left, given = shares.capacity.copy(), {}
    by_index = {job.index: job for job in jobs}
    for job in sorted(jobs, key=lambda job: (_left_s(view, job, sizes_of(view, job)[0]), job.index)):
        least = sizes_of(view, job)[0]
        wants = shares.of(job, least)
        if (wants <= left + 1e-9).all():
            left -= wants
            given[job.index] = least
    steps = [step for index, gpus in given.items() if (step := _step(view, by_index[index], gpus, shares))]
    heapify(steps)
    while steps:
        _, index, gpus = heappop(steps)
        job = by_index[index]
        wants = shares.of(job, gpus) - shares.of(job, given[index])
        if (wants > left + 1e-9).any():
            continue
        left -= wants
        given[index] = gpus
        if step := _step(view, job, gpus, shares):
            heappush(steps, step)
    return given


def _step(view: ClusterView, job: JobState, gpus: int, shares: ClusterTotal) -> Step | None:
    """The next size, with its gain per dominant share; None if there is none, or it gains nothing."""
    more = next((size for size in sizes_of(view, job) if size > gpus), None)
    if more is None:
        return None
    gain = _left_s(view, job, gpus) - _left_s(view, job, more)
    dominant = float(((shares.of(job, more) - shares.of(job, gpus)) / shares.capacity).max())
    return (-gain / dominant, job.index, more) if gain > 0 and dominant > 0 else None


def _left_s(view: ClusterView, job: JobState, gpus: int) -> float:
    """Q / f: the time that its work would take yet with so many GPUs."""
    return job.remaining_s(view.now) / max(view.estimates.speed_at(job, gpus), 1e-12)


@dataclass(frozen=True)
class Optimus(Policy):
    """Sizes by marginal gain, in rounds.

    Args:
        period_s: from one round to the next; between rounds waiting jobs take what is free, in order of arrival.
        placement: which free GPUs a job gets.
    """

    period_s: float = 600.0
    placement: Rule = TierAware()
    name = "optimus"
    source = "in the style of Peng et al., Optimus, EuroSys'18"

    def __post_init__(self) -> None:
        if not 0 < self.period_s < math.inf:
            raise PolicyError(f"period_s is {self.period_s}", "give seconds above 0")

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        rounds: Rounds = view.index(RoundsEvery(self.period_s))
        if rounds.is_due(view.now):
            yield from self._round(view)
        yield from fill(view, ARRIVAL, self.placement)
        yield from rounds.ask(
            view, "the next round of marginal gains", alone=any(job.elastic for job in view.running.values())
        )

    def card(self) -> dict[str, str]:
        return {
            "order": "marginal gain: time saved per dominant share added",
            "backfill": "whoever fits, until the next round",
            "preemption": "each round begins from nothing; who keeps its size keeps its place",
            "remaining time": "known (oracle)",
        }

    def _round(self, view: ClusterView) -> Iterator[Decision]:
        jobs = [
            job
            for job in (*view.running.values(), *view.waiting.values())
            if not (job.job.pinned and job.placement)
        ]
        given = marginal_gains(view, jobs, ClusterTotal(view))
        shares = [Share(job, given[job.index]) for job in jobs if job.index in given]
        yield from reassign(
            view, shares, self.placement, "the largest marginal gain", "others gain more from its GPUs"
        )
