"""An upper bound on the utility that any schedule could have reached: the dual of the run, over the empty cluster.

For any prices p >= 0: OPT <= sum_j max(0, max_pi (u_j(pi) - p.use(pi))) + p.C, the inner maximum over all schedules that
fit the empty cluster (specification 1.3). It is relaxed here, which keeps it a bound and holds for schedules that know no
slots: within a slot a job may use any fraction of any size; it pays for each unit of work the least that any of its sizes
pays in that slot, and does at most what its fastest size does. Hosts alike have one price: the dual is convex and they
are interchangeable, so that loses nothing. Subgradient steps (Polyak's, towards what the run reached) tighten it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Certificate", "DualJob", "certify"]

Floats = NDArray[np.float64]
STEPS = 60
STALLED = 5
"""After so many steps without a better bound, steps are half as long."""


@dataclass(frozen=True, eq=False)
class DualJob:
    """One job of a run, as its bound needs it.

    Attributes:
        work: that has to be done.
        worth: (slots,) the most it can be worth if it ends in each slot; -inf where it cannot.
        later: the most it can be worth after the last slot.
        most: (slots,) work that it can do in each.
        rates: (sizes,) work in a slot.
        workers, servers: (sizes, resources) what all of its workers and servers take.
        kinds: (sizes, kinds of host) where all of it fits one host, if `together`; else where its members may be.
        together: (sizes,) whether it is on one host.
    """

    work: float
    worth: Floats
    later: float
    most: Floats
    rates: Floats
    workers: Floats
    servers: Floats
    kinds: NDArray[np.bool_]
    together: NDArray[np.bool_]


@dataclass(frozen=True)
class Certificate:
    """What no schedule can exceed.

    Attributes:
        bound: on the sum of utilities.
        first: what it was at the prices that it began with.
        steps: that were made.
    """

    bound: float
    first: float
    steps: int


def certify(
    jobs: Sequence[DualJob],
    capacity: Floats,
    reached: float,
    prices: Floats | None = None,
    steps: int = STEPS,
) -> Certificate:
    """The least of the bounds that the steps come by.

    Args:
        capacity: (slots, kinds of host, resources) of all hosts of a kind together.
        reached: the utility of the run, which the bound cannot go below.
        prices: to begin with, like `capacity`; 0 unless given.
    """
    price = np.zeros_like(capacity) if prices is None else np.array(prices)
    scale = np.where(capacity > 0, capacity, 1.0)
    best, first, length, since = np.inf, np.inf, 1.0, 0
    for step in range(steps + 1):
        bound, use = _dual(jobs, capacity, price)
        if step == 0:
            first = bound
        since = 0 if bound < best * (1 - 1e-4) else since + 1
        best = min(best, bound)
        slope = np.where(capacity > 0, (capacity - use) / scale, 0.0)
        slope[(price <= 0) & (slope > 0)] = 0.0
        size = float((slope**2).sum())
        if size == 0 or bound <= reached * (1 + 1e-9):
            return Certificate(max(best, reached), first, step)
        if since >= STALLED:
            length, since = length / 2, 0
        price = np.maximum(0.0, price - length * (bound - reached) / size * slope / scale)
    return Certificate(max(best, reached), first, steps)


def _dual(jobs: Sequence[DualJob], capacity: Floats, price: Floats) -> tuple[float, Floats]:
    """The bound at these prices, and what the jobs that pay would use."""
    bound, use = float((price * capacity).sum()), np.zeros_like(capacity)
    for job in jobs:
        bound += _add_best(job, price, use)
    return bound, use


def _add_best(job: DualJob, price: Floats, use: Floats) -> float:
    """The best payoff of a job, above 0 or 0; what it uses then is added to `use`."""
    cost, worker_kind, server_kind = _costs(job, price)
    ratio = cost / job.rates
    size = ratio.argmin(axis=1)
    slots = np.arange(len(price))
    cheapest = ratio[slots, size]
    end, payoff, done = _best_end(job, cheapest)
    if payoff <= max(0.0, job.later):
        return max(0.0, job.later)
    if end >= 0:
        share = done / job.rates[size]
        for t in np.flatnonzero(share):
            c = size[t]
            use[t, worker_kind[t, c]] += share[t] * job.workers[c]
            use[t, server_kind[t, c]] += share[t] * job.servers[c]
    return payoff


def _costs(job: DualJob, price: Floats) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """(slots, sizes): the least that each size costs in each slot, and on which kinds of host."""
    by_workers = np.einsum("tkr,cr->tck", price, job.workers)
    by_servers = np.einsum("tkr,cr->tck", price, job.servers)
    shut = ~job.kinds[None]
    both = np.where(shut, np.inf, by_workers + by_servers)
    on = both.argmin(axis=2)
    apart = np.where(shut, np.inf, by_workers).argmin(axis=2)
    served = by_servers.argmin(axis=2)
    worker_kind = np.where(job.together, on, apart)
    server_kind = np.where(job.together, on, served)
    cost = (
        np.take_along_axis(np.where(shut, np.inf, by_workers), worker_kind[..., None], 2)
        + np.take_along_axis(by_servers, server_kind[..., None], 2)
    )[..., 0]
    return cost, worker_kind, server_kind


def _best_end(job: DualJob, cheapest: Floats) -> tuple[int, float, Floats]:
    """(slot, payoff, work done in each slot) of the best end; work goes to the cheapest slots up to it."""
    order = np.argsort(cheapest, kind="stable")
    price = np.where(np.isfinite(cheapest), cheapest, 0.0)[order]
    ends = np.flatnonzero(job.worth > max(0.0, job.later))
    usable = (order[None, :] <= ends[:, None]) & np.isfinite(cheapest)[order]
    most = np.where(usable, job.most[order], 0.0)
    done = np.clip(job.work - (np.cumsum(most, axis=1) - most), 0.0, most)
    payoff = np.where(done.sum(axis=1) >= job.work * (1 - 1e-9), job.worth[ends] - done @ price, -np.inf)
    if not len(ends) or payoff.max() == -np.inf:
        return -1, -np.inf, np.zeros_like(cheapest)
    best = int(payoff.argmax())
    spread = np.zeros_like(cheapest)
    spread[order] = done[best]
    return int(ends[best]), float(payoff[best]), spread
