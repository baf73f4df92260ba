"""Sets of time intervals, as sorted columns: unions, lengths inside windows, and who is innermost.

All of it sorts once, O(n log n), because a production trace has millions of spans. Knows nothing of jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Lengths", "Segments", "covered", "hull", "innermost", "runs", "union"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def union(group: Ints, start: Floats, end: Floats) -> tuple[Ints, Floats, Floats]:
    """The union of each group's intervals: disjoint, sorted by group and start; empty ones vanish.

    Touching intervals become one. Ends are compared as ranks in the sorted order, so that groups
    stay apart without any arithmetic on times.
    """
    real = end > start
    group, start, end = group[real], start[real], end[real]
    if not len(start):
        return group, start, end
    order = np.lexsort((start, group))
    group, start, end = group[order], start[order], end[order]
    values, place = np.unique(end, return_inverse=True)
    _, dense = np.unique(group, return_inverse=True)
    reach = np.maximum.accumulate(dense * len(values) + place)
    until = values[reach % len(values)]
    fresh = np.empty(len(start), dtype=bool)
    fresh[0] = True
    fresh[1:] = (group[1:] != group[:-1]) | (start[1:] > until[:-1])
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(start)) - 1
    return group[first], start[first], until[last]


def covered(start: Floats, end: Floats, at: Floats) -> Bools:
    """Whether disjoint sorted intervals, each closed below and open above, cover each time."""
    return np.asarray(np.searchsorted(start, at, "right") > np.searchsorted(end, at, "right"))


def hull(start: Floats, end: Floats, low: Floats, high: Floats) -> Floats:
    """From the first to the last covered instant inside each window; 0 where nothing is covered."""
    if not len(start):
        return np.zeros(len(low))
    first = np.searchsorted(end, low, "right")
    last = np.searchsorted(start, high, "left") - 1
    some = first <= last
    begins = np.maximum(start[np.minimum(first, len(start) - 1)], low)
    ends = np.minimum(end[np.maximum(last, 0)], high)
    return np.where(some, ends - begins, 0.0)


@dataclass(frozen=True, eq=False)
class Lengths:
    """How much of a set lies before each time: one lookup gives its length in any window.

    Attributes:
        edges: sorted times at which the set may begin or end.
        before: its length before each edge.
    """

    edges: Floats
    before: Floats

    @classmethod
    def of(cls, edges: Floats, inside: Bools) -> Lengths:
        """Of the elementary pieces between `edges` that are `inside`."""
        return cls(edges, np.concatenate([[0.0], np.cumsum(np.where(inside, np.diff(edges), 0.0))]))

    def within(self, low: Floats, high: Floats) -> Floats:
        """The set's length in each window."""
        if len(self.edges) < 2:
            return np.zeros(len(low))
        return np.asarray(np.interp(high, self.edges, self.before) - np.interp(low, self.edges, self.before))


@dataclass(frozen=True, eq=False)
class Segments:
    """Stretches of a lane in which one span was the innermost, sorted by lane and time.

    Attributes:
        lane: the group as given.
        span: index of the innermost span.
        start_s, end_s: from, to; never empty.
    """

    lane: Ints
    span: Ints
    start_s: Floats
    end_s: Floats

    def __len__(self) -> int:
        return len(self.span)


def innermost(lane: Ints, start: Floats, end: Floats) -> Segments:
    """Cut each lane so that at every instant only the span that began last counts (an operation
    inside another one takes its time from it). Lanes without nesting take no loop."""
    index = np.flatnonzero(end > start)
    order = index[np.lexsort((-end[index], start[index], lane[index]))]
    mine, begin, finish = lane[order], start[order], end[order]
    clash = (mine[1:] == mine[:-1]) & (begin[1:] < finish[:-1])
    nested = np.isin(mine, np.unique(mine[1:][clash]))
    flat = Segments(mine[~nested], order[~nested], begin[~nested], finish[~nested])
    if not nested.any():
        return flat
    cut = _cut(order[nested], mine[nested].tolist(), begin[nested].tolist(), finish[nested].tolist())
    parts = [np.concatenate(pair) for pair in zip(_columns(flat), _columns(cut), strict=True)]
    again = np.lexsort((parts[2], parts[0]))
    return Segments(*(part[again] for part in parts))


def _columns(segments: Segments) -> tuple[Ints, Ints, Floats, Floats]:
    return segments.lane, segments.span, segments.start_s, segments.end_s


def _cut(order: Ints, lane: list[int], start: list[float], end: list[float]) -> Segments:
    """The nested lanes, span by span: a stack by start, whose top is the innermost that still runs."""
    found: list[tuple[int, int, float, float]] = []
    stack: list[int] = []
    now, here = 0.0, -1

    def run_until(limit: float) -> None:
        nonlocal now
        while stack and now < limit:
            top = stack[-1]
            until = min(end[top], limit)
            if until > now:
                found.append((here, top, now, until))
                now = until
            if end[top] <= now:
                stack.pop()

    for i, (which, begin) in enumerate(zip(lane, start, strict=True)):
        if which != here:
            run_until(np.inf)
            stack.clear()
            here, now = which, begin
        run_until(begin)
        now = begin
        stack.append(i)
    run_until(np.inf)
    columns = list(zip(*found, strict=True))
    span = order[np.array(columns[1], dtype=np.int64)]
    return Segments(np.array(columns[0]), span, np.array(columns[2]), np.array(columns[3]))


def runs(*keys: Ints) -> Ints:
    """Where each run of equal keys begins in columns sorted by them."""
    if not len(keys[0]):
        return np.empty(0, dtype=np.int64)
    changed = np.zeros(len(keys[0]), dtype=bool)
    changed[0] = True
    for key in keys:
        changed[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changed)
