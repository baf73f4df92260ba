"""What a slot of a resource costs, by how much of it is promised: the dual variables of PD-ORS.

Q(rho) = L (U / L)^(rho / C) (Zhou, Li, Wu, "Primal-dual online scheduling", the form of OASiS, INFOCOM'18, section IV; DMLRS
specification 1.3). Kept as logarithms: L may be e^-700 of U.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import PolicyError
from hemiola.sched.optimise.offer import JobOffer

__all__ = ["Ledger", "PriceLaw", "law_in_theory"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MOST_KAPPA = 700.0
"""ln(U / L) above which a price would underflow."""


@dataclass(frozen=True)
class PriceLaw:
    """Prices between L and U of each resource.

    Attributes:
        log_high: ln U of each resource.
        kappa: ln (U / L) of each resource, at most 700.
    """

    log_high: tuple[float, ...]
    kappa: tuple[float, ...]

    @classmethod
    def between(cls, low: float, high: Sequence[float]) -> PriceLaw:
        """From L, the same for every resource, to U."""
        if not low > 0 or not min(high) > 0:
            raise PolicyError(f"prices from {low} to {list(high)}", "give prices above 0")
        logs = [math.log(one) for one in high]
        return cls(tuple(logs), tuple(min(MOST_KAPPA, max(0.0, one - math.log(low))) for one in logs))

    @classmethod
    def scaled(cls, kappa: float, high: Sequence[float]) -> PriceLaw:
        """From U e^-kappa to U."""
        return cls(tuple(math.log(max(one, 1e-300)) for one in high), (min(MOST_KAPPA, kappa),) * len(high))

    @property
    def ratio(self) -> float:
        """2 max(1, ln U / L): the competitive ratio where every subproblem is solved exactly."""
        return 2 * max(1.0, *self.kappa)

    def price(self, share: Floats) -> Floats:
        """Of each resource (the last axis), of which this share is promised."""
        high, kappa = np.array(self.log_high), np.array(self.kappa)
        found: Floats = np.exp(high - kappa * (1.0 - share))
        return found


def law_in_theory(offers: Sequence[JobOffer], capacity: Floats, slots: int) -> PriceLaw:
    """U and L as PD-ORS's analysis has them, for jobs that are all known (specification 1.3).

    U^r = max_i u_i(ceil(V_i l_i(int) / F_i)) / (alpha_i^r + beta_i^r); L = min_i u_i(T - a_i) / (2 mu n_i), n_i =
    ceil(V_i l_i(ext)) sum_r (alpha_i^r + beta_i^r), 1 / mu = min_i n_i / (T sum C).

    Args:
        capacity: (hosts, resources).
    """
    each = np.array([offer.alpha + offer.beta for offer in offers])
    best = np.array([math.exp(offer.log_worth(offer.fewest_slots)) for offer in offers])
    with np.errstate(divide="ignore"):
        high = np.where(each > 0, best[:, None] / np.where(each > 0, each, 1.0), 0.0).max(axis=0)
    needs = np.array([offer.most_worker_slots for offer in offers]) * each.sum(axis=1)
    mu = slots * float(capacity.sum()) / float(needs.min())
    log_low = min(
        offer.log_worth(slots - offer.arrival) - math.log(need)
        for offer, need in zip(offers, needs, strict=True)
    ) - math.log(2 * mu)
    logs = [math.log(one) if one > 0 else log_low for one in high]
    return PriceLaw(tuple(logs), tuple(min(MOST_KAPPA, max(0.0, one - log_low)) for one in logs))


class Ledger:
    """What is promised of every host in the slots to come, and what the rest costs.

    Args:
        capacity: (hosts, resources) of the empty cluster.
        slots: how many are planned ahead.
        law: of prices; None for nothing costs anything.

    Attributes:
        used: (slots, hosts, resources), the first slot is the present one.
        price: the same shape.
    """

    def __init__(self, capacity: Floats, slots: int, law: PriceLaw | None) -> None:
        self.capacity, self.slots = capacity, slots
        self.used = np.zeros((slots, *capacity.shape))
        self.law = law
        self.price = np.zeros_like(self.used)
        self._divisor = np.where(capacity > 0, capacity, 1.0)
        self.set_law(law)

    @property
    def free(self) -> Floats:
        """What is not promised, never below 0."""
        left: Floats = np.maximum(self.capacity - self.used, 0.0)
        return left

    def set_law(self, law: PriceLaw | None) -> None:
        """Price everything anew."""
        self.law = law
        self.price[:] = 0.0 if law is None else law.price(self.used / self._divisor)

    def promise(self, slot: int, hosts: Ints, amounts: Floats) -> None:
        """So much of these hosts (hosts, resources) is taken in a slot; less than 0 gives it back."""
        self.used[slot, hosts] += amounts
        if self.law is not None:
            share = self.used[slot, hosts] / self._divisor[hosts]
            self.price[slot, hosts] = self.law.price(np.clip(share, 0.0, 1.0))

    def clear(self) -> None:
        """Nothing is promised."""
        self.used[:] = 0.0
        self.set_law(self.law)

    def pass_slots(self, count: int) -> None:
        """So many slots are over."""
        count = min(count, self.slots)
        if count > 0:
            self.used[: -count or None] = self.used[count:] if count < self.slots else 0.0
            self.used[self.slots - count :] = 0.0
            self.set_law(self.law)
