"""Hemiola's own policy: what the league of the others taught, in six rules. No true run time is used.

**1. Who goes first: expected service per chance to end.** Of a job that has done work `a` only the past tells what is left.
Let S be the work of a job (seconds at its ideal speed), g its GPUs, and

    r(a) = min over D of  E[min(S - a, D) | S > a] / P(S - a <= D | S > a),        rank = g r(a)

the work that it will take until it ends, if one may give up after D: the inverse of the Gittins index (Gittins, "Bandit
processes and dynamic allocation indices", 1979). The lowest rank goes first: it ends soonest for the GPU-seconds that it holds.
Tiresias (Gu et al., NSDI'19) has one distribution of g S for all; here S is learnt and g is known, so that a
large job is put behind a small one from the start and not only once it has run for long.

**2. What is learnt: from jobs that still run, too.** Jobs that ended first were short; who learns from them alone takes
all jobs for short. The survival function is Kaplan and Meier's ("Nonparametric estimation from incomplete observations",
1958): a job that has done `a` and goes on counts as one that lasts longer. Before anything ended there is a weak prior,
log-uniform from a minute to a week (Jeffreys' for a scale), of as much weight as `prior` jobs. It makes r grow with a, as least attained service
does. r is a step function of a, with steps of a factor of the square root of 2, so that the order changes at timers alone.

**3. Pre-emption that pays.** A job that runs is stopped for one whose rank is below `stay` of its own, less what saving and loading
cost its GPUs: (stay r(a) - switch) g. Two jobs alike take turns at ages that grow by 1 / stay, not at every step.

**4. Placement by tier.** A job takes the narrowest tier with room, up to the widest at which it is at most
`slack` times slower than at its best; for a narrower one than that it waits, or others make way by rule 3. Timers (Dally) won
too little over that to be worth their parameters.

**5. Prices for uplinks.** Who crosses links that others cross slows them, too. A place over several hosts is taken if the speed
that the job would have there, less what the others would lose (weighted by GPUs), is at least 1 / slack of its speed at its best;
else a narrower one is looked for, and then it waits. Two jobs that would each run at half speed go one after the
other, so that one of them ends in half the time. Sharing is taken as equal and all the time, which errs to the side of waiting.

**6. Elastic sizes.** Who may be smaller starts smaller rather than wait; others shrink for it before anybody is stopped; what
nobody wants goes to whom it speeds up most. These are the moves of `elastic`.

A gang of more than half the cluster never finds its GPUs free while smaller jobs come and go, though they leave enough in sum: such a
one, and no other, has its rank halved each time that its wait has doubled beyond r(a).

What was chosen by the league, and what was tried and left out, stands in docs/results/league.md.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hemiola.core.decisions import Decision, Placement, Start, Stop, WakeAt
from hemiola.core.errors import PolicyError
from hemiola.sched.crossing import CROSSING, Crosser, CrossingJobs
from hemiola.sched.job_state import ENDED, RUNNING, WAITING, JobState
from hemiola.sched.placement import TierAware, find
from hemiola.sched.policies.elastic import ElasticSharing
from hemiola.sched.policy import Policy, make_room, outranks_any
from hemiola.sched.queues import Order, Queue
from hemiola.sched.rounds import reorder
from hemiola.sched.view import ClusterView, Index

__all__ = ["ByRank", "Hemiola", "expected_service"]

Floats = NDArray[np.float64]
EDGES_S = tuple(30.0 * 2 ** (k / 2) for k in range(34))
"""Work at which a job's rank changes: half a minute to a month, in steps of the square root of 2."""
AGES_S = np.array((0.0, *EDGES_S))
PRIOR_S = np.geomspace(60.0, 7 * 86400.0, 64)
LEARN_FROM, LEARN_MORE = 8, 1.25
"""So many jobs have ended when the first lesson is drawn, and so many times as many for each further one."""
EPSILON_S = 1e-6
SOONEST_S = 1e-3
"""A timer is never nearer than this: rounding must not set it to the present instant for ever."""
PLACEMENT = TierAware()
SHARING = ElasticSharing(PLACEMENT)


# ---- rule 2: what is learnt


def survival(ended_s: ArrayLike, going_s: ArrayLike, prior: float) -> tuple[Floats, Floats]:
    """Kaplan and Meier's estimate: at ascending times, which share of jobs does more work than that.

    Args:
        ended_s: work of jobs that ended, shape (n,).
        going_s: work that others have done so far, shape (m,).
        prior: how many jobs the prior counts for.

    Returns:
        Times and shares, both of shape (n + 64,).
    """
    ended = np.asarray(ended_s, dtype=np.float64)
    times = np.concatenate([ended, PRIOR_S])
    weights = np.concatenate([np.ones(len(ended)), np.full(len(PRIOR_S), prior / len(PRIOR_S))])
    order = np.argsort(times, kind="stable")
    times, weights = times[order], weights[order]
    going = np.sort(np.asarray(going_s, dtype=np.float64))
    at_risk = np.cumsum(weights[::-1])[::-1] + len(going) - np.searchsorted(going, times, side="left")
    left = 1.0 - weights / at_risk
    return times, np.cumprod(np.where(left > EPSILON_S, left, 0.0), dtype=np.float64)


