"""Tiresias by hand: queues cut at service, promotion after waiting, FIFO within a queue."""

from __future__ import annotations

import pytest
from replays import check_run, cluster, job, replay, steps, times

from hemiola.core.errors import PolicyError
from hemiola.core.events import NodeBack, NodeLost
from hemiola.sched.policies.tiresias import ByAttainedService, Tiresias

TWO = cluster([2])


def test_a_job_yields_the_moment_its_service_crosses_the_threshold() -> None:
    """a has 20 GPU-seconds at 10 s; b, which waits since 5 s, has none."""
    jobs = [job("a", 0, 2, 30), job("b", 5, 2, 9)]
    run = replay(jobs, TWO, Tiresias(thresholds="20", promote=0))
    check_run(run, jobs, TWO)
    assert times(run) == {"a": (0, 39), "b": (10, 19)}
    assert steps(run) == [
        (0, "Start", "a"), (10, "Stop", "a"), (10, "Start", "b"), (19, "Start", "a"),
    ]  # fmt: skip


def test_within_a_queue_whoever_runs_keeps_its_gpus() -> None:
    """b falls to a's queue at 20 s; a, older, still waits for b's end at 25 s."""
    jobs = [job("a", 0, 2, 30), job("b", 10, 2, 15)]
    run = replay(jobs, TWO, Tiresias(thresholds="20", promote=0))
    assert times(run) == {"a": (0, 45), "b": (10, 25)}


def test_within_a_queue_first_come_first_served() -> None:
    jobs = [job("a", 0, 2, 5), job("b", 1, 2, 5), job("c", 2, 2, 1), job("d", 3, 2, 1)]
    run = replay(jobs, TWO, Tiresias(thresholds="100", promote=0))
    assert times(run) == {"a": (0, 5), "b": (5, 10), "c": (10, 11), "d": (11, 12)}


def test_a_newcomer_stops_a_demoted_job_at_once() -> None:
    jobs = [job("a", 0, 2, 30), job("b", 12, 2, 5)]
    assert times(replay(jobs, TWO, Tiresias(thresholds="20", promote=0))) == {"a": (0, 35), "b": (12, 17)}


def test_waiting_as_long_as_it_has_run_promotes_a_job() -> None:
    """a: 0-10, stopped for b. At 20 s a has waited 10 s = 1 x 10 s and starts afresh: it stops b, demoted then.

    At 30 s both have again: a, with 20 more GPU-seconds, is demoted; b has waited 10 s for its 10 s.
    """
    jobs = [job("a", 0, 2, 30), job("b", 10, 2, 12)]
    run = replay(jobs, TWO, Tiresias(thresholds="20", promote=1))
    check_run(run, jobs, TWO)
    assert steps(run) == [
        (0, "Start", "a"),
        (10, "Stop", "a"), (10, "Start", "b"),
        (20, "Stop", "b"), (20, "Start", "a"),
        (30, "Stop", "a"), (30, "Start", "b"),
        (32, "Start", "a"),
    ]  # fmt: skip
    assert times(run) == {"a": (0, 42), "b": (10, 32)}


def test_a_promoted_job_may_stop_whom_it_could_not_stop_before() -> None:
    """c is in the last queue from 60 on and too small to make room for j; a falls to j's queue at 67.

    j, stopped at 62 after 12 s, is promoted at 74: now it goes before a, though nothing was released since.
    """
    jobs = [job("c", 0, 1, 500), job("j", 50, 4, 100), job("a", 62, 4, 200)]
    run = replay(jobs, cluster([5]), Tiresias(thresholds="20/60", promote=1))
    starts = [t for t, what, name in steps(run) if (what, name) == ("Start", "j")]
    assert starts[:2] == [50, 74]


@pytest.mark.parametrize("thresholds", ["5", "5/1000"])
def test_a_job_put_back_by_a_failure_is_promoted_too(thresholds: str) -> None:
    """a ran 10 s and lost its host: after 20 s of waiting (promote=2) it goes before the newcomers."""
    jobs = [job("a", 0, 1, 1000)] + [job(f"b{n}", 10 + n, 1, 20) for n in range(30)]
    lost = [NodeLost(10, 0), NodeBack(10.5, 0)]
    run = replay(jobs, cluster([1]), Tiresias(thresholds=thresholds, promote=2), failures=lost)
    check_run(run, jobs, cluster([1]))
    second = [t for t, what, name in steps(run) if (what, name) == ("Start", "a")][1]
    assert second < 60, "it waits since 10 s and has run 10 s"


def test_three_queues() -> None:
    """x passes 10 GPU-s at 10 and 30 at 30: y and z, in higher queues, each get their turn before it."""
    one = cluster([1])
    jobs = [job("x", 0, 1, 50), job("y", 5, 1, 15), job("z", 40, 1, 8)]
    run = replay(jobs, one, Tiresias(thresholds="10/30", promote=0))
    check_run(run, jobs, one)
    # x 0-10; y 10-20, demoted to x's queue but it runs: until 25; x 25-40 (25 s done: second queue);
    # z 40-48; x 48-73
    assert times(run) == {"x": (0, 73), "y": (10, 25), "z": (40, 48)}


def test_a_service_that_is_a_hair_short_of_the_threshold_counts_as_having_reached_it() -> None:
    order = ByAttainedService((20.0, 3250.0), 0.0)
    assert [order.level(s) for s in (0, 19.9, 20 * (1 - 1e-12), 20, 3249, 3250 * (1 - 1e-12), 1e9)] == [
        0, 0, 1, 1, 1, 2, 2,
    ]  # fmt: skip


@pytest.mark.parametrize("origin_s", [0.0, 1e6, 1.7e9])
def test_thresholds_are_met_far_from_the_origin_too(origin_s: float) -> None:
    """Epoch seconds leave 2e-7 s of resolution; the timers must neither spin nor be missed."""
    topology = cluster([64])
    jobs = [
        job("a", origin_s + 0.1, 64, 1000.3),
        job("b", origin_s + 1.7, 64, 333.3),
        job("c", origin_s + 2.9, 33, 777.7),
    ]
    run = replay(jobs, topology, Tiresias(promote=1.0))
    check_run(run, jobs, topology)
    assert {r.status for r in run.records} == {"finished"}
    assert run.events < 400


@pytest.mark.parametrize("thresholds", ["-1", "0", "5/3", "3/3", "a", "nan", "5/nan", "inf", "1/inf"])
def test_thresholds_that_cannot_be(thresholds: str) -> None:
    with pytest.raises(PolicyError, match="thresholds"):
        Tiresias(thresholds=thresholds)


@pytest.mark.parametrize("promote", [-1.0, float("nan")])
def test_a_promotion_that_cannot_be(promote: float) -> None:
    with pytest.raises(PolicyError, match="promote"):
        Tiresias(promote=promote)


def test_no_threshold_is_plain_first_come_first_served() -> None:
    jobs = [job("a", 0, 2, 30), job("b", 5, 2, 9)]
    assert times(replay(jobs, TWO, Tiresias(thresholds=""))) == {"a": (0, 30), "b": (30, 39)}
