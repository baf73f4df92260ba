"""Shockwave (Zheng et al., NSDI'23), in the style of: a window of rounds planned ahead for welfare over time and the makespan.

1. *Welfare over time* (section 4): of all plans for the next T rounds, that with the largest sum over jobs of
   rho_j^k log(progress of j at the window's end). rho is the finish-time fairness that j is heading for: who was treated
   worst has the largest budget (k = 5).
2. *Makespan* (section 6): less lambda times the longest time that any job would still need after the window.
3. *The program*: how many of the window's rounds each job gets. log is concave, so that it may be written in pieces; linear
   first, mixed-integer where that is fractional.
4. *Rounds* of two minutes: those go first that have no round to lose. GPUs that the plan leaves go to the others, worst rho
   first. The plan is made anew when the window is over, or jobs come or go.

Where the paper is silent, or another way was taken, and what was chosen:
- *Which round*: the paper has a variable for each job and round. Rounds of a window are alike, so their number is enough; who
  runs together is found round by round, by least slack, which is where a plan may fail by a round.
- *Dynamic batches*: the paper predicts by Bayes' rule how a job's batch, and so its speed, will change. Here work left is known
  (an oracle), and speed is what the job has where it runs.
- *rho* is (age + f left) / (f whole), with f = GPUs wanted over GPUs there are, at least 1.
- *Elastic jobs* have the size that they asked for; GPU types count alike.
- *Between rounds* free GPUs go to waiting jobs, in order of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hemiola.core.decisions import Decision
from hemiola.core.errors import PolicyError
from hemiola.sched.job_state import RUNNING, JobState
from hemiola.sched.optimise.programs import Budget, Program, Sparse, good_enough, solve
from hemiola.sched.placement import Rule, TierAware
from hemiola.sched.policies.fifo import ByArrival
from hemiola.sched.policies.sia import is_fixed
from hemiola.sched.policy import Policy
from hemiola.sched.rounds import Rounds, RoundsEvery, Share, capacity_of, fill, reassign
from hemiola.sched.view import ClusterView, Index

__all__ = ["Shockwave", "WindowJob", "plan_window"]

ARRIVAL = ByArrival()
FLOOR = 1e-3
"""Progress of a job that has made none: log has to be finite."""
WHOLE = 1e-6
GAP = 1e-3
"""A window this close to the linear program's bound is taken."""


@dataclass(frozen=True)
class WindowJob:
    """A job as a window is planned.

    Attributes:
        gpus: that it takes.
        weight: rho^k.
        progress: share of its work that is done.
        per_round: share of its work that a round does.
        left_s: time that it still needs.
    """

    gpus: int
    weight: float
    progress: float
    per_round: float
    left_s: float


def plan_window(
    jobs: list[WindowJob], gpus: int, rounds: int, round_s: float, makespan: float, budget: Budget
) -> tuple[list[int], str]:
    """(rounds of the window for each job, what is open where the budget was used up).

    Args:
        makespan: lambda, against the welfare of one job of weight 1.
    """
    program = _program(jobs, gpus, rounds, round_s, makespan)
    relaxed = solve(program.relaxed(), budget)
    x = np.zeros(program.variables) if relaxed.incumbent is None else relaxed.incumbent
    if relaxed.incumbent is not None and np.abs(x[:-1] - np.round(x[:-1])).max(initial=0.0) < WHOLE:
        return _counts(x, rounds), relaxed.word
    begin = _rounded(x, jobs, gpus, rounds, round_s)
    if good_enough(float(np.dot(np.asarray(program.cost), begin)), relaxed.objective, budget):
        return _counts(begin, rounds), relaxed.word
    found = solve(program, budget, begin)
    return _counts(begin if found.incumbent is None else found.incumbent, rounds), found.word


