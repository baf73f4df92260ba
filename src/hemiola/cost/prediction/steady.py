"""An iteration in the steady state: several are executed, and the last that repeats is the answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hemiola.cost.prediction.lower import ComputeStep, CostFactors, Lowered, lower, rank_steps
from hemiola.cost.prediction.setting import Setting
from hemiola.kernels.executor import execute
from hemiola.kernels.executor.tasks import Execution

__all__ = ["SteadyRun", "run_steady"]

FIRST_TRY, LAST_TRY = 3, 24
SAME = 1e-6


@dataclass(frozen=True, eq=False)
class SteadyRun:
    """Executed iterations, the last of which is the steady one.

    Attributes:
        lowered, execution: the tasks and when they ran.
        steps: of one rank.
        slowest: the executed rank (its place in `lowered.ranks`) that ended last.
        start_s, end_s: of the steady iteration of that rank.
        iteration_s: its length; where it does not settle, the mean over the second half of those executed.
        settled: whether the last two iterations took equally long.
    """

    lowered: Lowered
    execution: Execution
    steps: tuple[ComputeStep, ...]
    slowest: int
    start_s: float
    end_s: float
    iteration_s: float
    settled: bool


def run_steady(setting: Setting, scale: CostFactors) -> SteadyRun:
    """Execute 3 iterations, and twice as many as long as they do not repeat, up to 24."""
    steps = rank_steps(setting)
    count = FIRST_TRY
    while True:
        lowered = lower(setting, steps, count, scale)
        execution = execute(lowered.tasks)
        ends = execution.end_s[lowered.step_task[:, :, -1]]
        slowest = int(np.argmax(ends[-1]))
        lengths = np.diff(ends[:, slowest])
        settled = bool(abs(lengths[-1] - lengths[-2]) <= SAME * max(lengths[-1], 1e-12))
        if settled or count >= LAST_TRY:
            break
        count *= 2
    mean_s = float(lengths[-1] if settled else lengths[len(lengths) // 2 :].mean())
    start_s, end_s = ends[-2:, slowest]
    return SteadyRun(lowered, execution, steps, slowest, float(start_s), float(end_s), mean_s, settled)
