"""Clocks: known answers, bounds that must hold, and a real server on this host."""

from __future__ import annotations

import resource
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.profiler.trace.clock import ClockClient, ClockFit, ClockServer, bound_by_causality, fit_clock
from hemiola.profiler.trace.merge import collect
from hemiola.profiler.trace.parts import PartWriter, TracePart, read_parts
from hemiola.profiler.trace.values import ClockSample, Iteration, PartHead, RankGroup

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


def test_a_server_without_a_handle_to_spare_answers_later() -> None:
    server = ClockServer(time.perf_counter_ns, only_this_host=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as asks, socket.socket() as spare:
        lowest = spare.fileno()
        spare.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            asks.connect(("127.0.0.1", server.port))
            asks.sendall(server.token)
            asks.settimeout(0.2)
            with pytest.raises(TimeoutError):
                asks.recv(1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        asks.settimeout(10.0)
        asks.sendall(b"?")
        assert len(asks.recv(8)) == 8
    server.close()


def test_a_server_that_is_not_there_is_an_error() -> None:
    server = ClockServer(time.perf_counter_ns, only_this_host=True)
    server.close()
    with pytest.raises(OSError):
        ClockClient(["127.0.0.1"], server.port, server.token, time.perf_counter_ns)


@given(
    offset=st.integers(-(10**15), 10**15),
    drift_ppm=st.floats(-100, 100),
    errors=st.lists(st.tuples(st.integers(1, 10**6), st.floats(-1, 1)), min_size=1, max_size=12),
    beyond=st.lists(st.integers(-3600 * SECOND, 3600 * SECOND)),
)
def test_the_error_holds_at_the_first_and_the_last_sample_and_beyond(
    offset: int, drift_ppm: float, errors: list[tuple[int, float]], beyond: list[int]
) -> None:
    """Samples whose true offset lies within their errors, on a clock that drifts evenly."""

    def true(at: int) -> float:
        return offset + drift_ppm * 1e-6 * at

    times = [k * 5 * SECOND for k in range(len(errors))]
    samples = [
        ClockSample(at, round(true(at) + error * where), error + 1)
        for at, (error, where) in zip(times, errors, strict=True)
    ]
    fit = fit_clock(samples, beyond)
    for at in (times[0], times[-1], *beyond):
        assert times[0] < at < times[-1] or abs(fit.apply(at) - (at + true(at))) <= fit.error_ns + 2


def test_a_drift_beyond_the_errors_is_taken_out() -> None:
    samples = [ClockSample(0, 1000, 10), ClockSample(100 * SECOND, 1000 + 2_000_000, 10)]
    fit = fit_clock(samples)
    assert fit.drift == pytest.approx(20e-6)
    assert fit.apply(50 * SECOND) == pytest.approx(50 * SECOND + 1000 + 1_000_000)
    assert fit.error_ns == 10


@given(
    st.lists(
        st.tuples(st.integers(1, 10 * SECOND), st.integers(-(10**6), 10**6), st.integers(1, 10**5)), min_size=1, max_size=12
    )
)  # fmt: skip
def test_no_sample_contradicts_the_error_however_the_clock_drifts(
    steps: list[tuple[int, int, int]],
) -> None:
    samples = [ClockSample(0, 0, 10)]
    for later, more, error in steps:
        samples.append(ClockSample(samples[-1].local_ns + later, samples[-1].offset_ns + more, error))
    fit = fit_clock(samples)
    for at, offset, error in ((s.local_ns, s.offset_ns, s.error_ns) for s in samples):
        assert abs(fit.apply(at) - (at + offset)) <= fit.error_ns + error + 1


def test_how_a_clock_drifted_before_what_is_kept_does_not_count(tmp_path: Path) -> None:
    """20 ppm for 20 s, and none in the last 10 s or more, of which there are iterations."""
    writer = PartWriter(tmp_path / "rank00001-1-1", 10)
    writer.write(
        PartHead(rank=1, world_size=2, host="", device="", pid=1, mode="", monotonic_ns=0, unix_ns=0)
    )
    for k in range(50):
        writer.write(ClockSample(k * SECOND, 20_000 * min(k, 20), 10))
        writer.write(Iteration(k, k * SECOND, (k + 1) * SECOND, True, False, [], []))
    writer.close()
    (part,) = read_parts(tmp_path)
    fit = fit_clock(part.clocks)
    assert part.iterations[0].number >= 30
    assert (fit.drift, fit.error_ns) == (0, 10)


def _part(rank: int, collectives: list[tuple[int, int]]) -> TracePart:
    head = PartHead(
        rank=rank, world_size=2, host="", device="", pid=1, mode="light", monotonic_ns=0, unix_ns=0
    )
    rows = [
        (k, "", "all-reduce", 0, 4, enqueue, enqueue, last, None, None)
        for k, (enqueue, last) in enumerate(collectives)
    ]
    begin, end = collectives[0][0] if rows else 0, collectives[-1][1] if rows else 10**6
    iteration = Iteration(0, begin, end, True, False, [], rows)
    return TracePart(head, {0: RankGroup(0, "0", [0, 1], "gloo")}, [], [iteration], {}, None)


def test_collectives_bound_a_clock_that_nobody_asked() -> None:
    """By hand: the other's clock is 1000 behind; they join at 100 and 150, at 300 and 280, and end together."""
    here = _part(0, [(100, 160), (300, 310)])
    there = _part(1, [(150 - 1000, 161 - 1000), (280 - 1000, 311 - 1000)])
    fit = bound_by_causality(here, there)
    assert fit is not None
    assert fit.offset_ns - fit.error_ns == pytest.approx(300 - (311 - 1000), abs=4)
    assert fit.offset_ns + fit.error_ns == pytest.approx(160 - (150 - 1000), abs=4)
    assert abs(fit.offset_ns - 1000) <= fit.error_ns


@pytest.mark.parametrize(("drift_ppm", "length_s"), [(0, 30), (10, 30), (10, 40), (5, 120), (-80, 600)])
def test_the_bounds_of_collectives_hold_on_clocks_that_drift(drift_ppm: int, length_s: int) -> None:
    """An all-reduce of 200 µs every 0.1 s, to which the ranks come late in turns."""
    joint = [(k * SECOND // 10, k * SECOND // 10 + 200_000) for k in range(10 * length_s)]
    here, there = (
        [(join + 90_000 * (k % 2 == late), end) for k, (join, end) in enumerate(joint)] for late in (0, 1)
    )
    rate = 1 + drift_ppm * 1e-6
    theirs = [(round(join / rate), round(end / rate)) for join, end in there]
    fit = bound_by_causality(_part(0, here), _part(1, theirs))
    assert fit is not None
    for k in (0, -1):
        for true, told in zip(there[k], theirs[k], strict=True):
            assert abs(fit.apply(told) - true) <= fit.error_ns
    assert fit.error_ns < 500_000


@given(st.lists(st.tuples(st.integers(-(10**12), 10**12), st.floats(-1e-4, 1e-4)), min_size=2, max_size=2))
def test_clocks_are_brought_onto_a_third_one_over_a_second(clocks: list[tuple[int, float]]) -> None:
    one, other = (ClockFit(-offset // 3, offset, drift, 5.0) for offset, drift in clocks)
    both = one.then(other)
    assert both.error_ns == 10
    for time_ns in (0, 10**12):
        assert both.apply(time_ns) == pytest.approx(other.apply(one.apply(time_ns)), abs=1)


def test_without_rank_0_the_others_clocks_are_as_good_as_with_it(tmp_path: Path) -> None:
    """Rank 2's clock is 1 s ahead of rank 0's, rank 3's, which asked nobody, 2 s; wall clocks are wrong."""
    for rank, (skew, asked) in {1: (0, True), 2: (SECOND, True), 3: (2 * SECOND, False)}.items():
        writer = PartWriter(tmp_path / f"rank{rank}-1-1", 10)
        unix_ns = rank * SECOND // 3
        writer.write(
            PartHead(
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
        writer.write(RankGroup(0, "0", [0, 1, 2, 3], "gloo"))
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
    assert errors == pytest.approx([5e-6, 5e-6, 8e-6 + 5e-6], abs=1e-8)
    assert timeline.iterations.start_s.tolist() == pytest.approx([0, 0, 0], abs=max(errors))


def test_nothing_in_common_bounds_nothing() -> None:
    assert bound_by_causality(_part(0, []), _part(1, [(1, 2)])) is None


def test_bounds_that_contradict_each_other_bound_nothing() -> None:
    assert bound_by_causality(_part(0, [(0, 10), (500, 510)]), _part(1, [(300, 310), (500, 510)])) is None
