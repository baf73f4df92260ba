"""What a job tells the scheduler of its iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from record_jobs import TRACE, TRAIN, ranks, run

from hemiola.profiler.trace.keeper import Keeper, Reporting, job_name
from hemiola.profiler.trace.parts import NoPart
from hemiola.profiler.trace.recorder import IterationRecorder
from hemiola.profiler.trace.values import Iteration, IterationDraft, PartHead, RankGroup
from hemiola.trace.reports import JobReport, Reports

MS = 10**6


class Job:
    """A rank's keeper without its thread, and a clock that a test sets."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.now_s = 1000.0
        self.keeper = Keeper(IterationRecorder(), NoPart(), lambda: self.head)
        self.head = PartHead(
            rank=rank, world_size=4, host="h", device="cpu", pid=1, mode="light", monotonic_ns=0, unix_ns=0
        )
        self.keeper.head = self.head
        Reporting(self.keeper, folder, "17", lambda: self.now_s)

    def iterate(self, count: int, duration_ms: int, exposed_ms: int, **sent: int) -> None:
        """So many alike, with a transfer of each collective named, the first of which is waited for."""
        rows = [
            (i, "", name.replace("_", "-"), 0, size, 0, 0, 0, 0, exposed_ms * MS if i == 0 else 0)
            for i, (name, size) in enumerate(sent.items())
        ]
        for number in range(count):
            iteration = Iteration(number, 0, duration_ms * MS, True, False, [], rows)
            for heard in self.keeper.on_iteration:
                heard(IterationDraft.__new__(IterationDraft), iteration)

    def visit(self) -> None:
        for action in self.keeper.every:
            action()


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Callable[[], list[JobReport]]]:
    reports = Reports(tmp_path)
    yield lambda: [one.report for one in reports.fresh() if isinstance(one.report, JobReport)]


def test_means_of_the_last_seconds_are_reported(tmp_path: Path, heard: Callable[[], list[JobReport]]) -> None:
    job = Job(tmp_path)
    job.iterate(10, 20, 5, all_reduce=800, all_gather=400)
    job.visit()
    assert not heard()
    job.now_s += 6
    job.visit()
    (report,) = heard()
    assert (report.job, report.gpus, report.iterations, report.time_s) == ("17", 4, 10, 1000.0)
    assert report.iteration_s == pytest.approx(0.020)
    assert report.compute_s == pytest.approx(0.015)
    assert report.traffic_bytes == pytest.approx(2 * 0.75 * 800 + 0.75 * 400)
    assert report.all_reduced == pytest.approx(0.8)
    job.iterate(4, 40, 0, broadcast=100)
    job.now_s += 6
    job.visit()
    assert not heard()  # four are too few
    job.iterate(4, 40, 0, broadcast=100)
    job.visit()
    (report,) = heard()
    assert (report.iterations, report.traffic_bytes, report.all_reduced) == (18, 100.0, 0.0)


def test_a_transfer_of_a_group_is_shared_by_the_ranks_of_that_group(
    tmp_path: Path, heard: Callable[[], list[JobReport]]
) -> None:
    job = Job(tmp_path)
    job.keeper.tell(RankGroup(0, "shards", [0, 2], "gloo"))
    job.iterate(10, 20, 5, all_reduce=800, all_gather=400)
    job.now_s += 6
    job.visit()
    (report,) = heard()
    assert report.traffic_bytes == pytest.approx(800 + 200)


def test_what_is_received_has_the_other_direction_of_a_link(
    tmp_path: Path, heard: Callable[[], list[JobReport]]
) -> None:
    """A stage of a pipeline: activations go to the next one, gradients come back."""
    job = Job(tmp_path)
    job.iterate(10, 20, 5, send=800, recv=900, broadcast=100)
    job.now_s += 6
    job.visit()
    (report,) = heard()
    assert (report.traffic_bytes, report.all_reduced) == (1000.0, 0.0)


def test_only_rank_0_reports(tmp_path: Path, heard: Callable[[], list[JobReport]]) -> None:
    job = Job(tmp_path, rank=1)
    job.iterate(10, 20, 5, all_reduce=800)
    job.now_s += 60
    job.visit()
    assert not heard()


def test_a_folder_that_goes_away_ends_the_reports_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path / "gone")
    for _ in range(2):
        job.iterate(10, 20, 5, all_reduce=800)
        job.now_s += 60
        job.visit()
    assert caplog.text.count("is told no more") == 1


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, ""),
        ({"SLURM_JOB_ID": "12"}, "12"),
        ({"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "11", "SLURM_ARRAY_TASK_ID": "3"}, "11_3"),
        ({"HEMIOLA_JOB": "raysubmit_x"}, "raysubmit_x"),
    ],
)
def test_a_job_knows_what_its_engine_calls_it(environment: dict[str, str], name: str) -> None:
    assert job_name(environment) == name


RUN = [*TRACE[:-1], "run", "--nproc", "2"]


def _reported(folder: Path, command: list[str], **more: Any) -> JobReport:
    reports = folder / "reports"
    reports.mkdir()
    done = run(command, HEMIOLA_REPORTS=str(reports), SLURM_JOB_ID="17", **more)
    assert done.returncode == 0, done.stderr
    (found,) = Reports(reports).fresh()
    assert isinstance(found.report, JobReport)
    return found.report


@pytest.mark.parametrize("verb", ["run", "trace", "trace of run"])
def test_a_real_job_reports_under_both_verbs(tmp_path: Path, verb: str) -> None:
    job = [TRAIN, "--iterations", "240", "--slow-rank", "1"]
    command = [*ranks(tmp_path), *job[1:]] if verb == "trace" else [*RUN, *job]
    if verb != "run":
        command = [*TRACE, "-o", str(tmp_path / "run.json"), "--", *command]
    report = _reported(tmp_path, command)
    assert (report.job, report.gpus) == ("17", 2)
    assert report.iteration_s > 0.03  # the slow rank's pause, which rank 0 waits for
    assert report.compute_s < report.iteration_s - 0.02
    parameters = 4 * (64 * 64 + 64) * 4
    assert report.traffic_bytes == pytest.approx(parameters, rel=0.2)
    assert (tmp_path / "run.json").exists() == (verb != "run")
    assert not list(tmp_path.glob("*.parts"))
