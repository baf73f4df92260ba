"""What kinds of collectives cost, from times in which several were under way."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemiola.comm.stragglers.coordinator import ByteCosts

MB = 1e6
LIKE = [1.0, 1.0, 0.5]


def together(costs: ByteCosts, begun_s: float, took_s: float, sizes: dict[int, float]) -> float:
    """All at once; when it is over."""
    for _ in sizes:
        costs.begin(begun_s)
    for kind, size in sizes.items():
        costs.end(kind, size, begun_s + took_s)
    return begun_s + took_s


def test_before_anything_of_the_first_kind_nothing_is_known() -> None:
    costs = ByteCosts(LIKE)
    assert costs.seconds(0, MB) is None
    together(costs, 0.0, 1.0, {1: MB})
    assert costs.seconds(1, MB) is None


def test_after_one_of_the_first_kind_the_others_are_in_proportion() -> None:
    costs = ByteCosts(LIKE)
    together(costs, 5.0, 2.0, {0: 4 * MB})
    found = [costs.seconds(kind, 2 * MB) for kind in range(3)]
    assert found == pytest.approx([1.0, 1.0, 0.5], rel=0.02)


@settings(deadline=None)
@given(
    st.lists(st.floats(0.3, 3.0), min_size=3, max_size=3),
    st.floats(0, 0.02),
    st.integers(0, 1000),
)
def test_kinds_that_are_under_way_together_are_told_apart(
    each_s: list[float], start_s: float, seed: int
) -> None:
    """As in steps: a sum of all now and then, parts without somebody, what was late beside the rest of the sum."""
    costs, now_s, made = ByteCosts(LIKE), 0.0, random.Random(seed)
    for number in range(24):
        parts = made.randint(0, 16)
        sizes = {1: parts * MB} if parts else {}
        if sizes:
            took_s = start_s + each_s[1] * parts
            now_s = together(costs, now_s + 1.0, took_s, sizes)
        rest = {0: (16 - parts) * MB, 2: parts * MB} if number % 6 else {0: 16 * MB}
        took_s = start_s + sum(each_s[kind] * size / MB for kind, size in rest.items())
        now_s = together(costs, now_s + 1.0, took_s, rest)
    found = [costs.seconds(kind, MB) for kind in range(3)]
    assert found == pytest.approx(each_s, rel=0.2)


def test_what_one_of_the_first_kind_costs_is_known_however_long_none_comes() -> None:
    costs = ByteCosts(LIKE)
    now_s = together(costs, 0.0, 1.0, {0: MB})
    for _ in range(40):
        now_s = together(costs, now_s + 1.0, 6.0, {1: 2 * MB, 2: 2 * MB})
    found = [costs.seconds(kind, MB) for kind in range(3)]
    assert found == pytest.approx([2.0, 2.0, 1.0], rel=0.1)


def test_what_was_slow_at_first_is_forgotten() -> None:
    costs, now_s = ByteCosts(LIKE), 0.0
    now_s = together(costs, now_s, 10.0, {0: MB})
    for _ in range(12):
        now_s = together(costs, now_s + 1.0, 1.0, {0: MB})
    assert costs.seconds(0, MB) == pytest.approx(1.0, rel=0.1)
