"""Gavel (Narayanan et al., OSDI'20), in the style of: shares of time on each type of GPU by a linear program, kept by rounds.

1. *Allocation* (section 4): X, the share of its time that each job is to have on each type. Rows of X sum to 1 at most, and
   no type gives out more than it has. The objective is a program of its own:
   - `max-min`: the least of throughput relative to that of an equal share is as large as can be (4.1). Whoever could have more
     without taking from those who have least gets more, level by level (water filling, 4.3);
   - `finish-time-fairness`: the largest of (age + what is left at X) over (the whole at an equal share) is as small as can be
     (Themis' measure; by bisection over programs);
   - `makespan`: the last end is as early as can be: the least of throughput over what is left is as large as can be;
   - `throughput`: steps per second of all jobs together are as many as can be, whoever starves;
   - `cost`: throughput relative to that of an equal share, per price of the GPUs used, is as large as can be (a fraction, made
     linear after Charnes and Cooper).
2. *Rounds* (section 5): every 6 minutes those jobs run that are furthest behind their X: priority X / (share of its time that
   it had there so far), the largest first, on the type that it is owed. X is worked out anew when jobs come or go.

Where the paper is silent or another way was taken, and what was chosen:
- *Water filling*: jobs at whose row the program is tight with a positive price keep what they have, and the others are raised;
  the paper finds them by mixed-integer programs. After `LEVELS` levels, or one where there are more than `MANY`
  jobs, one program raises the sum.
- *Between rounds* free GPUs go to waiting jobs, in order of arrival: an idle cluster lets nobody wait for a round.
- *Left-over GPUs* of a round go to the others, by arrival, but with `cost`, where that would cost.
- *Elastic jobs* have the size that they asked for. No two jobs share a GPU (4.4 of the paper is left out).
- *Prices* of GPU types not named are 1 an hour for each GPU.
- *Steps* are the trace's `total_steps` over the run time; where there are none, all jobs count alike.
- *Remaining work* (finish-time fairness, makespan) is known: an oracle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hemiola.core.decisions import Decision
from hemiola.core.errors import PolicyError
from hemiola.sched.inventory import GpuPool
from hemiola.sched.job_state import ENDED, RUNNING, JobState
from hemiola.sched.optimise.programs import Budget, BudgetUsedUpError, Program, Sparse, solve
from hemiola.sched.placement import Rule, TierAware
from hemiola.sched.policies.fifo import ByArrival
from hemiola.sched.policies.sia import is_fixed
from hemiola.sched.policy import Policy
from hemiola.sched.rounds import Rounds, RoundsEvery, Share, capacity_of, fill, reassign, type_of
from hemiola.sched.view import ClusterView, Index

__all__ = ["Gavel", "TimeShares", "Wishes", "cheapest", "equal_share", "fairest", "max_min", "most_steps"]

ARRIVAL = ByArrival()
OBJECTIVES = ("max-min", "finish-time-fairness", "makespan", "throughput", "cost")
LEVELS = 4
MANY = 100
BISECTIONS = 24
TIGHT = 1e-7
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Wishes:
    """Jobs and what types of GPU do for them.

    Attributes:
        throughput: jobs x types; 0 where a job cannot run.
        gpus: that each job takes.
        capacities: GPUs of each type.
    """

    throughput: Floats
    gpus: Floats
    capacities: Floats


def equal_share(wishes: Wishes) -> Floats:
    """Throughput of each job if all had the same time on every GPU: the measure of fairness.

    Example:
        >>> equal_share(Wishes(np.array([[4.0, 1.0], [3.0, 2.0]]), np.ones(2), np.ones(2))).tolist()
        [2.5, 2.5]
    """
    share = wishes.capacities / (len(wishes.gpus) * np.maximum(wishes.gpus, 1.0)[:, None])
    able = np.where(wishes.throughput > 0, share, 0.0)
    total = able.sum(axis=1, keepdims=True)
    able = able / np.maximum(total, 1.0)
    found: Floats = np.maximum((able * wishes.throughput).sum(axis=1), 1e-12)
    return found


def max_min(wishes: Wishes, normaliser: Floats, budget: Budget, levels: int = LEVELS) -> tuple[Floats, float]:
    """(shares of time, jobs x types, the least relative throughput), the least as large as can be, then the next.

    Args:
        normaliser: by job, what its throughput is relative to.
    """
    levels = levels if len(wishes.gpus) <= MANY else 1
    least = np.full(len(wishes.gpus), -1.0)  # of those who keep what they have
    worst = -1.0
    for _ in range(levels):
        found = solve(_max_min(wishes, normaliser, least), budget)
        x = found.proved("Gavel's program")
        level = float(x[-1])
        worst = level if worst < 0 else worst
        prices = found.prices
        free = least < 0
        tight = free if prices is None else free & (np.abs(prices[: len(free)]) > TIGHT)
        least = np.where(tight, level * (1 - 1e-9), least)
        if not (least < 0).any() or not tight.any():
            break
    floor = np.where(least < 0, level * (1 - 1e-9), least)
    shares = solve(_largest_sum(wishes, normaliser, floor), budget).incumbent  # as good, if there is none
    return (x[:-1] if shares is None else shares).reshape(wishes.throughput.shape), worst


def _limits(wishes: Wishes) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, Floats]:
    """Rows, columns, values and upper bounds of what X must keep: time of each job, GPUs of each type."""
    jobs, kinds = wishes.throughput.shape
    job, kind = np.divmod(np.arange(jobs * kinds), kinds)
    columns = np.arange(jobs * kinds)
    rows = np.concatenate([job, jobs + kind])
    values = np.concatenate([np.ones(jobs * kinds), wishes.gpus[job]])
    return (
        rows,
        np.concatenate([columns, columns]),
        values,
        np.concatenate([np.ones(jobs), wishes.capacities]),
    )


def _relative(wishes: Wishes, normaliser: Floats) -> Floats:
    return wishes.throughput / normaliser[:, None]


def _max_min(wishes: Wishes, normaliser: Floats, least: Floats) -> Program:
    """Max z, where jobs have z (or, of those that keep it, `least`): rows of them first, then X's limits."""
    jobs, kinds = wishes.throughput.shape
    rows, columns, values, upper = _limits(wishes)
    job = np.repeat(np.arange(jobs), kinds)
    free = np.flatnonzero(least < 0)
    z = jobs * kinds
    matrix = Sparse.of_entries(
        np.concatenate([job, free, rows + jobs]),
        np.concatenate([np.arange(z), np.full(len(free), z), columns]),
        np.concatenate([_relative(wishes, normaliser).ravel(), np.full(len(free), -1.0), values]),
        2 * jobs + kinds,
    )
    cost = np.zeros(z + 1)
    cost[-1] = 1.0
    return Program(
        cost, matrix,
        row_lower=np.concatenate([np.maximum(least, 0.0), np.full(jobs + kinds, -np.inf)]),
        row_upper=np.concatenate([np.full(jobs, np.inf), upper]),
        upper=np.append(_possible(wishes), np.inf), maximise=True,
    )  # fmt: skip


