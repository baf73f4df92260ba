"""The certificate of a run: its jobs and its cluster as `sched.optimise.certificate` needs them.

Holds for whatever policy ran: nothing of its schedule is used but what it reached, which the bound cannot go below.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hemiola.core.job import Batch, Utility
from hemiola.sched.optimise.certificate import DualJob, certify
from hemiola.sched.optimise.offer import JobOffer
from hemiola.sched.optimise.offers import Offers
from hemiola.sched.view import ClusterView
from hemiola.simulator.records import SimulatedReplay

__all__ = ["certificate_of"]

Floats = NDArray[np.float64]
SLOTS = 64
BEYOND = 1.25
"""Prices reach a quarter further than the run; after that everything is free, which keeps the bound one."""
LEAST_STEPS, MOST_STEPS, JOB_STEPS = 4, 60, 6_000


def certificate_of(view: ClusterView, jobs: Sequence[Batch], driver: SimulatedReplay) -> float | None:
    """An upper bound on the utility that any schedule of these jobs could have reached; None where none has a utility, or
    one trains at a speed that its batch decides (a goodput model)."""
    worth = [job for job in jobs if job.utility is not None]
    if not worth or any(job.profile is not None and job.profile.goodput is not None for job in worth):
        return None
    origin_s = driver.origin_s
    slot_s = max((driver.now - origin_s) * BEYOND / SLOTS, 1e-9)
    grid: Floats = origin_s + slot_s * np.arange(SLOTS + 1, dtype=np.float64)
    offers = Offers(view.topology, slot_s)
    kinds, kind_of = np.unique(offers.capacity, axis=0, return_inverse=True)
    counts = np.bincount(kind_of.ravel(), minlength=len(kinds))
    capacity = np.broadcast_to(kinds * counts[:, None], (SLOTS, *kinds.shape)).copy()
    duals = [dual for job in worth for dual in _duals(view, job, offers, grid, kinds)]
    steps = min(MOST_STEPS, max(LEAST_STEPS, JOB_STEPS // len(worth)))
    return certify(duals, capacity, _reached(worth, driver), steps=steps).bound


def _reached(jobs: Sequence[Batch], driver: SimulatedReplay) -> float:
    """The utility of those that finished."""
    total = 0.0
    for job in jobs:
        account = driver.accounts.get(job.id)
        if account is not None and account.finish_s is not None and job.utility is not None:
            total += job.utility.at(account.finish_s - job.submit_s)
    return total


def _duals(view: ClusterView, job: Batch, offers: Offers, grid: Floats, kinds: Floats) -> Iterator[DualJob]:
    """The job as the bound needs it; on the fastest type of GPU that it accepts, wherever that is."""
    state = view.jobs[job.id]
    found = list(offers.of(view, state, arrival=0, start_s=job.submit_s, work_s=job.duration_s, alone=True))
    if not found or job.utility is None:
        return
    rates = np.max([offer.rates for offer in found], axis=0)
    inside, across = rates[0], rates[1:].max(axis=0) if len(rates) > 1 else np.full_like(rates[0], -np.inf)
    offer = found[0]
    fits = _fits(offer, kinds) & np.isfinite(inside)[:, None]
    some = np.array([(offer.alpha <= kind + 1e-9).all() for kind in kinds])
    spread = np.isfinite(across)[:, None] & some
    sizes = np.concatenate(
        [np.where(np.isfinite(inside), inside, 1.0), np.where(np.isfinite(across), across, 1.0)]
    )
    open_to = np.concatenate([fits, spread])
    if not open_to.any():
        return
    used = open_to.any(axis=1)
    workers, servers = (
        np.concatenate([np.outer(count, inside), np.outer(count, across)])[used]
        for count, inside, across in zip(
            (offer.workers, offer.servers), offer.inside, (offer.alpha, offer.beta), strict=True
        )
    )
    together = np.repeat([True, False], len(offer.workers))[used]
    yield DualJob(
        offer.work, *_worth(job.utility, job.submit_s, grid, offer.work / sizes[used].max()),
        _open_share(job.submit_s, grid) * sizes[used].max(), sizes[used], workers, servers, open_to[used], together,
    )  # fmt: skip


def _fits(offer: JobOffer, kinds: Floats) -> NDArray[np.bool_]:
    """(sizes, kinds): whether all of it fits an empty host."""
    whole = offer.takes(offer.workers, offer.servers, inside=True)
    return np.asarray((whole[:, None, :] <= kinds[None] + 1e-9).all(axis=2))


def _worth(utility: Utility, submit_s: float, grid: Floats, least_slots: float) -> tuple[Floats, float]:
    """The most that it is worth if it ends in each slot, and after the last one."""
    least_s = least_slots * (grid[1] - grid[0])
    worth = np.array([
        utility.at(max(begin - submit_s, least_s)) if end >= submit_s + least_s - 1e-9 else -math.inf
        for begin, end in zip(grid[:-1].tolist(), grid[1:].tolist(), strict=True)
    ])  # fmt: skip
    return worth, utility.at(max(float(grid[-1]) - submit_s, least_s))


def _open_share(submit_s: float, grid: Floats) -> Floats:
    """The share of each slot that is after its arrival."""
    share: Floats = np.clip((grid[1:] - submit_s) / (grid[1] - grid[0]), 0.0, 1.0)
    return share
