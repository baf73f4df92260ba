"""When a group measures again: ranks agree on the moment, and changes bring it forward."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from endpoints import connected
from hemiola.run.group import refresh
from hemiola.run.group.refresh import EVERY, EVERY_BYTES, Refresh
from hemiola.run.transport import Endpoint


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(refresh, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def measuring(ends: list[Endpoint], clock: list[float], seconds: float) -> list[Refresh]:
    """Ranks that have measured, which takes so long."""

    def renew() -> None:
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
        clock[0] += 11.0  # a hundred times what measuring takes, and more
        assert turns(ranks, EVERY_BYTES, 2) == [[False] * 3, [True] * 3]
        for one in ranks:
            one.measure()
        assert turns(ranks, 1, 3 * EVERY) == [[False] * 3] * (3 * EVERY)
        clock[0] += 11.0
        assert [any(row) for row in turns(ranks, 1, 2 * EVERY)] == [False] * (2 * EVERY - 1) + [True]


@pytest.mark.parametrize("factor", [1.5, 0.6])
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
