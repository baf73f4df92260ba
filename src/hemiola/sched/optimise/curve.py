"""The best schedule of one job at given prices: PD-ORS's subproblem, for all numbers of workers at once.

In every slot hosts are sorted by the price of a worker and filled, which gives the cost of every size (specification 1.5);
a dynamic program over the volume of work then chooses sizes and slots (Algorithms 2 and 3). The first is exact where
workers and servers do not compete for the marginal host; else it costs more than the best, never less. Work is counted in
whole steps, rounded down, so that a plan never does less than it says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hemiola.sched.optimise.offer import JobOffer

if TYPE_CHECKING:
    from hemiola.sched.optimise.prices import Ledger
    from hemiola.sched.optimise.rounding import Rounded, Rounder

__all__ = ["Fabric", "PricedPlan", "SlotPlan", "best_schedule", "steps_of"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LEVELS = 100
MOST_LEVELS = 400


@dataclass(frozen=True, eq=False)
class Fabric:
    """Which hosts are below one switch, as the curve needs it.

    Attributes:
        domains: (levels, hosts), the last level is the whole cluster.
        counts: domains of each level.
        for_servers: (hosts) where parameter servers may be.
    """

    domains: Ints
    counts: Ints
    for_servers: NDArray[np.bool_]

    @classmethod
    def flat(cls, hosts: int) -> Fabric:
        """All below one switch."""
        return cls(np.zeros((1, hosts), np.int64), np.ones(1, np.int64), np.ones(hosts, np.bool_))


@dataclass(frozen=True)
class SlotPlan:
    """Where a job is in one slot.

    Attributes:
        slot: counted from the ledger's first.
        scope: 0 for one host, then the levels.
        hosts, workers, servers: of each host that has any.
        work: that is done.
    """

    slot: int
    scope: int
    hosts: tuple[int, ...]
    workers: tuple[int, ...]
    servers: tuple[int, ...]
    work: float


@dataclass(frozen=True)
class PricedPlan:
    """The best that a job could get.

    Attributes:
        payoff: utility less cost; lambda where it is above 0.
        utility, cost: of it.
        slots: where it is when.
        note: what the rounding had to do for it, in words; "" for nothing.
    """

    payoff: float
    utility: float
    cost: float
    slots: tuple[SlotPlan, ...]
    note: str = ""


def best_schedule(
    offer: JobOffer,
    ledger: Ledger,
    fabric: Fabric,
    *,
    levels: int = LEVELS,
    since: int = 0,
    rounder: Rounder | None = None,
) -> PricedPlan | None:
    """Algorithm 2: the schedule of the highest payoff in what is free, the earliest of equals; None if there is none.

    Args:
        levels: of work in the dynamic program.
        since: the first slot that it may use.
        rounder: places what is on several hosts by an LP and rounding; the curve does unless given.
    """
    from hemiola.sched.optimise import curve_kernel as kernel

    free, price = ledger.free[since:], ledger.price[since:]
    allowed = np.ones(free.shape[1], np.bool_) if offer.allowed is None else offer.allowed
    open_to = np.array([np.isfinite(rates).any() for rates in offer.rates])
    each_price, server_price = price @ offer.alpha, price @ offer.beta
    order = np.argsort(each_price, axis=1, kind="stable")
    server_order = np.argsort(server_price, axis=1, kind="stable") if offer.servers[-1] else order
    cost, where = kernel.cheapest_places(
        free, each_price, server_price, order, server_order, offer.alpha, offer.beta, offer.workers, offer.servers,
        fabric.domains, fabric.counts, open_to, offer.each, allowed, fabric.for_servers, *offer.inside,
        *(price @ taken for taken in offer.inside),
    )  # fmt: skip
    rounded = {} if rounder is None else _rounded(offer, rounder, free, price, allowed, cost)
    steps, _, volume = steps_of(offer, levels)
    cost[:, ~np.isfinite(offer.rates)] = np.inf
    theta, taken = kernel.cheapest_slots(cost.reshape(len(free), -1), steps, volume)
    end, payoff = _best_end(offer, theta[:, volume], since)
    if end is None:
        return None
    slots = tuple(
        _rounded_slot(offer, rounded[t, choice], t + since, choice)
        if (t, choice) in rounded
        else _slot(
            offer,
            fabric,
            free[t],
            (order[t], server_order[t]),
            allowed,
            t + since,
            choice,
            int(where[t].flat[choice]),
        )
        for t, choice in _backwards(taken, steps, end, volume)
    )
    spent = float(theta[end, volume])
    used = [rounded[key] for key in _backwards(taken, steps, end, volume) if key in rounded]
    return PricedPlan(payoff, payoff + spent, spent, slots[::-1], _note(used))


def _rounded(
    offer: JobOffer, rounder: Rounder, free: Floats, price: Floats, allowed: NDArray[np.bool_], cost: Floats
) -> dict[tuple[int, int], Rounded]:
    """What the LP and rounding place on several hosts, by slot and choice; `cost` (slots, scopes, sizes) is theirs then."""
    found: dict[tuple[int, int], Rounded] = {}
    last, sizes = len(offer.rates) - 1, len(offer.workers)
    for t in range(len(free)):
        for j in np.flatnonzero(np.isfinite(offer.rates[last])).tolist():
            here = np.where(allowed[:, None], free[t], 0.0)
            placed = rounder.place(
                t, here, price[t], offer.alpha, offer.beta, int(offer.workers[j]), int(offer.servers[j])
            )
            cost[t, last, j] = np.inf if placed is None else placed.cost
            if placed is not None:
                found[t, last * sizes + j] = placed
    return found


def _note(used: list[Rounded]) -> str:
    """What of a plan's rounded slots did not go as the paper has it."""
    mended, cut = sum(one.repaired for one in used), sum(one.exhausted for one in used)
    parts = [f"{mended} of {len(used)} slots mended after rounding"] if mended else []
    return "; ".join([*parts, f"the solver's budget was used up in {cut}"] if cut else parts)


