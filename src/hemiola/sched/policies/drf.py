"""DRF: whoever has least of what matters most to them goes next.

In the style of Ghodsi, Zaharia, Hindman, Konwinski, Shenker, Stoica, "Dominant Resource Fairness", NSDI'11: an owner's
dominant share is the largest of their shares of GPUs, processors, memory and links; progressive filling gives the next part
to the owner whose share is least (Algorithm 1). Where the paper leaves it open, or was left:

- a part is a whole gang: a job starts at the least size that it may have, and an elastic one grows part by part in rounds;
- who names no user is a user of their own, as in the evaluations of OASiS and PD-ORS, which have DRF as a baseline;
- running jobs of users above their share are not stopped, only elastic ones shrink.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hemiola.core.decisions import Decision
from hemiola.core.errors import PolicyError
from hemiola.sched.job_state import JobState
from hemiola.sched.optimise.offers import ClusterTotal
from hemiola.sched.placement import Rule, TierAware
from hemiola.sched.policies.fifo import ByArrival
from hemiola.sched.policy import Policy
from hemiola.sched.rounds import Rounds, RoundsEvery, Share, fill, reassign, sizes_of
from hemiola.sched.view import ClusterView

__all__ = ["Drf", "progressive_filling"]

ARRIVAL = ByArrival()


def progressive_filling(view: ClusterView, jobs: list[JobState], total: ClusterTotal) -> dict[int, int]:
    """GPUs of each job, by index: the least for those that run, then parts to the owner with the least dominant share.

    Of an owner's jobs the one that has least goes first, then the earlier one; who has no room for its next part is done.
    """
    left = total.capacity.copy()
    of_owner: dict[str, NDArray[np.float64]] = {}
    given: dict[int, int] = {}
    for job in jobs:
        if job.placement is not None:
            _give(job, sizes_of(view, job)[0], total, left, of_owner, given)
    open_jobs = {job.index: job for job in jobs}
    while open_jobs:
        job = min(
            open_jobs.values(),
            key=lambda job: (
                float(of_owner.get(_owner(job), total.nothing).max()), given.get(job.index, 0), job.index,
            ),
        )  # fmt: skip
        more = next((gpus for gpus in sizes_of(view, job) if gpus > given.get(job.index, 0)), None)
        if more is None or not _give(job, more, total, left, of_owner, given):
            del open_jobs[job.index]
    return given


def _give(
    job: JobState, gpus: int, total: ClusterTotal, left: NDArray[np.float64],
    of_owner: dict[str, NDArray[np.float64]], given: dict[int, int],
) -> bool:  # fmt: skip
    """Let a job have so many GPUs, if what is left suffices; whether it did."""
    have = given.get(job.index, 0)
    wants = total.of(job, gpus) - (total.of(job, have) if have else 0.0)
    if (wants > left + 1e-9).any():
        return False
    left -= wants
    given[job.index] = gpus
    of_owner[_owner(job)] = of_owner.get(_owner(job), total.nothing) + wants / total.capacity
    return True


def _owner(job: JobState) -> str:
    return job.job.user or f"job {job.id}"


@dataclass(frozen=True)
class Drf(Policy):
    """Dominant resource fairness over jobs' owners.

    Args:
        period_s: from one round to the next; between rounds waiting jobs take what is free, in order of arrival.
        placement: which free GPUs a job gets.
    """

    period_s: float = 300.0
    placement: Rule = TierAware()
    name = "drf"
    source = "in the style of Ghodsi et al., Dominant Resource Fairness, NSDI'11, by rounds over gangs"

    def __post_init__(self) -> None:
        if not 0 < self.period_s < float("inf"):
            raise PolicyError(f"period_s is {self.period_s}", "give seconds above 0")

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        rounds: Rounds = view.index(RoundsEvery(self.period_s))
        if rounds.is_due(view.now):
            yield from self._round(view)
        yield from fill(view, ARRIVAL, self.placement)
        yield from rounds.ask(view, "the next round of fair shares")

    def card(self) -> dict[str, str]:
        return {
            "order": "least dominant share of the owner",
            "backfill": "whoever fits, until the next round",
            "preemption": "elastic jobs are resized; none is stopped for another",
        }

    def _round(self, view: ClusterView) -> Iterator[Decision]:
        jobs = [job for job in (*view.running.values(), *view.waiting.values()) if not _is_fixed(job)]
        given = progressive_filling(view, jobs, ClusterTotal(view))
        shares = [Share(job, given[job.index]) for job in jobs if job.index in given]
        yield from reassign(
            view,
            shares,
            self.placement,
            "its owner's share is the least",
            "its host has no room for its least",
        )


def _is_fixed(job: JobState) -> bool:
    return job.job.pinned and job.placement is not None