def _possible(wishes: Wishes) -> Floats:
    return (wishes.throughput > 0).astype(float).ravel()


def _largest_sum(wishes: Wishes, normaliser: Floats, floor: Floats) -> Program:
    """Max the sum of relative throughputs, where nobody has less than the floor."""
    jobs, kinds = wishes.throughput.shape
    rows, columns, values, upper = _limits(wishes)
    relative = _relative(wishes, normaliser)
    matrix = Sparse.of_entries(
        np.concatenate([np.repeat(np.arange(jobs), kinds), rows + jobs]),
        np.concatenate([np.arange(jobs * kinds), columns]),
        np.concatenate([relative.ravel(), values]),
        2 * jobs + kinds,
    )
    return Program(
        relative.ravel(), matrix,
        row_lower=np.concatenate([floor, np.full(jobs + kinds, -np.inf)]),
        row_upper=np.concatenate([np.full(jobs, np.inf), upper]),
        upper=_possible(wishes), maximise=True,
    )  # fmt: skip


def fairest(
    wishes: Wishes, left: Floats, alone_s: Floats, age_s: Floats, budget: Budget
) -> tuple[Floats, float]:
    """(shares of time, the largest finish-time fairness), the largest as small as can be.

    Args:
        left: work left of each job, in the unit of throughput times seconds.
        alone_s: how long all of it takes with an equal share.
        age_s: seconds since it came.
    """
    low = float(np.max(age_s / alone_s, initial=0.0))
    high = max(1.0, 2 * low)
    while _fair(wishes, left, age_s, alone_s, high, budget) is None:
        low, high = high, high * 2
    for _ in range(BISECTIONS):
        rho = (low + high) / 2
        if _fair(wishes, left, age_s, alone_s, rho, budget) is None:
            low = rho
        else:
            high = rho
        if high - low < 5e-3 * high:
            break
    found = _fair(wishes, left, age_s, alone_s, high, budget)
    assert found is not None
    return found, high


