"""Tiresias's simulator: answers worked out by hand, and an oracle on small random traces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peer_oracle import answer
from peer_runs import completion_s, stops, under
from replays import cluster, job

from hemiola.core.job import Job
from hemiola.core.result import Run
from hemiola.core.topology import Topology

SIM = "tiresias-sim"
POLICIES = ("fifo", "fjf", "sjf", "shortest", "shortest-gpu", "dlas", "dlas-gpu")


def test_fifo_holds_everyone_behind_the_first_that_does_not_fit() -> None:
    jobs = [job("a", 0, 3, 10), job("b", 1, 2, 5), job("c", 2, 1, 5)]
    assert completion_s(under(SIM, jobs, cluster([2, 2]), "fifo")) == {"a": 10, "b": 14, "c": 13}


def test_fjf_lets_whoever_fits_go_ahead() -> None:
    jobs = [job("a", 0, 3, 10), job("b", 1, 2, 5), job("c", 2, 1, 5)]
    assert completion_s(under(SIM, jobs, cluster([2, 2]), "fjf")) == {"a": 10, "b": 14, "c": 5}


def test_shortest_stops_a_longer_job_at_no_cost() -> None:
    run = under(SIM, [job("a", 0, 4, 10), job("b", 2, 4, 3)], cluster([2, 2]), "shortest")
    assert completion_s(run) == {"a": 13, "b": 3}
    assert stops(run) == {"a": 1, "b": 0}
    assert run.gpu_seconds.useful == 4 * 13 and run.gpu_seconds.checkpoint == 0


def test_ties_fall_as_they_fell_at_the_last_instant() -> None:
    # At 1 the order is c, b, a and b does not fit beside c; at 4 a and b both have 6 s left, b still first.
    jobs = [job("a", 0, 1, 10), job("b", 1, 2, 6), job("c", 1, 1, 3)]
    assert completion_s(under(SIM, jobs, cluster([2]), "shortest")) == {"a": 16, "b": 9, "c": 3}


def test_dlas_gpu_looks_late_because_its_timer_takes_seconds_from_gpu_seconds() -> None:
    # a reaches 3250 GPU-s at 812.5, but the arrival at 100 sets the timer to ceil((3250-100)/4) + 100 = 888.
    # Then b runs until its own timer at 888 + 813, where a, first in the second queue, goes on.
    run = under(SIM, [job("a", 0, 4, 1000), job("b", 100, 4, 1000)], cluster([4]), "dlas-gpu")
    assert completion_s(run) == {"a": 1813, "b": 1900}
    assert stops(run) == {"a": 1, "b": 1}


def test_dlas_counts_seconds_and_so_never_reaches_a_limit_here() -> None:
    run = under(SIM, [job("a", 0, 4, 1000), job("b", 100, 4, 1000)], cluster([4]), "dlas")
    assert completion_s(run) == {"a": 1000, "b": 1900}


def test_those_that_run_stand_before_those_that_wait_in_their_queue() -> None:
    # b does not fit at 1, so c, which does, stands before it from then on: when a ends, c keeps its GPU.
    jobs = [job("a", 0, 1, 10), job("b", 1, 2, 5), job("c", 2, 1, 20)]
    assert completion_s(under(SIM, jobs, cluster([2]), "dlas")) == {"a": 10, "b": 26, "c": 20}


def test_yarn_refuses_what_no_switch_holds_and_count_runs_it() -> None:
    jobs, topology = [job("wide", 0, 5, 10), job("small", 0, 1, 10)], cluster([4], [4])
    refused, small = under(SIM, jobs, topology, "fifo").records
    assert refused.status == "refused" and "more than one switch has" in refused.why
    assert small.finish_s == 10
    assert completion_s(under(SIM, jobs, topology, "fifo:placement=count")) == {"wide": 10, "small": 10}
    assert completion_s(under(SIM, jobs, topology, "dlas-gpu:placement=yarn")) == {"wide": 10, "small": 10}


def test_what_the_cluster_cannot_hold_is_refused_and_holds_nobody() -> None:
    run = under(
        SIM, [job("vast", 0, 9, 10), job("small", 1, 1, 10)], cluster([4], [4]), "fifo:placement=count"
    )
    assert [record.status for record in run.records] == ["refused", "finished"]


def test_a_job_of_no_length_ends_where_it_starts_and_run_times_are_whole_seconds() -> None:
    run = under(SIM, [job("none", 3, 1, 0), job("cut", 3, 1, 2.9)], cluster([1]), "fifo")
    assert completion_s(run) == {"none": 0, "cut": 2}


def test_first_fit_takes_the_first_host_even_if_a_fuller_one_would_do() -> None:
    run = under(SIM, [job("a", 0, 1, 10), job("b", 0, 2, 10), job("c", 1, 1, 5)], cluster([2, 2, 2]), "fifo")
    hosts = {run.records[i].id: h for i, h in zip(run.timeline.job, run.timeline.host, strict=True)}
    assert hosts == {"a": 0, "b": 1, "c": 0}


@st.composite
def small_traces(draw: st.DrawFn) -> tuple[list[tuple[float, int, float]], list[list[int]]]:
    """Jobs (submit_s, gpus, duration_s) that one switch can hold, and switches of equal hosts."""
    size = draw(st.sampled_from((1, 2, 4)))
    switches = [[size] * draw(st.integers(1, 3))] * draw(st.integers(1, 2))
    most = sum(switches[0])
    lengths = st.one_of(st.integers(0, 12), st.integers(0, 6).map(lambda n: n * 1000))
    jobs = st.tuples(st.integers(0, 8).map(lambda n: n * 3), st.integers(1, most), lengths)
    return sorted(draw(st.lists(jobs, min_size=1, max_size=9)), key=lambda row: row[0]), switches


def _jobs(rows: list[tuple[float, int, float]]) -> list[Job]:
    return [job(str(i), s, g, d) for i, (s, g, d) in enumerate(rows)]


def _told(run: Run) -> dict[str, tuple[float | None, float | None]]:
    return {record.id: (record.first_start_s, record.finish_s) for record in run.records}


@pytest.mark.parametrize("scheme", ["yarn", "count"])
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=40)
@given(case=small_traces())
def test_every_policy_agrees_with_the_oracle(
    policy: str, scheme: str, case: tuple[list[tuple[float, int, float]], list[list[int]]]
) -> None:
    rows, switches = case
    topology: Topology = cluster(*switches)
    run = under(SIM, _jobs(rows), topology, f"{policy}:placement={scheme}")
    expected = answer(rows, switches, policy, scheme)
    assert _told(run) == {name: row[:2] for name, row in expected.items()}
    if scheme == "count" or policy in ("fifo", "fjf", "dlas", "dlas-gpu"):
        assert stops(run) == {name: row[2] for name, row in expected.items()}
