"""The columns in which `kernels.fluid` keeps its jobs: growing arrays that compiled code can read.

One row per slot in `jobs` and `rows`, one per (job, link) pair in `cells` and `factors`; freed slots
and rows are used again. What the columns mean to the solver stands in `fluid_kernel`, which this
module does not import.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import InputError

__all__ = ["FluidJobs"]

Number = TypeVar("Number", bound=np.generic)

# Compiled into fluid_kernel, whose cache does not see a change here: change that file with it.
COMPUTE, HIDDEN, TRAFFIC, WEIGHT, ALONE, CAP, DRAG, DRAG_HIDDEN, ITERATION, RATE = range(10)


class FluidJobs:
    """Jobs in slots, each with its links.

    Attributes:
        jobs: float64 (slots, 10): compute_s, hidden_s, traffic_bytes, weight, rate alone, limit, drag,
            hidden drag, iteration_s, rate; NaN in the last two until the job is settled.
        rows: int64 (slots, 4): first cell, number of cells, and two columns of the solver's.
        cells: int64 (cells, 4): link, and three columns of the solver's.
        factors: float64 (cells,): how many times the job's traffic crosses the link.
        changed: int64 (slots,): where the solver lists slots.
        links_of: the links of the jobs present, by slot.
    """

    def __init__(self) -> None:
        self.jobs = np.zeros((16, 10))
        self.rows = np.zeros((16, 4), dtype=np.int64)
        self.cells = np.zeros((64, 4), dtype=np.int64)
        self.factors = np.zeros(64)
        self.changed = np.zeros(16, dtype=np.int64)
        self.links_of: dict[int, tuple[int, ...]] = {}
        self._free_slots: list[int] = []
        self._free_rows: dict[int, list[int]] = {}
        self._slots_used = 0
        self._cells_used = 0

    def insert(
        self, columns: tuple[float, ...], links: tuple[int, ...], factors: Sequence[float] | None
    ) -> int:
        """Store a job; its slot."""
        slot = self._free_slots.pop() if self._free_slots else self._new_slot()
        self.jobs[slot] = columns
        self.links_of[slot] = links
        if not links:
            self.rows[slot] = 0
            return slot
        first = self._free_row(_row_size(len(links)))
        self.rows[slot, 0] = first
        self.rows[slot, 1] = len(links)
        self.cells[first : first + len(links), 0] = links
        self.factors[first : first + len(links)] = 1.0 if factors is None else factors
        return slot

    def release(self, slot: int) -> None:
        """Forget a job."""
        count = len(self.links_of.pop(slot))
        if count:
            self._free_rows.setdefault(_row_size(count), []).append(int(self.rows[slot, 0]))
        self._free_slots.append(slot)

    def links(self, slot: int) -> tuple[int, ...]:
        """The links of the job in a slot, or `InputError` if there is none."""
        if slot not in self.links_of:
            raise InputError(
                f"slot {slot} holds no job", "use the number that add() returned, until remove()"
            )
        return self.links_of[slot]

    def answer(self, slots: list[int]) -> list[tuple[int, float, float]]:
        """(slot, iteration_s, rate) of these slots."""
        if len(slots) < 8:  # below that, gathering rows costs more than it saves
            return [(slot, self.jobs.item(slot, ITERATION), self.jobs.item(slot, RATE)) for slot in slots]
        rows = self.jobs[slots, ITERATION:].tolist()
        return [(slot, iteration_s, rate) for slot, (iteration_s, rate) in zip(slots, rows, strict=True)]

    def settle_alone(self, slot: int) -> None:
        """Give a job that competes with nobody its iteration time."""
        compute_s, hidden_s, traffic_bytes, _, alone = self.jobs[slot, :CAP].tolist()
        self.jobs[slot, ITERATION] = compute_s + max(0.0, traffic_bytes / alone - hidden_s)
        self.jobs[slot, RATE] = alone

    def add_mean_load(self, load: NDArray[np.float64]) -> None:
        """Add the mean bytes/s of the settled jobs to the links they use."""
        for slot, links in self.links_of.items():
            iteration_s = self.jobs.item(slot, ITERATION)
            if links and iteration_s > 0.0:
                first = int(self.rows[slot, 0])
                mean = self.jobs.item(slot, TRAFFIC) / iteration_s
                load[list(links)] += mean * self.factors[first : first + len(links)]

    def _new_slot(self) -> int:
        if self._slots_used == len(self.jobs):
            self.jobs = _doubled(self.jobs)
            self.rows = _doubled(self.rows)
            self.changed = _doubled(self.changed)
        self._slots_used += 1
        return self._slots_used - 1

    def _free_row(self, size: int) -> int:
        if free := self._free_rows.get(size):
            return free.pop()
        while self._cells_used + size > len(self.cells):
            self.cells = _doubled(self.cells)
            self.factors = _doubled(self.factors)
        self._cells_used += size
        return self._cells_used - size


def _row_size(count: int) -> int:
    """The smallest power of two that holds `count` cells."""
    return 1 << (count - 1).bit_length()


def _doubled(array: NDArray[Number]) -> NDArray[Number]:
    grown = np.zeros((2 * len(array), *array.shape[1:]), dtype=array.dtype)
    grown[: len(array)] = array
    return grown