def _rounded_slot(offer: JobOffer, placed: Rounded, slot: int, choice: int) -> SlotPlan:
    """A rounded choice, host by host."""
    scope, size = divmod(choice, len(offer.workers))
    hosts = np.flatnonzero(placed.workers + placed.servers)
    return SlotPlan(
        slot, scope, tuple(hosts.tolist()), tuple(placed.workers[hosts].tolist()),
        tuple(placed.servers[hosts].tolist()), float(offer.rates[scope, size]),
    )  # fmt: skip


def steps_of(offer: JobOffer, levels: int) -> tuple[Ints, float, int]:
    """(steps that each choice does, work of one step, steps in all): exact where all sizes do whole steps."""
    rates = np.where(np.isfinite(offer.rates), offer.rates, 0.0).ravel()
    least = float(rates[rates > 0].min())
    unit = least / max(1, math.ceil(levels * least / offer.work))
    unit = max(unit, offer.work / MOST_LEVELS) if len(set(rates[rates > 0])) > 1 else unit
    volume = max(1, math.ceil(offer.work / unit - 1e-9))
    return np.minimum(np.floor(rates / unit + 1e-9), volume).astype(np.int64), unit, volume


def _best_end(offer: JobOffer, costs: Floats, since: int) -> tuple[int | None, float]:
    """The last slot of the best schedule, and its payoff."""
    best, payoff = None, -math.inf
    for t, cost in enumerate(costs.tolist()):
        if cost < math.inf:
            found = offer.worth(t + since - offer.arrival + 1) - cost
            if found > payoff:
                best, payoff = t, found
    return best, payoff


def _backwards(taken: Ints, steps: Ints, end: int, volume: int) -> Iterator[tuple[int, int]]:
    """(slot, choice) of the slots in which it runs, the last first."""
    left = volume
    for t in range(end, -1, -1):
        choice = int(taken[t, left])
        if choice >= 0:
            yield t, choice
            left = max(0, left - int(steps[choice]))


def _slot(
    offer: JobOffer, fabric: Fabric, free: Floats, orders: tuple[Ints, Ints], allowed: NDArray[np.bool_], slot: int,
    choice: int, where: int,
) -> SlotPlan:  # fmt: skip
    """One choice, host by host."""
    from hemiola.sched.optimise import curve_kernel as kernel

    scope, size = divmod(choice, len(offer.workers))
    workers, servers = int(offer.workers[size]), int(offer.servers[size])
    if scope == 0:
        placed, served = kernel.fill_host(len(free), where, workers, servers)
    else:
        placed, served = kernel.fill(
            free, *orders, offer.alpha, offer.beta, workers, servers, int(offer.workers[-1]),
            fabric.domains[scope - 1], where, offer.each, allowed, fabric.for_servers,
        )  # fmt: skip
    hosts = np.flatnonzero(placed + served)
    return SlotPlan(
        slot,
        scope,
        tuple(hosts.tolist()),
        tuple(placed[hosts].tolist()),
        tuple(served[hosts].tolist()),
        float(offer.rates[scope, size]),
    )
