"""AFS (Hwang et al., Elastic Resource Sharing, NSDI'21), in the style of: each GPU to whom it helps most, short jobs first.

1. *Who gets the next GPU* (section 4.1): of two jobs, the shorter a and the longer b as they stand. Neither has one: the shorter
   gets it. Else b gets it if its own gain outweighs what a loses by waiting,
   (p_b' - p_b) / p_b' > (p_a' - p_a) / p_a,
   where p is a job's throughput and p' that with one step more; else a. The winner of all pairs in turn gets the step.
2. *Elastic sharing* (4.2): all GPUs are dealt out anew, one by one, whenever a job comes or goes.

Where the paper is silent, and what was chosen:
- *How long a job is*: what is left, over its throughput with what it has been dealt, is known with `oracle` (AFS-L of the paper);
  without, as much is expected to come as it has done, at least the mean of jobs so far (the paper's AFS-P does without lengths).
- *A step* is to the job's next size: jobs that are not elastic take all that they asked for, or nothing.
- *What is left when nobody's throughput grows* stays free. What has no place as hosts stand waits for the next deal.
- *Restarts*: a resize restarts a job, so dealing anew at every arrival costs more than it gains where many come. GPUs are
  dealt out anew no sooner than `settle_s` after the last time; between, free ones go to waiting jobs in order of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hemiola.core.decisions import Decision, WakeAt
from hemiola.core.errors import PolicyError
from hemiola.core.job import Configuration
from hemiola.sched.delay import work_left_s
from hemiola.sched.job_state import JobState
from hemiola.sched.placement import Rule, TierAware
from hemiola.sched.policies.fifo import ByArrival
from hemiola.sched.policies.sia import is_fixed
from hemiola.sched.policy import Policy
from hemiola.sched.rounds import Share, fill, reassign, sizes_of
from hemiola.sched.view import ClusterView, Index

__all__ = ["Afs", "Bidder", "deal", "goes_first"]

ARRIVAL = ByArrival()


@dataclass
class Bidder:
    """A job as GPUs are dealt out.

    Attributes:
        left: work left.
        steps: (GPUs, throughput) of its sizes, ascending.
        at: how many of them it has been given.
    """

    left: float
    steps: tuple[tuple[int, float], ...]
    at: int = 0

    @property
    def throughput(self) -> float:
        """With what it has."""
        return self.steps[self.at - 1][1] if self.at else 0.0

    @property
    def next(self) -> tuple[int, float] | None:
        """(GPUs more, throughput then) of its next step; None after the last."""
        if self.at == len(self.steps):
            return None
        gpus, throughput = self.steps[self.at]
        return gpus - (self.steps[self.at - 1][0] if self.at else 0), throughput

    @property
    def length_s(self) -> float:
        """How long it still takes with what it has, or with its first step."""
        return self.left / (self.throughput or self.steps[0][1])


def goes_first(one: Bidder, other: Bidder) -> bool:
    """Whether the next step goes to `one` of two jobs that both could use it."""
    if not one.at or not other.at:
        if one.at == other.at:
            return one.length_s <= other.length_s
        return not one.at
    shorter_first = one.length_s <= other.length_s
    short, long = (one, other) if shorter_first else (other, one)
    assert short.next is not None and long.next is not None
    gain = (long.next[1] - long.throughput) / long.next[1]
    loss = (short.next[1] - short.throughput) / short.throughput
    return (gain > loss) != shorter_first


def deal(bidders: list[Bidder], gpus: int) -> None:
    """Give out so many GPUs, step by step, to the winner of all pairs in turn; whoever gains nothing is passed over."""
    able = [one for one in bidders if one.steps]
    while gpus > 0:
        able = [one for one in able if _may_take(one, gpus)]
        if not able:
            return
        winner = able[0]
        for other in able[1:]:
            if not goes_first(winner, other):
                winner = other
        assert winner.next is not None
        gpus -= winner.next[0]
        winner.at += 1


def _may_take(one: Bidder, gpus: int) -> bool:
    step = one.next
    return step is not None and step[0] <= gpus and step[1] > one.throughput


class _Deals(Index):
    """When GPUs were dealt out last, and among whom; an index."""

    def __init__(self) -> None:
        self.dealt_s = -math.inf
        self.asked_s = -math.inf
        self.among: set[int] = set()

    def enter(self, job: JobState, now: float) -> None:
        """Of no interest here."""

    def leave(self, job: JobState) -> None:
        """Of no interest here."""

    def refresh(self, job: JobState, now: float) -> None:
        """Of no interest here."""


@dataclass(frozen=True)
class _DealsSpec:
    def build(self, view: ClusterView) -> _Deals:
        return _Deals()


DEALS = _DealsSpec()


@dataclass(frozen=True)
class Afs(Policy):
    """The next GPU to whom it helps most, and to the shorter job where it helps alike.

    Args:
        placement: which free GPUs a job gets.
        settle_s: GPUs are dealt out anew no sooner after the last time.
        oracle: whether it knows the true work left.
    """

    placement: Rule = TierAware()
    settle_s: float = 300.0
    oracle: bool = False
    name = "afs"
    source = "in the style of Hwang et al., Elastic Resource Sharing for Distributed Deep Learning, NSDI'21"

    def __post_init__(self) -> None:
        if not 0 <= self.settle_s < math.inf:
            raise PolicyError(f"settle_s is {self.settle_s}", "give seconds, 0 or more")

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        deals: _Deals = view.index(DEALS)
        jobs = [job for job in (*view.running.values(), *view.waiting.values()) if not is_fixed(job)]
        if {job.index for job in jobs} != deals.among:
            if view.now >= deals.dealt_s + self.settle_s:
                yield from self._deal(view, deals, jobs)
            elif deals.asked_s <= view.now:
                deals.asked_s = deals.dealt_s + self.settle_s
                yield WakeAt(deals.asked_s, "", "then GPUs are dealt out anew")
        yield from fill(view, ARRIVAL, self.placement)

    def _deal(self, view: ClusterView, deals: _Deals, jobs: list[JobState]) -> Iterator[Decision]:
        deals.dealt_s, deals.among = view.now, {job.index for job in jobs}
        bidders = [self._bidder(view, job) for job in jobs]
        fixed = sum(job.gpus for job in view.running.values() if is_fixed(job))
        deal(bidders, sum(pool.capacity for pool in view.inventory.pools.values()) - fixed)
        shares = [_share(view, job, one) for job, one in zip(jobs, bidders, strict=True) if one.at]
        yield from reassign(
            view, shares, self.placement, "the next GPU helps it more than others", "GPUs help shorter jobs more"
        )  # fmt: skip

    def _bidder(self, view: ClusterView, job: JobState) -> Bidder:
        sizes = sizes_of(view, job)
        steps = tuple((gpus, view.estimates.goodput(job, gpus, _tier(view, job, gpus))[0]) for gpus in sizes)
        return Bidder(work_left_s(view, job, self.oracle), tuple(step for step in steps if step[1] > 0))

    def card(self) -> dict[str, str]:
        return {
            "order": "the next GPU to whom it helps most, pair by pair; the shorter job first",
            "backfill": "whoever fits between deals, in order of arrival",
            "preemption": f"when jobs come or go, at most every {self.settle_s:g} s",
            "elastic jobs": "any of their sizes",
            **({"remaining time": "known (oracle)"} if self.oracle else {}),
        }


def _tier(view: ClusterView, job: JobState, gpus: int) -> int:
    """The narrowest that could hold it at that size."""
    return view.at_size(job, gpus).narrowest


def _share(view: ClusterView, job: JobState, one: Bidder) -> Share:
    gpus = one.steps[one.at - 1][0]
    same = gpus == job.gpus and job.placement is not None
    if same or not job.elastic or Configuration in view.cannot:
        return Share(job, gpus)
    return Share(job, gpus, None, view.estimates.goodput(job, gpus, _tier(view, job, gpus))[1])
