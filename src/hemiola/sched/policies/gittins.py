"""Tiresias with the Gittins index (Gu et al., NSDI'19, section 3.2: 2D-Gittins), in the style of.

A job that has attained service a (GPUs times seconds) is worth

    G(a) = sup_D P(S - a <= D | S > a) / E[min(S - a, D) | S > a]

for the service S of jobs as known from the past: the chance that it ends within D more GPU-seconds
over what those will cost. Highest first. As in the paper jobs stand in queues by attained service,
and the index orders those of one queue.

What the paper leaves open or does otherwise, and what was chosen:
- *Where the distribution comes from.* From the jobs that ended so far in this very run, learnt anew
  whenever their number has doubled; until `learn_after` of them the order is that of Tiresias
  without an index (queue, then those that run, then arrival). An operator would start with history.
- *D.* The supremum over all D, not one fixed D as in the released simulator (which also sorts
  ascending and sums S where S - a is meant; neither is followed).
- *Continuous index.* It is piecewise constant here, known at `cells` quantiles of service, so that an
  order can only change when a timer is due.
- *Within a queue* the index orders those that wait; those that run stay, as queues are there to
  limit pre-emption. With `eager` a higher index stops a running job of the same queue, too; with
  `thresholds=` (one queue) as well, that is the index alone.
- Service counts what a job held, saving and loading included, as `attained` does.
- Promotion is as in `tiresias`: service starts afresh after waiting `promote` times the time run.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hemiola.core.decisions import Decision, Start, Stop, WakeAt
from hemiola.core.errors import PolicyError
from hemiola.sched.job_state import ENDED, RUNNING, JobState
from hemiola.sched.placement import Rule, TierAware
from hemiola.sched.policies.tiresias import EPSILON, ByAttainedService, Tiresias
from hemiola.sched.policy import Policy, by_order
from hemiola.sched.rounds import reorder
from hemiola.sched.view import ClusterView, Index

__all__ = ["ByGittinsIndex", "Gittins", "gittins_index"]

SAMPLE = 1000
"""So many quantiles stand for all jobs that ended."""

SOONEST_S = 1e-3
"""A limit may be noticed so much late, lest rounding sets a timer to this very moment."""


def gittins_index(sample: ArrayLike, attained: ArrayLike) -> NDArray[np.float64]:
    """G(a) for each attained service a, with the sample's values equally likely.

    Args:
        sample: service of past jobs, shape (n,), any order, each above 0.
        attained: shape (k,), in the same unit.

    Returns:
        Shape (k,), per unit of service; 0 where no job of the sample lasted longer.

    Example:
        >>> gittins_index([2, 10], [0, 1, 2]).tolist()
        [0.25, 0.5, 0.125]
    """
    service = np.sort(np.asarray(sample, dtype=np.float64))
    ages = np.asarray(attained, dtype=np.float64)
    alive_from = np.searchsorted(service, ages, side="right")
    return np.array([_best(service[first:] - age) for age, first in zip(ages, alive_from, strict=True)])


def _best(left: NDArray[np.float64]) -> float:
    """The index of jobs with so much left, ascending; the best D is one at which some job ends."""
    if not len(left):
        return 0.0
    ended = np.arange(1, len(left) + 1)
    return float((ended / (np.cumsum(left) + (len(left) - ended) * left)).max())


@dataclass(frozen=True)
class ByGittinsIndex(ByAttainedService):
    """Lower queue first; within a queue the higher index, and those that run either before all or alike.

    Args:
        thresholds_gpu_s: where a running job's place changes: at the limits of queues, if `eager`
            at those of cells, too.
        cells_gpu_s: limits of the cells of service that have one index each; none while nothing is known.
        ranks: for each cell its place by queue and index.
        eager: whether a higher index goes before a job of the same queue that runs.
    """

    cells_gpu_s: tuple[float, ...] = ()
    ranks: tuple[int, ...] = (0,)
    eager: bool = False
    says = "lowest queue, then highest Gittins index first"

    def waiting(self, job: JobState, now: float) -> tuple[int, int, float]:
        level, _, submit_s = super().waiting(job, now)  # notes a promotion
        if self.eager and self.cells_gpu_s:
            return self.ranks[level], 1, submit_s
        service = job.service_gpu_s(now) - job.mark
        cell = bisect_right(self.cells_gpu_s, service * (1 + EPSILON) + EPSILON)  # as for the level
        return level, 1 + self.ranks[cell], submit_s

    def running(self, job: JobState, now: float) -> tuple[int, int, float]:
        level, _, since_s = super().running(job, now)
        return (self.ranks[level] if self.eager and self.cells_gpu_s else level), 0, since_s


def learnt_order(
    services_gpu_s: NDArray[np.float64], limits: tuple[float, ...], cells: int, promote: float, eager: bool
) -> ByGittinsIndex:
    """Cells between quantiles of past service, ranked by queue and then by index."""
    past = np.sort(services_gpu_s)
    if len(past) > SAMPLE:
        past = past[np.linspace(0, len(past) - 1, SAMPLE).round().astype(int)]
    cuts = past[np.linspace(0, len(past) - 1, cells + 1).round().astype(int)[:-1]]
    edges = np.unique(np.concatenate([[0.0], cuts, limits]))
    queue = np.searchsorted(np.asarray(limits), edges, side="right")
    keys = list(zip(queue.tolist(), (-gittins_index(past, edges)).tolist(), strict=True))
    place = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    inner = tuple(edges[1:].tolist())
    return ByGittinsIndex(
        inner if eager else limits, promote, inner, tuple(place[key] for key in keys), eager
    )


class _Memory(Index):
    """What a run has learnt, and the timers it waits for; an index that looks at no event.

    Attributes:
        learn_at: number of ended jobs at which to learn again.
        due_s: by job index the time of its timer.
    """

    def __init__(self, learn_at: int) -> None:
        self.learn_at = learn_at
        self.due_s: dict[int, float] = {}

    def enter(self, job: JobState, now: float) -> None:
        """Of no interest here."""

    def leave(self, job: JobState) -> None:
        """Of no interest here."""

    def refresh(self, job: JobState, now: float) -> None:
        """Of no interest here."""


@dataclass(frozen=True)
class _MemorySpec:
    learn_after: int

    def build(self, view: ClusterView) -> _Memory:
        return _Memory(self.learn_after)


@dataclass(frozen=True)
class Gittins(Policy):
    """Discretised two-dimensional Gittins index, learnt from the jobs that ended.

    Args:
        placement: which free GPUs a job gets.
        thresholds: attained service in GPU-seconds at which a job moves down, joined by "/"; "" for
            one queue.
        promote: waiting time over time run after which a job is promoted; 0 for never.
        learn_after: jobs that must have ended before the index counts.
        cells: values that the index is known at.
        eager: whether a job also stops those of its own queue that have a lower index.
    """

    placement: Rule = TierAware()
    thresholds: str = "3250/7200"
    promote: float = 8.0
    learn_after: int = 64
    cells: int = 16
    eager: bool = False
    name = "gittins"
    source = "in the style of Gu et al., Tiresias, NSDI'19 (2D-Gittins; distribution learnt in the run)"

    def __post_init__(self) -> None:
        Tiresias(thresholds=self.thresholds, promote=self.promote)  # checks both
        if self.learn_after < 2:
            raise PolicyError(f"learn_after is {self.learn_after}", "give 2 jobs or more")
        if self.cells < 1:
            raise PolicyError(f"cells is {self.cells}", "give 1 or more")

    @cached_property
    def limits(self) -> tuple[float, ...]:
        """The thresholds as numbers."""
        return Tiresias(thresholds=self.thresholds).limits()

    @cached_property
    def order(self) -> ByGittinsIndex:
        """The order before anything is learnt."""
        return ByGittinsIndex(self.limits, self.promote)

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        memory: _Memory = view.index(_MemorySpec(self.learn_after))
        if view.ended + view.failed >= memory.learn_at:
            yield from self._learn(view, memory)
        for job in dict.fromkeys((*view.timers, *view.returned)):
            yield from self._wake(view, memory, job)
        for decision in by_order(view, self.order, self.placement, preempt=True):
            yield decision
            if type(decision) is Start or type(decision) is Stop:
                yield from self._wake(view, memory, view.jobs[decision.job_id])

    def _learn(self, view: ClusterView, memory: _Memory) -> Iterator[Decision]:
        """Sort everybody by what is known by now."""
        services = [job.service_gpu_s(view.now) for job in view.jobs.values() if job.status == ENDED]
        memory.learn_at = 2 * len(services)
        past = np.array([service for service in services if service > 0])
        if len(past):
            order = learnt_order(past, self.limits, self.cells, self.promote, self.eager)
            reorder(view, view.queue(self.order), order)
            for job in view.running.values():
                yield from self._wake(view, memory, job)

    def _wake(self, view: ClusterView, memory: _Memory, job: JobState) -> Iterator[Decision]:
        """A timer for the job's next change of place, unless an earlier one is on its way."""
        order = view.queue(self.order).order
        assert isinstance(order, ByGittinsIndex)
        at = order.next_change_s(job, view.now)
        pending = memory.due_s.get(job.index, -math.inf)
        if at is not None and not view.now < pending <= at:
            memory.due_s[job.index] = at = max(at, view.now + SOONEST_S)
            what = "its attained service crosses a limit" if job.status == RUNNING else "it is promoted"
            yield WakeAt(at, job.id, f"then {what}")

    def card(self) -> dict[str, str]:
        queues = f"queues of attained service (GPU-s) cut at {self.thresholds}, " if self.thresholds else ""
        return {
            "order": f"{queues}Gittins index within, of the jobs that ended so far",
            "learning": f"after {self.learn_after} jobs, then whenever twice as many have ended",
            "backfill": "whoever fits",
            "preemption": f"of jobs in a lower queue{' or with a lower index' if self.eager else ''}, "
            "only as many as needed",
            "promotion": f"after waiting {self.promote:g}x the time run" if self.promote else "never",
        }
