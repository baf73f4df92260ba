"""When jobs arrive: a fixed number of them, at random over a fixed time.

Each process is a Poisson process, plain, thinned by the hour or of whole bursts, on the condition
that just `count` jobs arrive: so that a workload's offered load is exactly the one asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["ARRIVALS", "burst", "diurnal", "poisson"]

_DAY_S = 86400.0
_PEAK_S = 14 * 3600.0
_SWING = 0.6
_BURST_MEAN = 8.0
_BURST_GAP_S = 5.0
_STEPS_PER_DAY = 288

Arrivals = NDArray[np.float64]


def poisson(count: int, horizon_s: float, rng: np.random.Generator) -> Arrivals:
    """`count` ascending times, the first 0, of a Poisson process of constant rate."""
    return _from_first(np.sort(rng.random(count)) * horizon_s)


def diurnal(count: int, horizon_s: float, rng: np.random.Generator) -> Arrivals:
    """As `poisson`, with a rate that follows the hour: 1 + 0.6 cos, highest at 14 h; time begins at midnight.

    Clusters report such a daily rhythm (Hu et al., SC'21); its form and size are a choice.
    """
    steps = max(_STEPS_PER_DAY, math.ceil(horizon_s / _DAY_S * _STEPS_PER_DAY))
    times_s = np.linspace(0.0, horizon_s, steps + 1)
    turn = 2 * np.pi / _DAY_S
    arrived = times_s + _SWING / turn * (np.sin(turn * (times_s - _PEAK_S)) + math.sin(turn * _PEAK_S))
    return _from_first(np.interp(np.sort(rng.random(count)) * arrived[-1], arrived, times_s))


def burst(count: int, horizon_s: float, rng: np.random.Generator) -> Arrivals:
    """Bursts at the times of a Poisson process, of 8 jobs on average, 5 s apart on average.

    As when somebody submits a sweep of hyper-parameters; both numbers are a choice.
    """
    lengths = rng.geometric(1 / _BURST_MEAN, size=count)
    burst_of_job = np.repeat(np.arange(count), lengths)[:count]
    starts_s = rng.random(count) * horizon_s
    gaps_s = rng.exponential(_BURST_GAP_S, size=count)
    waited_s = np.cumsum(gaps_s)
    first_of_burst = np.searchsorted(burst_of_job, burst_of_job)
    return _from_first(np.sort(starts_s[burst_of_job] + waited_s - waited_s[first_of_burst]))


def _from_first(times_s: Arrivals) -> Arrivals:
    shifted: Arrivals = times_s - times_s[0]
    return shifted


ARRIVALS: dict[str, Callable[[int, float, np.random.Generator], Arrivals]] = {
    "poisson": poisson,
    "diurnal": diurnal,
    "burst": burst,
}
