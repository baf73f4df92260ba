"""What a run says of each job and of the whole, whatever became of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import FREE, Script, at, check_run, cluster, job, profile, replay, start, steps, times

from hemiola.core.decisions import Resize, Stop
from hemiola.core.events import NodeBack, NodeLost
from hemiola.core.timeline import job_spans, queue_series
from hemiola.simulator.cluster import Costs

TWO = cluster([2])


def test_every_field_of_a_job_that_was_stopped_twice() -> None:
    jobs = [job("a", 1, 2, 10, profile=profile(1.0, 0.0, name="bert"), user="ann", queue="prod")]
    lines = {1.0: [start("a", (0, 3))], 4.0: [Stop("a", "")], 9.0: [start("a", (0, 3))],
             11.0: [Stop("a", "")], 20.0: [start("a", (0, 3))]}  # fmt: skip
    run = replay(jobs, TWO, Script(lines), costs=FREE)  # type: ignore[arg-type]
    check_run(run, jobs, TWO)
    a = run.records[0]
    assert (a.submit_s, a.first_start_s, a.finish_s, a.jct_s) == (1, 1, 25, 24)
    assert (a.queueing_s, a.run_s, a.useful_s, a.preemptions, a.ideal_s) == (14, 10, 10, 2, 10)
    assert (a.model, a.user, a.queue, a.gpus, a.tiers_s) == ("bert", "ann", "prod", 2, (10, 0))
    spans = [(float(s), float(e)) for s, e in zip(run.timeline.start_s, run.timeline.end_s, strict=True)]
    assert spans == [(1, 4), (9, 11), (20, 25)]
    assert [run.timeline.OUTCOMES[o] for o in run.timeline.outcome] == [
        "pre-empted",
        "pre-empted",
        "finished",
    ]


def test_a_run_says_what_it_cost_and_under_which_rules() -> None:
    run = replay([job("a", 0, 2, 10)], TWO, "fifo", seed=7)
    assert run.seed == 7 and run.semantics["seed"] == "7"
    assert run.policy == "fifo" and run.semantics["order"] == "arrival"
    assert (run.decisions_made, run.decisions_refused, run.events) == (1, 0, 2)
    assert run.wall_s >= 0 and run.cpu_s >= 0 and not run.interrupted


# ---- elastic jobs ----------------------------------------------------------------------------


def test_gpu_seconds_of_an_elastic_job_are_those_of_the_gpus_it_had_at_the_time() -> None:
    """1,000 s on two GPUs of a host, where nothing is exposed; then 100 s on eight over both, where half of each is."""
    topology = cluster([4, 4])
    jobs = [job("e", 0, 4, 600, gpus_min=2, gpus_max=8, profile=profile(1.0, 1.0))]
    lines = {0.0: [start("e", (0, 0b11))], 1000.0: [Resize("e", at((0, 0b1111), (1, 0b1111)), "")]}
    run = replay(jobs, topology, Script(lines))  # type: ignore[arg-type]
    check_run(run, jobs, topology)
    assert times(run)["e"] == (0, pytest.approx(1100))
    assert run.gpu_seconds.useful == pytest.approx(2000 + 8 * 50)
    assert run.gpu_seconds.exposed_communication == pytest.approx(8 * 50)
    e = run.records[0]
    assert (e.useful_s, e.exposed_communication_s) == (pytest.approx(1050), pytest.approx(50)), "by the clock"


def test_what_a_job_held_and_left_at_one_instant_is_no_span() -> None:
    """a begins on the whole host; b comes at that instant, and a keeps two of its GPUs."""
    topology = cluster([4])
    jobs = [job(name, 0, 4, 600, gpus_min=2) for name in "ab"]
    run = replay(jobs, topology, "elastic")
    check_run(run, jobs, topology)
    assert ("Resize", "a") in [(what, which) for when, what, which in steps(run) if when == 0]
    opens = job_spans(run.timeline)
    spans = zip(run.timeline.job[opens], run.timeline.start_s[opens], run.timeline.end_s[opens], strict=True)
    assert sorted(spans) == [(0, 0, 1200), (1, 0, 1200)]
    assert np.bitwise_count(run.timeline.gpu_mask).tolist() == [2, 2]
    assert queue_series(run).waiting.max() == 0


def test_an_elastic_job_saves_and_loses_on_the_gpus_it_had_at_the_time() -> None:
    """Two GPUs until 100 s, 5 s to save and load, four until its host fails at 255 s, 50 s after its last checkpoint."""
    topology = cluster([4, 4])
    jobs = [job("e", 0, 4, 300, gpus_min=1)]
    lines = {
        0.0: [start("e", (0, 0b11))], 100.0: [Resize("e", at((0, 0b1111)), "")], 300.0: [start("e", (1, 1))],
    }  # fmt: skip
    costs = Costs(checkpoint_s=2.0, restore_s=3.0, checkpoint_interval_s=100.0)
    lost = [NodeLost(255.0, 0), NodeBack(260.0, 0)]
    run = replay(jobs, topology, Script(lines), costs=costs, failures=lost)  # type: ignore[arg-type]
    check_run(run, jobs, topology)
    assert times(run)["e"] == (0, 303 + 4 * (300 - 50 - 100))
    spent = run.gpu_seconds
    assert (spent.useful, spent.lost, spent.checkpoint) == (200 + 400 + 600, 4 * 50, 4 * 5 + 3)


# ---- interrupted -----------------------------------------------------------------------------


def interrupt_after(ended: int) -> object:
    def progress(policy: str, seed: int, done: int, jobs: int) -> None:
        if done >= ended:
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_run_is_true_up_to_its_end() -> None:
    """b ends at 20 s, which interrupts it; c runs on until 30 s, d waits for the whole cluster."""
    jobs = [job("a", 0, 1, 10), job("b", 0, 1, 20), job("c", 0, 1, 30), job("d", 5, 4, 5), job("e", 90, 1, 1)]
    topology = cluster([4])
    run = replay(jobs, topology, "fifo", progress=interrupt_after(2))
    check_run(run, jobs, topology)
    assert run.interrupted and run.end_s == 20
    assert [r.status for r in run.records] == ["finished", "finished", "running", "waiting", "waiting"]
    c, d, e = run.records[2:]
    assert (c.run_s, c.useful_s, c.finish_s) == (20, 20, None)
    assert d.queueing_s == 15 and e.queueing_s == 0
    assert "stopped" in c.why and "before it arrived" in e.why
    assert "stopped" in d.why, "nobody can say that no placement would have been found"


def test_ideal_times_are_of_this_cluster_whatever_became_of_a_job() -> None:
    """Ten seconds there are fifteen here; when a's end interrupts it, b has just begun, c waits, d is to come."""
    topology, there = cluster([1, 1], nic=0.5), cluster([1, 1], nic=1.0)
    jobs = [job(name, at, 2, 10, profile=profile()) for name, at in (("a", 0), ("b", 1), ("c", 2), ("d", 90))]
    run = replay(jobs, topology, "fifo", recorded_on=there, progress=interrupt_after(1))
    check_run(run, jobs, topology)
    assert [r.status for r in run.records] == ["finished", "running", "waiting", "waiting"]
    assert [r.ideal_s for r in run.records] == pytest.approx([15] * 4)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 4), st.sampled_from([0.0, 3.0, 8.0, 20.0])),
        min_size=1, max_size=8,
    ),
    st.integers(1, 8), st.sampled_from(["fifo", "srtf", "tiresias", "fifo-backfill"]), st.booleans(),
)  # fmt: skip
def test_whenever_it_is_interrupted_the_books_balance(
    sizes: list[tuple[int, int, float]], ended: int, policy: str, fails: bool
) -> None:
    topology = cluster([2, 2], nic=0.5)
    models = (None, profile(1.0, 1.0), profile(1.0, 0.2, overlap=0.5))
    jobs = [job(f"j{n}", at, g, d, profile=models[n % 3]) for n, (at, g, d) in enumerate(sorted(sizes))]
    failures = [NodeLost(8.0, 0), NodeBack(11.0, 0)] if fails else []
    costs = Costs(checkpoint_s=1.0, restore_s=2.0, checkpoint_interval_s=3.0)
    run = replay(jobs, topology, policy, costs=costs, failures=failures, progress=interrupt_after(ended))
    check_run(run, jobs, topology)
    assert run.interrupted == (ended <= len(jobs))
    if run.interrupted:
        assert sum(r.status == "finished" for r in run.records) >= ended


