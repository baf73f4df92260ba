"""The program of one slot as PD-ORS solves it: a mixed packing and covering program, relaxed, scaled and rounded by chance.

    min sum_h (p_h.alpha) w_h + (p_h.beta) s_h    subject to
    alpha w_h + beta s_h <= free_h (packing), sum_h w_h >= W, sum_h s_h >= S (covering), integer

The LP's solution is scaled by G and each entry rounded up with the probability of its fraction. With G <= 1 from
`gain_for_packing` all packing rows hold with probability 1 - delta, with G >= 1 from `gain_for_cover` all covering rows do
(Chernoff's bounds; specification 1.4 derives them anew). Where no sample fits, the best one is repaired greedily.
Bounds of columns (what one host could hold) are added: they are valid, and without them the LP buys fractions of workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from hemiola.sched.optimise.programs import Budget, Program, Sparse, solve

__all__ = ["Rounded", "Rounder", "gain_for_cover", "gain_for_packing", "round_slot"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SAMPLES = 200


def gain_for_packing(rows: int, width: float, delta: float) -> float:
    """G <= 1: packing then holds with probability 1 - delta; kappa = 3 ln(3 q / delta) / (2 W_b).

    Args:
        rows: q, packing rows.
        width: W_b, the least of right sides over coefficients.
    """
    kappa = 3 * math.log(3 * rows / delta) / (2 * width)
    return 1 + kappa - math.sqrt(kappa * kappa + 2 * kappa)


def gain_for_cover(rows: int, width: float, delta: float) -> float:
    """G >= 1: covering then holds with probability 1 - delta; kappa = ln(3 m / delta) / W_a."""
    kappa = math.log(3 * rows / delta) / width
    return 1 + kappa + math.sqrt(kappa * kappa + 2 * kappa)


@dataclass(frozen=True, eq=False)
class Rounded:
    """What the rounding came to.

    Attributes:
        workers, servers: of each host.
        cost: of them.
        relaxed: cost of the LP.
        feasible: samples that held every row, of all that were drawn.
        repaired: whether none did, and the best one was mended.
        exhausted: whether the solver's budget was used up.
    """

    workers: Ints
    servers: Ints
    cost: float
    relaxed: float
    feasible: int
    repaired: bool
    exhausted: bool


def round_slot(
    free: Floats, price: Floats, alpha: Floats, beta: Floats, workers: int, servers: int, *, gain: float, seed: int,
    samples: int = SAMPLES, budget: Budget | None = None,
) -> Rounded | None:  # fmt: skip
    """The cheapest of the samples that hold every row; None if not even the LP has a solution.

    Args:
        free, price: (hosts, resources).
        gain: G.
        seed: of the rounding.
    """
    hosts = len(free)
    columns = np.concatenate([np.tile(alpha, (hosts, 1)), np.tile(beta, (hosts, 1))])
    cost = np.concatenate([price @ alpha, price @ beta])
    caps = np.concatenate([_caps(free, alpha, workers), _caps(free, beta, servers)])
    relaxed = solve(_program(free, columns, cost, caps, workers, servers), budget)
    if relaxed.incumbent is None and not relaxed.exhausted:
        return None
    scaled = np.zeros(2 * hosts) if relaxed.incumbent is None else np.minimum(gain * relaxed.incumbent, caps)
    chance, best, feasible = Random(seed), None, 0
    drafts = [_drawn(scaled, chance) for _ in range(samples)]
    for draft in drafts:
        if _holds(draft, free, alpha, beta, workers, servers):
            feasible += 1
            if best is None or cost @ draft < cost @ best:
                best = draft
    repaired = best is None
    if best is None:
        best = _repaired(drafts[0], free, cost, alpha, beta, workers, servers)
        if best is None:
            return None
    return Rounded(
        best[:hosts], best[hosts:], float(cost @ best), relaxed.objective, feasible, repaired, relaxed.exhausted
    )  # fmt: skip


@dataclass(frozen=True)
class Rounder:
    """Places by the LP and rounding, in favour of one kind of rows.

    Attributes:
        favour: "packing" or "cover".
        delta: the chance that these rows do not hold in a sample.
        seed: of the rounding.
    """

    favour: str
    delta: float
    seed: int

    def place(
        self, slot: int, free: Floats, price: Floats, alpha: Floats, beta: Floats, workers: int, servers: int
    ) -> Rounded | None:
        """Where so many workers and servers go in a slot; None if they do not fit."""
        uses = np.maximum(alpha, beta) > 0
        width = float((free[:, uses] / np.maximum(alpha, beta)[uses]).max(initial=1.0))
        if self.favour == "packing":
            gain = gain_for_packing(free.size + 1, max(width, 1e-9), self.delta)
        else:
            gain = gain_for_cover(2, float(max(1, workers)), self.delta)
        return round_slot(
            free, price, alpha, beta, workers, servers, gain=gain, seed=self.seed * 1_000_003 + slot
        )


def _caps(free: Floats, taken: Floats, most: int) -> Floats:
    """What each host alone could hold."""
    uses = taken > 0
    if not uses.any():
        return np.full(len(free), float(most))
    room = np.floor((free[:, uses] / taken[uses]).min(axis=1) + 1e-9)
    capped: Floats = np.clip(room, 0.0, float(most))
    return capped


def _program(
    free: Floats, columns: Floats, cost: Floats, caps: Floats, workers: int, servers: int
) -> Program:
    hosts, resources = free.shape
    rows: list[tuple[list[int], list[float]]] = []
    for h in range(hosts):
        for r in range(resources):
            rows.append(([h, h + hosts], [float(columns[h, r]), float(columns[h + hosts, r])]))
    rows.append((list(range(hosts)), [1.0] * hosts))
    rows.append((list(range(hosts, 2 * hosts)), [1.0] * hosts))
    least = [-np.inf] * (hosts * resources) + [float(workers), float(servers)]
    most = [*free.ravel().tolist(), np.inf, np.inf]
    return Program(cost, Sparse.of_rows(rows), least, most, 0.0, caps)


def _drawn(scaled: Floats, chance: Random) -> Ints:
    """floor(x) + Bernoulli(x - floor(x))."""
    floor = np.floor(scaled + 1e-12)
    extra = np.array([chance.random() < part for part in (scaled - floor).tolist()])
    found: Ints = floor.astype(np.int64) + extra
    return found


def _holds(draft: Ints, free: Floats, alpha: Floats, beta: Floats, workers: int, servers: int) -> bool:
    hosts = len(free)
    w, s = draft[:hosts], draft[hosts:]
    packed = (w[:, None] * alpha + s[:, None] * beta <= free + 1e-9).all()
    return bool(packed and w.sum() >= workers and s.sum() >= servers)


def _repaired(
    draft: Ints, free: Floats, cost: Floats, alpha: Floats, beta: Floats, workers: int, servers: int
) -> Ints | None:
    """Take out what does not fit or is too much, the dearest first; then put in what is missing, the cheapest first."""
    hosts = len(free)
    mended = draft.copy()
    left = free - mended[:hosts, None] * alpha - mended[hosts:, None] * beta
    wanted = (workers, servers)
    parts = ((0, alpha), (hosts, beta))
    for (first, each), many in zip(parts, wanted, strict=True):
        for c in sorted(range(first, first + hosts), key=lambda c: -cost[c]):
            while mended[c] and (
                (left[c - first] < -1e-9).any() or mended[first : first + hosts].sum() > many
            ):
                mended[c] -= 1
                left[c - first] += each
    for (first, each), many in zip(parts, wanted, strict=True):
        for c in sorted(range(first, first + hosts), key=lambda c: cost[c]):
            while mended[first : first + hosts].sum() < many and (left[c - first] + 1e-9 >= each).all():
                mended[c] += 1
                left[c - first] -= each
        if mended[first : first + hosts].sum() < many:
            return None
    return mended
