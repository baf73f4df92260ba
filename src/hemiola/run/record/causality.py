"""Bounds on a rank's clock from what cannot be: a collective that ended before somebody had joined it.

Where rank 0's clock could not be asked (a firewall, a job of a second), this remains. If `offset` is what
brings the other's clock onto the reference's, every collective of both that needs everybody gives
enqueue_there + offset <= last_here, and enqueue_here <= last_there + offset. All together leave an interval. The idea is
that of Lamport's "happened before" (CACM 21(7), 1978), used for clocks as in Duda et al. (ICDCS 1987).
"""

from __future__ import annotations

from hemiola.run.record.clock import ClockFit
from hemiola.run.record.parts import Part

__all__ = ["bound_by_causality"]

_NEED_EVERYBODY = frozenset({"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier"})


def bound_by_causality(here: Part, there: Part) -> ClockFit | None:
    """The middle of the interval in which the offset must lie, half its width the error; None if nothing bounds it."""
    ours, theirs = _collectives(here), _collectives(there)
    common = ours.keys() & theirs.keys()
    if not common:
        return None
    low = max(ours[key][0] - theirs[key][1] for key in common)
    high = min(ours[key][1] - theirs[key][0] for key in common)
    return ClockFit(0, (low + high) / 2, 0.0, abs(high - low) / 2)


def _collectives(part: Part) -> dict[tuple[str, int], tuple[int, int]]:
    """Enqueue and last byte of each, by group's name and sequence."""
    names = {number: group.name for number, group in part.groups.items()}
    return {
        (names[row[3]], row[0]): (row[5], row[7])
        for iteration in part.iterations
        for row in iteration.transfers
        if row[7] is not None and row[2] in _NEED_EVERYBODY and row[3] in names
    }
