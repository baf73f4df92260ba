"""LWF-kappa and AdaDUAL: the rule's known answers, its long-run shares, and placements by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import check_run, cluster, job, profile, replay, start, steps, times

from hemiola.core.decisions import Pace, Start
from hemiola.core.errors import PolicyError
from hemiola.core.events import Arrived, Finished, Measured, NodeBack, NodeLost, Timer
from hemiola.core.result import Run
from hemiola.sched.machine import StateMachine
from hemiola.sched.policies.lwf import (
    HostWorkload,
    Lwf,
    adadual_overlaps,
    adadual_share,
    adadual_threshold,
)
from hemiola.sched.policies.shortest import Sjf
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView

BETA, ETA = 0.856, 0.235


def hosts_of(run: Run) -> dict[str, tuple[int, ...]]:
    return {
        entry.decision.job_id: entry.decision.placement.hosts
        for entry in run.decisions
        if isinstance(entry.decision, Start)
    }


@pytest.mark.parametrize(
    ("new_mb", "old_mb", "overlap_ms", "wait_ms"),
    [(99.2, 251.8, 258.455, 257.998), (99.2, 526.4, 375.984, 493.056), (103.0, 251.8, 264.227, 259.625)],
)
def test_known_answers_of_adadual(new_mb: float, old_mb: float, overlap_ms: float, wait_ms: float) -> None:
    """Mean finish of the two. Beside each other a byte takes 2 beta + eta, until the new one is done."""
    together = new_mb * (2 * BETA + ETA)
    overlap = (together + together + (old_mb - new_mb) * BETA) / 2
    wait = (old_mb * BETA + (old_mb + new_mb) * BETA) / 2
    assert (overlap, wait) == (pytest.approx(overlap_ms, abs=6e-4), pytest.approx(wait_ms, abs=6e-4))
    assert adadual_overlaps(new_mb, old_mb, BETA, ETA) == (overlap < wait)


def test_the_threshold() -> None:
    assert adadual_threshold(BETA, ETA) == pytest.approx(0.3923, abs=5e-5)
    assert adadual_threshold(1.0, 0.0) == 0.5  # sharing wastes nothing: the mean alone decides


def played(own: float, other: float, threshold: float) -> float:
    """The same share from the rule itself, met at every moment of the other one's sending."""

    def half_if_at_once(new: float, old: float) -> float:
        rests = (np.arange(20_000) + 0.5) / 20_000 * old
        return float(np.mean(np.where(new < threshold * rests, 0.5, 0.0)))

    second = half_if_at_once(own, other)
    first = 1 - half_if_at_once(other, own)
    return (other * second + own * first) / (own + other)


@given(st.floats(0.01, 100), st.floats(0.05, 0.5))
def test_the_long_run_share_is_the_rule_averaged(own: float, threshold: float) -> None:
    share = adadual_share(own, 1.0, threshold)
    assert share == pytest.approx(played(own, 1.0, threshold), abs=1e-4)
    assert share + adadual_share(1.0, own, threshold) == pytest.approx(1)


def test_equals_share_evenly_and_the_much_smaller_one_has_half() -> None:
    assert adadual_share(3.0, 3.0, 0.4) == 0.5
    assert adadual_share(1e-6, 1.0, 0.4) == pytest.approx(0.5, abs=1e-5)
    assert adadual_share(0.4, 1.0, 0.4) == pytest.approx(0.4 / 1.4)  # never at once, often first to come


TWO_HOSTS = cluster([4, 4])
UNEQUAL = [job("long", 0, 2, 100), job("short", 1, 2, 10), job("new", 2, 2, 5)]


def test_a_large_job_goes_where_the_least_work_is_left() -> None:
    """short avoids long's host, and new prefers short's: 8 s to go there, 98 s on the other."""
    run = replay(UNEQUAL, TWO_HOSTS, Lwf(kappa=1))
    check_run(run, UNEQUAL, TWO_HOSTS)
    assert hosts_of(run) == {"long": (0,), "short": (1,), "new": (1,)}


def test_a_small_job_takes_the_first_free_gpus() -> None:
    run = replay(UNEQUAL, TWO_HOSTS, Lwf(kappa=2))
    assert hosts_of(run) == {"long": (0,), "short": (0,), "new": (1,)}


def test_a_large_job_fills_host_by_host() -> None:
    """Free: 2 of host 0 (100 s of work), 3 of host 1 (50 s), all of host 2."""
    jobs = [job("a", 0, 2, 100), job("b", 0, 1, 50), job("c", 1, 6, 5)]
    run = replay(jobs, cluster([4, 4, 4]), Lwf(kappa=0))
    placements = {
        e.decision.job_id: e.decision.placement for e in run.decisions if isinstance(e.decision, Start)
    }
    assert hosts_of(run) == {"a": (1,), "b": (0,), "c": (0, 2)}
    assert [mask.bit_count() for mask in placements["c"].masks] == [2, 4]


def test_it_stays_within_the_required_tier() -> None:
    """The emptiest hosts are in two racks; rack 1 is the first, by work, to have four GPUs together."""
    topology = cluster([2, 2], [2, 2])
    jobs = [job("a", 0, 1, 100), job("b", 1, 4, 5, required="rack"), job("c", 2, 2, 5, required="host")]
    run = replay(jobs, topology, Lwf(kappa=0))
    check_run(run, jobs, topology)
    assert hosts_of(run) == {"a": (0,), "b": (2, 3), "c": (1,)}


def test_shortest_remaining_service_goes_first_without_pre_emption() -> None:
    jobs = [job("a", 0, 2, 10), job("b", 1, 2, 9), job("c", 2, 1, 12), job("d", 3, 2, 1)]
    run = replay(jobs, cluster([2]), Lwf())
    assert times(run) == {"a": (0, 10), "d": (10, 11), "c": (11, 23), "b": (23, 32)}


