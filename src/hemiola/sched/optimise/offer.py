"""A job as the optimisers see it: the sizes it may have, what each takes and gets done, and what its end is worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["JobOffer"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class JobOffer:
    """What one job offers for which schedules, in slots.

    Attributes:
        id: of the job.
        arrival: its first slot.
        work: what has to be done, in any unit (samples).
        workers: the numbers of workers that it may have in a slot, ascending.
        servers: as many parameter servers to each of them; all 0 for a ring.
        rates: (scopes, sizes) work per slot, for all members on one host (first), in one domain of each level, anywhere
            (last); -inf where that is not allowed.
        alpha, beta: (resources) what a worker and a server take.
        log_worth: ln of its utility if it ends at the end of the `d`-th slot from its arrival (d = 1 in its first slot).
        each: workers on each of its hosts, where it says how many; 0 for any.
        allowed: (hosts) where it may run; None for anywhere.
        links: (resources) which of them members take only if they are not all on one host; None for none.
    """

    id: str
    arrival: int
    work: float
    workers: Ints
    servers: Ints
    rates: Floats
    alpha: Floats
    beta: Floats
    log_worth: Callable[[int], float]
    each: int = 0
    allowed: NDArray[np.bool_] | None = None
    links: NDArray[np.bool_] | None = None

    def worth(self, slots: int) -> float:
        """Its utility if it ends with the `slots`-th slot from its arrival."""
        return math.exp(self.log_worth(slots))

    @property
    def fewest_slots(self) -> int:
        """In which it could be done with the most workers on one host."""
        return max(1, math.ceil(self.work / float(self.rates.max()) - 1e-9))

    @property
    def most_worker_slots(self) -> int:
        """Slots that one worker alone would need, apart from its server: ceil(V l(ext))."""
        last = self.rates[-1] if np.isfinite(self.rates[-1]).any() else self.rates.max(axis=0)
        per_worker = float((last / self.workers)[np.isfinite(last)].min())
        return max(1, math.ceil(self.work / per_worker - 1e-9))

    @property
    def inside(self) -> tuple[Floats, Floats]:
        """What a worker and a server take if all members are on one host."""
        if self.links is None:
            return self.alpha, self.beta
        return np.where(self.links, 0.0, self.alpha), np.where(self.links, 0.0, self.beta)

    def takes(self, workers: Ints, servers: Ints, *, inside: bool = False) -> Floats:
        """(hosts, resources) of so many workers and servers on each host; `inside`: all on one."""
        alpha, beta = self.inside if inside else (self.alpha, self.beta)
        taken: Floats = workers[:, None] * alpha + servers[:, None] * beta
        return taken
