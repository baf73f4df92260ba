"""Bounds on a rank's clock from what cannot be: a collective that ended before somebody had joined it.

Where rank 0's clock could not be asked (a firewall, a job of a second), this remains. If `offset` is what
brings the other's clock onto the reference's, every collective of both that needs everybody gives
enqueue_there + offset <= last_here, and enqueue_here <= last_there + offset. All together leave an interval. The idea is
that of Lamport's "happened before" (CACM 21(7), 1978), used for clocks as in Duda et al. (ICDCS 1987).

Clocks drift, so a bound says less of another time than of its own: less by `DRIFT_MAX` times what lies between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hemiola.profiler.trace.clock import DRIFT_MAX, ClockFit, fit_clock
from hemiola.profiler.trace.parts import TracePart
from hemiola.profiler.trace.values import ClockSample

__all__ = ["bound_by_causality"]

_NEED_EVERYBODY = frozenset({"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier"})

_Bounds = Sequence[tuple[int, int]]
"""Times on the other's clock, and what the offset was then at least, or at most."""


def bound_by_causality(here: TracePart, there: TracePart) -> ClockFit | None:
    """A line through the intervals in which the offset must lie at the first and the last collective of both.

    None if nothing bounds it, or if the bounds contradict each other.
    """
    ours, theirs = _collectives(here), _collectives(there)
    common = sorted(ours.keys() & theirs.keys(), key=theirs.__getitem__)
    if not common:
        return None
    lows = [(theirs[key][1], ours[key][0] - theirs[key][1]) for key in common]
    highs = [(theirs[key][0], ours[key][1] - theirs[key][0]) for key in common]
    first, last = (_sample(lows, highs, theirs[key][0]) for key in (common[0], common[-1]))
    return fit_clock([first, last], there.times_ns) if first is not None and last is not None else None


def _sample(lows: _Bounds, highs: _Bounds, at_ns: int) -> ClockSample | None:
    """The middle of the interval in which the offset was then, half its width the error; None if it is empty."""
    low = max(bound - DRIFT_MAX * abs(at_ns - time) for time, bound in lows)
    high = min(bound + DRIFT_MAX * abs(at_ns - time) for time, bound in highs)
    middle = round((low + high) / 2)
    return ClockSample(at_ns, middle, math.ceil(max(high - middle, middle - low))) if low <= high else None


def _collectives(part: TracePart) -> dict[tuple[str, int], tuple[int, int]]:
    """Enqueue and last byte of each, by group's name and sequence."""
    names = {number: group.name for number, group in part.groups.items()}
    return {
        (names[row[3]], row[0]): (row[5], row[7])
        for iteration in part.iterations
        for row in iteration.transfers
        if row[7] is not None and row[2] in _NEED_EVERYBODY and row[3] in names
    }
