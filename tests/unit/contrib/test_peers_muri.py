"""Muri's simulator: work in iterations, and a start-up that every interval costs again."""

from __future__ import annotations

import pytest
from peer_runs import completion_s, stops, under
from replays import cluster, job

from hemiola.contrib.peers.simulators.muri import start_up_s
from hemiola.core.errors import InputError
from hemiola.core.job import Job

SIM = "muri-sim"


def muri_job(name: str, submit_s: float, gpus: int, iterations: float, model: str = "resnet18") -> Job:
    """One second per iteration in the trace, 1.015 s in the simulator; 4 s of start-up on one GPU."""
    facts = {"iterations": iterations, "iteration_time": 1000.0}
    return job(name, submit_s, gpus, iterations, model=model, facts=facts)


def test_a_job_alone_pays_no_start_up() -> None:
    run = under(SIM, [muri_job("a", 0, 1, 100)], cluster([1]), "srtf")
    assert completion_s(run) == {"a": pytest.approx(101.5)}
    assert run.gpu_seconds.checkpoint == 0


def test_every_interval_that_others_close_costs_a_running_job_its_start_up() -> None:
    # The arrival at 50 costs a 4 s; a's end at 105.5 costs b 4 s.
    run = under(SIM, [muri_job("a", 0, 1, 100), muri_job("b", 50, 1, 100)], cluster([2]), "srtf")
    assert completion_s(run) == {"a": pytest.approx(105.5), "b": pytest.approx(105.5)}
    assert run.gpu_seconds.checkpoint == pytest.approx(8)
    assert run.gpu_seconds.useful == pytest.approx(2 * 101.5)


def test_an_interval_shorter_than_the_start_up_is_all_lost() -> None:
    run = under(SIM, [muri_job("a", 0, 1, 100), muri_job("b", 3, 1, 1)], cluster([2]), "srtf")
    assert completion_s(run) == {"a": pytest.approx(3 + 1.015 + 101.5), "b": pytest.approx(1.015)}


def test_srtf_and_srsf_differ_by_the_number_of_gpus() -> None:
    jobs = [muri_job("wide", 0, 2, 60), muri_job("narrow", 0, 1, 100)]
    assert completion_s(under(SIM, jobs, cluster([2]), "srtf"))["wide"] == pytest.approx(60.9)
    first = under(SIM, jobs, cluster([2]), "srsf")
    assert completion_s(first)["narrow"] == pytest.approx(101.5)
    assert completion_s(first)["wide"] == pytest.approx(101.5 + 60.9)


def test_tiresias_steps_down_at_the_crossing_rounded_up() -> None:
    # 3250 GPU-s on 4 GPUs are reached at 812.5, seen at 813; bert has no entry: 10 s of start-up.
    jobs = [muri_job("a", 0, 4, 2000, "bert"), muri_job("b", 100, 4, 100, "bert")]
    run = under(SIM, jobs, cluster([4]), "tiresias")
    stopped = [entry.time_s for entry in run.decisions if type(entry.decision).__name__ == "Stop"]
    assert stopped == [813.0]
    # b alone takes 101.5 s; a loses 10 s at 100, at 813, and at 1901.5, when it reaches 7200 GPU-s.
    assert completion_s(run) == {
        "a": pytest.approx(813 + 101.5 + 2030 - 813 + 30),
        "b": pytest.approx(813 - 100 + 101.5),
    }
    assert stops(run) == {"a": 1, "b": 0}


def test_tiresias_l_is_the_same_policy() -> None:
    jobs = [muri_job("a", 0, 4, 2000), muri_job("b", 100, 4, 1000), muri_job("c", 150, 2, 500)]
    one, other = (completion_s(under(SIM, jobs, cluster([4]), name)) for name in ("tiresias", "tiresias-l"))
    assert one == other


def test_start_up_by_model_and_gpus() -> None:
    assert start_up_s("a2c", 8) == 46
    assert start_up_s("gpt2", 8) == start_up_s("a model of no one", 8) == start_up_s("a2c", 3) == 10


def test_a_job_without_iterations_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"'plain' has no iterations and no iteration_time"):
        under(SIM, [job("plain", 0, 1, 10)], cluster([1]), "srtf")