def _fair(
    wishes: Wishes, left: Floats, age_s: Floats, alone_s: Floats, rho: float, budget: Budget
) -> Floats | None:
    """Shares with which nobody's finish-time fairness is above rho; None if there are none."""
    until_s = rho * alone_s - age_s
    if (until_s[left > 0] <= 0).any():
        return None
    need = np.where(left > 0, left / np.maximum(until_s, 1e-12), 0.0)
    ones = np.ones(len(left))
    answer = solve(_largest_sum(wishes, ones, need), budget)
    found = answer.proved("Gavel's program of fairness") if answer.exhausted else answer.incumbent
    return None if found is None else found.reshape(wishes.throughput.shape)


def most_steps(wishes: Wishes, steps: Floats, budget: Budget) -> Floats:
    """Shares of time with which all jobs do most together.

    Args:
        steps: by job, what its throughput is multiplied by.
    """
    raised = Wishes(wishes.throughput * steps[:, None], wishes.gpus, wishes.capacities)
    found = solve(_largest_sum(raised, np.ones(len(steps)), np.zeros(len(steps))), budget)
    return found.proved("Gavel's program of throughput").reshape(wishes.throughput.shape)


def cheapest(wishes: Wishes, normaliser: Floats, prices: Floats, budget: Budget) -> tuple[Floats, float]:
    """(shares of time, relative throughput per price), the quotient as large as can be.

    Charnes and Cooper: with y = t X and the price of y equal to 1, the quotient is linear in y.
    """
    jobs, kinds = wishes.throughput.shape
    rows, columns, values, upper = _limits(wishes)
    price = (wishes.gpus[:, None] * prices).ravel()
    t = jobs * kinds
    matrix = Sparse.of_entries(
        np.concatenate([np.zeros(t, int), 1 + rows, 1 + np.arange(jobs + kinds)]),
        np.concatenate([np.arange(t), columns, np.full(jobs + kinds, t)]),
        np.concatenate([price, values, -upper]),
        1 + jobs + kinds,
    )
    free = np.append(np.where(_possible(wishes) > 0, np.inf, 0.0), np.inf)
    program = Program(
        np.append(_relative(wishes, normaliser).ravel(), 0.0), matrix,
        row_lower=np.append(1.0, np.full(jobs + kinds, -np.inf)), row_upper=np.append(1.0, np.zeros(jobs + kinds)),
        upper=free, maximise=True,
    )  # fmt: skip
    found = solve(program, budget)
    x = found.proved("Gavel's program of cost")
    scale = x[-1] if x[-1] > 0 else 1.0
    return (x[:-1] / scale).reshape(wishes.throughput.shape), found.objective


# ---- rounds


class TimeShares(Index):
    """What each job is to have, and what it had: an index.

    Attributes:
        shares: by job index, its row of X.
        word: what is to be said of X where the solver's budget did not suffice.
        among: the jobs for which X was worked out; it is anew when these are others.
        kinds: names of the types.
    """

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self.kinds = list(view.inventory.pools)
        self.shares: dict[int, Floats] = {}
        self._had_s: dict[int, Floats] = {}
        self._since_s: dict[int, float] = {}
        self._running: dict[int, tuple[int, float]] = {}
        self._alone: dict[int, tuple[float, float, float]] = {}
        self.among: set[int] = set()
        self.word = ""

    def enter(self, job: JobState, now: float) -> None:
        """It came, or got GPUs."""
        if job.status == ENDED:
            return
        if job.index not in self._since_s:
            self._since_s[job.index] = now
            self._had_s[job.index] = np.zeros(len(self.kinds))
        if job.status == RUNNING:
            self._running[job.index] = self.kinds.index(type_of(self._view, job)), now

    def leave(self, job: JobState) -> None:
        """It gives its GPUs back, or stops waiting."""
        if job.index in self._running:
            kind, since_s = self._running.pop(job.index)
            self._had_s[job.index][kind] += self._view.now - since_s

    def refresh(self, job: JobState, now: float) -> None:
        """Of no interest here."""

    def alone_s(self, jobs: Sequence[JobState], equal: Floats) -> Floats:
        """How long each job would take with an equal share: what it has done at what that was then, the rest at what it is."""
        now, total = self._view.now, np.zeros(len(jobs))
        for at, (job, speed) in enumerate(zip(jobs, equal.tolist(), strict=True)):
            done_s = job.done_at(now)
            so_far_s, before_s, before = self._alone.get(job.index, (0.0, 0.0, speed))
            so_far_s += (done_s - before_s) / before
            self._alone[job.index] = so_far_s, done_s, speed
            total[at] = so_far_s + max(job.work_s - done_s, 1e-9) / speed
        return total

    def priority(self, job: JobState) -> Floats:
        """By type: how far it is behind its share; 0 where it has none."""
        now, had_s = self._view.now, self._had_s[job.index].copy()
        if job.index in self._running:
            kind, since_s = self._running[job.index]
            had_s[kind] += now - since_s
        age_s = max(now - self._since_s[job.index], 1.0)
        row = self.shares.get(job.index)
        if row is None:
            return np.zeros(len(self.kinds))
        fraction = np.maximum(had_s / age_s, 1e-6)
        return np.where(row > 1e-6, row / fraction, 0.0)


