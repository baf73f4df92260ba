"""All-reduces whose shares follow the network: the right sums in every rank's order, and when they begin and end."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from endpoints import connected

from hemiola.comm.process_group import balanced as module
from hemiola.comm.process_group import fitted
from hemiola.comm.process_group.balanced import STEADY_S, Balanced, Turn
from hemiola.comm.process_group.fitted import EVERY_BYTES, Refresh
from hemiola.comm.schedule_executor.flow import Meter
from hemiola.comm.schedule_executor.runner import Runner
from hemiola.comm.transport import Endpoint
from hemiola.core.collective.shapes import ring

EQUAL = [1e9] * 3


class Rank:
    """One of them."""

    def __init__(self, end: Endpoint, rates: list[float] | None) -> None:
        self.end = end
        meter = Meter(end)
        self.runner = Runner(end, moved=meter.look)
        self.balanced = Balanced(end, self.runner, meter, lambda: rates)

    def start(self, flat: torch.Tensor) -> tuple[threading.Event, list[BaseException | None]]:
        over, problems = threading.Event(), []

        def ended(problem: BaseException | None) -> None:
            problems.append(problem)
            over.set()

        self.balanced.start(flat, torch.Tensor.add_, lambda found: None, ended)
        return over, problems


@contextmanager
def balancing(rates: list[float]) -> Iterator[list[Rank]]:
    with connected(len(rates)) as ends:
        ranks = [Rank(end, rates) for end in ends]
        for one in ranks:
            one.balanced.enter()
        yield ranks


def test_sums_are_right_and_the_same_to_the_bit_whatever_the_shares() -> None:
    torch.manual_seed(0)
    given = [torch.randn(100_003) for _ in range(4)]
    sums = []
    for rates in ([1e9] * 4, [1e9, 9e8, 2e8, 8e8]):
        with balancing(rates) as ranks:
            flats = [tensor.clone() for tensor in given]
            for over, problems in [rank.start(flat) for rank, flat in zip(ranks, flats, strict=True)]:
                assert over.wait(10) and problems == [None]
            assert all(torch.equal(flat, flats[0]) for flat in flats)
            assert torch.allclose(flats[0], sum(given), atol=1e-5)
            sums.append(flats[0])


def test_others_begin_when_the_first_rank_does_and_nobody_who_calls_waits() -> None:
    with balancing(EQUAL) as ranks:
        flats = [torch.ones(200_000) for _ in ranks]
        later = [rank.start(flat) for rank, flat in list(zip(ranks, flats, strict=True))[1:]]
        assert not any(over.wait(0.1) for over, _ in later)
        for over, _ in (*later, ranks[0].start(flats[0])):
            assert over.wait(10)
        assert all(torch.equal(flat, torch.full((200_000,), 3.0)) for flat in flats)


def test_several_at_once_and_one_by_a_schedule_among_them_end_in_order() -> None:
    with balancing(EQUAL) as ranks:
        flats = [[torch.full((100_000,), 1.0 + k) for k in range(4)] for _ in ranks]
        waiting = []
        for rank, own in reversed(list(zip(ranks, flats, strict=True))):  # the first rank comes last
            waiting += [rank.start(own[k]) for k in range(2)]
            over, problems = threading.Event(), []
            rank.runner.start(
                ring([0, 1, 2]), own[2], torch.Tensor.add_, lambda found: None,
                lambda problem, over=over, problems=problems: (problems.append(problem), over.set()),
            )  # fmt: skip
            waiting += [(over, problems), rank.start(own[3])]
        for over, problems in waiting:
            assert over.wait(10) and problems == [None]
        for own in flats:
            assert [tensor.unique().tolist() for tensor in own] == [[3.0], [6.0], [9.0], [12.0]]


def test_who_waits_for_the_first_ranks_word_is_told_that_it_is_lost() -> None:
    with balancing(EQUAL) as ranks:
        waiting = [rank.start(torch.ones(200_000)) for rank in ranks[1:]]
        ranks[0].end.close(0.0)
        for over, problems in waiting:
            assert over.wait(10)
            assert problems[0] is not None


def test_who_waits_for_the_first_ranks_word_is_told_that_another_one_is_lost() -> None:
    """The first rank's script may have ended with that, and begin no more."""
    with balancing(EQUAL) as ranks:
        before = ranks[1].start(torch.ones(200_000))
        for links in list(ranks[2].end._loop._links.values()):  # type: ignore[union-attr]
            for link in links:
                link.sock.shutdown(socket.SHUT_RDWR)
        assert before[0].wait(10)
        after = ranks[1].start(torch.ones(200_000))
        assert after[0].wait(10)
        assert all("rank 2 is gone" in str(problems) for _, problems in (before, after))


def test_a_word_that_leads_to_no_shares_is_told_to_who_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(way: object) -> None:
        raise ValueError("no shares")

    monkeypatch.setattr(module, "_schedule", nowhere)
    with balancing(EQUAL) as ranks:
        for over, problems in [rank.start(torch.ones(200_000)) for rank in ranks]:
            assert over.wait(10)
            assert [str(problem) for problem in problems] == ["no shares"]


def pacing(end: Endpoint) -> dict[int, int]:
    """How fast the kernel sends to each other rank."""
    links = end._loop._links
    paced = {peer: of[0].sock.getsockopt(socket.SOL_SOCKET, 47, 8) for peer, of in links.items()}
    return {peer: int.from_bytes(told, sys.byteorder) for peer, told in paced.items()}