def _rounded(
    x: NDArray[np.float64], jobs: list[WindowJob], gpus: int, rounds: int, round_s: float
) -> NDArray[np.float64]:
    """Whole rounds of the linear program, then the torn ones, the largest part first, as long as there is room."""
    begin = np.floor(x + WHOLE)
    left = gpus * rounds - sum(
        one.gpus * n for one, n in zip(jobs, begin[:-1].reshape(-1, rounds).sum(axis=1), strict=True)
    )
    torn = np.flatnonzero(x[:-1] - begin[:-1] > WHOLE)
    for column in sorted(torn.tolist(), key=lambda column: (-x[column], column)):
        need = jobs[column // rounds].gpus
        if need <= left:
            begin[column], left = 1.0, left - need
    counts = begin[:-1].reshape(-1, rounds).sum(axis=1)
    begin[-1] = max(0.0, *(one.left_s - n * round_s for one, n in zip(jobs, counts.tolist(), strict=True)))
    return begin


def _counts(x: NDArray[np.float64], rounds: int) -> list[int]:
    return [round(float(count)) for count in x[:-1].reshape(-1, rounds).sum(axis=1)]


def _program(jobs: list[WindowJob], gpus: int, rounds: int, round_s: float, makespan: float) -> Program:
    """A variable for each job's first, second, ... round of the window, each worth less than the one before, and the longest
    time left. Rows: GPUs of the window; for each job, its time left after it."""
    count = len(jobs)
    progress = np.array([max(job.progress, FLOOR) for job in jobs])
    step = np.array([job.per_round for job in jobs])
    at = np.minimum(1.0, progress[:, None] + step[:, None] * np.arange(rounds + 1))
    worth = np.array([job.weight for job in jobs])[:, None] * np.diff(np.log(at), axis=1)
    columns, last = np.arange(count * rounds), count * rounds
    job = np.repeat(np.arange(count), rounds)
    size = np.array([one.gpus for one in jobs], dtype=float)
    matrix = Sparse.of_entries(
        np.concatenate([np.zeros(last, int), 1 + job, 1 + np.arange(count)]),
        np.concatenate([columns, columns, np.full(count, last)]),
        np.concatenate([size[job], np.full(last, round_s), np.ones(count)]),
        1 + count,
    )
    left_s = np.array([one.left_s for one in jobs])
    scale = makespan / max(float(left_s.max(initial=0.0)), 1.0)
    return Program(
        np.append(worth.ravel(), -scale), matrix,
        row_lower=np.append(-np.inf, left_s), row_upper=np.append(float(gpus * rounds), np.full(count, np.inf)),
        upper=np.append(np.ones(last), np.inf),
        integer=np.append(np.ones(last, bool), False), maximise=True,
    )  # fmt: skip


class _Window(Index):
    """The plan of the present window; an index.

    Attributes:
        left: rounds that it has left.
        counts: of them, how many each job is to have.
        among: the jobs that it was made for.
        word: what it leaves open.
    """

    def __init__(self) -> None:
        self.left = 0
        self.counts: dict[int, int] = {}
        self.among: set[int] = set()
        self.word = ""

    def enter(self, job: JobState, now: float) -> None:
        """Of no interest here."""

    def leave(self, job: JobState) -> None:
        """Of no interest here."""

    def refresh(self, job: JobState, now: float) -> None:
        """Of no interest here."""


@dataclass(frozen=True)
class _WindowSpec:
    def build(self, view: ClusterView) -> _Window:
        return _Window()


WINDOW = _WindowSpec()


@dataclass(frozen=True)
class Shockwave(Policy):
    """A window of rounds planned ahead: welfare over time, weighted by finish-time fairness, and the makespan.

    Args:
        placement: which free GPUs a job gets.
        round_s: from one round to the next, in seconds.
        window: rounds that are planned ahead.
        power: k, how much more those count who are treated worse.
        makespan: lambda, how much the longest time left counts against one job's welfare.
        nodes: of branch and bound, before the incumbent is taken as it is.
    """

    placement: Rule = TierAware()
    round_s: float = 120.0
    window: int = 20
    power: float = 5.0
    makespan: float = 1.0
    nodes: int = 50
    name = "shockwave"
    source = "in the style of Zheng et al., Shockwave, NSDI'23 (work left known, no prediction of batches)"

    def __post_init__(self) -> None:
        if not 0 < self.round_s < math.inf or not 1 <= self.window <= 1000:
            raise PolicyError(
                f"round_s is {self.round_s}, window {self.window}",
                "give seconds above 0, and 1 to 1000 rounds",
            )
        if not 0 <= self.power <= 20 or not 0 <= self.makespan < math.inf:
            raise PolicyError(
                f"power is {self.power}, makespan {self.makespan}", "give 0 to 20, and 0 or more"
            )
        Budget(nodes=self.nodes)

    @cached_property
    def rounds(self) -> RoundsEvery:
        """When it decides."""
        return RoundsEvery(self.round_s)

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        rounds: Rounds = view.index(self.rounds)
        if rounds.is_due(view.now) and view.waiting:
            yield from self._round(view)
        yield from fill(view, ARRIVAL, self.placement)
        yield from rounds.ask(view, "then the window's next round begins")

    def _round(self, view: ClusterView) -> Iterator[Decision]:
        window: _Window = view.index(WINDOW)
        jobs = [job for job in (*view.running.values(), *view.waiting.values()) if not is_fixed(job)]
        gpus = sum(capacity_of(view, pool) for pool in view.inventory.pools.values())
        crowd = max(1.0, sum(job.gpus for job in jobs) / max(gpus, 1))
        if not window.left or window.among != {job.index for job in jobs}:
            self._plan(view, window, jobs, gpus, crowd)
        shares = self._chosen(view, window, jobs, gpus, crowd)
        window.left -= 1
        for share in shares:
            window.counts[share.job.index] = max(0, window.counts[share.job.index] - 1)
        says = "its window of rounds says so" + (f" ({window.word})" if window.word else "")
        yield from reassign(view, shares, self.placement, says, "its rounds of this window come later")

    def _plan(
        self, view: ClusterView, window: _Window, jobs: list[JobState], gpus: int, crowd: float
    ) -> None:
        planned = [self._job(view, job, crowd) for job in jobs]
        counts, window.word = plan_window(
            planned, gpus, self.window, self.round_s, self.makespan, Budget(nodes=self.nodes, gap=GAP)
        )
        window.left, window.among = self.window, {job.index for job in jobs}
        window.counts = {job.index: count for job, count in zip(jobs, counts, strict=True)}

    def _job(self, view: ClusterView, job: JobState, crowd: float) -> WindowJob:
        work_s = max(job.work_s, 1e-9)
        speed = (
            job.speed if job.status == RUNNING and job.speed > 0 else view.estimates.speed_at(job, job.gpus)
        )
        left_s = job.remaining_s(view.now) / speed
        weight = _rho(job, view.now, crowd) ** self.power
        return WindowJob(
            job.gpus, weight, job.done_at(view.now) / work_s, speed * self.round_s / work_s, left_s
        )

    def _chosen(
        self, view: ClusterView, window: _Window, jobs: list[JobState], gpus: int, crowd: float
    ) -> list[Share]:
        """Who has no round of the window to lose, then whom it says most of, then the others, worst rho first."""
        now, shares = view.now, []

        def place(job: JobState) -> tuple[bool, int, bool, float, int]:
            count = window.counts.get(job.index, 0)
            return not count, -count, job.status != RUNNING, -_rho(job, now, crowd), job.index

        for job in sorted(jobs, key=place):
            if job.gpus <= gpus:
                gpus -= job.gpus
                shares.append(Share(job, job.gpus))
        return shares

    def card(self) -> dict[str, str]:
        return {
            "order": f"rounds of a window of {self.window}, planned for welfare over time and the makespan",
            "backfill": "whoever fits between rounds, in order of arrival; what the plan leaves, worst treated first",
            "preemption": f"every {self.round_s:g} s, those whose rounds come later",
            "elastic jobs": "at the size that they asked for",
            "remaining time": "known (oracle)",
            "solver": f"HiGHS: linear, then at most {self.nodes} nodes",
        }


def _rho(job: JobState, now: float, crowd: float) -> float:
    """The finish-time fairness that it is heading for."""
    whole_s = crowd * max(job.work_s, 1e-9)
    return min((now - job.submit_s + crowd * job.remaining_s(now)) / whole_s, 100.0)
