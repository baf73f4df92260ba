"""Who begins what, when: on made-up clocks, and against what somebody pays who knows the future."""

from __future__ import annotations

import heapq
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemiola.comm.stragglers.coordinator import (
    AT_ONCE,
    CatchUp,
    Contribution,
    Coordinator,
    Order,
    PartialGroup,
    TensorMismatch,
    decode,
    decode_given,
    encode,
    encode_given,
    order_bytes,
)
from hemiola.plan.collective.waiting import WaitingCosts, clairvoyant_s

MB = 1 << 20
FULL_S, PARTIAL_S, CAUGHT_S = 1.5e-6, 1.5e-6, 1e-6
"""Per element of one byte."""


class _World:
    """One thing after the other, each of which takes as long as its bytes: one link."""

    def __init__(self, ranks: int, carries: bool = False) -> None:
        self.coordinator = Coordinator(ranks, carries)
        self.ranks = ranks
        self.now_s = 0.0
        self.free_s = -math.inf
        self.events: list[tuple[float, int, object]] = []
        self.orders: list[tuple[float, Order]] = []
        self._count = 0

    def at(self, when_s: float, event: object) -> None:
        self._count += 1
        heapq.heappush(self.events, (when_s, self._count, event))

    def run(self) -> None:
        while True:
            next_s = self.coordinator.next_s()
            if self.events and self.events[0][0] <= next_s:
                self.now_s, _, event = heapq.heappop(self.events)
                if isinstance(event, tuple):
                    self._take(self.coordinator.ready(*event, self.now_s))
                else:
                    self._take(self.coordinator.ended(event, self.now_s))  # type: ignore[arg-type]
            elif math.isinf(next_s):
                return
            else:
                self.now_s = max(self.now_s, next_s)
                self._take(self.coordinator.due(self.now_s))

    def _take(self, orders: list[Order]) -> None:
        for order in orders:
            self.orders.append((self.now_s, order))
            if isinstance(order, TensorMismatch):
                continue
            whole = isinstance(order, PartialGroup) and len(order.active) == self.ranks
            each = CAUGHT_S if isinstance(order, CatchUp) else FULL_S if whole else PARTIAL_S
            self.free_s = max(self.free_s, self.now_s) + each * order.size_bytes
            self.at(self.free_s, order)


def sum_of(elements: int, place: int = 7) -> Contribution:
    return Contribution(elements, 1, 0, place)


def measured(ranks: int, carries: bool = False) -> _World:
    """After one sum of all, at time 0."""
    world = _World(ranks, carries)
    for rank in range(ranks):
        world.at(-100.0, (rank, sum_of(8 * MB, place=1)))
    world.run()
    assert [type(order) for _, order in world.orders] == [PartialGroup]
    world.orders.clear()
    return world


def check_whole(world: _World, number: int, elements: int) -> None:
    """Every rank's every element is in the result once."""
    parts = [o for _, o in world.orders if isinstance(o, PartialGroup) and o.number == number]
    caught = {o.rank: o.last for _, o in world.orders if isinstance(o, CatchUp) and o.number == number}
    assert [part.first for part in parts] == [0, *[part.last for part in parts[:-1]]]
    assert parts[-1].last == elements
    for rank in range(world.ranks):
        missed = [part.last for part in parts if rank not in part.active]
        assert caught.get(rank, 0) == max(missed, default=0)
        assert all(rank in part.active for part in parts if part.first >= caught.get(rank, 0))


def test_nothing_is_begun_without_somebody_before_anything_was_measured() -> None:
    world = _World(2)
    world.at(0.0, (0, sum_of(8 * MB)))
    world.run()
    assert not world.orders
    world.at(1e6, (1, sum_of(8 * MB)))
    world.run()
    assert [order for _, order in world.orders] == [
        PartialGroup(0, sum_of(8 * MB), 0, 8 * MB, frozenset({0, 1}))
    ]


