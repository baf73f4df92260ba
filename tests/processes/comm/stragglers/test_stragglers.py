"""Sums that begin without late ranks, over real connections."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeGuard

import msgspec
import pytest
import torch
from endpoints import connected, together
from patience import patience

from hemiola.comm.process_group.memory import REDUCTIONS, Reduction
from hemiola.comm.stragglers.all_reduce import Choose, Stragglers
from hemiola.comm.stragglers.coordinator import PART_BYTES, CatchUp, Order, PartialGroup
from hemiola.comm.transport import Endpoint
from hemiola.core.collective.schedule import Collective, CollectiveSchedule, SendRate
from hemiola.core.collective.shapes import chain, trees
from hemiola.core.errors import HemiolaError, InputError

SUM = REDUCTIONS[0]


def _usual(kind: Collective, size_bytes: int, root: int, epoch: int | None) -> CollectiveSchedule | None:
    return None


def straggling(end: Endpoint, carries: bool, choose: Choose = _usual, epoch: int = 0) -> Stragglers:
    return Stragglers(end, choose, lambda: epoch, 10.0, carries, lambda size, seconds: None)


@contextmanager
def groups(
    count: int, carries: bool = False, choose: Choose = _usual, epoch: int = 0
) -> Iterator[list[Stragglers]]:
    with connected(count) as ends:
        ranks = [straggling(end, carries, choose, epoch) for end in ends]
        yield ranks
        for one in ranks:
            one.close()


class _Sum:
    """What one rank gets."""

    def __init__(self, rank: Stragglers, tensor: torch.Tensor, how: Reduction = SUM) -> None:
        self.tensor = tensor
        self.result = torch.empty(0)
        self.problem: BaseException | None = None
        self._over = threading.Event()
        rank.start(tensor, how, self._put, self._ended)

    def _put(self, flat: torch.Tensor) -> None:
        self.result = flat.clone()

    def _ended(self, problem: BaseException | None) -> None:
        self.problem = problem
        self._over.set()

    def get(self, timeout_s: float = 20.0) -> torch.Tensor:
        assert self._over.wait(timeout_s), "never ended"
        if self.problem is not None:
            raise self.problem
        return self.result

    @property
    def is_over(self) -> bool:
        return self._over.is_set()


def inputs(ranks: int, elements: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(elements, generator=generator) * 10.0**rank for rank in range(ranks)]


def sums(
    ranks: Sequence[Stragglers], tensors: Sequence[torch.Tensor], delays_s: Sequence[float]
) -> list[_Sum]:
    """Of all ranks, each of which comes so late."""
    found: dict[int, _Sum] = {}
    start_s = time.monotonic()
    for rank in sorted(range(len(ranks)), key=delays_s.__getitem__):
        time.sleep(max(0.0, start_s + delays_s[rank] - time.monotonic()))
        found[rank] = _Sum(ranks[rank], tensors[rank].clone())
    return [found[rank] for rank in range(len(ranks))]


LATE = {
    "nobody": (0, 0, 0, 0),
    "the last": (0, 0, 0, 0.3),
    "the first": (0.3, 0, 0, 0),
    "two, one after the other": (0.3, 0, 0.6, 0),
    "two at once": (0, 0.3, 0.3, 0),
    "all but one": (0.3, 0.32, 0, 0.34),
}


@pytest.mark.parametrize(
    "schedule", [None, trees([[-1, 0, 0, 1], [1, 3, 3, -1]], [0.3, 0.7])], ids=["ring", "trees"]
)
@pytest.mark.parametrize("late", LATE)
def test_whoever_is_late_all_ranks_have_the_same_whole_sum(
    late: str, schedule: CollectiveSchedule | None
) -> None:
    def choose(kind: Collective, size_bytes: int, root: int, epoch: int | None) -> CollectiveSchedule | None:
        return schedule if kind == "all-reduce" else None

    with groups(4, choose=choose) as ranks:
        for one in sums(ranks, inputs(4, 300_000), (0, 0, 0, 0)):
            one.get()  # a sum of all is measured first
        given = inputs(4, 1_000_003, seed=1)
        found = [one.get() for one in sums(ranks, given, LATE[late])]
        for other in found[1:]:
            assert torch.equal(found[0].view(torch.int32), other.view(torch.int32)), "other bits"
        assert torch.allclose(found[0], torch.stack(given).double().sum(0).float(), atol=2e-3, rtol=1e-5)


@pytest.mark.parametrize("late", ["nobody", "the last", "the first"])
def test_orders_go_by_the_schedules_of_the_first_ranks_epoch(late: str) -> None:
    asked: set[int | None] = set()

    def choose(kind: Collective, size_bytes: int, root: int, epoch: int | None) -> CollectiveSchedule | None:
        asked.add(epoch)
        return None

    with groups(4, choose=choose, epoch=3) as ranks:
        for _ in range(2):
            given = inputs(4, 1_000_003)
            for one in sums(ranks, given, LATE[late]):
                assert torch.allclose(one.get(), torch.stack(given).sum(0), atol=2e-3, rtol=1e-5)
    assert asked == {3}


def test_sums_of_whole_numbers_are_exact_and_their_order_is_kept() -> None:
    """Twelve at once; the last rank comes to each of them late."""
    with groups(3) as ranks:
        for one in sums(ranks, inputs(3, 300_000), (0, 0, 0)):
            one.get()
        given = [
            [torch.arange(400_000 + n, dtype=torch.int64) * (r + 1) + n for r in range(3)] for n in range(12)
        ]
        early = [[_Sum(ranks[r], given[n][r].clone()) for n in range(12)] for r in range(2)]
        time.sleep(0.3)
        late = [_Sum(ranks[2], given[n][2].clone()) for n in range(12)]
        for n in range(12):
            total = torch.stack(given[n]).sum(0)
            for row in (*early, late):
                assert torch.equal(row[n].get(), total)


@pytest.mark.parametrize("how", REDUCTIONS, ids=lambda how: how.name)
def test_every_reduction(how: Reduction) -> None:
    """Averages are divided by who asks for them."""
    with groups(3) as ranks:
        for one in sums(ranks, inputs(3, 300_000), (0, 0, 0)):
            one.get()
        generator = torch.Generator().manual_seed(3)
        given = [torch.randint(1, 9, (400_000,), generator=generator) for _ in range(3)]
        found = [_Sum(ranks[rank], given[rank].clone(), how) for rank in (0, 1)]
        time.sleep(0.2)
        found.append(_Sum(ranks[2], given[2].clone(), how))
        right = given[0].clone()
        for other in given[1:]:
            how.join(right, other)
        assert all(torch.equal(one.get(), right) for one in found)


def test_the_ready_ones_begin_without_the_late_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen at the first rank's orders: parts of three, then what the fourth gives."""
    with groups(4) as ranks:
        for one in sums(ranks, inputs(4, 300_000), (0, 0, 0, 0)):
            one.get()
        orders: list[Order] = []
        ended = ranks[0]._coordinator.ended  # type: ignore[union-attr]
        whole = threading.Event()

        def seen(order: Order, now_s: float) -> list[Order]:
            orders.append(order)
            if isinstance(order, PartialGroup) and order.last == 3_000_000:
                whole.set()
            return ended(order, now_s)

        monkeypatch.setattr(ranks[0]._coordinator, "ended", seen)
        given = inputs(4, 3_000_000)
        found = [_Sum(ranks[rank], given[rank]) for rank in range(3)]
        assert whole.wait(patience(20))
        found.append(_Sum(ranks[3], given[3]))
        for one in found:
            one.get()
        until = time.monotonic() + patience(20)
        while not any(map(_is_of_the_fourth, orders)) and time.monotonic() < until:
            time.sleep(0.01)
    parts = [order for order in orders if isinstance(order, PartialGroup)]
    assert len(parts) == -(-3_000_000 // (PART_BYTES // 4)), "these are all of it"
    assert not any(3 in part.active for part in parts)
    assert parts[-1].active == {0, 1, 2}, "one of them may come late to the first ones"
    assert [order.last for order in filter(_is_of_the_fourth, orders)] == [3_000_000]


def _is_of_the_fourth(order: Order) -> TypeGuard[CatchUp]:
    return isinstance(order, CatchUp) and order.rank == 3


def filled(tensor: torch.Tensor, value: float) -> torch.Tensor:
    with torch.inference_mode():
        return tensor.fill_(value)


@pytest.mark.parametrize("inferring", [False, True])
def test_what_comes_too_late_is_carried_over_to_the_next_sum_of_the_same_tensor(inferring: bool) -> None:
    with groups(3, carries=True) as ranks:
        with torch.inference_mode(inferring):
            tensors = [torch.full((400_000,), float(10**rank)) for rank in range(3)]
        for one in [_Sum(ranks[rank], tensors[rank]) for rank in range(3)]:
            assert torch.equal(one.get(), torch.full((400_000,), 111.0))
        alone = torch.full((400_000,), 1.0)
        assert torch.equal(_Sum(ranks[0], filled(tensors[0], 1.0)).get(), alone), "it waits for nobody"
        late = [_Sum(ranks[rank], filled(tensors[rank], 10.0**rank)) for rank in (1, 2)]
        assert all(torch.equal(one.get(), alone) for one in late), "all have the same result"
        again = [_Sum(ranks[rank], filled(tensors[rank], 10.0**rank)) for rank in range(3)]
        assert all(torch.equal(one.get(), torch.full((400_000,), 221.0)) for one in again)


def test_what_came_too_late_is_not_added_to_another_tensor_in_its_memory() -> None:
    with groups(2, carries=True) as ranks:
        tensors = [torch.ones(400_000), torch.ones(400_000)]
        for one in [_Sum(ranks[rank], tensors[rank]) for rank in range(2)]:
            one.get()
        assert torch.equal(_Sum(ranks[0], tensors[0].fill_(1)).get(), torch.ones(400_000))
        late = torch.ones(400_000)
        memory, place = weakref.ref(late.untyped_storage()), late.data_ptr()
        assert torch.equal(_Sum(ranks[1], late).get(), torch.ones(400_000))
        del late
        others = [torch.zeros(100_000), torch.zeros(100_000)]
        for one in [
            _Sum(ranks[rank], others[rank]) for rank in range(2)
        ]:  # and its thread lets go of it, too
            one.get()
        assert memory() is None
        held = []
        while not held or (held[-1].data_ptr() != place and len(held) < 20):
            held.append(torch.zeros(400_000))
        for one in [_Sum(ranks[0], tensors[0].zero_()), _Sum(ranks[1], held[-1])]:
            assert torch.equal(one.get(), torch.zeros(400_000))


def test_what_comes_too_late_of_tensors_that_are_given_up_takes_no_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with groups(2, carries=True) as ranks:
        tensors = [torch.ones(400_000), torch.ones(400_000)]
        for one in [_Sum(ranks[rank], tensors[rank]) for rank in range(2)]:
            one.get()
        elsewhere = [torch.ones(400_000) for _ in range(10)]  # each time: else the late one is waited for
        for on_time in elsewhere:
            assert torch.equal(_Sum(ranks[0], on_time).get(), torch.ones(400_000))
            assert torch.equal(_Sum(ranks[1], torch.ones(400_000)).get(), torch.ones(400_000))
            assert len(ranks[1]._kept) <= 2, "of this one, and of one that its thread still had"
        assert "sums are of other tensors each time" in caplog.text


def test_a_late_rank_has_its_result_though_the_others_have_left() -> None:
    with connected(2) as ends:
        ranks = [straggling(end, carries=True) for end in ends]
        tensors = [torch.ones(400_000), torch.ones(400_000)]
        for one in [_Sum(ranks[rank], tensors[rank]) for rank in range(2)]:
            one.get()
        assert torch.equal(_Sum(ranks[0], tensors[0].fill_(1)).get(), torch.ones(400_000))
        until = time.monotonic() + patience(20)
        while _relayed(ranks[1]) < 400_000 and time.monotonic() < until:
            time.sleep(0.01)
        ranks[0].close()
        together(lambda end: end.close(), [ends[0]])
        until = time.monotonic() + patience(20)
        while ranks[1]._broken is None and time.monotonic() < until:
            time.sleep(0.01)
        assert torch.equal(_Sum(ranks[1], tensors[1].fill_(1)).get(), torch.ones(400_000))
        with pytest.raises(HemiolaError):
            _Sum(ranks[1], tensors[1]).get()
        ranks[1].close()
        with pytest.raises(HemiolaError):
            _Sum(ranks[1], tensors[1]).get()


def test_a_rank_that_is_done_first_may_leave_before_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hemiola.comm.stragglers.all_reduce.GRACE_S", 0.1)
    slow = msgspec.structs.replace(trees([chain([2, 1, 0])]), paces=(SendRate(1, 0, 3e6),))

    def choose(kind: Collective, size_bytes: int, root: int, epoch: int | None) -> CollectiveSchedule | None:
        return slow if kind == "all-reduce" else None

    with connected(3) as ends:
        ranks = [straggling(end, False, choose) for end in ends]
        found = [_Sum(one, torch.ones(800_000)) for one in ranks]
        found[2].get()
        ranks[2].close()
        ends[2].close()
        assert not found[0].is_over
        for one in found[:2]:
            assert torch.equal(one.get(), torch.full((800_000,), 3.0))
        with pytest.raises(HemiolaError, match="rank 2 has closed its transport"):
            _Sum(ranks[0], torch.ones(400_000)).get()
        for one in ranks[:2]:
            one.close()


def _relayed(rank: Stragglers) -> int:
    """Elements of results that this rank has, and has not come to."""
    done = [
        part for this in list(rank._sums.values()) for part, step in list(this._parts.items()) if step.done
    ]
    return sum(part.last - part.first for part in done)


def test_nobody_is_left_out_twice_in_a_row() -> None:
    with groups(2, carries=True) as ranks:
        first, second = torch.ones(400_000), torch.ones(400_000)
        for one in [_Sum(ranks[0], first), _Sum(ranks[1], second)]:
            assert torch.equal(one.get(), torch.full((400_000,), 2.0))
        for _ in range(3):
            assert torch.equal(_Sum(ranks[0], first.fill_(1)).get(), torch.ones(400_000))
            waits = _Sum(ranks[0], first.fill_(1))
            assert torch.equal(_Sum(ranks[1], second.fill_(1)).get(), torch.ones(400_000))
            time.sleep(0.1)
            assert not waits.is_over, "the other rank still has a tensor that was not added"
            assert torch.equal(_Sum(ranks[1], second.fill_(1)).get(), torch.full((400_000,), 3.0))
            assert torch.equal(waits.get(), torch.full((400_000,), 3.0))


def test_tensors_that_do_not_fit_end_the_sum_at_every_rank() -> None:
    with groups(3) as ranks:
        found = [_Sum(ranks[rank], torch.ones(400_000 + (rank == 1))) for rank in (0, 1)]
        time.sleep(0.1)
        found.append(_Sum(ranks[2], torch.ones(400_000)))
        for one in found:
            with pytest.raises(InputError, match="rank 1 adds another tensor"):
                one.get()
        for one in sums(ranks, inputs(3, 300_000), (0, 0, 0)):
            one.get()  # the next one fits again


def test_a_rank_that_is_gone_ends_what_waits_for_it() -> None:
    with connected(3) as ends:
        ranks = [straggling(end, carries=False) for end in ends]
        for one in sums(ranks, inputs(3, 300_000), (0, 0, 0)):
            one.get()
        waiting = [_Sum(ranks[rank], torch.ones(400_000)) for rank in (0, 1)]
        ranks[2].close()
        together(lambda end: end.close(), [ends[2]])
        for one in waiting:
            with pytest.raises(HemiolaError, match="rank 2"):
                one.get()
        with pytest.raises(HemiolaError):
            _Sum(ranks[0], torch.ones(400_000)).get()
        for one in ranks[:2]:
            one.close()


def test_a_rank_that_is_lost_between_the_parts_of_sums_ends_them_by_its_name(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(3) as ends:
        ranks = [straggling(end, carries=False) for end in ends]
        for one in sums(ranks, inputs(3, 300_000), (0, 0, 0)):
            one.get()
        begun = threading.Event()
        ended = ranks[0]._coordinator.ended  # type: ignore[union-attr]

        def seen(order: Order, now_s: float) -> list[Order]:
            begun.set()
            return ended(order, now_s)

        monkeypatch.setattr(ranks[0]._coordinator, "ended", seen)
        waiting = [_Sum(ranks[rank], torch.ones(3_000_000)) for _ in range(2) for rank in (0, 1)]
        assert begun.wait(patience(20))
        ranks[2].close()
        ends[2].close()
        for one in waiting:
            with pytest.raises(HemiolaError, match="rank 2"):
                one.get()
        for one in ranks[:2]:
            one.close()
    assert "sums cannot go on" not in caplog.text
