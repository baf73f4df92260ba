"""Pollux's simulator: rounds, restarts, whole seconds, and the facts behind them."""

from __future__ import annotations

import math

import pytest
from peer_runs import completion_s, stops, under
from replays import cluster, job

from hemiola.contrib.peers.simulators.pollux import BatchSplit, batch_of, epoch_iterations, iteration_s
from hemiola.core.errors import HemiolaError, InputError, TopologyError
from hemiola.core.job import Job
from hemiola.trace.workloads.source import pollux_durations_s

SIM = "pollux-sim"
NCF_S = 47.0
IMAGENET_24_S = 31805.0


def ncf(name: str, submit_s: float) -> Job:
    return job(name, submit_s, 1, NCF_S, model="ncf", facts={"batch_size": 32768.0})


def imagenet(name: str, submit_s: float) -> Job:
    return job(name, submit_s, 24, IMAGENET_24_S, model="imagenet", facts={"batch_size": 3200.0})


def test_a_job_waits_for_the_round_restarts_and_its_gpu_stays_idle_to_the_rounds_end() -> None:
    # Seen at 60, works from 90 to 137, its GPU is free at 180.
    run = under(SIM, [ncf("a", 10)], cluster([1]), "tiresias")
    assert completion_s(run) == {"a": 127}
    spent = run.gpu_seconds
    assert (spent.useful, spent.checkpoint, spent.idle_no_demand) == (47, 30, 50 + 43)
    assert run.end_s == 180


def test_an_arrival_on_a_round_is_seen_at_once() -> None:
    assert completion_s(under(SIM, [ncf("a", 60)], cluster([1]), "tiresias")) == {"a": 77}


def test_nothing_happens_before_the_first_round() -> None:
    assert completion_s(under(SIM, [ncf("a", 0)], cluster([1]), "tiresias")) == {"a": 137}


def test_idle_time_between_jobs_is_skipped_and_accounted_for() -> None:
    run = under(SIM, [ncf("a", 0), ncf("b", 100_000)], cluster([1]), "tiresias")
    assert completion_s(run) == {"a": 137, "b": 100_020 + 77 - 100_000}


def test_after_16_gpu_hours_a_job_stands_behind_newcomers_and_is_never_moved() -> None:
    # 24 GPUs reach 57,600 GPU-s 2,400 s after 60; b then runs from 2460, is done at 2537, seen at 2580.
    run = under(SIM, [imagenet("a", 0), ncf("b", 100)], cluster([4] * 6), "tiresias")
    assert completion_s(run)["b"] == 2537 - 100
    assert stops(run) == {"a": 1, "b": 0}
    assert completion_s(run)["a"] == pytest.approx(60 + 30 + IMAGENET_24_S + 120 + 30, abs=1)
    assert all(record.migrations == 0 for record in run.records)


def test_a_job_takes_the_emptiest_hosts_and_pays_for_the_spread() -> None:
    jobs = [ncf("a", 0), job("y", 0, 4, 14102, model="yolov3", facts={"batch_size": 64.0})]
    run = under(SIM, jobs, cluster([4, 4]), "tiresias")
    hosts = [h for i, h in zip(run.timeline.job, run.timeline.host, strict=True) if run.records[i].id == "y"]
    assert hosts == [1]
    spread = under(SIM, [ncf("a", 0), ncf("b", 0), *jobs[1:]], cluster([4, 4]), "tiresias")
    assert completion_s(spread)["y"] > completion_s(run)["y"] == 60 + 30 + 14102


@pytest.mark.parametrize(
    ("application", "size", "gpus", "batch"),
    [
        ("bert", 384, 6, BatchSplit(10, 5, 360)),
        ("cifar10", 4096, 12, BatchSplit(341, 0, 4092)),
        ("ncf", 32768, 1, BatchSplit(16384, 1, 32768)),
        ("yolov3", 64, 4, BatchSplit(8, 1, 64)),
    ],
)
def test_a_batch_is_split_over_gpus_and_steps(
    application: str, size: int, gpus: int, batch: BatchSplit
) -> None:
    assert batch_of(application, size, gpus) == batch


@pytest.mark.parametrize(("case", "duration_s"), pollux_durations_s().items())
def test_the_readers_run_times_follow_from_the_facts(case: tuple[str, int, int], duration_s: float) -> None:
    application, gpus, size = case
    step_s = iteration_s(application, size, (4,) * (gpus // 4) + ((gpus % 4,) if gpus % 4 else ()))
    assert sum(round(n * step_s) for n in epoch_iterations(application, size, gpus)) == duration_s


def test_placements_count_as_equal_when_rotated_but_not_when_reordered() -> None:
    assert iteration_s("bert", 384, (3, 2, 1)) == iteration_s("bert", 384, (1, 3, 2))
    assert iteration_s("bert", 384, (3, 2, 1)) != iteration_s("bert", 384, (3, 1, 2))


def test_what_was_not_recorded_is_an_error_that_says_what_was() -> None:
    with pytest.raises(InputError, match=r"no record of bert with batch size 32 on 2 GPUs") as caught:
        epoch_iterations("bert", 32, 2)
    assert "384" in caught.value.remedy
    with pytest.raises(InputError, match=r"no application 'gpt9'"):
        epoch_iterations("gpt9", 32, 2)


@pytest.mark.parametrize("facts", [{}, {"batch_size": 0.0}, {"batch_size": -5.0}, {"batch_size": math.inf}])
def test_a_job_without_batch_size_is_refused_by_name(facts: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"'plain' names no application or no batch_size"):
        under(SIM, [job("plain", 0, 4, 10, model="bert", facts=facts)], cluster([4]), "tiresias")


def test_a_placement_off_the_record_is_an_error() -> None:
    with pytest.raises(InputError, match=r"imagenet on 2 hosts"):
        under(SIM, [imagenet("a", 0)], cluster([12, 12]), "tiresias")


def test_hosts_must_be_equal() -> None:
    with pytest.raises(TopologyError, match=r"equal hosts"):
        under(SIM, [ncf("a", 0)], cluster([4, 2]), "tiresias")
    assert issubclass(TopologyError, HemiolaError)
