"""Least squares where no coefficient may be negative: times, latencies and bandwidths are not."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

__all__ = ["nonnegative_least_squares"]

Floats = NDArray[np.float64]


def nonnegative_least_squares(design: Floats, target: Floats) -> Floats:
    """The x >= 0 for which |design @ x - target| is least.

    The best of the unconstrained solutions on every subset of columns, which is exact (the optimum's
    positive coefficients solve the problem on their own columns) and quick for the few columns here.

    Args:
        design: rows are observations.
        target: one value per row.

    >>> nonnegative_least_squares(np.array([[1.0, 1.0], [1.0, 2.0]]), np.array([3.0, 5.0])).round(6).tolist()
    [1.0, 2.0]
    """
    count = design.shape[1]
    best, least = np.zeros(count), float((target**2).sum())
    for size in range(1, count + 1):
        for columns in itertools.combinations(range(count), size):
            trial = np.zeros(count)
            trial[list(columns)] = np.linalg.lstsq(design[:, columns], target, rcond=None)[0]
            error = float(((design @ trial - target) ** 2).sum())
            if (trial >= 0).all() and error < least:
                best, least = trial, error
    return best
