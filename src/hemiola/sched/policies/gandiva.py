"""Gandiva (Xiao et al., OSDI'18), in the style of: time slices, tight packing, migration.

1. *Time slices.* More jobs are admitted than fit; they take turns by suspend and resume (section 3.1).
   Whoever has waited longest goes next, in place of those whose turn is over.
2. *Affinity.* Jobs go to the host with the fewest free GPUs that suffice, so that small ones sit
   together and whole hosts stay free for big ones (section 4.1).
3. *Migration.* When room appears, a job that is spread wider than it need be moves to a narrower
   place if that pays (sections 3.2 and 4.2).

Where the paper is silent or our cluster differs, and what was chosen:
- *The length of a slice.* Gandiva suspends at the end of a mini-batch in about a second and slices
  by the minute, at a cost of some 2 %. Here a switch costs the saving and loading of the job's state
  (30 s unless its profile says otherwise), so the default is half an hour: 2 % again. `slice_s=60`
  with free switches (costs scaled to 0) comes nearer to the paper.
- *Turns end together*, at multiples of the slice, or gangs of many GPUs would never find them free
  at once. A turn lasts from half a slice to one and a half; then it lasts on until somebody waits.
- *Slicing is of the cluster*, not of each server; a job may resume elsewhere.
- *Affinity* is by free GPUs alone: hosts are not reserved for jobs of one size.
- *When moving pays.* The paper judges by measured mini-batch times after a trial. Here the modelled
  slowdowns of the two tiers are compared, with the time that a job has held GPUs as the proxy for
  what it will still need: move if the time gained exceeds one save and load.
- *Not modelled:* packing two jobs on one GPU (GPUs are exclusive here) and grow-shrink (jobs are
  not elastic).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from hemiola.core.decisions import Decision, Move
from hemiola.core.errors import PolicyError
from hemiola.sched.job_state import RUNNING, JobState
from hemiola.sched.placement import Rule, TierAware, find, no_slower
from hemiola.sched.policy import Policy, by_order
from hemiola.sched.queues import Order
from hemiola.sched.rounds import Rounds, RoundsEvery
from hemiola.sched.view import ClusterView, Index

__all__ = ["ByTurn", "Gandiva", "worth_moving"]

EPSILON = 1e-9


def worth_moving(held_s: float, slowdown_here: float, slowdown_there: float, switch_s: float) -> bool:
    """Whether a job that will hold GPUs as long again gains more than the move costs.

    Example:
        >>> worth_moving(100.0, 2.0, 1.0, 30.0), worth_moving(50.0, 2.0, 1.0, 30.0)
        (True, False)
    """
    return held_s * (1.0 - slowdown_there / slowdown_here) > switch_s


@dataclass(frozen=True)
class ByTurn(Order):
    """Those whose turn it is, then those that wait, longest first, then those whose turn is over.

    Args:
        slice_s: length of a turn.
    """

    slice_s: float
    says = "it has waited longest for its turn"

    def turn_ends_s(self, since_s: float) -> float:
        """The first multiple of the slice that leaves a turn of at least half a slice."""
        return math.ceil((since_s / self.slice_s + 0.5) * (1 - EPSILON)) * self.slice_s

    def waiting(self, job: JobState, now: float) -> tuple[int, float]:
        return 1, job.since_s

    def running(self, job: JobState, now: float) -> tuple[int, float]:
        return (2 if now >= self.turn_ends_s(job.since_s) else 0), -job.since_s

    def standing(self, job: JobState, now: float) -> float:
        return -job.since_s


class _SpreadJobs(Index):
    """Running jobs that may move and would run faster at a narrower tier; an index.

    Attributes:
        jobs: by index.
        seen: the inventory's count of releases when they were last looked at.
    """

    def __init__(self, view: ClusterView) -> None:
        self._estimates = view.estimates
        self.jobs: dict[int, JobState] = {}
        self.seen = -1

    def enter(self, job: JobState, now: float) -> None:
        """Keep it if it is spread and suffers from it."""
        if job.status != RUNNING or job.tier <= job.narrowest or job.job.pinned:
            return
        if self._estimates.slowdown(job, job.tier) > 1:
            self.jobs[job.index] = job

    def leave(self, job: JobState) -> None:
        """It leaves its GPUs."""
        self.jobs.pop(job.index, None)

    def refresh(self, job: JobState, now: float) -> None:
        """Its speed is of no interest here."""


@dataclass(frozen=True)
class _SpreadJobsSpec:
    def build(self, view: ClusterView) -> _SpreadJobs:
        return _SpreadJobs(view)


SPREAD = _SpreadJobsSpec()


@dataclass(frozen=True)
class Gandiva(Policy):
    """Round-robin time slices, tight packing, migration to consolidate.

    Args:
        placement: which free GPUs a job gets.
        slice_s: length of a time slice in seconds.
        migrate: whether jobs move to narrower places.
    """

    placement: Rule = TierAware()
    slice_s: float = 1800.0
    migrate: bool = True
    name = "gandiva"
    source = "in the style of Xiao et al., Gandiva, OSDI'18 (no sharing of GPUs, no grow-shrink)"

    def __post_init__(self) -> None:
        if not 0 < self.slice_s < math.inf:
            raise PolicyError(f"slice_s is {self.slice_s}", "give seconds above 0")

    @cached_property
    def order(self) -> ByTurn:
        """The order it keeps."""
        return ByTurn(self.slice_s)

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        rounds: Rounds = view.index(RoundsEvery(self.slice_s))
        if rounds.is_due(view.now):
            view.queue(self.order).unblock()  # turns are over now
        yield from by_order(view, self.order, self.placement, preempt=True)
        if self.migrate:
            yield from self._consolidate(view)
        yield from rounds.ask(view, "then the next turns begin")

    def _consolidate(self, view: ClusterView) -> Iterator[Decision]:
        """Move what is spread to narrower places if that pays, and start who fits what they leave."""
        spread: _SpreadJobs = view.index(SPREAD)
        if spread.seen != view.inventory.releases:
            for job in list(spread.jobs.values()):
                move = self._narrower(view, job)
                if move is not None:
                    yield move
                    yield from by_order(view, self.order, self.placement)
            spread.seen = view.inventory.releases

    def _narrower(self, view: ClusterView, job: JobState) -> Move | None:
        """The move of this job to a narrower tier, counting its own GPUs as free, if that pays."""
        slowdown, held_s = view.estimates.slowdown, job.held_s(view.now)
        here, switch_s = slowdown(job, job.tier), view.estimates.switch_s(job)
        if not worth_moving(held_s, here, 1.0, switch_s):
            return None
        assert job.placement is not None
        with view.supposing() as trial:
            trial.without((job,))
            pools = no_slower(view.inventory, job, job.placement)
            placement = find(view.inventory, job, self.placement, job.tier - 1, pools)
        if placement is None:
            return None
        tier = view.topology.span(placement.hosts)
        there = slowdown(job, tier)
        if not worth_moving(held_s, here, there, switch_s):
            return None
        return Move(
            job.id,
            placement,
            f"within one {view.topology.tiers[tier]} its iterations take {there / here:.0%} of the time",
        )

    def card(self) -> dict[str, str]:
        return {
            "order": "round robin: longest waiting first",
            "backfill": "whoever fits",
            "preemption": f"of jobs whose turn is over; turns end together every {self.slice_s:g} s",
            "migration": "to a narrower tier when room appears and it pays" if self.migrate else "none",
            "GPU sharing": "none: GPUs are exclusive; jobs neither grow nor shrink",
        }
