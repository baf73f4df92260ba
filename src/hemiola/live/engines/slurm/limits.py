"""Jobs that Slurm does not start though their nodes are free: limits of arrays, of users and accounts, of licences.

What is bound and does not start keeps GPUs from others. So a job that met a limit is left alone for a while; and of
an array that met its own (`--array=1-99%2`) no more elements are bound than have been seen to run together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hemiola.live.tracked_job import PATIENCE_S
from hemiola.live.engines.slurm.tracked_job import SlurmTrackedJob
from hemiola.live.engines.slurm.wire import SlurmJobRow

__all__ = ["ARRAY", "LACKING", "WHY_ARRAY", "StartLimits", "element_of", "is_limited", "patience_s"]

ARRAY = "JobArrayTaskLimit"
WHY_ARRAY = "of its array no more may run at once"
_OTHERS = ("Licenses", "Assoc", "QOS", "Max", "Account", "Partition", "InvalidQOS", "InvalidAccount")
_AWAY = ("ReqNodeNotAvail", "Nodes required")
"""Slurm also says so for a moment, of nodes on which a job has just ended."""
LACKING, LACKING_S = "Resources", 3.0
AGAIN_S, AGAIN_MOST_S = 5.0, 60.0
RAISED_S = 60.0
"""So often one element more is tried: somebody may have raised the limit."""


@dataclass
class _Array:
    """How many elements may run at once.

    Attributes:
        seen: that did, together.
        most: that are tried until `until_s`.
    """

    seen: int
    most: int
    until_s: float


class StartLimits:
    """What was learnt of limits."""

    def __init__(self) -> None:
        self._arrays: dict[str, _Array] = {}

    def met(self, known: SlurmTrackedJob, jobs: Iterable[SlurmTrackedJob], now: float) -> str:
        """A job that was bound met one; why it waits now, in words."""
        known.limited += 1
        doublings = min(known.limited - 1, 9)  # with more it is the most, too, until floats end
        known.not_before_s = now + min(AGAIN_MOST_S, AGAIN_S * 2.0**doublings)
        if known.row.reason != ARRAY:
            known.limit = f"Slurm says that a limit is reached: {known.row.reason}"
            return known.limit
        array = known.row.array
        running = sum(one.ran for one in jobs if one.row.array == array)
        before = self._arrays[array].seen if array in self._arrays else 0
        seen = max(1, running, before)
        self._arrays[array] = _Array(seen, seen, now + RAISED_S)
        known.limit = WHY_ARRAY
        return known.limit

    def line_up(self, jobs: Collection[SlurmTrackedJob], now: float) -> None:
        """Of arrays that met their limit, let no more elements be bound than could start."""
        if not self._arrays:
            return
        of_arrays = [one for one in jobs if one.row.array in self._arrays]
        running = Counter(one.row.array for one in of_arrays if one.ran)
        waiting = [one for one in of_arrays if not one.ran]
        for one in of_arrays:
            one.behind = one.behind and not one.ran  # its array may be forgotten before it waits again
        for array in self._arrays.keys() - {one.row.array for one in waiting}:
            del self._arrays[array]
        for array, known in self._arrays.items():
            known.seen = max(known.seen, running[array])
            known.most = max(known.most, known.seen)
            if now >= known.until_s:
                known.most, known.until_s = known.most + 1, now + RAISED_S
        for one in sorted(waiting, key=lambda one: _turn(one, now)):
            array = one.row.array
            one.behind = running[array] >= self._arrays[array].most
            running[array] += 1


def _turn(one: SlurmTrackedJob, now: float) -> tuple[bool, bool, int]:
    """Those that are bound first, then those that may be, in their order."""
    return one.bound_s is None, one.not_before_s > now, element_of(one.row)


def is_limited(row: SlurmJobRow) -> bool:
    """Whether Slurm says that it waits for something other than its nodes."""
    return row.reason == ARRAY or row.reason.startswith(_OTHERS)


def patience_s(row: SlurmJobRow) -> float:
    """So long a job may be bound without starting, before that is taken for a failure: it keeps GPUs from others.

    Where Slurm has found that the nodes lack something (processors or memory, which nobody here counts) and nobody is
    about to leave them, it finds so again.
    """
    if not row.priority:
        return 0.0
    return LACKING_S if row.reason.startswith((LACKING, *_AWAY)) else PATIENCE_S


def element_of(row: SlurmJobRow) -> int:
    """Its number in its array; 0 where it is in none."""
    element = row.id.partition("_")[2]
    return int(element) if element.isdigit() else 0