def expected_service(times: Floats, shares: Floats, ages: Floats) -> tuple[float, ...]:
    """r(a) at each age: the least expected work per chance to end, over all times at which one may give up.

    Args:
        times, shares: the survival function, a step at each time.
        ages: ascending; beyond all times r grows as fast as the ages do.

    Example:
        >>> expected_service(np.array([2.0, 10.0]), np.array([0.5, 0.0]), np.array([0.0, 1.0, 2.0]))
        (4.0, 2.0, 8.0)
    """
    grid = np.unique(np.concatenate([[0.0], times, ages]))
    steps = np.searchsorted(times, grid, side="right")
    alive = np.concatenate([[1.0], shares])[steps]
    area = np.concatenate([[0.0], np.cumsum(alive[:-1] * np.diff(grid))])
    found: list[float] = []
    for age in ages:
        here = int(np.searchsorted(grid, age))
        ended, worked = alive[here] - alive[here + 1 :], area[here + 1 :] - area[here]
        some = ended > EPSILON_S * alive[here]
        if alive[here] > 0 and some.any():
            found.append(float((worked[some] / ended[some]).min()))
        else:
            found.append(max(float(age), found[-1] if found else 0.0))
    return tuple(found)


class Outlook:
    """What is expected of a job: the policy's note on it.

    Attributes:
        step: of the work that it has done, among `EDGES_S`.
        halved: how often its rank was halved because it waited.
        switch_s: what stopping it costs.
        widest: tier that it accepts.
        demand: (compute_s, traffic_bytes, hidden_s) of an iteration.
    """

    __slots__ = ("demand", "halved", "step", "switch_s", "widest")

    def __init__(self, switch_s: float, widest: int, demand: tuple[float, float, float]) -> None:
        self.step = self.halved = 0
        self.switch_s, self.widest, self.demand = switch_s, widest, demand

    def iteration_s(self, alone_s: float, sharing: int) -> float:
        """With so many jobs on its slowest link, over which its traffic takes `alone_s` alone."""
        compute_s, _, hidden_s = self.demand
        return compute_s + max(0.0, sharing * alone_s - hidden_s)


class Outlooks(Index):
    """Every job's outlook, known before a queue sorts by it: ask for it before the queue.

    Attributes:
        ranks_s: r at each step, as learnt last.
        learn_at: jobs that must have ended before the next lesson.
        changed: jobs whose timer is to be set.
        elastic: whether any job may change its size.
    """

    def __init__(self, view: ClusterView, ranks_s: tuple[float, ...], slack: float) -> None:
        self._view, self._slack = view, slack
        self.ranks_s = ranks_s
        self.learn_at = LEARN_FROM
        self.changed: dict[int, JobState] = {}
        self.due_s: dict[int, float] = {}
        self.elastic = False

    def enter(self, job: JobState, now: float) -> None:
        """Look at what it has done, and how long it waited."""
        if job.status == ENDED:
            self.changed.pop(job.index, None)
            return
        if job.note is None:
            told = self._view.estimates
            job.note = Outlook(told.switch_s(job), self._accepts(job), told.demand(job))
        self.elastic = self.elastic or job.elastic
        outlook: Outlook = job.note
        outlook.step = bisect_right(EDGES_S, job.done_at(now) + EPSILON_S)
        outlook.halved = self._halved(job, outlook.step, now)
        self.changed[job.index] = job

    def leave(self, job: JobState) -> None:
        """Nothing: what it has done stays done."""

    def refresh(self, job: JobState, now: float) -> None:
        """A timer about it is due."""
        self.enter(job, now)

    def next_change_s(self, job: JobState) -> float | None:
        """When its outlook changes if nothing else happens; None for never."""
        outlook: Outlook = job.note
        now = self._view.now
        if job.status == RUNNING and job.speed > 0 and outlook.step < len(EDGES_S):
            left_s = max(0.0, EDGES_S[outlook.step] - job.done_at(now))
            return max(now, job.resume_s) + left_s / job.speed
        if job.status == WAITING and self._is_wide(job):
            return now + (2.0 ** (outlook.halved + 1) - 1) * self.ranks_s[outlook.step] - job.waited_s(now)
        return None

    def _accepts(self, job: JobState) -> int:
        """The widest tier at which it is hardly slower than at its narrowest."""
        tier, last = job.narrowest, min(job.widest, len(self._view.topology.tiers) - 1)
        while tier < last and self._view.estimates.slowdown(job, tier + 1) <= self._slack:
            tier += 1
        return tier

    def _is_wide(self, job: JobState) -> bool:
        return 2 * job.asked_gpus > self._view.topology.gpus

    def _halved(self, job: JobState, step: int, now: float) -> int:
        if not self._is_wide(job):
            return 0
        return int(math.log2(1.0 + job.waited_s(now) / self.ranks_s[step]) + EPSILON_S)


