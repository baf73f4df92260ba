"""The prediction board: when a lent server is likely to be wanted back, and how much loans can bring at most.

FaPES (SoCC'24) has a "resource usage prediction board", whose formulas are not at hand. Here: how many times as much load
came within a horizon as there was before, of all times so far. A server is wanted back when the load outgrows the servers
that are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from hemiola.core.job import Batch, RequestRate, Service
from hemiola.core.virtual_cluster import cluster_of
from hemiola.sched.autoscaling import ServicePast
from hemiola.sched.view import ClusterView

__all__ = ["HORIZONS_S", "Board", "ceiling"]

HORIZONS_S = (60.0, 300.0, 900.0, 1800.0)
"""Seconds ahead for which the board says how likely a server is wanted back."""
_BINS, _PER_BIN = 96, 0.03
_WITHOUT_PAST = 0.5
_FEW = 20
_NOTHING = 1e-6


class Board:
    """Growth of one service's load within each horizon, as often as it was seen.

    Args:
        past: what was told of the service.
    """

    def __init__(self, past: ServicePast) -> None:
        self._past = past
        self._seen = [[0] * _BINS for _ in HORIZONS_S]
        self._next = [0] * len(HORIZONS_S)

    def look(self) -> None:
        """Take note of all whose horizon has passed."""
        past = self._past
        for seen, (number, horizon_s) in zip(self._seen, enumerate(HORIZONS_S), strict=True):
            while (
                self._next[number] < len(past.times)
                and past.times[self._next[number]] + horizon_s <= past.now
            ):
                then = self._next[number]
                self._next[number] += 1
                if past.rates[then] > _NOTHING:
                    grew = past.busiest(past.times[then], past.times[then] + horizon_s) / past.rates[then]
                    seen[min(_BINS - 1, math.ceil(math.log(max(grew, 1.0)) / _PER_BIN))] += 1

    def outgrown(self, factor: float, horizon_s: float) -> float:
        """How likely it is that the load grows to more than so many times what it is within a horizon of `HORIZONS_S`.

        A half, as long as hardly anything is known.
        """
        if factor < 1:
            return 1.0
        seen = self._seen[HORIZONS_S.index(horizon_s)]
        total = sum(seen)
        if total < _FEW:
            return _WITHOUT_PAST
        first = math.floor(math.log(factor) / _PER_BIN) + 1 if math.isfinite(factor) else _BINS
        return sum(seen[first:]) / total

    def availability(self, factor: float, horizon_s: float) -> float:
        """Share of the time up to a horizon for which a server likely stays lent, if others carry so many times the load of now."""
        points = [(0.0, 0.0)] + [(h, self.outgrown(factor, h)) for h in HORIZONS_S if h <= horizon_s]
        area = sum((b - a) * (p + q) / 2 for (a, p), (b, q) in pairwise(points))
        return 1.0 - area / points[-1][0]


def ceiling(view: ClusterView, jobs: Sequence[Batch], headroom: float = 1.15) -> float | None:
    """The most that loans to training can multiply its goodput by, over a static split.

    1 + (I / T) (1 - headroom m): inference's GPUs over training's, and of them what inference does not need at its mean load,
    m of its peak; and no more than training asks for, over what its own share gives.

    Returns:
        None without a virtual cluster for services and one for jobs.
    """
    services = [state.service for state in view.services.values()]
    names = (
        {cluster_of(service, view.clusters) for service in services},
        {cluster_of(job, view.clusters) for job in jobs},
    )
    if not all(len(found) == 1 and found <= view.clusters.keys() for found in names) or names[0] == names[1]:
        return None
    lender, borrower = (
        sum(_gpus(view, host) for host in view.clusters[found.copy().pop()].hosts) for found in names
    )
    if not borrower:
        return None
    used = mean_over_peak(services)
    law = 1.0 + lender / borrower * max(0.0, 1.0 - headroom * used)
    span_s = max(job.submit_s for job in jobs) - min(job.submit_s for job in jobs)
    work_gpu_s = sum(job.gpus * job.duration_s for job in jobs)
    return min(law, max(1.0, work_gpu_s / (borrower * span_s))) if span_s > 0 else law


def mean_over_peak(services: Iterable[Service]) -> float:
    """Mean load over the load at its 99.9th percentile of time; of several services the mean by peak."""
    pairs = [_mean_and_peak(rates_of(service)) for service in services]
    peaks = sum(peak for _, peak in pairs)
    return sum(mean for mean, _ in pairs) / peaks if peaks else 0.0


def rates_of(service: Service, every_s: float = 60.0) -> tuple[RequestRate, ...]:
    """Its rates; of single requests as many as came in each minute."""
    if not service.requests:
        return service.arrivals
    counts: dict[int, int] = {}
    for one in service.requests:
        counts[int(one.time_s // every_s)] = counts.get(int(one.time_s // every_s), 0) + 1
    return tuple(
        RequestRate(i * every_s, counts.get(i, 0) / every_s) for i in range(min(counts), max(counts) + 2)
    )


def _mean_and_peak(rates: Sequence[RequestRate]) -> tuple[float, float]:
    held = [(one.requests_per_s, then.since_s - one.since_s) for one, then in pairwise(rates)]
    total_s = sum(seconds for _, seconds in held)
    if not total_s:
        return (rates[-1].requests_per_s,) * 2 if rates else (0.0, 0.0)
    above_s, peak = 0.0, 0.0
    for rate, seconds in sorted(held, reverse=True):
        above_s, peak = above_s + seconds, rate
        if above_s > 1e-3 * total_s:
            break
    return sum(rate * seconds for rate, seconds in held) / total_s, peak


def _gpus(view: ClusterView, host: int) -> int:
    return view.inventory.all_masks[host].bit_count()
