"""Small all-reduces: the same bits on all ranks, whatever their number, and an end for all where one is lost."""

from __future__ import annotations

import socket
import threading

import pytest
import torch
from endpoints import connected
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import patience

from hemiola.comm.process_group import worker
from hemiola.comm.process_group.collectives import Channel, Doubling
from hemiola.comm.process_group.worker import LossWatch
from hemiola.comm.transport import loop


class Rank:
    """One rank's side; what its collectives ended with, in their order."""

    def __init__(self, end) -> None:
        self.end, self.side, self.watch = end, Doubling(end.rank, end.ranks), LossWatch(end)
        self.problems: list[BaseException | None] = []
        self._ended = threading.Semaphore(0)

    def reduce(self, tensor: torch.Tensor, tag: int = 0) -> None:
        self.channel = Channel(self.end, self.end.rank, self.end.ranks, tag, 10.0)
        self.watch.begin(
            self._over,
            lambda ended: self.side.all_reduce(self.channel, tensor, lambda a, b: a.add_(b), ended),
        )

    def _over(self, problem: BaseException | None) -> None:
        self.problems.append(problem)
        self._ended.release()

    def wait(self) -> BaseException | None:
        assert self._ended.acquire(timeout=patience(20)), "it never ended"
        return self.problems[-1]


def paired(sums: list[torch.Tensor]) -> torch.Tensor:
    """What the ranks must arrive at, to the bit: those beyond a power of two first, then pairs of neighbours."""
    power = 1 << len(sums).bit_length() - 1
    sums = [
        one + sums[power + rank] if power + rank < len(sums) else one for rank, one in enumerate(sums[:power])
    ]
    while len(sums) > 1:
        sums = [low + high for low, high in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 7, 8])
def test_all_ranks_have_the_same_bits(ranks):
    generator = torch.Generator().manual_seed(ranks)
    with connected(ranks) as ends:
        sides = [Rank(end) for end in ends]
        for tag in range(0, 20, 2):
            given = [torch.randn(33, generator=generator) * 10.0 ** (rank - 3) for rank in range(ranks)]
            wanted = paired(given)
            results = [tensor.clone() for tensor in given]
            for side in reversed(sides) if tag % 4 else sides:
                side.reduce(results[side.end.rank], tag)
            assert [side.wait() for side in sides] == [None] * ranks
            assert all(torch.equal(result, wanted) for result in results)


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(2, 6))
def test_several_under_way_are_not_confused(data, ranks):
    values = data.draw(
        st.lists(st.lists(st.integers(-9, 9), min_size=ranks, max_size=ranks), min_size=1, max_size=4)
    )
    with connected(ranks) as ends:
        sides = [Rank(end) for end in ends]
        results = [[torch.tensor([one[side.end.rank]]) for one in values] for side in sides]
        for side in data.draw(st.permutations(sides)):
            for number, tensor in enumerate(results[side.end.rank]):
                side.reduce(tensor, 2 * number)
        for side in sides:
            assert [side.wait() for _ in values] == [None] * len(values)
    assert [[int(tensor) for tensor in rank] for rank in results] == [[sum(one) for one in values]] * ranks


def test_nothing_at_all_can_be_added_up():
    with connected(3) as ends:
        sides = [Rank(end) for end in ends]
        for side in sides:
            side.reduce(torch.empty(0))
        assert [side.wait() for side in sides] == [None] * 3


def cut(end) -> None:
    """As if its process had died: every connection ends without a goodbye."""
    for links in list(end._loop._links.values()):
        for link in links:
            link.sock.shutdown(socket.SHUT_RDWR)


def test_a_lost_rank_ends_it_on_all_ranks_also_where_nobody_awaits_it(monkeypatch):
    monkeypatch.setattr(worker, "GRACE_S", 0.2)
    with connected(4) as ends:
        sides = [Rank(end) for end in ends]
        for side in sides[:3]:  # rank 0 awaits 1 and 2, rank 1 awaits 0 and 3, rank 2 awaits 3 and 0
            side.reduce(torch.ones(4))
        cut(ends[3])
        assert all("rank 3" in str(side.wait()) for side in sides[:3])
        sides[0].reduce(torch.ones(4), 2)  # what is begun after it ends, too
        assert "rank 3" in str(sides[0].wait())


def test_what_can_still_be_completed_is_where_a_rank_is_lost_after_its_part():
    with connected(4) as ends:
        sides = [Rank(end) for end in ends]
        result = [torch.full((4,), float(rank)) for rank in range(4)]
        for rank in (1, 3):
            sides[rank].reduce(result[rank])
        sides[2].reduce(result[2])
        sides[0].reduce(result[0])
        assert sides[3].wait() is None
        sides[3].channel.finish()
        cut(ends[3])
        assert [side.wait() for side in sides[:3]] == [None] * 3
        assert all(torch.equal(one, torch.full((4,), 6.0)) for one in result)


def test_a_process_that_ends_sends_first_what_the_others_need():
    """What rank 0 needs lies there already: it has its result while its own message is still to be sent."""
    with connected(2) as ends:
        sides = [Rank(end) for end in ends]
        sides[1].reduce(torch.ones(4))
        behind = ends[0].receive(1, 99, bytearray(1))
        ends[1].send(0, 99, b"x")
        behind.wait()
        held, go_on = threading.Event(), threading.Event()
        ends[0].call(lambda: (held.set(), go_on.wait()))
        assert held.wait(20)
        sides[0].reduce(torch.ones(4))
        assert sides[0].wait() is None
        threading.Timer(0.1, go_on.set).start()
        loop._send_last()
        cut(ends[0])
        assert sides[1].wait() is None


def test_what_cannot_be_joined_ends_with_its_reason():
    with connected(2) as ends:
        sides = [Rank(end) for end in ends]
        channels = [Channel(end, end.rank, 2, 0, 10.0) for end in ends]

        def fail(_a, _b) -> None:
            raise ValueError("these cannot be added")

        for side, channel in zip(sides, channels, strict=True):
            side.side.all_reduce(channel, torch.ones(2), fail, side._over)
        assert all("cannot be added" in str(side.wait()) for side in sides)
