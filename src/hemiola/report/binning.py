"""Spans and steps put into equal bins of time: exact sums, so that nothing is lost by drawing less."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["binned", "step_means"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def binned(
    row: Ints, start_s: Floats, end_s: Floats, weight: Floats, *, rows: int, edges_s: Floats
) -> Floats:
    """The mean weight of each row in each bin.

    Args:
        row: which row each span belongs to, 0 to rows - 1.
        start_s, end_s, weight: from, to, and how much it counts while it lasts.
        edges_s: the bins' equally spaced edges, one more than bins.

    Returns:
        An array of shape (rows, bins).
    """
    before = _ramps(row, start_s, weight, rows, edges_s) - _ramps(row, end_s, weight, rows, edges_s)
    return np.asarray(np.diff(before, axis=1) / (edges_s[1] - edges_s[0]))


def _ramps(row: Ints, time_s: Floats, weight: Floats, rows: int, edges_s: Floats) -> Floats:
    """At each edge, the sum of weight * max(0, edge - time) over the row's times."""
    edges = len(edges_s)
    first = np.searchsorted(edges_s, time_s, side="left")
    cell = row * (edges + 1) + first
    size = rows * (edges + 1)
    slope = np.bincount(cell, weights=weight, minlength=size).reshape(rows, edges + 1)[:, :-1]
    since = time_s - edges_s[0]
    offset = np.bincount(cell, weights=weight * since, minlength=size).reshape(rows, edges + 1)[:, :-1]
    return np.asarray(np.cumsum(slope, axis=1) * (edges_s - edges_s[0]) - np.cumsum(offset, axis=1))


def step_means(time_s: Floats, value: NDArray[np.generic], end_s: float, bins: int) -> tuple[Floats, Floats]:
    """A step series as it is, or (with more steps than bins) its mean in each of `bins` bins.

    Returns:
        Times and values, each value holding until the next time.
    """
    values = value.astype(np.float64)
    if len(time_s) <= bins or end_s <= time_s[0]:
        return np.append(time_s, end_s), np.append(values, values[-1:])
    edges = np.linspace(time_s[0], end_s, bins + 1)
    until = np.append(time_s[1:], end_s)
    row = np.zeros(len(time_s), dtype=np.int64)
    means = binned(row, time_s, np.maximum(until, time_s), values, rows=1, edges_s=edges)[0]
    return edges, np.append(means, means[-1:])
