"""How long the programs of Sia, Pollux, Gavel and Shockwave take, by number of jobs: a decision's time, but for placing.

    python benchmarks/solvers.py                  # all
    python benchmarks/solvers.py --runs 3         # quicker

Jobs are drawn at random: goodputs that grow with the number of GPUs, ever less; three types of GPU. Processor time of
single solves (they take one thread and wait for nothing), a median over instances, with the 90th percentile beside it. HiGHS is imported before.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median, quantiles

import numpy as np
from page import machine, table

from hemiola.sched.optimise.allocation import Allocation, allocate
from hemiola.sched.optimise.programs import Budget, need_solver
from hemiola.sched.policies.gavel import Wishes, cheapest, equal_share, fairest, max_min
from hemiola.sched.policies.pollux import pollux_choices
from hemiola.sched.policies.shockwave import WindowJob, plan_window
from hemiola.sched.policies.sia import GAP, GpuChoice, sia_choices

SIZES = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
KINDS = 3
BUDGET = Budget(nodes=200, gap=GAP)
Instance = Callable[[], object]


def rows(jobs: int, chance: np.random.Generator) -> list[list[GpuChoice]]:
    """33 configurations of each job; half of the jobs run, in one of theirs."""
    found = []
    for _ in range(jobs):
        speed, bend = chance.uniform(0.5, 3.0, KINDS), chance.uniform(0.4, 0.95)
        has = int(chance.integers(0, KINDS * len(SIZES))) if chance.random() < 0.5 else -1
        found.append(
            [
                GpuChoice(kind, gpus, float(speed[kind] * gpus**bend), kind * len(SIZES) + at == has)
                for kind in range(KINDS)
                for at, gpus in enumerate(SIZES)
            ]
        )
    return found


def sia(jobs: int, chance: np.random.Generator) -> Instance:
    """Sia's round: costs and program."""
    drawn, factors = rows(jobs, chance), chance.uniform(0.5, 1.0, jobs).tolist()
    capacities = [max(64.0, float(jobs))] * KINDS
    return lambda: allocate(sia_choices(drawn, factors, -0.5, 1.1, 0.01), capacities, BUDGET)


def pollux(jobs: int, chance: np.random.Generator) -> Instance:
    """Pollux's round: costs and program."""
    drawn, factors = rows(jobs, chance), chance.uniform(0.5, 1.0, jobs).tolist()
    fair = [row[1].goodput for row in drawn]
    capacities = [max(64.0, float(jobs))] * KINDS
    return lambda: allocate(pollux_choices(drawn, fair, factors, -1.0), capacities, BUDGET)


def wishes(jobs: int, chance: np.random.Generator) -> Wishes:
    """Jobs of 1 to 8 GPUs on three types, four times as many as fit."""
    gpus = chance.choice([1.0, 1.0, 2.0, 4.0, 8.0], jobs)
    capacities = np.full(KINDS, np.ceil(gpus.sum() / 4 / KINDS))
    return Wishes(chance.uniform(0.3, 3.0, (jobs, KINDS)), gpus, np.maximum(capacities, 8.0))


def gavel(objective: str) -> Callable[[int, np.random.Generator], Instance]:
    """Gavel's programs for one objective."""

    def instance(jobs: int, chance: np.random.Generator) -> Instance:
        drawn = wishes(jobs, chance)
        left, age = chance.uniform(1e2, 1e5, jobs), chance.uniform(0.0, 1e5, jobs)
        alone = left / equal_share(drawn) + age / 2
        return {
            "max-min": lambda: max_min(drawn, equal_share(drawn), BUDGET),
            "makespan": lambda: max_min(drawn, left, BUDGET, levels=1),
            "cost": lambda: cheapest(drawn, equal_share(drawn), np.array([2.5, 1.5, 0.5]), BUDGET),
            "finish-time-fairness": lambda: fairest(drawn, left, alone, age, BUDGET),
        }[objective]

    return instance


def shockwave(jobs: int, chance: np.random.Generator) -> Instance:
    """A window of 20 rounds."""
    drawn = [
        WindowJob(int(chance.choice([1, 1, 2, 4])), float(chance.uniform(0.5, 30)), float(chance.random() * 0.9),
                  float(chance.uniform(0.001, 0.1)), float(chance.uniform(100, 1e5)))
        for _ in range(jobs)
    ]  # fmt: skip
    return lambda: plan_window(drawn, max(8, jobs // 2), 20, 120.0, 1.0, Budget(nodes=50, gap=1e-3))


CASES: tuple[tuple[str, Callable[[int, np.random.Generator], Instance], tuple[int, ...]], ...] = (
    ("sia, 33 configurations", sia, (60, 160, 400)),
    ("pollux, 33 configurations", pollux, (60, 160, 400)),
    ("gavel, max-min", gavel("max-min"), (100, 400, 1000)),
    ("gavel, makespan", gavel("makespan"), (100, 400)),
    ("gavel, cost", gavel("cost"), (100, 400)),
    ("gavel, finish-time fairness", gavel("finish-time-fairness"), (100, 400)),
    ("shockwave, 20 rounds", shockwave, (60, 160)),
)


def measure(make: Callable[[int, np.random.Generator], Instance], jobs: int, runs: int) -> tuple[list[float], int]:  # fmt: skip
    """(seconds of each solve, how many went on to branch and bound)."""
    seconds, fractional = [], 0
    for seed in range(runs):
        solve = make(jobs, np.random.default_rng(seed))
        began = time.process_time()
        found = solve()
        seconds.append(time.process_time() - began)
        fractional += isinstance(found, Allocation) and not found.integral
    return seconds, fractional


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=9, help="instances of each case (default: 9)")
    runs = parser.parse_args().runs
    need_solver()
    lines = []
    for name, make, sizes in CASES:
        for jobs in sizes:
            seconds, fractional = measure(make, jobs, runs)
            worst = quantiles(seconds, n=10)[-1] if runs > 1 else seconds[0]
            whole = f"{fractional} of {runs}" if "configurations" in name else ""
            lines.append([name, str(jobs), f"{median(seconds) * 1e3:.0f}", f"{worst * 1e3:.0f}", whole])
    print(machine())
    print(table(["program", "jobs", "median ms", "90 % ms", "fractional first"], lines))


if __name__ == "__main__":
    main()
