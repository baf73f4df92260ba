"""When a group measures again: ranks agree on the moment, and changes bring it forward."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from endpoints import connected

from hemiola.comm.process_group import fitted
from hemiola.comm.process_group.fitted import EVERY, EVERY_BYTES, Refresh
from hemiola.comm.transport import Endpoint


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(fitted, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def measuring(ends: list[Endpoint], clock: list[float], seconds: float) -> list[Refresh]:
    """Ranks that have measured, which takes so long."""

    def renew(slower: float) -> None:
        clock[0] += seconds

    ranks = [Refresh(end, 10.0, renew) for end in ends]
    for one in ranks:
        one.measure()
    return ranks


def turns(ranks: list[Refresh], size_bytes: int, count: int) -> list[list[bool]]:
    return [[one.due(size_bytes) for one in ranks] for _ in range(count)]


def test_all_ranks_measure_before_the_same_collective_one_turn_after_the_word(clock: list[float]) -> None:
    with connected(3) as ends:
        ranks = measuring(ends, clock, 0.1)
        assert turns(ranks, EVERY_BYTES, 3) == [[False] * 3] * 3
        clock[0] += 21.0  # a hundred times what measuring again is taken to take, and more
        assert turns(ranks, EVERY_BYTES, 2) == [[False] * 3, [True] * 3]
        for one in ranks:
            one.measure()
        assert turns(ranks, 1, 3 * EVERY) == [[False] * 3] * (3 * EVERY)
        clock[0] += 11.0
        assert [any(row) for row in turns(ranks, 1, 2 * EVERY)] == [False] * (2 * EVERY - 1) + [True]


@pytest.mark.parametrize("factor", [1.35, 0.6])
def test_collectives_that_have_become_slower_or_faster_bring_it_forward(
    clock: list[float], factor: float
) -> None:
    with connected(2) as ends:
        ranks = measuring(ends, clock, 1.0)
        for _ in range(5):
            ranks[0].took("all-reduce", 1 << 20, 0.1)
        clock[0] += 5.0
        assert not any(map(any, turns(ranks, EVERY_BYTES, 3)))
        ranks[0].took("all-reduce", 1 << 20, 0.1 * factor)
        assert not any(map(any, turns(ranks, EVERY_BYTES, 3))), "once may be chance"
        ranks[0].took("all-reduce", 1 << 20, 0.1 * factor)
        assert turns(ranks, EVERY_BYTES, 2) == [[False] * 2, [True] * 2]


def test_what_comes_right_after_measuring_is_not_what_is_usual(clock: list[float]) -> None:
    """TCP finds its rates again; and a change among the first ones is noticed all the same."""
    with connected(2) as ends:
        ranks = measuring(ends, clock, 0.1)
        for seconds in (0.05, 0.12, 0.1, 0.11, 0.11, 0.12, 0.1):
            ranks[0].took("all-reduce", 1 << 20, seconds)
        clock[0] += 1.0
        assert not any(map(any, turns(ranks, EVERY_BYTES, 3)))
        for one in ranks:
            one.measure()
        for seconds in (0.1, 0.1, 0.3, 0.3, 0.3):
            ranks[0].took("all-reduce", 1 << 20, seconds)
        clock[0] += 1.0
        assert turns(ranks, EVERY_BYTES, 2) == [[False] * 2, [True] * 2]


def test_one_that_is_much_slower_is_enough_and_says_how_much(clock: list[float]) -> None:
    with connected(2) as ends:
        told: list[float] = []
        ranks = [Refresh(end, 10.0, told.append) for end in ends]
        for one in ranks:
            one.measure()
        for seconds in (0.1, 0.1, 0.1, 0.1, 0.4):
            ranks[0].took("all-reduce", 1 << 20, seconds)
        clock[0] += 1.0
        assert turns(ranks, EVERY_BYTES, 2) == [[False] * 2, [True] * 2]
        ranks[0].measure()
        assert told == [1.0, 1.0, pytest.approx(4.0)]


def test_what_is_slower_again_and_again_is_measured_less_and_less_often(clock: list[float]) -> None:
    """A rank that is late in every third step, of 0.2 s, is no change of the network."""
    with connected(2) as ends:
        ranks = measuring(ends, clock, 0.1)
        measured = []
        begun_s = clock[0]
        for number in range(600):
            if any(due := [one.due(EVERY_BYTES) for one in ranks]):
                assert all(due)
                measured.append(clock[0] - begun_s)
                clock[0] -= 0.1  # both measure at the same time
                for one in ranks:
                    one.measure()
            seconds = 0.2 if number % 3 else 0.5
            clock[0] += seconds
            ranks[0].took("all-reduce", 1 << 20, seconds)
        total_s = clock[0] - begun_s
        assert measured[0] < 3.0 and len(measured) < 5 + total_s / 9.0
        late = [since for since in measured if since > 30.0]
        assert min(b - a for a, b in itertools.pairwise(late)) > 9.0
        clock[0] += 60.0
        for seconds in (0.2, 0.2, 0.2, 0.2, 0.5):
            ranks[0].took("all-reduce", 2 << 20, seconds)
        assert turns(ranks, EVERY_BYTES, 2) == [[False] * 2, [True] * 2]
