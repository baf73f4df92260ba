"""How far apart the clocks of ranks were, from the collectives in which they met. Knows no file.

A collective in which every rank needs something of every other cannot end on one rank before it has
begun on all. So, with o the offset that brings a rank's clock onto the reference's, each collective
says  begin(reference) <= end(rank) + o  and  begin(rank) + o <= end(reference).  All of them together
leave an interval, which is certain; within it the median of  end(reference) - end(rank)  is taken,
because the ends of one collective lie much closer together than its begins.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping

import numpy as np

__all__ = ["MEETINGS", "offset_between"]

MEETINGS = frozenset({"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier"})
"""Collectives that no rank can leave before all have come."""

Meeting = Mapping[Hashable, tuple[float, float]]


def offset_between(reference: Meeting, other: Meeting) -> tuple[float, float]:
    """What to add to the other clock's seconds, and by how much that can be wrong; (0, inf) if nothing is known.

    Args:
        reference, other: begin and end of each collective by a key that both ranks give it.
    """
    both = [(*reference[key], *other[key]) for key in reference.keys() & other.keys()]
    if not both:
        return 0.0, math.inf
    begin, end, other_begin, other_end = np.array(both).T
    low, high = float((begin - other_end).max()), float((end - other_begin).min())
    if low > high:
        return 0.0, math.inf
    offset = min(max(float(np.median(end - other_end)), low), high)
    return offset, max(high - offset, offset - low)