def test_an_interrupt_at_the_very_end_is_an_interrupt_of_nothing() -> None:
    jobs = [job("a", 0, 1, 10)]
    run = replay(jobs, TWO, "fifo", progress=interrupt_after(1))
    check_run(run, jobs, TWO)
    assert times(run) == {"a": (0, 10)}


def test_progress_is_told_of_the_last_job() -> None:
    told: list[tuple[str, int, int, int]] = []
    jobs = [job(f"j{n}", 0, 1, n + 1) for n in range(250)]
    replay(jobs, TWO, "fifo", seed=3, progress=lambda *what: told.append(what))
    assert told[-1] == ("fifo", 3, 250, 250)
    assert 100 <= len(told) <= 130


@pytest.mark.parametrize("rule", ["tier-aware", "yarn"])
def test_a_job_that_never_found_a_place_says_so(rule: str) -> None:
    topology = cluster([2], [2])
    jobs = [job("a", 0, 4, 10)]
    run = replay(jobs, topology, f"fifo:placement={rule}")
    record = run.records[0]
    if rule == "yarn":
        assert record.status == "waiting" and "4 GPUs" in record.why
    else:
        assert record.status == "finished"


# ---- jobs that wait for ever -------------------------------------------------------------------

NEVER = [job("a", 0, 1, 100), job("b", 5, 8, 10)]
"""On a cluster whose second host is lost, b waits for ever."""


