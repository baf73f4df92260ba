"""Schedules: usual shapes are proved right, whatever is changed in them is found, and order does not matter."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedules_drawn import shapes

from hemiola.core.collective.schedule import (
    Buffer,
    ChunkMove,
    ChunkPlace,
    Collective,
    CollectiveSchedule,
    SendRate,
    Waits,
)
from hemiola.core.collective.shapes import all_pairs, halving_doubling, ring, trees
from hemiola.core.errors import ScheduleError


@given(shapes())
def test_every_shape_gives_every_rank_its_result(schedule: CollectiveSchedule) -> None:
    assert schedule.verify() is schedule


@given(shapes(), st.data())
def test_no_move_can_be_left_out(schedule: CollectiveSchedule, data: st.DataObject) -> None:
    if not schedule.moves:
        return
    out = data.draw(st.integers(0, len(schedule.moves) - 1))
    moves = schedule.moves[:out] + schedule.moves[out + 1 :]
    with pytest.raises(ScheduleError):
        msgspec.structs.replace(schedule, moves=moves).verify()


@given(shapes(), st.data())
def test_nothing_is_added_twice(schedule: CollectiveSchedule, data: st.DataObject) -> None:
    adding = [number for number, move in enumerate(schedule.moves) if move.adds]
    if not adding:
        return
    again = data.draw(st.sampled_from(adding))
    moves = (*schedule.moves[: again + 1], schedule.moves[again], *schedule.moves[again + 1 :])
    with pytest.raises(ScheduleError, match="twice"):
        msgspec.structs.replace(schedule, moves=moves).verify()


@given(shapes(), st.integers(0, 1000))
def test_schedules_that_differ_by_the_order_of_free_moves_are_the_same(
    schedule: CollectiveSchedule, seed: int
) -> None:
    """Moves in any other order that respects what they wait for."""
    draw, done, left = random.Random(seed), set[int](), list(range(len(schedule.moves)))
    order = []
    while left:
        number = draw.choice([n for n in left if set(schedule.waits[n].all) <= done])
        left.remove(number)
        done.add(number)
        order.append(number)
    other = msgspec.structs.replace(schedule, moves=tuple(schedule.moves[n] for n in order)).verify()
    assert other.ordered() == schedule.ordered()
    assert other.traffic() == schedule.traffic()


def test_a_ring_sends_as_the_formula_says() -> None:
    """2 (N - 1) hops; every rank sends 2 (N - 1) of N chunks, to its neighbour alone."""
    sent = ring([2, 0, 3, 1]).traffic()
    assert sent.hops == 6
    assert sent.chunks_between == {(2, 0): 6, (0, 3): 6, (3, 1): 6, (1, 2): 6}


def test_a_tree_sends_its_chunk_up_and_down_once() -> None:
    sent = trees([[-1, 0, 0, 1]]).verify().traffic()
    assert sent.hops == 4
    assert sent.chunks_of == {0: 2, 1: 2, 2: 1, 3: 1}


def test_halving_and_doubling_takes_twice_the_logarithm() -> None:
    sent = halving_doubling(8).traffic()
    assert sent.hops == 6
    assert set(sent.chunks_of.values()) == {14}


def test_waiting_follows_from_what_is_read_and_written() -> None:
    """Ranks 0 and 2 add to rank 1, in this order; it sends the sum back to both, and nobody else waits."""

    def at(rank: int) -> ChunkPlace:
        return ChunkPlace(rank, "input", 0)

    moves = (
        ChunkMove(at(0), at(1), adds=True), ChunkMove(at(2), at(1), adds=True), ChunkMove(at(1), at(2)), ChunkMove(at(1), at(0)),
    )  # fmt: skip
    schedule = CollectiveSchedule(
        name="star", collective="all-reduce", ranks=3, chunks=1, moves=moves
    ).verify()
    assert schedule.waits == (
        Waits((), (), ()), Waits((), (0,), ()), Waits((1,), (), (1,)), Waits((1,), (), (0,)),
    )  # fmt: skip
    assert [waits.all for waits in schedule.waits] == [(), (0,), (1,), (0, 1)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"chunks": 3}, "input 2 of rank 0 holds chunk 2 of rank 0 instead of chunk 2 of ranks 0, 1"),
        ({"ranks": 3}, "holds chunk 0 of ranks 0, 1 instead of chunk 0 of ranks 0, 1, 2"),
        ({"collective": "all-gather"}, "input 1 of rank 0 does not exist"),
        ({"collective": "sum"}, "there is no collective 'sum'"),
        ({"collective": "all-to-all"}, "in place would overwrite"),
        ({"collective": "reduce-scatter", "chunks": 3}, "3 chunks cannot be divided among 2 ranks"),
        ({"root": 2}, "the root 2 is no rank"),
        ({"ahead_bytes": -1}, "ranks run -1 bytes ahead"),
        ({"paces": (SendRate(0, 2, 1.0),)}, "a pace from rank 0 to rank 2"),
        ({"paces": (SendRate(1, 1, 1.0),)}, "a pace from rank 1 to rank 1"),
        ({"paces": (SendRate(0, 1, 0.0),)}, "rank 0 sends to rank 1 at 0 bytes/s"),
        ({"paces": (SendRate(0, 1, float("inf")),)}, "rank 0 sends to rank 1 at inf bytes/s"),
        ({"paces": (SendRate(0, 1, 2.0), SendRate(0, 1, 1.0))}, "at 1 bytes/s, said twice"),
        ({"weights": (0.5, 0.6)}, "2 weights of 2 chunks, together 1.1"),
        ({"weights": (1.0,)}, "1 weights of 2 chunks"),
        ({"weights": (0.75, 0.25), "collective": "reduce-scatter"}, "parts of different sizes"),
        ({"weights": (0.75, 0.25), "collective": "all-gather"}, "parts of different sizes"),
        ({"ranks": 0}, "0 ranks"),
        ({"weights": (0.5, 0.5), "in_place": False}, "not in place or uses scratch memory"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        msgspec.structs.replace(ring([0, 1]), **change).verify()


@pytest.mark.parametrize(
    ("move", "says"),
    [
        (ChunkMove(ChunkPlace(0, "input", 0), ChunkPlace(2, "input", 0)), "input 0 of rank 2 does not exist"),
        (
            ChunkMove(ChunkPlace(0, "input", -1), ChunkPlace(1, "input", 0)),
            "input -1 of rank 0 does not exist",
        ),
        (ChunkMove(ChunkPlace(0, "scratch", 0), ChunkPlace(1, "input", 0)), "nothing lies in scratch 0 yet"),
        (
            ChunkMove(ChunkPlace(0, "input", 0), ChunkPlace(1, "scratch", 0), adds=True),
            "nothing lies in scratch 0 to add it to",
        ),
        (
            ChunkMove(ChunkPlace(0, "input", 0), ChunkPlace(1, "input", 1), adds=True),
            "it adds chunk 0 to chunk 1",
        ),
        (
            ChunkMove(ChunkPlace(0, "input", 0), ChunkPlace(0, "input", 0)),
            "it moves 1 chunks to another place",
        ),
        (ChunkMove(ChunkPlace(0, "input", 0), ChunkPlace(0, "input", 1), count=2), "it overlaps itself"),
        (ChunkMove(ChunkPlace(0, "input", 0), ChunkPlace(1, "input", 0), count=0), "it moves 0 chunks"),
        (ChunkMove(ChunkPlace(0, "input", 0), ChunkPlace(1, "input", 2)), "input 2 of rank 1 does not exist"),
        (
            ChunkMove(ChunkPlace(0, "input", 1), ChunkPlace(1, "scratch", 0), count=2),
            "input 2 of rank 0 does not exist",
        ),
        (
            ChunkMove(ChunkPlace(0, "input", 0), ChunkPlace(1, "output", 0)),
            "output 0 of rank 1 does not exist",
        ),
    ],
)
def test_a_wrong_move_is_named(move: ChunkMove, says: str) -> None:
    good = ring([0, 1])
    with pytest.raises(ScheduleError, match=says) as found:
        msgspec.structs.replace(good, moves=(move, *good.moves)).verify()
    assert "move 0 (" in str(found.value)


def parts(collective: Collective, beyond: Buffer) -> CollectiveSchedule:
    """An all-gather or a reduce-scatter of two ranks, each part a buffer of its own, and a stray move behind it."""
    moves = []
    for a, b in ((0, 0), (1, 1), (0, 1), (1, 0)):
        source, target = (0, a) if collective == "all-gather" else (b, 0)
        adds = a != b and collective == "reduce-scatter"
        moves.append(ChunkMove(ChunkPlace(a, "input", source), ChunkPlace(b, "output", target), adds=adds))
    moves.append(ChunkMove(ChunkPlace(0, "input", 0), ChunkPlace(1, beyond, 1)))
    return CollectiveSchedule(
        name="parts", collective=collective, ranks=2, chunks=2, moves=tuple(moves), in_place=False
    )


def test_parts_have_no_room_for_the_whole() -> None:
    assert parts("all-gather", "scratch").verify() and parts("reduce-scatter", "scratch").verify()
    with pytest.raises(ScheduleError, match=r"move 4 \(.*input 1 of rank 1 does not exist"):
        parts("all-gather", "input").verify()
    with pytest.raises(ScheduleError, match=r"move 4 \(.*output 1 of rank 1 does not exist"):
        parts("reduce-scatter", "output").verify()


def test_chunks_of_different_sizes_do_not_change_places() -> None:
    """The one of 0.75 would not fit into the place of the one of 0.25, on its way from rank 0 over rank 1 to rank 2."""

    def at(rank: int, index: int) -> ChunkPlace:
        return ChunkPlace(rank, "input", index)

    ways = (
        (at(0, 0), at(1, 1)), (at(1, 1), at(2, 0)), (at(0, 0), at(1, 0)), (at(0, 1), at(1, 1)), (at(0, 1), at(2, 1)),
    )  # fmt: skip
    moves = tuple(ChunkMove(*way) for way in ways)
    schedule = CollectiveSchedule(name="over", collective="broadcast", ranks=3, chunks=2, moves=moves)
    assert schedule.verify() is schedule
    with pytest.raises(ScheduleError, match=r"move 0 \(.*to the place of another one"):
        msgspec.structs.replace(schedule, weights=(0.75, 0.25)).verify()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ring([0, 2]), "0-2 does not name every rank once"),
        (lambda: ring([]), "does not name every rank once"),
        (lambda: ring([0, 1], "broadcast"), "a ring does no broadcast"),
        (lambda: trees([[-1, -1]]), "2 roots"),
        (lambda: trees([[-1, 2, 1]]), "1 of them below one"),
        (lambda: trees([[-1, 5]]), "rank 1 has the parent 5"),
        (lambda: trees([]), "there is no tree"),
        (lambda: trees([[-1, 0], [1, -1]], collective="reduce"), r"roots are \[0, 1\]"),
        (lambda: trees([[-1, 0]], collective="all-gather"), "trees do no all-gather"),
        (lambda: all_pairs(0), "0 ranks"),
        (lambda: all_pairs(2, "broadcast"), "all pairs do no broadcast"),
        (lambda: halving_doubling(6), "6 ranks are no power of two"),
    ],
)
def test_shapes_refuse_what_they_cannot_be(make: Any, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        make()