@dataclass(frozen=True)
class _OutlooksOf:
    """Says that a policy needs `Outlooks` with this prior and slack."""

    ranks_s: tuple[float, ...]
    slack: float

    def build(self, view: ClusterView) -> Outlooks:
        return Outlooks(view, self.ranks_s, self.slack)


# ---- rules 1 and 3: the order


@dataclass(frozen=True)
class ByRank(Order):
    """Lowest rank first; one that runs counts less, so that it is stopped only where that pays.

    Args:
        ranks_s: r at each step of work.
        stay: share of its rank that counts while it runs.
    """

    ranks_s: tuple[float, ...]
    stay: float
    says = "least expected GPU-seconds until it ends"

    def waiting(self, job: JobState, now: float) -> tuple[float, float]:
        return job.asked_gpus * self._rank_s(job.note), job.submit_s

    def running(self, job: JobState, now: float) -> tuple[float, float]:
        outlook: Outlook = job.note
        kept_s = max(0.0, self.stay * self._rank_s(outlook) - outlook.switch_s)
        return job.asked_gpus * kept_s, -math.inf

    def group(self, job: JobState) -> Hashable:
        outlook: Outlook = job.note
        return job.shape, outlook.widest, outlook.demand, job.job.sizes if job.elastic else None

    def _rank_s(self, outlook: Outlook) -> float:
        return self.ranks_s[outlook.step] / 2.0**outlook.halved


def _loss(other: Crosser, crossed: Counter[int], links: tuple[int, ...]) -> float:
    """GPUs' worth of speed that a crosser loses if one more job crosses these links."""
    shared = [link for link in other.links if link in links]
    if not shared:
        return 0.0
    outlook: Outlook = other.job.note
    now = max(crossed[link] for link in other.links)
    then = max(now, 1 + max(crossed[link] for link in shared))
    return other.job.gpus * (
        1.0 - outlook.iteration_s(other.alone_s, now) / outlook.iteration_s(other.alone_s, then)
    )


