"""One configuration for each job, so that the sum of their costs is least and no type of GPU is given out twice.

The program of Sia (SOSP'23, section 3.4) and, with other costs, of Pollux: as a linear program first, in which all jobs but
a few get whole answers. Those few share what is left by a small mixed-integer program; where that is further from the linear
one's bound than the budget's gap, all of it is solved as one. It must not know what costs stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hemiola.sched.optimise.programs import Budget, Program, Solution, Sparse, good_enough, solve

__all__ = ["Allocation", "Choices", "allocate"]

WHOLE = 1e-6
"""A variable this near to 0 or 1 is."""


@dataclass(frozen=True, eq=False)
class Choices:
    """What jobs may have; entry i of the first four is one choice of one job.

    Attributes:
        job: whose, from 0.
        gpus: how many GPUs it takes.
        kind: of which type of GPU, from 0.
        cost: less is better.
        without: for each job, what it costs to give it nothing.
    """

    job: NDArray[np.int64]
    gpus: NDArray[np.float64]
    kind: NDArray[np.int64]
    cost: NDArray[np.float64]
    without: NDArray[np.float64]


@dataclass(frozen=True)
class Allocation:
    """Which choice each job got (-1 for none), and how it was found.

    Attributes:
        chosen: by job, a number of a choice.
        cost: in sum, with what jobs without anything cost.
        word: for decisions' reasons: "" where nothing better was left to find.
        integral: whether the linear program was whole already.
    """

    chosen: tuple[int, ...]
    cost: float
    word: str
    integral: bool


def allocate(choices: Choices, capacities: Sequence[float], budget: Budget) -> Allocation:
    """The least cost.

    Args:
        capacities: GPUs of each type.
        budget: of each of the two programs.
    """
    program = _program(choices, capacities)
    relaxed = solve(program.relaxed(), budget)
    found = relaxed.incumbent
    if found is not None and not relaxed.exhausted and bool(np.all(np.abs(found - np.round(found)) < WHOLE)):
        return _allocation(choices, found, relaxed, integral=True)
    begin = _rounded(choices, capacities, found)
    if found is not None and not relaxed.exhausted:
        begin = _completed(choices, capacities, found, begin, budget)
        if good_enough(float(np.dot(np.asarray(program.cost), begin)), relaxed.objective, budget):
            return _allocation(choices, begin, relaxed, integral=False)
    whole = solve(program, budget, begin)
    x = begin if whole.incumbent is None else whole.incumbent
    return _allocation(choices, x, whole, integral=False)


def _completed(
    choices: Choices,
    capacities: Sequence[float],
    x: NDArray[np.float64],
    rounded: NDArray[np.float64],
    budget: Budget,
) -> NDArray[np.float64]:
    """Who is whole in the linear program keeps its choice, the few others share what is left, by a program of their own;
    or what was rounded, if that is better."""
    torn = np.zeros(len(choices.without), dtype=bool)
    torn[choices.job[(x > WHOLE) & (x < 1 - WHOLE)]] = True
    kept = (x > 1 - WHOLE) & ~torn[choices.job]
    used = np.bincount(choices.kind[kept], choices.gpus[kept], minlength=len(capacities))
    some = np.flatnonzero(torn[choices.job])
    number = np.cumsum(torn) - 1
    part = Choices(
        number[choices.job[some]], choices.gpus[some], choices.kind[some], choices.cost[some], choices.without[torn]
    )  # fmt: skip
    left = (np.asarray(capacities) - used).tolist()
    found = solve(_program(part, left), budget).incumbent
    whole = kept.astype(float)
    if found is not None:
        whole[some] = np.round(found)
    gain = choices.cost - choices.without[choices.job]
    return whole if gain @ whole < gain @ rounded else rounded


def _program(choices: Choices, capacities: Sequence[float]) -> Program:
    jobs, count = len(choices.without), len(choices.cost)
    columns = np.arange(count)
    rows = np.concatenate([choices.job, jobs + choices.kind])
    matrix = Sparse.of_entries(
        rows, np.concatenate([columns, columns]), np.concatenate([np.ones(count), choices.gpus]), jobs + len(capacities)
    )  # fmt: skip
    limits = np.concatenate([np.ones(jobs), np.asarray(capacities, dtype=float)])
    return Program(
        choices.cost - choices.without[choices.job], matrix, row_upper=limits, upper=1.0, integer=True
    )


def _rounded(
    choices: Choices, capacities: Sequence[float], x: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Choices in the order of what the linear program gave them, as long as there is room: what always can be."""
    weight = np.zeros(len(choices.cost)) if x is None else x
    left, begin = list(capacities), np.zeros(len(choices.cost))
    gain = choices.without[choices.job] - choices.cost
    served: set[int] = set()
    for index in np.lexsort((-gain, -weight)).tolist():
        job, kind, gpus = int(choices.job[index]), int(choices.kind[index]), float(choices.gpus[index])
        if job not in served and gpus <= left[kind] and gain[index] > 0:
            served.add(job)
            left[kind] -= gpus
            begin[index] = 1.0
    return begin


def _allocation(
    choices: Choices, x: NDArray[np.float64], solution: Solution, *, integral: bool
) -> Allocation:
    taken = np.flatnonzero(x > 0.5)
    chosen = np.full(len(choices.without), -1)
    chosen[choices.job[taken]] = taken
    cost = float(choices.without.sum() + (choices.cost - choices.without[choices.job])[taken].sum())
    word = "" if integral else solution.word
    return Allocation(tuple(chosen.tolist()), cost, word, integral)
