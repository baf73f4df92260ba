"""Schedules in which only some ranks give."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules_drawn import shapes

from hemiola.core.collective.schedule import ChunkMove, ChunkPlace, CollectiveSchedule, check_result
from hemiola.core.collective.shapes import relayed, ring, stars, trees
from hemiola.core.errors import ScheduleError


@settings(deadline=None)
@given(st.data())
def test_only_active_ranks_contribute_and_all_have_the_result(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, 6))
    schedule = data.draw(shapes(ranks).filter(lambda one: one.collective == "all-reduce"))
    active = data.draw(st.sets(st.integers(0, ranks - 1), min_size=1))
    takers = data.draw(st.none() | st.sets(st.integers(0, ranks - 1)))
    found = relayed(schedule, active, takers)
    check_result(found, active, takers)
    assert len(found.moves) <= len(schedule.moves)
    assert {rank for rank in range(ranks) if rank not in active}.isdisjoint(_gave(found, active))


def _gave(schedule: CollectiveSchedule, active: set[int]) -> set[int]:
    """Ranks that send before anything has come to them, on numbers instead of sets."""
    there = {(rank, c): rank in active for rank in range(schedule.ranks) for c in range(schedule.chunks)}
    gave = set()
    for move in schedule.moves:
        for source, target in zip(move.sources(), move.targets(), strict=True):
            if not there.get((source.rank, source.index), source.buffer != "input"):
                gave.add(source.rank)
            there[target.rank, target.index] = True
    return gave


@settings(deadline=None)
@given(st.data())
def test_stars_have_everybody_send_alike_and_less_than_a_ring(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(2, 8))
    active = data.draw(st.sets(st.integers(0, ranks - 1), min_size=1))
    takers = active if data.draw(st.booleans()) else None
    found = stars(ranks, active, takers)
    check_result(found, active, takers)
    assert max(_sent(found)) <= 2 * (ranks - 1) / ranks + 1e-9


def test_three_of_four_need_1_2_times_the_data_where_they_need_the_sum_alone() -> None:
    """Of three among themselves each sends 4/3; if 2/5 go through the fourth, 3/5 x 4/3 + 2/5, as it sends 3 x 2/5."""
    alone = stars(4, {0, 1, 2}, {0, 1, 2})
    assert alone.weights == pytest.approx([0.2, 0.2, 0.2, 0.4])
    assert _sent(alone) == pytest.approx([1.2] * 4)
    assert _sent(stars(4, {0, 1, 2})) == pytest.approx([15 / 11] * 4), "the fourth has it too"
    assert not stars(4, {2}, {2}).moves, "a lone rank has its sum"


def _sent(schedule: CollectiveSchedule) -> list[float]:
    """By each rank, relative to the data."""
    found = [0.0] * schedule.ranks
    for move in schedule.moves:
        found[move.source.rank] += schedule.weights[move.source.index]
    return found


def test_a_relay_in_the_middle_passes_on_and_one_at_the_edge_sends_nothing() -> None:
    """A chain 0 - 1 - 2 with its root at 2: if 1 is late, what 0 gives goes through it unchanged."""
    up = trees([[1, 2, -1]])
    middle = relayed(up, {0, 2})
    puts = [(m.source.rank, m.target.rank, m.adds) for m in middle.moves]
    assert puts == [(0, 1, False), (1, 2, True), (2, 1, False), (1, 0, False)]
    edge = relayed(up, {1, 2})
    assert [(m.source.rank, m.target.rank) for m in edge.moves] == [(1, 2), (2, 1), (1, 0)]


def test_a_lone_rank_of_a_ring_sends_what_it_has_to_all() -> None:
    found = relayed(ring([0, 1, 2, 3]), {2})
    assert not any(move.adds for move in found.moves)
    assert found.traffic().chunks_of[2] == 3 + 3  # on the first way round, and on the second


def test_chunks_that_move_together_are_told_apart() -> None:
    """Two chunks of rank 0 go to rank 1's scratch memory; only one of them is there."""
    moves = (
        ChunkMove(ChunkPlace(1, "input", 0), ChunkPlace(0, "input", 0), adds=True),
        ChunkMove(ChunkPlace(0, "input", 1), ChunkPlace(1, "input", 1), adds=True),
        ChunkMove(ChunkPlace(0, "input", 0), ChunkPlace(1, "input", 0)),
        ChunkMove(ChunkPlace(1, "input", 1), ChunkPlace(0, "input", 1)),
    )
    both = CollectiveSchedule(name="pair", collective="all-reduce", ranks=2, chunks=2, moves=moves).verify()
    assert relayed(both, {0}).moves == (
        ChunkMove(ChunkPlace(0, "input", 1), ChunkPlace(1, "input", 1)),
        ChunkMove(ChunkPlace(0, "input", 0), ChunkPlace(1, "input", 0)),
        ChunkMove(ChunkPlace(1, "input", 1), ChunkPlace(0, "input", 1)),
    )


def test_what_cannot_be_relayed_is_named() -> None:
    with pytest.raises(ScheduleError, match="reduce-scatter"):
        relayed(ring([0, 1], "reduce-scatter"), {0})
    with pytest.raises(ScheduleError, match="nobody is active"):
        relayed(ring([0, 1]), {7})
