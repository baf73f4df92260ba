"""What one rank does in an iteration, in order: stretches of operations, copies, and the transfers it waits for.

Operations between two points at which a transfer becomes ready, or is needed, are one step: nothing can
come between them, so a graph of six thousand operations becomes some dozens of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hemiola.core.graph import PHASES
from hemiola.cost.parallelism import Transfer
from hemiola.cost.prediction.setting import Setting

__all__ = ["ComputeStep", "rank_steps"]


@dataclass(frozen=True, slots=True)
class ComputeStep:
    """A stretch in which a rank computes without a break.

    Attributes:
        kind: "compute", "copy" (out of a transfer's buffer, and applying it where that is the rank's work) or "overhead".
        first, last: its operations, `last` not among them.
        parts_s: seconds of forward, backward, optimizer, and of everything that is no operation.
        waits: transfers that have to be complete first.
        waits_before: transfers of the iteration before that have to be complete first.
        sends: transfers that are ready when it ends.
    """

    kind: str
    first: int
    last: int
    parts_s: tuple[float, float, float, float]
    waits: tuple[int, ...] = ()
    waits_before: tuple[int, ...] = ()
    sends: tuple[int, ...] = ()

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(self.parts_s)


def rank_steps(setting: Setting) -> tuple[ComputeStep, ...]:
    """The steps of one rank; the first is the iteration's overhead."""
    transfers = setting.transfers
    count = len(setting.graph.operations)
    needed: dict[int, list[int]] = {}
    ready: dict[int, list[int]] = {}
    for number, transfer in enumerate(transfers):
        if transfer.follows < 0:
            ready.setdefault(transfer.after + 1, []).append(number)
        if transfer.before >= 0:
            needed.setdefault(transfer.before, []).append(number)
    phase = setting.graph.operations.phase
    turns = {int(i) + 1 for i in np.flatnonzero(np.diff(phase))}
    cuts = sorted({0, count} | turns | ready.keys() | needed.keys())
    total = _Totals(setting)
    steps = [
        ComputeStep(
            "overhead",
            0,
            0,
            (0.0, 0.0, 0.0, setting.iteration_s + total.at_start),
            sends=tuple(ready.get(0, ())),
        )
    ]
    for first, last in [*pairwise(cuts), (count, count)]:
        waits: list[int] = []
        for number in needed.get(first, ()):
            copied_s, updated_s = setting.arrival_s(transfers[number])
            if copied_s or updated_s:
                parts_s = (0.0, 0.0, updated_s, copied_s)
                steps.append(ComputeStep("copy", first, first, parts_s, *_split(transfers, [number])))
            else:
                waits.append(number)
        sends = tuple(ready.get(last, ())) if last > first else ()
        if last > first or waits:
            steps.append(
                ComputeStep(
                    "compute", first, last, total.parts(first, last), *_split(transfers, waits), sends
                )
            )
    return tuple(steps)


def _split(transfers: tuple[Transfer, ...], numbers: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Transfers of this iteration, and of the one before."""
    this = tuple(n for n in numbers if not transfers[n].next_iteration)
    return this, tuple(n for n in numbers if transfers[n].next_iteration)


class _Totals:
    """Seconds of any stretch of operations, by phase."""

    def __init__(self, setting: Setting) -> None:
        phase = setting.graph.operations.phase
        columns = [np.where(phase == number, setting.compute_s, 0.0) for number in range(len(PHASES))]
        columns.append(setting.added_s[:-1])
        self.sums = np.concatenate([np.zeros((4, 1)), np.cumsum(columns, axis=1)], axis=1)
        self.at_start = float(setting.added_s[-1])

    def parts(self, first: int, last: int) -> tuple[float, float, float, float]:
        a, b, c, d = np.maximum(self.sums[:, last] - self.sums[:, first], 0.0).tolist()
        return a, b, c, d