def test_three_of_four_begin_when_waiting_has_taken_what_the_fourth_will_cost() -> None:
    """A part of 1 MB: without the last rank 1.5 and 1 s later, with all 1.5 s: it begins after 1 s, the next after 2."""
    world = measured(4)
    unit, elements = MB * 1e-6, 32 * MB
    for rank in range(3):
        world.at(0.0, (rank, sum_of(elements)))
    world.at(4.9 * unit, (3, sum_of(elements)))
    world.run()
    check_whole(world, 1, elements)
    when = [(round(at / unit, 3), type(o).__name__, o.size_bytes // MB) for at, o in world.orders]  # type: ignore[union-attr]
    assert when == [
        (1.0, "PartialGroup", 1), (2.0, "PartialGroup", 1), (3.0, "PartialGroup", 1), (4.0, "PartialGroup", 1),
        (4.9, "CatchUp", 4), (4.9, "PartialGroup", 28),
    ]  # fmt: skip


def test_a_lone_rank_waits_longer_and_begins_too() -> None:
    world = measured(4)
    unit = MB * 1e-6
    world.at(0.0, (2, sum_of(8 * MB)))
    for rank in (0, 1, 3):
        world.at(100 * unit, (rank, sum_of(8 * MB)))
    world.run()
    check_whole(world, 1, 8 * MB)
    assert world.orders[0][0] == pytest.approx(1.5 * unit), (
        "three others would have to catch up, of half a megabyte"
    )


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_whoever_comes_when_nothing_is_lost_or_added_twice(data: st.DataObject) -> None:
    ranks, sums = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 6))
    world = measured(ranks)
    sizes = [data.draw(st.sampled_from([1, 70_000, 3 * MB, 8 * MB, 20 * MB + 3])) for _ in range(sums)]
    for rank in range(ranks):
        at_s = 0.0
        for size in sizes:
            at_s += data.draw(st.sampled_from([0.0, 0.001, 2.0, 9.0, 60.0]))
            world.at(at_s, (rank, sum_of(size)))
    world.run()
    for number, size in enumerate(sizes, 1):
        check_whole(world, number, size)
    assert max(_at_once(world, ranks)) <= AT_ONCE


def _at_once(world: _World, ranks: int) -> list[int]:
    """Parts without everybody that are under way whenever one begins, at most one after the other on the link."""
    free_s, ends, found = 0.0, list[float](), [0]
    for at_s, order in world.orders:
        whole = isinstance(order, PartialGroup) and len(order.active) == ranks
        each = CAUGHT_S if isinstance(order, CatchUp) else FULL_S if whole else PARTIAL_S
        free_s = max(free_s, at_s) + each * order.size_bytes  # type: ignore[union-attr]
        if isinstance(order, PartialGroup) and not whole:
            ends = [end for end in ends if end > at_s]
            ends.append(free_s)
            found.append(len(ends))
    return found


def arriving(arrivals_s: list[float], elements: int) -> _World:
    """Each rank at its time, after one sum of all."""
    world = measured(len(arrivals_s))
    for rank, at_s in enumerate(arrivals_s):
        world.at(at_s, (rank, sum_of(elements)))
    return world


@settings(deadline=None)
@given(st.lists(st.floats(0, 60), min_size=2, max_size=5))
def test_all_parts_together_cost_no_more_than_the_wait(arrivals_s: list[float]) -> None:
    """By the costs that were known when each began, those of the start: nothing else is measured before they end."""
    ranks = len(arrivals_s)
    world = arriving(arrivals_s, 8 * MB)
    full, caught = FULL_S * MB, FULL_S * MB * ranks / (2 * (ranks - 1))
    world.coordinator.costs = Fixed([full, full, caught])  # type: ignore[assignment]
    world.run()
    spent_s = 0.0
    for at_s, order in world.orders:
        if isinstance(order, PartialGroup) and len(order.active) < ranks:
            spent_s += caught * (ranks - len(order.active)) * order.size_bytes / MB
            assert spent_s <= at_s - min(arrivals_s) + 1e-6


class Fixed:
    """Costs that do not change."""

    def __init__(self, seconds: list[float]) -> None:
        """Of a megabyte of each kind."""
        self._seconds = seconds

    def begin(self, now_s: float) -> None:
        pass

    def end(self, kind: int, size_bytes: float, now_s: float) -> None:
        pass

    def seconds(self, kind: int, size_bytes: float) -> float:
        return self._seconds[kind] * size_bytes / MB


