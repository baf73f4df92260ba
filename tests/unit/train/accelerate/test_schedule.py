"""The steps of all-reduces, carried out by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.errors import InputError
from hemiola.train.accelerate.exchange import ElementRange, schedule

ALGORITHMS = ("", "ring", "halving-doubling", "direct")


@given(st.sampled_from(ALGORITHMS), st.integers(1, 9), st.integers(0, 40))
def test_everybody_ends_with_everybodys_sum_and_every_message_is_awaited(algorithm, ranks, count):
    steps = [schedule(algorithm, rank, ranks, count) for rank in range(ranks)]
    assert len({len(own) for own in steps}) == 1
    data = [[frozenset({rank})] * count for rank in range(ranks)]
    for number in range(len(steps[0])):
        sent = {
            (rank, part.peer): (part, data[rank][part.start : part.stop])
            for rank in range(ranks)
            for part in steps[rank][number].sends
        }
        before = [list(row) for row in data]
        for rank in range(ranks):
            step = steps[rank][number]
            for part in step.receives:
                theirs, values = sent.pop((part.peer, rank))
                assert (theirs.start, theirs.stop) == (part.start, part.stop)
                for place, value in zip(range(part.start, part.stop), values, strict=True):
                    if step.joins:
                        assert not data[rank][place] & value, "added twice"
                        data[rank][place] = data[rank][place] | value
                    else:
                        data[rank][place] = value
            for part in step.sends:  # what is on its way is not written to in the same step
                assert before[rank][part.start : part.stop] == data[rank][part.start : part.stop]
        assert not sent, "somebody sends what nobody awaits"
    assert all(value == frozenset(range(ranks)) for row in data for value in row)


def test_no_rank_sends_more_than_the_ring_does():
    for algorithm, ranks in itertools.product(ALGORITHMS, (2, 4, 8)):
        steps = schedule(algorithm, 0, ranks, 8 * 64)
        sent = sum(part.stop - part.start for step in steps for part in step.sends)
        assert sent == 2 * (ranks - 1) * 8 * 64 // ranks
    assert len(schedule("direct", 0, 8, 64)) == 2
    assert len(schedule("halving-doubling", 0, 8, 64)) == 6
    assert len(schedule("ring", 0, 8, 64)) == 14


def test_near_ranks_meet_first_with_the_largest_parts():
    steps = schedule("halving-doubling", 5, 8, 64)
    assert [step.sends[0].peer for step in steps] == [4, 7, 1, 1, 7, 4]
    assert steps[0].sends == (ElementRange(4, 0, 32),)


def test_an_algorithm_that_is_not_there_is_named():
    with pytest.raises(InputError, match="'tree'"):
        schedule("tree", 0, 2, 4)
