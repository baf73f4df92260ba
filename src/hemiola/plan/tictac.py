"""TIC and TAC: in which order a worker's transfers should come (TicTac, MLSys 2019, section 4).

Both look at each outstanding transfer r: how much computation waits for r alone (P), and the least total
transfer time of a set, r in it, that lets some operation that waits for several go on (M+).

- **TIC** (timing-independent) takes every transfer for as long as any other and computation for nothing:
  the order of M+, where equals share a rank.
- **TAC** (timing-aware) takes the transfers one by one: of a and b, a comes first if
  min(P_b, M_a) < min(P_a, M_b), which is Johnson's rule for two machines; then the smaller M+.

Where the paper is silent: that comparison is not transitive, so "first" is found by one scan against the
best so far, and what is equal in both goes by its place in the graph.
"""

from __future__ import annotations

import math
from collections import Counter

from hemiola.plan.receive import ReceiveGraph

__all__ = ["tac", "tic", "tic_ranks"]


def tic_ranks(graph: ReceiveGraph) -> tuple[int, ...]:
    """The rank of each transfer; equals share one, and the next is counted on (0, 0, 2)."""
    _, least = _properties(
        _waiting(graph, timed=False), [1.0] * len(graph.names), (1 << len(graph.names)) - 1
    )
    return tuple(sum(other < own for other in least) for own in least)


def tic(graph: ReceiveGraph) -> tuple[int, ...]:
    """The transfers, first to last; equals by their place in the graph."""
    ranks = tic_ranks(graph)
    return tuple(sorted(range(len(ranks)), key=lambda transfer: ranks[transfer]))


def tac(graph: ReceiveGraph) -> tuple[int, ...]:
    """The transfers, first to last."""
    time_s = graph.transfer_s
    waiting = _waiting(graph, timed=True)
    left = (1 << len(time_s)) - 1
    order: list[int] = []
    while left:
        alone_s, least_s = _properties(waiting, time_s, left)
        best = -1
        for transfer in range(len(time_s)):
            if left >> transfer & 1 and (best < 0 or _before(transfer, best, alone_s, time_s, least_s)):
                best = transfer
        order.append(best)
        left &= ~(1 << best)
    return tuple(order)


def _before(a: int, b: int, alone_s: list[float], time_s: tuple[float, ...], least_s: list[float]) -> bool:
    """Whether `a` has to come before `b`."""
    first, second = min(alone_s[b], time_s[a]), min(alone_s[a], time_s[b])
    return first < second or (first == second and least_s[a] < least_s[b])


def _waiting(graph: ReceiveGraph, *, timed: bool) -> dict[int, float]:
    """Computation by the set of transfers that it waits for."""
    found: Counter[int] = Counter()
    for bits, seconds in zip(graph.needs, graph.compute_s, strict=True):
        found[bits] += seconds if timed else 0.0  # type: ignore[assignment]
    return dict(found)


def _properties(
    waiting: dict[int, float], time_s: tuple[float, ...] | list[float], left: int
) -> tuple[list[float], list[float]]:
    """P and M+ of each transfer, given those that are outstanding."""
    alone_s, least_s = [0.0] * len(time_s), [math.inf] * len(time_s)
    by_set: dict[int, float] = {}
    for bits, seconds in waiting.items():
        if bits & left:
            by_set[bits & left] = by_set.get(bits & left, 0.0) + seconds
    for bits, seconds in by_set.items():
        members = _members(bits)
        if len(members) == 1:
            alone_s[members[0]] += seconds
            continue
        total_s = sum(time_s[transfer] for transfer in members)
        for transfer in members:
            least_s[transfer] = min(least_s[transfer], total_s)
    return alone_s, least_s


def _members(bits: int) -> list[int]:
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found
