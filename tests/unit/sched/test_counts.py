"""The bucketed index and the choice of GPUs in a host, each against the obvious way."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemiola.sched.index import CountIndex, lowest, members
from hemiola.sched.inventory import pick


@given(st.sets(st.integers(0, 400)))
def test_members_are_the_set_bits(items: set[int]) -> None:
    bits = sum(1 << item for item in items)
    assert list(members(bits)) == sorted(items)
    if items:
        assert lowest(bits) == min(items)


@settings(max_examples=60)
@given(st.data(), st.integers(1, 150), st.integers(0, 9))
def test_count_index_against_a_dict(data: Any, items: int, most: int) -> None:
    index, naive = CountIndex(items, most), {}
    for _ in range(data.draw(st.integers(1, 40))):
        item, count = data.draw(st.integers(0, items - 1)), data.draw(st.integers(0, most))
        if item not in naive:
            index.add(item, count)
            naive[item] = count
        elif data.draw(st.booleans()):
            index.move(item, naive[item], count)
            naive[item] = count
        else:
            index.remove(item, naive.pop(item))
    within = data.draw(st.integers(0, (1 << items) - 1))
    _compare(index, naive, most, within)


def _compare(index: CountIndex, naive: dict[int, int], most: int, within: int) -> None:
    for least in range(most + 3):
        enough = sorted((count, item) for item, count in naive.items() if count >= least)
        assert index.tightest(least) == (enough[0][1] if enough else -1)
    expected = sorted(((-count, item) for item, count in naive.items() if count), key=lambda p: p)
    assert list(index.descending()) == [(item, -count) for count, item in expected]
    inside = [(item, -count) for count, item in expected if within >> item & 1]
    assert list(index.descending(within)) == inside
    for count in range(most + 1):
        assert list(members(index.buckets[count])) == sorted(i for i, c in naive.items() if c == count)
        assert bool(index.occupied >> count & 1) == (count in naive.values())


@pytest.mark.parametrize(
    ("free", "count", "island", "mask"),
    [
        (0b11110001, 2, 4, 0b110000),  # four together beat one
        (0b0011_1111, 2, 4, 0b0011_0000),  # the tighter island
        (0b1111_1111, 8, 4, 0b1111_1111),
        (0b0111_1011, 4, 4, 0b0111_0001),  # no island holds 4: equal islands, lower first
        (0b1010, 2, 4, 0b1010),
        (0b1010, 0, 4, 0),
    ],
)
def test_pick_by_hand(free: int, count: int, island: int, mask: int) -> None:
    islands = tuple(((1 << island) - 1) << start for start in range(0, 8, island))
    chosen = pick(free, count, islands)
    assert chosen.bit_count() == count and chosen & ~free == 0
    touched = [bool(chosen & i) for i in islands]
    assert touched == [bool(mask & i) for i in islands]


@settings(max_examples=150)
@given(st.integers(0, 255), st.integers(1, 8), st.sampled_from([1, 2, 4, 8]))
def test_pick_spans_as_few_islands_as_possible_and_takes_the_tightest(
    free: int, count: int, size: int
) -> None:
    if free.bit_count() < count:
        return
    islands = tuple(((1 << size) - 1) << start for start in range(0, 8, size))
    mask = pick(free, count, islands)
    assert mask & ~free == 0 and mask.bit_count() == count
    room = [(free & island).bit_count() for island in islands]
    fewest = next(
        n for n in range(1, len(islands) + 1) if any(sum(c) >= count for c in combinations(room, n))
    )
    touched = [n for n, island in zip(room, islands, strict=True) if mask & island]
    assert len(touched) == fewest
    if fewest == 1:
        assert touched[0] == min(n for n in room if n >= count)