@settings(deadline=None)
@given(st.lists(st.floats(0, 60), min_size=2, max_size=5))
def test_one_part_costs_at_most_twice_what_anybody_pays(arrivals_s: list[float]) -> None:
    """A sum of one part: begun as a whole, or once without some."""
    ranks = len(arrivals_s)
    world = arriving(arrivals_s, MB)
    world.run()
    full, caught = FULL_S * MB, FULL_S * MB * ranks / (2 * (ranks - 1))  # all that is known when it begins
    partial = [PARTIAL_S * MB + caught * late for late in range(ranks - 1, 0, -1)]
    costs = WaitingCosts(full, tuple(partial))
    first = world.orders[0]
    assert isinstance(first[1], PartialGroup)
    begun_s = first[0] - min(arrivals_s)
    active = len(first[1].active)
    paid_s = begun_s + (full if active == ranks else partial[active - 1])
    assert paid_s <= 2 * clairvoyant_s(arrivals_s, costs) * (1 + 1e-6) + 1e-6


def test_carried_over_nobody_sends_what_came_too_late() -> None:
    world = measured(2, carries=True)
    for at_s, rank in ((0.0, 0), (50.0, 1)):
        world.at(at_s, (rank, sum_of(8 * MB, place=10 + rank)))
    for at_s, rank in ((20.0, 0), (90.0, 1)):  # without the other one again? No: it is owed
        world.at(at_s, (rank, sum_of(8 * MB, place=10 + rank)))
    world.at(21.0, (0, sum_of(8 * MB, place=20)))
    world.at(95.0, (1, sum_of(8 * MB, place=21)))
    world.run()
    assert not any(isinstance(order, CatchUp) for _, order in world.orders)
    active = {
        n: {tuple(sorted(o.active)) for _, o in world.orders if isinstance(o, PartialGroup) and o.number == n}
        for n in (1, 2, 3)
    }
    assert active == {1: {(0,)}, 2: {(0, 1)}, 3: {(0,)}}


def test_carried_over_who_missed_those_that_came_after_it_is_waited_for() -> None:
    """Rank 0 begins alone, 1 comes next: where 2 was not there, what 1 had is owed, too."""
    world = measured(3, carries=True)
    for at_s, rank in ((0.0, 0), (50.0, 1), (51.0, 2)):
        world.at(at_s, (rank, sum_of(8 * MB, place=10 + rank)))
    for at_s, rank in ((90.0, 1), (140.0, 2), (141.0, 0)):
        world.at(at_s, (rank, sum_of(8 * MB, place=10 + rank)))
    world.run()
    parts = {n: [o for _, o in world.orders if isinstance(o, PartialGroup) and o.number == n] for n in (1, 2)}
    assert parts[1][0].active == {0}
    assert parts[2][0].active == {1, 2}, "who was always there may be left out"


def test_who_brings_another_tensor_is_named() -> None:
    world = _World(3)
    for rank in range(3):
        world.at(float(rank), (rank, sum_of(100 + (rank == 1))))
    world.run()
    assert world.orders == [(1.0, TensorMismatch(0, 1))]
    for rank in range(3):
        world.at(5.0, (rank, sum_of(100)))
    world.run()
    assert world.orders[1:] == [(5.0, PartialGroup(1, sum_of(100), 0, 100, frozenset({0, 1, 2})))], (
        "the next one is counted alike"
    )


@given(st.integers(1, 70), st.integers(0, 2**40), st.data())
def test_words_come_back_as_they_were(ranks: int, number: int, data: st.DataObject) -> None:
    given_ = Contribution(
        data.draw(st.integers(0, 2**50)), data.draw(st.integers(1, 16)), data.draw(st.integers(0, 200)), 0
    )
    active = frozenset(data.draw(st.sets(st.integers(0, ranks - 1), min_size=1)))
    orders: list[Order] = [
        PartialGroup(number, given_, 5, 2**45, active, 2**33), CatchUp(number, given_, ranks - 1, 9, 7),
        TensorMismatch(number, ranks - 1),
    ]  # fmt: skip
    for order in orders:
        word = encode(order, ranks)
        assert len(word) == order_bytes(ranks) and decode(word) == order
    assert decode_given(encode_given(given_)) == given_
