"""How far apart the clocks of hosts were, from the collectives in which their ranks met. Knows no file.

A collective in which every rank needs something of every other cannot end on one rank before it has
begun on all. So, with o the offset that brings a host's clock onto the reference's, each collective
says  begin(reference) <= end(host) + o  and  begin(host) + o <= end(reference),  where of several ranks
on one clock the last to begin and the first to end say most. All of them together leave an interval,
which is certain; within it the median of  end(reference) - end(host)  is taken, because the ends of one
collective lie much closer together than its begins.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping

import numpy as np

__all__ = ["MEETINGS", "Meeting", "offset_between", "on_one_clock"]

MEETINGS = frozenset({"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier"})
"""Collectives that no rank can leave before all have come."""

Meeting = Mapping[Hashable, tuple[float, float]]
"""Begin and end of each collective by a key that all ranks give it, in seconds of one clock."""


def on_one_clock(ranks: Iterable[Meeting]) -> Meeting:
    """When the last of these ranks began each collective, and when the first of them ended it."""
    found: dict[Hashable, tuple[float, float]] = {}
    for meeting in ranks:
        for key, (begin, end) in meeting.items():
            last, first = found.get(key, (begin, end))
            found[key] = max(begin, last), min(end, first)
    return found


def offset_between(reference: Meeting, other: Meeting) -> tuple[float, float]:
    """What to add to the other clock's seconds, and by how much that can be wrong; (0, inf) if nothing is known."""
    both = [(*reference[key], *other[key]) for key in reference.keys() & other.keys()]
    if not both:
        return 0.0, math.inf
    begin, end, other_begin, other_end = np.array(both).T
    low, high = float((begin - other_end).max()), float((end - other_begin).min())
    if low > high:
        return 0.0, math.inf
    offset = min(max(float(np.median(end - other_end)), low), high)
    return offset, max(high - offset, offset - low)