def test_the_workload_returns_to_zero() -> None:
    kept: list[HostWorkload] = []

    class Kept(Policy):
        name = "kept"

        def decide(self, view):  # type: ignore[no-untyped-def]
            kept[:] = [index for index in view.indexes.values() if isinstance(index, HostWorkload)]
            return Lwf(kappa=0).decide(view)

    model = profile(1.0, 1.0)
    jobs = [job(f"j{n}", 0.1 * n, 1 + n % 5, 0.3 + n / 7, profile=model) for n in range(30)]
    run = replay(jobs, TWO_HOSTS, Kept())
    check_run(run, jobs, TWO_HOSTS)
    assert [kept[0].mean_s(host) for host in range(2)] == [0.0, 0.0]


def test_the_workload_follows_a_job_s_speed() -> None:
    """s is spread over two hosts at half its speed: at 1,900 s it has 50 s of work and 100 s of time left."""
    topology = cluster([4, 4, 4])
    jobs = [
        job("a", 0, 2, 10), job("b", 0, 2, 10), job("c", 0, 4, 10), job("s", 1, 4, 1000, profile=profile(1.0, 1.0)),
        job("new", 1900, 4, 10),
    ]  # fmt: skip
    run = replay(jobs, topology, Lwf(kappa=0))
    check_run(run, jobs, topology)
    assert hosts_of(run)["s"] == (0, 1) and times(run)["s"] == (1, 2001)
    assert hosts_of(run)["new"] == (2,)


def test_the_workload_of_a_job_that_stands_still_is_what_it_has_left() -> None:
    view = ClusterView(cluster([4]), estimates=None)  # type: ignore[arg-type]
    machine, workload = StateMachine(view), HostWorkload(view)
    view.indexes["workload"] = workload
    machine.apply(Arrived(0.0, job("a", 0.0, 2, 100.0)))
    assert not machine.execute(start("a", (0, 0b11)))
    assert workload.mean_s(0) == 50.0
    machine.apply(Measured(20.0, "a", 0.5))
    assert workload.mean_s(0) == 80.0
    machine.apply(Measured(40.0, "a", 0.0))
    assert workload.mean_s(0) == 35.0
    machine.apply(Measured(50.0, "a", 2.0))
    assert workload.mean_s(0) == 17.5
    machine.apply(Timer(1000.0, ""))
    assert workload.mean_s(0) == 0.0, "it should have ended: nothing is known to be left"
    machine.apply(Finished(1000.0, "a"))
    assert workload.mean_s(0) == 0.0


def test_where_two_jobs_meet_their_weights_are_as_their_shares() -> None:
    """Three hosts of two GPUs; jobs of three meet in the middle one's NIC."""
    topology = cluster([2, 2, 2])
    jobs = [
        job("big", 0, 3, 50, profile=profile(1.0, 1.0)),
        job("small", 0, 3, 50, profile=profile(1.0, 0.4)),
    ]
    run = replay(jobs, topology, Lwf(beta=1.0, eta=0.25))
    weights = {e.decision.job_id: e.decision.weight for e in run.decisions if isinstance(e.decision, Pace)}
    share = adadual_share(0.4, 1.0, 0.4)
    first = [e for e in run.decisions if isinstance(e.decision, Pace) and e.time_s == 0]
    assert {e.decision.job_id for e in first} == {"big", "small"}
    start_weights = {e.decision.job_id: e.decision.weight for e in first}  # type: ignore[union-attr]
    assert start_weights["small"] / start_weights["big"] == pytest.approx(share / (1 - share))
    assert 1.0 in weights.values()  # neutral again, once it is alone
    even = replay(jobs, topology, Lwf(adadual=False))
    assert times(run)["big"][1] < times(even)["big"][1]  # type: ignore[operator]


def test_without_traffic_it_is_the_shortest_service_first_of_anybody() -> None:
    """No job crosses: no weights; one GPU each, equal sizes, so that SRSF is SJF."""
    jobs = [job(f"j{n}", n % 5, 1, 3 + 7 * n % 11) for n in range(20)]
    jobs.sort(key=lambda one: one.submit_s)
    run = replay(jobs, cluster([2]), Lwf())
    assert times(run) == times(replay(jobs, cluster([2]), Sjf()))


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.integers(0, 4))
def test_every_job_ends_and_a_replay_repeats(seed: int, kappa: int) -> None:
    chance = np.random.Generator(np.random.PCG64(seed))
    models = [profile(1.0, 1.0, name="a"), profile(0.5, 0.1, name="b"), None]
    jobs = [
        job(f"j{n}", float(at), int(chance.integers(1, 7)), float(chance.integers(0, 60)),
            profile=models[chance.integers(0, 3)])
        for n, at in enumerate(sorted(chance.integers(0, 60, 12)))
    ]  # fmt: skip
    topology = cluster([3, 2], [2, 2])
    failures = [NodeLost(30.0, 0, {}), NodeBack(50.0, 0)]
    run = replay(jobs, topology, Lwf(kappa=kappa), failures=failures)
    check_run(run, jobs, topology)
    assert all(record.finish_s is not None for record in run.records)
    assert steps(run) == steps(replay(jobs, topology, Lwf(kappa=kappa), failures=failures))


@pytest.mark.parametrize("wrong", [{"kappa": -1}, {"beta": 0.0}, {"eta": -1.0}, {"eta": float("nan")}])
def test_parameters_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(PolicyError, match=next(iter(wrong))):
        Lwf(**wrong)  # type: ignore[arg-type]
