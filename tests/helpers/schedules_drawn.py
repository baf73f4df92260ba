"""Schedules of any shape that is offered, drawn by Hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from hemiola.core.collective.schedule import CollectiveSchedule
from hemiola.core.collective.shapes import all_pairs, halving_doubling, ring, trees

__all__ = ["shapes"]


@st.composite
def _tree(draw: Any, ranks: int) -> list[int]:
    """The parents of a tree whose ranks stand in any order."""
    order = draw(st.permutations(range(ranks)))
    parents = [-1] * ranks
    for place, rank in enumerate(order[1:], 1):
        parents[rank] = order[draw(st.integers(0, place - 1))]
    return parents


@st.composite
def shapes(draw: Any, ranks: int = 0) -> CollectiveSchedule:
    """Of so many ranks; 0 for any number up to 8."""
    ranks = ranks or draw(st.integers(1, 8))
    kinds = ["ring", "trees", "rooted", "pairs"] + ["halving"] * (ranks & (ranks - 1) == 0)
    kind = draw(st.sampled_from(kinds))
    if kind == "ring":
        collective = draw(st.sampled_from(["all-reduce", "reduce-scatter", "all-gather"]))
        return ring(draw(st.permutations(range(ranks))), collective)
    if kind == "trees":
        count = draw(st.integers(1, 3))
        parts = [draw(st.integers(1, 9)) for _ in range(count)]
        return trees([draw(_tree(ranks)) for _ in range(count)], [part / sum(parts) for part in parts])
    if kind == "rooted":
        return trees([draw(_tree(ranks))], collective=draw(st.sampled_from(["broadcast", "reduce"])))
    if kind == "pairs":
        collective = draw(st.sampled_from(["all-reduce", "reduce-scatter", "all-gather", "all-to-all"]))
        return all_pairs(ranks, collective)
    return halving_doubling(ranks)