def test_connections_are_held_back_while_it_goes_on_and_not_after() -> None:
    unlimited = (1 << 64) - 1
    with balancing([4e8, 4e8, 1e8]) as ranks:

        def once() -> None:
            flats = [torch.ones(100_000) for _ in ranks]
            for over, problems in [rank.start(flat) for rank, flat in zip(ranks, flats, strict=True)]:
                assert over.wait(10) and problems == [None]

        once()
        first = pacing(ranks[0].end)
        assert all(1e6 <= rate < 1e10 for rate in first.values())
        assert max(first.values()) < 1e10
        for rank in ranks:
            rank.runner.let_go()
            done = threading.Event()
            rank.end.call(done.set)
            assert done.wait(10)
        assert all(set(pacing(rank.end).values()) == {unlimited} for rank in ranks)
        once()
        assert max(pacing(ranks[0].end).values()) < 1e10
        Runner(ranks[0].end, tags=5 << 60).let_go()  # another that shares the connections knows of it
        done = threading.Event()
        ranks[0].end.call(
            lambda: (ranks[0].end.pace({2: 1e30}), done.set())
        )  # more than the kernel can be told
        assert done.wait(10)
        assert set(pacing(ranks[0].end).values()) == {unlimited}
        once()
        waits = [threading.Event() for _ in ranks]
        for rank, over in zip(ranks, waits, strict=True):
            flat = torch.ones(100_000)
            rank.runner.start(
                ring([0, 1, 2]),
                flat,
                torch.Tensor.add_,
                lambda found: None,
                lambda _, over=over: over.set(),
            )
        assert all(over.wait(10) for over in waits)
        assert all(set(pacing(rank.end).values()) == {unlimited} for rank in ranks)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    for one in (module, fitted):
        monkeypatch.setattr(one, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_what_was_measured_is_followed_until_all_is_steady(clock: list[float]) -> None:
    with connected(3) as ends:
        ranks = [Rank(end, EQUAL) for end in ends]
        measured: list[float] = []
        turning = [Refresh(rank.end, 10.0, measured.append, rank.balanced, follows=True) for rank in ranks]
        for one in turning:
            one.measure()

        def due() -> set[Turn]:
            return {one.due(EVERY_BYTES) for one in turning}

        assert [due(), due()] == [{Turn.NOTHING}, {Turn.BALANCE}]
        for rank, one in zip(ranks, turning, strict=True):
            rank.balanced.enter()
            one.learn()
        assert [due(), due(), due()] == [{Turn.NOTHING}] * 3
        ranks[0].balanced._seen.rates[2] = 1e8
        clock[0] += STEADY_S + 1.0
        assert [due(), due()] == [{Turn.NOTHING}, {Turn.MEASURE}]


@pytest.mark.parametrize("other", ["", "all-gather"])
def test_a_network_that_changes_is_followed_from_then_on_unless_others_than_all_reduces_need_it(
    clock: list[float], other: str
) -> None:
    with connected(3) as ends:
        ranks = [Rank(end, EQUAL) for end in ends]
        turning = [Refresh(rank.end, 10.0, lambda slower: None, rank.balanced) for rank in ranks]
        for one in turning:
            one.measure()

        def due() -> set[Turn]:
            return {one.due(EVERY_BYTES) for one in turning}

        for seconds in (0.1, 0.1, 0.1, 0.1, 0.1):
            for kind in {"all-reduce", other or "all-reduce"}:
                turning[0].took(kind, 1 << 20, seconds)
        clock[0] += 1.0
        assert [due(), due()] == [{Turn.NOTHING}] * 2
        turning[0].took("all-reduce", 1 << 20, 0.4)
        assert [due(), due()] == [{Turn.NOTHING}, {Turn.MEASURE if other else Turn.BALANCE}]
        if other:
            return
        for rank, one in zip(ranks, turning, strict=True):
            rank.balanced.enter()
            one.learn()
        clock[0] += STEADY_S + 1.0
        assert [due(), due()] == [{Turn.NOTHING}, {Turn.MEASURE}]
        for rank, one in zip(ranks, turning, strict=True):
            rank.balanced.leave()
            one.measure()
        assert [due() for _ in range(4)] == [{Turn.NOTHING}] * 4, "steady: by what was measured"


def test_a_network_that_changes_soon_again_is_followed_for_longer(clock: list[float]) -> None:
    with connected(3) as ends:
        first = Rank(ends[0], EQUAL).balanced
        waits = []
        for _ in range(7):
            first.enter()
            first._seen.rates[0] = 5e8
            begun = clock[0]
            while first.turn() == Turn.NOTHING:
                clock[0] += 1.0
            assert first.turn() == Turn.MEASURE
            waits.append(round(clock[0] - begun))
            first.leave()
            clock[0] += 1.0
        assert waits[1:4] == [21, 41, 81] and waits[-1] == waits[-2] == 161
        clock[0] += 3600.0
        first.enter()
        assert first._steady_s == STEADY_S


def test_where_shares_do_not_help_the_network_is_measured(clock: list[float]) -> None:
    with connected(2) as ends:
        ranks = [Rank(end, None) for end in ends]
        turning = [Refresh(rank.end, 10.0, lambda slower: None, rank.balanced) for rank in ranks]
        for one in turning:
            one.measure()
        for seconds in (0.1, 0.1, 0.1, 0.1, 0.4):
            turning[0].took("all-reduce", 1 << 20, seconds)
        clock[0] += 1.0
        found = [{one.due(EVERY_BYTES) for one in turning} for _ in range(2)]
        assert found == [{Turn.NOTHING}, {Turn.MEASURE}]