@pytest.mark.parametrize("policy", ["fifo", "tiresias", "tiresias:thresholds=3600/1e9", "dally", "gandiva"])
@pytest.mark.parametrize("later", [(), (NodeLost(1e6, 0), NodeBack(2e6, 0))], ids=["", "more fails"])
def test_a_run_ends_with_the_last_job_that_ends(policy: str, later: tuple[NodeLost | NodeBack, ...]) -> None:
    """Timers of jobs that ended, and hosts that fail when nothing runs, are no part of it."""
    topology = cluster([4, 4])
    run = replay(NEVER, topology, policy, failures=[NodeLost(10, 1), *later])
    check_run(run, NEVER, topology)
    assert run.end_s == 100
    assert [(r.status, r.queueing_s) for r in run.records] == [("finished", 0), ("waiting", 95)]
    assert (run.gpu_seconds.useful, run.gpu_seconds.down) == (100, 4 * 90)


def test_time_in_which_nothing_runs_counts_where_something_runs_after_it() -> None:
    topology = cluster([4, 4])
    run = replay(NEVER, topology, "tiresias", failures=[NodeLost(10, 1), NodeBack(1e6, 1)])
    check_run(run, NEVER, topology)
    assert times(run) == {"a": (0, 100), "b": (1e6, 1e6 + 10)}
    assert (run.end_s, run.gpu_seconds.down) == (1e6 + 10, 4 * (1e6 - 10))


def test_a_run_lasts_until_the_last_arrival() -> None:
    jobs = [*NEVER, job("late", 500, 8, 10)]
    run = replay(jobs, cluster([4, 4]), "dally", failures=[NodeLost(10, 1)])
    check_run(run, jobs, cluster([4, 4]))
    assert run.end_s == 500


def test_a_job_that_is_stopped_in_the_instant_it_starts_was_there() -> None:
    jobs = [job("a", 0, 2, 10), job("b", 0, 2, 10)]
    lines = {0.0: [start("a", (0, 3))], 50.0: [start("b", (0, 3)), Stop("b", "")], 90.0: []}
    run = replay(jobs, TWO, Script(lines), costs=FREE)  # type: ignore[arg-type]
    check_run(run, jobs, TWO)
    assert times(run)["b"] == (50, None) and run.end_s == 50
