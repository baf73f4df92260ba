"""Clocks: known answers, bounds that must hold, and a real server on this host."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.run.record.causality import bound_by_causality
from hemiola.run.record.clock import ClockClient, ClockServer, fit_clock
from hemiola.run.record.merge import collect
from hemiola.run.record.parts import Part, PartWriter
from hemiola.run.record.values import ClockSample, Group, Head, Iteration

SECOND = 10**9


def test_a_clock_set_apart_is_measured_within_the_error_stated() -> None:
    skew = 5 * SECOND
    server = ClockServer(lambda: time.perf_counter_ns() + skew, only_this_host=True)
    client = ClockClient(["127.0.0.1"], server.port, server.token, time.perf_counter_ns)
    try:
        fit = fit_clock([client.sample(), client.sample()])
    finally:
        client.close()
        server.close()
    assert abs(fit.offset_ns - skew) <= fit.error_ns
    assert fit.drift == 0


def test_a_stranger_gets_no_answer() -> None:
    server = ClockServer(time.perf_counter_ns, only_this_host=True)
    client = ClockClient(["127.0.0.1"], server.port, bytes(16), time.perf_counter_ns)
    try:
        with pytest.raises(OSError):
            client.sample()
    finally:
        client.close()
        server.close()


def test_a_server_that_is_not_there_is_an_error() -> None:
    server = ClockServer(time.perf_counter_ns, only_this_host=True)
    server.close()
    with pytest.raises(OSError):
        ClockClient(["127.0.0.1"], server.port, server.token, time.perf_counter_ns)


@given(
    offset=st.integers(-(10**15), 10**15),
    drift_ppm=st.floats(-200, 200),
    errors=st.lists(st.tuples(st.integers(1, 10**6), st.floats(-1, 1)), min_size=2, max_size=12),
)
def test_the_error_holds_at_the_first_and_the_last_sample(
    offset: int, drift_ppm: float, errors: list[tuple[int, float]]
) -> None:
    """Samples whose true offset lies within their errors, on a clock that drifts evenly."""

    def true(at: int) -> float:
        return offset + drift_ppm * 1e-6 * at

    times = [k * 5 * SECOND for k in range(len(errors))]
    samples = [
        ClockSample(at, round(true(at) + error * where), error + 1)
        for at, (error, where) in zip(times, errors, strict=True)
    ]
    fit = fit_clock(samples)
    for at in (times[0], times[-1]):
        assert abs(fit.apply(at) - (at + true(at))) <= fit.error_ns + 2


def test_a_drift_beyond_the_errors_is_taken_out() -> None:
    samples = [ClockSample(0, 1000, 10), ClockSample(100 * SECOND, 1000 + 2_000_000, 10)]
    fit = fit_clock(samples)
    assert fit.drift == pytest.approx(20e-6)
    assert fit.apply(50 * SECOND) == pytest.approx(50 * SECOND + 1000 + 1_000_000)
    assert fit.error_ns == 10


def _part(rank: int, collectives: list[tuple[int, int]]) -> Part:
    head = Head(rank=rank, world_size=2, host="", device="", pid=1, mode="light", monotonic_ns=0, unix_ns=0)
    rows = [
        (k, "", "all-reduce", 0, 4, enqueue, enqueue, last, None, None)
        for k, (enqueue, last) in enumerate(collectives)
    ]
    iteration = Iteration(0, 0, 10**6, True, False, [], rows)
    return Part(head, {0: Group(0, "0", [0, 1], "gloo")}, [], [iteration], {}, None)


def test_collectives_bound_a_clock_that_nobody_asked() -> None:
    """By hand: the other's clock is 1000 behind; they join at 100 and 150, at 300 and 280, and end together."""
    here = _part(0, [(100, 160), (300, 310)])
    there = _part(1, [(150 - 1000, 161 - 1000), (280 - 1000, 311 - 1000)])
    fit = bound_by_causality(here, there)
    assert fit is not None
    assert fit.offset_ns - fit.error_ns == 300 - (311 - 1000)
    assert fit.offset_ns + fit.error_ns == 160 - (150 - 1000)
    assert abs(fit.offset_ns - 1000) <= fit.error_ns


def test_without_rank_0_the_others_clocks_are_as_good_as_with_it(tmp_path: Path) -> None:
    """Rank 2's clock is 1 s ahead of rank 0's, rank 3's, which asked nobody, 2 s; wall clocks are wrong."""
    for rank, (skew, asked) in {1: (0, True), 2: (SECOND, True), 3: (2 * SECOND, False)}.items():
        writer = PartWriter(tmp_path / f"rank{rank}-1-1", 10)
        unix_ns = rank * SECOND // 3
        writer.write(
            Head(
                rank=rank,
                world_size=4,
                host="",
                device="",
                pid=1,
                mode="light",
                monotonic_ns=0,
                unix_ns=unix_ns,
            )
        )
        writer.write(Group(0, "0", [0, 1, 2, 3], "gloo"))
        if asked:
            writer.write(ClockSample(skew, -skew, 5000))
        row = (0, "", "all-reduce", 0, 4, skew + 1000, skew + 1000, skew + 9000, None, None)
        writer.write(Iteration(0, skew, skew + 10000, True, False, [], [row]))
        writer.close()
    timeline = collect(tmp_path)
    assert list(timeline.facts["clocks"].values()) == [
        "asked 1 times", "asked 1 times", "bounded by what collectives allow"
    ]  # fmt: skip
    errors = [rank.clock_error_s for rank in timeline.ranks]
    assert errors == pytest.approx([5e-6, 5e-6, 8e-6 + 5e-6])
    assert timeline.iterations.start_s.tolist() == pytest.approx([0, 0, 0], abs=max(errors))


def test_nothing_in_common_bounds_nothing() -> None:
    assert bound_by_causality(_part(0, []), _part(1, [(1, 2)])) is None
