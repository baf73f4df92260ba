"""The best that could have been done with all jobs known: the offline optimum of small cases, by a mixed-integer program.

DMLRS of PD-ORS (specification 1.1) without a relaxation: a job has one size and scope in a slot, on one host or on several.
Of use as a baseline and as an oracle: it grows with jobs x slots x hosts x sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hemiola.sched.optimise.offer import JobOffer
from hemiola.sched.optimise.programs import Budget, Program, Solution, Sparse, solve

__all__ = ["offline_optimum"]

Floats = NDArray[np.float64]
Term = tuple[int, float]


class _Rows:
    """A program as it is written down, row by row."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.rows: list[tuple[list[int], list[float]]] = []
        self.lower_rows: list[float] = []
        self.upper_rows: list[float] = []

    def variable(self, cost: float = 0.0, most: float = 1.0) -> int:
        """A whole number from 0 to `most`."""
        self.cost.append(cost)
        self.upper.append(most)
        return len(self.cost) - 1

    def row(self, terms: Sequence[Term], least: float = -np.inf, most: float = np.inf) -> None:
        """Their sum lies between these."""
        if terms:
            self.rows.append(([c for c, _ in terms], [v for _, v in terms]))
            self.lower_rows.append(least)
            self.upper_rows.append(most)

    def program(self) -> Program:
        """All of it."""
        return Program(
            self.cost, Sparse.of_rows(self.rows), self.lower_rows, self.upper_rows, 0.0, self.upper, True, maximise=True
        )  # fmt: skip


def offline_optimum(
    offers: Sequence[JobOffer], capacity: Floats, slots: int, budget: Budget | None = None
) -> Solution:
    """The most utility that jobs, all known, can reach in so many slots; scopes are one host and anywhere.

    Args:
        capacity: (hosts, resources).

    Returns:
        The solver's answer: `objective` was reached, `bound` cannot be exceeded.
    """
    written = _Rows()
    loads: dict[tuple[int, int], list[tuple[int, Floats]]] = {}
    for offer in offers:
        _write_job(written, offer, capacity, slots, loads)
    for (_, host), members in loads.items():
        for r in range(capacity.shape[1]):
            written.row([(c, float(a[r])) for c, a in members if a[r]], most=float(capacity[host, r]))
    return solve(written.program(), budget or Budget(nodes=100_000, gap=1e-6))


def _write_job(
    written: _Rows, offer: JobOffer, capacity: Floats, slots: int, loads: dict[tuple[int, int], list[tuple[int, Floats]]]
) -> None:  # fmt: skip
    """One job: at most one end, its work done by then, at most one choice in each slot."""
    slots_left = range(offer.arrival, slots)
    ends = {t: written.variable(offer.worth(t - offer.arrival + 1)) for t in slots_left}
    written.row([(c, 1.0) for c in ends.values()], most=1.0)
    done: list[Term] = []
    for t in slots_left:
        choices = _write_slot(written, offer, capacity, t, loads)
        done += choices
        still = [(c, -1.0) for end, c in ends.items() if end >= t]
        written.row([(c, 1.0) for c, _ in choices] + still, most=0.0)
        written.row(done + [(c, -offer.work) for end, c in ends.items() if end <= t], least=0.0)


def _write_slot(
    written: _Rows, offer: JobOffer, capacity: Floats, t: int, loads: dict[tuple[int, int], list[tuple[int, Floats]]]
) -> list[Term]:  # fmt: skip
    """The choices of a slot, each with the work it does."""
    choices: list[Term] = []
    hosts = range(len(capacity))
    across: list[tuple[int, int, int]] = []
    for j, (workers, servers) in enumerate(zip(offer.workers.tolist(), offer.servers.tolist(), strict=True)):
        taken = workers * offer.inside[0] + servers * offer.inside[1]
        for host in hosts if np.isfinite(offer.rates[0, j]) else ():
            if (taken <= capacity[host] + 1e-9).all():
                choice = written.variable()
                choices.append((choice, float(offer.rates[0, j])))
                loads.setdefault((t, host), []).append((choice, taken))
        if np.isfinite(offer.rates[-1, j]):
            choice = written.variable()
            choices.append((choice, float(offer.rates[-1, j])))
            across.append((choice, workers, servers))
    if across:
        for amount, part in ((offer.alpha, 1), (offer.beta, 2)):
            most = max(choice[part] for choice in across)
            members = [written.variable(most=float(most)) for _ in hosts]
            for host, c in zip(hosts, members, strict=True):
                loads.setdefault((t, host), []).append((c, amount))
            wanted = [(choice[0], -float(choice[part])) for choice in across]
            written.row([(c, 1.0) for c in members] + wanted, least=0.0, most=0.0)
    return choices