@dataclass(frozen=True)
class _TimeSharesSpec:
    def build(self, view: ClusterView) -> TimeShares:
        return TimeShares(view)


SHARES = _TimeSharesSpec()


@dataclass(frozen=True)
class Gavel(Policy):
    """Shares of time on each type of GPU by a linear program, kept by rounds.

    Args:
        objective: max-min, finish-time-fairness, makespan, throughput or cost.
        placement: which free GPUs a job gets.
        round_s: from one round to the next, in seconds.
        prices: of GPU types an hour, as "V100=2.48/K80=0.45"; those that it does not name cost 1.
        fill: whether free GPUs go to waiting jobs between rounds; if not, nothing changes but at a round's begin.
        iterations: of the simplex method, before an answer is given up.
    """

    objective: str = "max-min"
    placement: Rule = TierAware()
    round_s: float = 360.0
    prices: str = ""
    fill: bool = True
    iterations: int = 200_000
    name = "gavel"
    source = "in the style of Narayanan et al., Gavel, OSDI'20 (no sharing of GPUs)"

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise PolicyError(f"objective is {self.objective!r}", f"choose one of {', '.join(OBJECTIVES)}")
        if not 0 < self.round_s < math.inf:
            raise PolicyError(f"round_s is {self.round_s}", "give seconds above 0")
        Budget(iterations=self.iterations)
        _ = self.price_of

    @cached_property
    def rounds(self) -> RoundsEvery:
        """When it decides."""
        return RoundsEvery(self.round_s)

    @cached_property
    def price_of(self) -> dict[str, float]:
        """Prices by type."""
        prices = {}
        for part in filter(None, self.prices.split("/")):
            kind, _, text = part.partition("=")
            try:
                prices[kind] = float(text)
            except ValueError:
                prices[kind] = -1.0
            if not 0 < prices[kind] < math.inf:
                raise PolicyError(f"the price {part!r} is none", "write TYPE=PRICE, above 0, joined by '/'")
        return prices

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        rounds: Rounds = view.index(self.rounds)
        book: TimeShares = view.index(SHARES)
        if rounds.is_due(view.now) and (view.waiting or _may_swap(view)):
            yield from self._round(view, book)
        if self.fill:
            yield from fill(view, ARRIVAL, self.placement)
        yield from rounds.ask(view, "then the next round begins", alone=_may_swap(view), idle=not self.fill)

    def _round(self, view: ClusterView, book: TimeShares) -> Iterator[Decision]:
        jobs = [job for job in (*view.running.values(), *view.waiting.values()) if not is_fixed(job)]
        if book.among != {job.index for job in jobs}:
            self._work_out(view, book, jobs)
        shares = list(self._chosen(view, book, jobs))
        says = f"it is furthest behind its share of time ({book.word or self.objective})"
        yield from reassign(view, shares, self.placement, says, "its share of time is used up for now")

    def _work_out(self, view: ClusterView, book: TimeShares, jobs: list[JobState]) -> None:
        """X of all jobs as they stand."""
        wishes = _wishes(view, jobs)
        able = np.flatnonzero(wishes.throughput.any(axis=1))
        wishes = Wishes(wishes.throughput[able], wishes.gpus[able], wishes.capacities)
        book.shares = {}
        if len(able):
            x, book.word = self._within_budget(view, book, wishes, [jobs[i] for i in able])
            book.shares = {jobs[i].index: row for i, row in zip(able, x, strict=True)}
        book.among = {job.index for job in jobs}

    def _within_budget(
        self, view: ClusterView, book: TimeShares, wishes: Wishes, jobs: Sequence[JobState]
    ) -> tuple[Floats, str]:
        """X, or equal shares where the solver's budget did not suffice (a linear program that is cut short has no answer that
        is any good), and what is to be said of that."""
        try:
            return self._allocate(view, book, wishes, jobs), ""
        except BudgetUsedUpError:
            equal = wishes.capacities / (len(jobs) * wishes.gpus[:, None])
            equal = np.where(wishes.throughput > 0, equal, 0.0)
            total = np.maximum(equal.sum(axis=1, keepdims=True), 1.0)
            return equal / total, "budget used up, shares are equal"

    def _allocate(
        self, view: ClusterView, book: TimeShares, wishes: Wishes, jobs: Sequence[JobState]
    ) -> Floats:
        budget, now = Budget(iterations=self.iterations), view.now
        if self.objective == "max-min":
            return max_min(wishes, equal_share(wishes), budget)[0]
        if self.objective == "cost":
            prices = np.array([self.price_of.get(kind, 1.0) for kind in view.inventory.pools])
            return cheapest(wishes, equal_share(wishes), prices, budget)[0]
        if self.objective == "throughput":
            return most_steps(wishes, np.array([_steps(job) for job in jobs]), budget)
        left = np.array([max(job.remaining_s(now), 1e-9) for job in jobs])
        if self.objective == "makespan":
            return max_min(wishes, left, budget, levels=1)[0]
        age_s = np.array([now - job.submit_s for job in jobs])
        return fairest(wishes, left, book.alone_s(jobs, equal_share(wishes)), age_s, budget)[0]

    def _chosen(self, view: ClusterView, book: TimeShares, jobs: list[JobState]) -> Iterator[Share]:
        """Who runs in this round: the furthest behind first, then, where that costs nothing, the others by arrival."""
        pools = list(view.inventory.pools.values())
        left = [float(capacity_of(view, pool)) for pool in pools]
        wanted = [(job, kind, p) for job in jobs for kind, p in enumerate(book.priority(job).tolist())]
        wanted.sort(key=lambda entry: (-entry[2], entry[0].status != RUNNING, entry[0].index, entry[1]))
        served: set[int] = set()
        for job, kind, priority in wanted:
            if job.index in served or job.gpus > left[kind]:
                continue
            if not priority and (self.objective == "cost" or pools[kind] not in job.pools):
                continue
            left[kind] -= job.gpus
            served.add(job.index)
            yield Share(job, job.gpus, pools[kind].gpu_type)

    def card(self) -> dict[str, str]:
        return {
            "order": f"furthest behind its share of time; shares by a linear program for {self.objective}",
            "backfill": "whoever fits between rounds, in order of arrival"
            if self.fill
            else "none between rounds",
            "preemption": f"every {self.round_s:g} s, those that are ahead of their shares",
            "elastic jobs": "at the size that they asked for",
            "solver": f"HiGHS, at most {self.iterations} iterations",
            **(
                {"remaining time": "known (oracle)"}
                if self.objective in ("finish-time-fairness", "makespan")
                else {}
            ),
        }


