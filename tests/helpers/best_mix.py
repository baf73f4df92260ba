"""The least time of any mix of trees over hosts in racks, exactly: what packed trees are compared with."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction

__all__ = ["best_mix", "game", "load"]


def load(edges: Sequence[tuple[int, int]], racks: list[int], uplinks: list[int]) -> list[int]:
    """How often each host's link and each uplink is crossed."""
    found = [0] * (len(racks) + len(uplinks))
    for a, b in edges:
        for link in crossed(a, b, racks):
            found[link] += 1
    return found


def crossed(a: int, b: int, racks: list[int]) -> list[int]:
    return [a, b] + [len(racks) + racks[host] for host in (a, b) if racks[a] != racks[b]]


def best_mix(rates: list[int], racks: list[int], uplinks: list[int]) -> Fraction:
    """The least time of any mix of any trees, exactly: a linear program over trees of which only those are written
    down that its prices ask for. Prices of links make prices of edges, and the cheapest tree is a spanning one."""
    capacity = [Fraction(rate) for rate in [*rates, *uplinks]]
    columns = [load([(0, host) for host in range(1, len(rates))], racks, uplinks)]
    while True:
        time, prices = game(
            [[Fraction(c) / b for c, b in zip(column, capacity, strict=True)] for column in columns]
        )
        paid = [price / b for price, b in zip(prices, capacity, strict=True)]
        costs = {
            (a, b): sum(paid[k] for k in crossed(a, b, racks))
            for a, b in itertools.permutations(range(len(rates)), 2)
        }
        cheapest = load(spanning(len(rates), costs), racks, uplinks)
        if sum(p * c for p, c in zip(paid, cheapest, strict=True)) >= time:
            return time
        columns.append(cheapest)


def spanning(count: int, costs: Mapping[tuple[int, int], Fraction]) -> list[tuple[int, int]]:
    """The cheapest tree (Prim)."""
    edges, inside = list[tuple[int, int]](), {0}
    while len(inside) < count:
        outside = set(range(count)) - inside
        edge = min(((a, b) for a in inside for b in outside), key=costs.__getitem__)
        edges.append(edge)
        inside.add(edge[1])
    return edges


def game(columns: list[list[Fraction]]) -> tuple[Fraction, list[Fraction]]:
    """The least that the largest row of a mix of columns can be, and the rows' prices: max sum x with A x <= 1 by the
    simplex method in fractions, by Bland's rule. Every row has an entry above 0 in the first column or is never crossed."""
    rows, count = len(columns[0]), len(columns)
    table = [
        [column[k] for column in columns] + [Fraction(k == j) for j in range(rows)] + [Fraction(1)]
        for k in range(rows)
    ]
    worth = [Fraction(-1)] * count + [Fraction(0)] * (rows + 1)
    basis = [count + k for k in range(rows)]
    while (enters := next((j for j, value in enumerate(worth[:-1]) if value < 0), None)) is not None:
        ratios = [(row[-1] / row[enters], basis[k], k) for k, row in enumerate(table) if row[enters] > 0]
        _, _, leaves = min(ratios)
        pivot = table[leaves] = [value / table[leaves][enters] for value in table[leaves]]
        for row in [*(row for k, row in enumerate(table) if k != leaves), worth]:
            factor = row[enters]
            row[:] = [value - factor * other for value, other in zip(row, pivot, strict=True)]
        basis[leaves] = enters
    return 1 / worth[-1], [price / worth[-1] for price in worth[count : count + rows]]
