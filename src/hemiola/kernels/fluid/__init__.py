"""A network whose links are shared by jobs: each job's iteration time under the present sharing.

Jobs come and go; `settle` says whose iteration time changed. Only the jobs that hang together
with a change through links that can really slow them are solved again, from nothing, so that the
answer does not depend on what happened before. The formulas, with their derivation, are in
docs/concepts/contention.md. Which law is wanted is `cost.contention`'s business; clocks, jobs'
progress and placements are other modules'.

Numba is imported when two jobs first share a link, not before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from hemiola.core.errors import InputError, InternalError
from hemiola.kernels.fluid.table import WEIGHT, FluidJobs

__all__ = ["Rule", "SharedNetwork", "Sharing", "warm_up"]

Rule = Literal["present", "staggered", "together", "counting", "nothing"]


class Sharing(msgspec.Struct, frozen=True):
    """What a link does to the jobs on it.

    Attributes:
        rule: "present": a job meets each other one for that one's share of time (its duty);
            "staggered": mean rates share the link; "together": all always send at once;
            "counting": k jobs make a byte take k + (k - 1) * penalty times as long;
            "nothing": they do not slow each other.
        penalty: for "counting".
    """

    rule: Rule
    penalty: float = 0.0


PRESENT = Sharing("present")


class SharedNetwork:
    """Jobs on shared links, in slots.

    Args:
        link_bytes_per_s: capacity of each link, shape (links,), above 0; `math.inf` never binds.
        sharing: what links do to the jobs on them.

    Raises:
        InputError: for a capacity that is not above 0.

    Example:
        >>> network = SharedNetwork([1e9])
        >>> for _ in range(2):
        ...     slot = network.add(compute_s=1.0, hidden_s=0.0, traffic_bytes=1e9, links=[0])
        >>> [round(iteration_s, 3) for _, iteration_s, _ in network.settle()]
        [2.618, 2.618]
    """

    def __init__(self, link_bytes_per_s: ArrayLike, sharing: Sharing = PRESENT) -> None:
        self._capacity = np.array(link_bytes_per_s, dtype=np.float64)
        if self._capacity.ndim != 1 or not (self._capacity > 0).all():
            raise InputError(
                "a link's capacity is not above 0", "give bytes/s above 0, or inf, for each link"
            )
        self._sharing = sharing
        self._limits: list[float] = self._capacity.tolist()
        self._users = [0] * len(self._limits)
        self._links = np.zeros((len(self._limits), 5), dtype=np.int64)
        self._links[:, 0] = -1
        self._table = FluidJobs()
        self._dirty: set[int] = set()
        self._touched: dict[int, None] = {}
        self._stamp = 0
        self._kernel: ModuleType | None = None

    def __len__(self) -> int:
        """Number of jobs present."""
        return len(self._table.links_of)

    def add(
        self,
        *,
        compute_s: float,
        hidden_s: float,
        traffic_bytes: float,
        links: Sequence[int],
        factors: Sequence[float] | None = None,
        weight: float = 1.0,
    ) -> int:
        """Let a job in; the number of its slot, which may have been another job's before.

        Args:
            compute_s: computing time per iteration, above 0.
            hidden_s: how much communication hides behind it, at most `compute_s`.
            traffic_bytes: bytes per iteration over each of its links.
            links: the links it uses, each once.
            factors: how many times `traffic_bytes` crosses each of them; None for once.
            weight: its share where it competes, relative to the others'.

        Raises:
            InputError: naming the value that cannot be.
        """
        links = tuple(links) if traffic_bytes else ()
        factors = factors if links else None
        _check_numbers(compute_s, hidden_s, traffic_bytes, weight)
        if links:
            self._check_links(links, factors)
        alone = self._rate_alone(links, factors)
        columns = self._columns(compute_s, hidden_s, traffic_bytes, weight, alone)
        slot = self._table.insert(columns, links, factors)
        self._touched[slot] = None
        if links and self._kernel is not None:
            self._kernel.attach(slot, self._table.rows, self._table.cells, self._links)
        for link in links:
            self._users[link] += 1
        self._mark(links)
        return slot

    def remove(self, slot: int) -> None:
        """Let a job go (`InputError` if the slot is empty)."""
        links = self._table.links(slot)
        self._mark(links)
        for link in links:
            self._users[link] -= 1
        if links and self._kernel is not None:
            self._kernel.detach(slot, self._table.rows, self._table.cells, self._links)
        self._table.release(slot)
        self._touched.pop(slot, None)

    def set_weight(self, slot: int, weight: float) -> None:
        """Change a job's share where it competes (`InputError` unless it is above 0)."""
        links = self._table.links(slot)
        if not 0 < weight < math.inf:
            raise _refused("the weight", weight, "a number above 0; 1 is neutral")
        self._table.jobs[slot, WEIGHT] = weight
        self._mark(links)

    def settle(self) -> list[tuple[int, float, float]]:
        """(slot, iteration time in s, rate while sending in bytes/s) of the jobs whose time changed.

        By ascending slot; jobs added since the last call are always among them. A rate is inf
        where nothing limits it.

        Raises:
            InternalError: if a link's level cannot be found, which no valid input causes.
        """
        shared = self._dirty and (
            self._kernel is not None or any(self._users[link] > 1 for link in self._dirty)
        )
        changed = self._settle_shared() if shared else sorted(self._touched)
        if not shared:
            for slot in changed:
                self._table.settle_alone(slot)
        self._dirty.clear()
        self._touched.clear()
        return self._table.answer(changed)

    def link_load(self) -> NDArray[np.float64]:
        """Mean bytes/s over each link, shape (links,), of the jobs settled so far."""
        load, table = np.zeros(len(self._limits)), self._table
        if self._kernel is None:
            table.add_mean_load(load)
        else:
            slots = np.array(list(table.links_of), dtype=np.int64)
            self._kernel.mean_load(slots, table.jobs, table.rows, table.cells, table.factors, load)
        return load

    def _check_links(self, links: tuple[int, ...], factors: Sequence[float] | None) -> None:
        known = len(self._limits)
        if min(links) < 0 or max(links) >= known:
            raise _refused("links =", links, f"numbers from 0 to {known - 1}")
        if len(set(links)) != len(links):
            raise _refused("links =", links, "each link once")
        if factors is not None and len(factors) != len(links):
            raise _refused("factors =", factors, f"one for each of the {len(links)} links")
        if factors is not None and not (min(factors) > 0 and max(factors) < math.inf):
            raise _refused("factors =", factors, "numbers above 0")

    def _rate_alone(self, links: tuple[int, ...], factors: Sequence[float] | None) -> float:
        limits = self._limits
        if factors is None:
            return min([limits[link] for link in links], default=math.inf)
        return min([limits[link] / factor for link, factor in zip(links, factors, strict=True)])

    def _columns(
        self, compute_s: float, hidden_s: float, traffic_bytes: float, weight: float, alone: float
    ) -> tuple[float, ...]:
        """A job's row in the table: what it is, its limit, how duty falls with rate, no answer yet.

        duty(r) = 1 / max(C r / V, (C - o) r / V + 1); always 1 where the law knows no duty.
        """
        limit, drag, drag_hidden = alone, 0.0, 0.0
        if traffic_bytes and self._sharing.rule == "present":
            drag, drag_hidden = (compute_s - hidden_s) / traffic_bytes, compute_s / traffic_bytes
        if traffic_bytes and self._sharing.rule == "staggered":
            limit = traffic_bytes / (compute_s + max(0.0, traffic_bytes / alone - hidden_s))
        what = (compute_s, hidden_s, traffic_bytes, weight, alone)
        return (*what, limit, drag, drag_hidden, math.nan, math.nan)

    def _mark(self, links: tuple[int, ...]) -> None:
        """Note the links that several jobs share as changed."""
        if self._sharing.rule != "nothing":
            users = self._users
            self._dirty.update([link for link in links if users[link] > 1])

    def _settle_shared(self) -> list[int]:
        kernel, table = self._kernel or self._start_kernel(), self._table
        self._stamp += 1
        dirty = np.array(list(self._dirty), dtype=np.int64)
        touched = np.array(list(self._touched), dtype=np.int64)
        network = (table.jobs, table.rows, table.cells, table.factors, self._links, self._capacity)
        if self._sharing.rule == "counting":
            solve, how = kernel.settle_counting, self._sharing.penalty
        else:
            solve, how = kernel.settle, self._sharing.rule == "staggered"
        count = solve(self._stamp, how, dirty, touched, *network, table.changed)
        if count < 0:
            raise InternalError(
                "the level of a link was not found", "please report the workload and topology"
            )
        return sorted(table.changed[:count].tolist())

    def _start_kernel(self) -> ModuleType:
        """Import the compiled part, and tell it of all jobs present."""
        from hemiola.kernels.fluid import kernel as fluid_kernel

        self._kernel = fluid_kernel
        for slot in self._table.links_of:
            fluid_kernel.attach(slot, self._table.rows, self._table.cells, self._links)
        return fluid_kernel


def warm_up() -> None:
    """Import and compile what the first shared link would: seconds the first time, then from a cache."""
    for sharing in (PRESENT, Sharing("counting")):
        network = SharedNetwork([1.0], sharing)
        for _ in range(2):
            network.add(compute_s=1.0, hidden_s=0.0, traffic_bytes=1.0, links=[0])
        network.settle()
        network.link_load()
        network.remove(0)


def _check_numbers(compute_s: float, hidden_s: float, traffic_bytes: float, weight: float) -> None:
    if not 0 < compute_s < math.inf:
        raise _refused("compute_s =", compute_s, "seconds above 0")
    if not 0 <= hidden_s <= compute_s:
        raise _refused("hidden_s =", hidden_s, f"seconds from 0 to compute_s = {compute_s}")
    if not 0 <= traffic_bytes < math.inf:
        raise _refused("traffic_bytes =", traffic_bytes, "bytes, 0 or more")
    if not 0 < weight < math.inf:
        raise _refused("the weight", weight, "a number above 0; 1 is neutral")


def _refused(what: str, value: object, wanted: str) -> InputError:
    return InputError(f"a job on the network has {what} {value}", f"give {wanted}")