@dataclass(frozen=True)
class Hemiola(Policy):
    """Least expected service first, learnt in the run; stops, spreads and resizes where that pays.

    Args:
        stay: a running job is stopped for one whose rank is below this share of its own.
        slack: how much slower than at its best a job accepts to run, rather than wait for a narrower place.
        prior: how many ended jobs the prior counts for.
    """

    stay: float = 0.5
    slack: float = 1.3
    prior: float = 8.0
    name = "hemiola"
    source = "Hemiola's own: Gittins' index on Kaplan-Meier survival, tiers as in delay scheduling, sizes as in Lyra"

    def __post_init__(self) -> None:
        if not 0 <= self.stay <= 1:
            raise PolicyError(f"stay is {self.stay}", "give a share from 0 (never stop) to 1")
        if not 1 <= self.slack < math.inf:
            raise PolicyError(f"slack is {self.slack}", "give a factor of 1 (always wait) or more")
        if not 0 < self.prior < math.inf:
            raise PolicyError(f"prior is {self.prior}", "give a number of jobs above 0")

    @cached_property
    def order(self) -> ByRank:
        """The order before anything is learnt."""
        return ByRank(expected_service(*survival((), (), self.prior), AGES_S), self.stay)

    @cached_property
    def outlooks(self) -> _OutlooksOf:
        """What is noted of jobs."""
        return _OutlooksOf(self.order.ranks_s, self.slack)

    def decide(self, view: ClusterView) -> Iterator[Decision]:
        """1. Learn. 2. Start jobs in order. 3. Give what is left to those that can grow. 4. Set timers."""
        outlooks: Outlooks = view.index(self.outlooks)
        queue = view.queue(self.order)
        if view.ended >= outlooks.learn_at:
            self._learn(view, queue, outlooks)
        yield from self._start(view, queue, outlooks)
        if outlooks.elastic:
            if view.free:
                yield from SHARING.grow(view)
                yield from self._start(view, queue, outlooks)
            yield from SHARING.look_again(view)
        changed, outlooks.changed = outlooks.changed, {}
        for job in changed.values():
            yield from self._wake(view, outlooks, job)

    def _learn(self, view: ClusterView, queue: Queue, outlooks: Outlooks) -> None:
        """Sort everybody by what is known by now."""
        now = view.now
        outlooks.learn_at = math.ceil(LEARN_MORE * view.ended)
        ended = [max(job.done_s, 1.0) for job in view.jobs.values() if job.status == ENDED]
        going = [
            done_s for job in view.jobs.values() if job.status != ENDED and (done_s := job.done_at(now)) > 0
        ]
        outlooks.ranks_s = expected_service(*survival(ended, going, self.prior), AGES_S)
        for job in (*view.waiting.values(), *view.running.values()):
            outlooks.enter(job, now)
        reorder(view, queue, ByRank(outlooks.ranks_s, self.stay))

    def _start(self, view: ClusterView, queue: Queue, outlooks: Outlooks) -> Iterator[Decision]:
        """Each in turn: where there is room, on fewer GPUs, beside others made smaller, in place of others."""
        says = self.order.says
        while view.waiting and (job := queue.next(None if self.stay else view.free)) is not None:
            widest: int = job.note.widest
            if outlooks.elastic:
                yield from SHARING.start(view, job, says, widest)
            elif (place := self._place(view, job, widest)) is not None:
                yield Start(job.id, place, f"{says}; {PLACEMENT.says}")
            if job.status == WAITING:
                yield from self._displace(view, queue, job, widest)
            if job.status == WAITING:
                queue.block(job)

    def _place(self, view: ClusterView, job: JobState, widest: int) -> Placement | None:
        """Where there is room at a price that pays, the widest tier first as that has the most."""
        while (place := find(view.inventory, job, PLACEMENT, widest)) is not None:
            if len(place.hosts) == 1 or self._pays(view, job, place):
                return place
            widest = view.topology.span(place.hosts) - 1
            if widest < job.narrowest:
                return None
        return None

    def _pays(self, view: ClusterView, job: JobState, place: Placement) -> bool:
        """Rule 5: whether what it gains there is worth what those lose whose links it would cross."""
        crossing: CrossingJobs = view.index(CROSSING)
        links, bytes_per_s = crossing.links_of(place)
        outlook: Outlook = job.note
        alone_s = outlook.demand[1] / bytes_per_s
        crossed = Counter(link for other in crossing.running() for link in other.links)
        most = max((crossed[link] for link in links), default=0)
        if not alone_s or not most:  # nobody is there: its tier alone decides, and it accepts that
            return True
        alike = outlook.iteration_s(alone_s, 1) / outlook.iteration_s(alone_s, most + 1)
        speed = alike / view.estimates.slowdown(job, view.topology.span(place.hosts))
        lost = sum(_loss(other, crossed, links) for other in crossing.running())
        return speed - lost / job.gpus >= 1.0 / self.slack

    def _displace(self, view: ClusterView, queue: Queue, job: JobState, widest: int) -> Iterator[Decision]:
        """Take the GPUs of jobs that are worth less by so much that it pays."""
        if (
            self.stay
            and outranks_any(queue, job, view.now)
            and (found := make_room(view, queue, job, PLACEMENT, widest))
        ):
            victims, place = found
            for victim in victims:
                yield Stop(
                    victim.id,
                    f"{job.id} is expected to end for fewer GPU-seconds, and that pays for the stop",
                )
            yield Start(
                job.id,
                place,
                f"{self.order.says}, in place of {len(victims)} other{'s' * (len(victims) != 1)}",
            )

    def _wake(self, view: ClusterView, outlooks: Outlooks, job: JobState) -> Iterator[Decision]:
        """A timer for the job's next change of outlook, unless an earlier one is on its way."""
        at = outlooks.next_change_s(job)
        if at is not None and not view.now < outlooks.due_s.get(job.index, -math.inf) <= at:
            outlooks.due_s[job.index] = at = max(at, view.now + SOONEST_S)
            yield WakeAt(at, job.id, "then it has done, or waited, so much that its rank is another")

    def card(self) -> dict[str, str]:
        return {
            "order": "expected GPU-seconds until it ends (Gittins), of the work that jobs did so far",
            "learning": f"Kaplan-Meier with jobs that still run; a log-uniform prior of {self.prior:g} jobs",
            "backfill": "whoever fits",
            "preemption": f"of jobs with more than 1 / {self.stay:g} of the rank, and what the stop costs"
            if self.stay
            else "none",
            "delay": f"waits for a place at which it is at most {self.slack:g} times slower than at its best",
            "elastic jobs": "smaller rather than waiting; larger where nobody wants the GPUs",
            "promotion": "gangs of more than half the cluster, each time their wait has doubled",
        }