def _may_swap(view: ClusterView) -> bool:
    """Whether running jobs could change types with each other."""
    return len(view.inventory.pools) > 1 and len(view.running) > 1


def _steps(job: JobState) -> float:
    """Training steps in a second of its work, where the trace counts them; else 1."""
    steps = job.job.facts.get("total_steps", 0.0)
    return steps / job.work_s if steps > 0 and job.work_s > 0 else 1.0


def _wishes(view: ClusterView, jobs: Sequence[JobState]) -> Wishes:
    pools = list(view.inventory.pools.values())
    throughput = np.array([[_speed(view, job, pool) for pool in pools] for job in jobs]).reshape(
        len(jobs), len(pools)
    )
    capacities = np.array([float(capacity_of(view, pool)) for pool in pools])
    gpus = np.array([float(job.gpus) for job in jobs])
    fits = gpus[:, None] <= capacities
    return Wishes(np.where(fits, throughput, 0.0), gpus, capacities)


def _speed(view: ClusterView, job: JobState, pool: GpuPool) -> float:
    """Work per second on GPUs of a type; 0 where it cannot run."""
    if pool not in job.pools:
        return 0.0
    kind = pool.gpu_type
    tier = view.topology.narrowest(job.gpus, kind, job.job.hosts)
    return 0.0 if tier is None else view.estimates.goodput(job, job.gpus, tier, kind)[0]
