"""First bytes, gates, phases and totals: known answers by hand, and what must always hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.run.record.phases import cut
from hemiola.run.record.settle import FirstBytes, is_settled, settle
from hemiola.run.record.totals import Totals, exposition, union_ns
from hemiola.run.record.values import Draft, Gate, Iteration, Transfer


def transfer(enqueue: int, last: int | None, thread: int = 0) -> Transfer:
    made = Transfer(0, "", "all-reduce", 0, 8, enqueue, lambda: 0)
    made.last, made.thread = last, thread
    return made


def rows(*transfers: Transfer) -> list[tuple[int | None, ...]]:
    draft = Draft(0, 0)
    draft.end, draft.transfers = 1000, list(transfers)
    return [row[5:] for row in settle(draft, int, FirstBytes()).transfers]


def test_a_transfer_begins_when_its_thread_is_free() -> None:
    found = rows(transfer(10, 50, 7), transfer(20, 40, 8), transfer(30, 90, 8), transfer(60, 70, 7))
    assert [row[1] for row in found] == [10, 20, 40, 60]


def test_without_a_thread_it_begins_when_any_is_free() -> None:
    found = rows(transfer(10, 50, 7), transfer(20, 45, 8), transfer(30, 90))
    assert [row[1] for row in found] == [10, 20, 45]


def test_at_a_gate_buckets_are_released_in_their_order() -> None:
    gate = Gate(100)
    gate.released = 160
    buckets = [transfer(10, 90, 1), transfer(20, 150, 2), transfer(30, 120, 1)]
    for bucket in buckets:
        bucket.gate = gate
    assert [row[3:] for row in rows(*buckets)] == [(100, 100), (100, 150), (100, 150)]


def test_a_last_byte_told_late_is_no_later_than_the_release() -> None:
    late = transfer(10, 80, 1)
    late.needed, late.released = 20, 70
    assert rows(late) == [(10, 10, 70, 20, 70)]


def test_what_has_not_ended_has_no_last_byte_and_is_waited_for() -> None:
    draft = Draft(0, 0)
    draft.end, draft.transfers = 5, [transfer(1, None)]
    assert not is_settled(draft, lambda instant: True)
    assert settle(draft, int, FirstBytes()).transfers[0][5:] == (1, None, None, None, None)


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple), max_size=8)


@given(intervals=intervals)
def test_the_union_counts_each_instant_once(intervals: list[tuple[int, int]]) -> None:
    assert union_ns(intervals) == len({t for start, end in intervals for t in range(start, end)})


@given(
    phases=st.lists(
        st.tuples(
            st.sampled_from([("forward", "compute"), ("backward", "compute"), ("input", "input")]),
            st.integers(0, 60),
            st.integers(0, 60),
        ),
        max_size=6,
    ),
    waits=intervals,
)
def test_each_instant_of_an_iteration_is_one_thing(
    phases: list[tuple[tuple[str, str], int, int]], waits: list[tuple[int, int]]
) -> None:
    window = (0, 60)
    given_phases = [(*which, min(a, b), max(a, b)) for which, a, b in phases]
    pieces = cut(given_phases, waits, window)
    covered = [t for _, _, start, end in pieces for t in range(start, end)]
    waited = {t for start, end in waits for t in range(start, end)}
    assert sorted(covered) == sorted(set(range(*window)) - waited)


def test_the_forward_pass_is_what_lies_before_the_backward_pass_if_nobody_tells() -> None:
    pieces = cut([("input", "input", 0, 10), ("backward", "compute", 40, 70)], [(60, 65)], (0, 80))
    assert pieces == [
        ("input", "input", 0, 10), ("forward", "compute", 10, 40), ("backward", "compute", 40, 60),
        ("backward", "compute", 65, 70), ("other", "other", 70, 80),
    ]  # fmt: skip


def test_totals_are_those_of_the_iterations() -> None:
    totals = Totals()
    row = (0, "", "all-reduce", 0, 64, 0, 0, 0, 4_000_000, 7_000_000)
    loading = ("input", "input", 0, 2_000_000)
    for number in range(2):
        totals.add(Iteration(number, 0, 20_000_000, True, False, [loading], [row, row]))
    totals.add(Iteration(2, 0, 20_000_000, False, False, [], [row]))
    assert totals.iterations == 2
    assert totals.bytes == {"all-reduce": 5 * 64}
    assert totals.exposed_s == 2 * 0.003
    assert totals.take_window() == pytest.approx(0.015)
    assert totals.take_window() is None
    text = exposition(totals, {"rank": "0", "host": 'a"b\\'}, recording=True)
    assert 'hemiola_iteration_seconds_bucket{rank="0",host="a\\"b\\\\",le="0.03"} 2' in text
    assert 'hemiola_iteration_seconds_bucket{rank="0",host="a\\"b\\\\",le="0.01"} 0' in text
    assert "straggler" not in text
