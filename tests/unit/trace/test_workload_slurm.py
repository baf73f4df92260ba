"""Slurm's accounting: what counts as a job, how many GPUs it had, how long it might have run."""

from __future__ import annotations

from pathlib import Path

import pytest
import workload_samples as samples

from hemiola.core.errors import FormatError, RowError
from hemiola.core.job import Workload, batch_job
from hemiola.trace.workloads import read_workload
from hemiola.trace.workloads.clock import limit_seconds

HEADER = "JobID|Submit|Start|End|State|AllocTRES|NodeList|Timelimit\n"
TIMES = "2024-01-01T00:00:00|2024-01-01T00:00:00|2024-01-01T00:01:00"


def read(folder: Path, text: str, **options: object) -> Workload:
    path = folder / "sacct.txt"
    path.write_text(text)
    return read_workload(path, **options)  # type: ignore[arg-type]


def test_a_dump(tmp_path: Path) -> None:
    workload = read(tmp_path, samples.SLURM)
    assert workload.jobs == (
        batch_job(
            id="103_4", submit_s=0.0, gpus=4, duration_s=40.0, user="bob", queue="gpu", estimate_s=5400.0,
            recorded_start_s=5.0, recorded_state="CANCELLED", recorded_hosts=("n1",),
        ),
        batch_job(
            id="100", submit_s=10.0, gpus=16, duration_s=3600.0, model="gpt2", user="ann", queue="gpu",
            estimate_s=86400.0, recorded_start_s=60.0, recorded_state="COMPLETED",
            recorded_hosts=("n07", "n08"),
        ),
    )  # fmt: skip
    assert workload.skipped == {
        "job step": 1,
        "CPU job": 1,
        "never started": 1,
        "still running when the log was taken": 1,
    }


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("gres/gpu=8", 8),
        ("cpu=1,gres/gpu:a100=8,node=1", 8),
        ("gres/gpu:a100=8,gres/gpu=8", 8),
        ("gres/gpu:a100=2,gres/gpu:t4=1", 3),
        ("gres/gpu:a100_1g.5gb=3,mem=1G", 3),
        ("gres/gpu=1,gres/gpumem=80G,gres/gpuutil=50", 1),
    ],
)
def test_gpus_of_a_tres_string(tres: str, gpus: int, tmp_path: Path) -> None:
    workload = read(tmp_path, f"{HEADER}1|{TIMES}|COMPLETED|{tres}|n1|\n")
    assert workload.jobs[0].gpus == gpus


def test_the_type_asked_for_is_a_requirement_the_type_given_is_not(tmp_path: Path) -> None:
    header = "JobID|Submit|Start|End|State|ReqTRES|AllocTRES\n"
    asked = read(tmp_path, f"{header}1|{TIMES}|FAILED|gres/gpu:h100=2|gres/gpu:h100=2\n")
    given = read(tmp_path, f"{header}1|{TIMES}|FAILED|gres/gpu=2|gres/gpu:h100=2\n")
    assert (asked.jobs[0].gpu_type, given.jobs[0].gpu_type) == ("h100", "")


def test_parsable_ends_each_line_in_a_bar(tmp_path: Path) -> None:
    text = samples.SLURM.replace("\n", "|\n")
    assert read(tmp_path, text) == read(tmp_path, samples.SLURM)


@pytest.mark.parametrize("end", ["", "|"])
def test_a_bar_inside_a_name_is_no_end_of_the_line(end: str, tmp_path: Path) -> None:
    header = "JobID|Submit|Start|End|State|AllocTRES|JobName|User|Partition|NodeList|Comment"
    row = f"1|{TIMES}|COMPLETED|gres/gpu=8|a|b|ann|gpu|n1|"
    with pytest.raises(RowError, match="is a column too many"):
        read(tmp_path, f"{header}{end}\n{row}{end}\n")


def test_requested_gpus_serve_where_allocated_ones_are_not_listed(tmp_path: Path) -> None:
    text = f"JobID|Submit|Start|End|State|ReqTRES\n1|{TIMES}|COMPLETED|gres/gpu=4\n"
    assert read(tmp_path, text).jobs[0].gpus == 4


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no column End"):
        read(tmp_path, f"JobID|Submit|Start|State|AllocTRES\n1|{TIMES}\n")
    with pytest.raises(FormatError, match="AllocTRES or ReqTRES"):
        read(tmp_path, f"JobID|Submit|Start|End|State\n1|{TIMES}|COMPLETED\n")


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("1|yesterday|2024-01-01T00:00:00|2024-01-01T00:01:00|COMPLETED|gres/gpu=1|n1|", "Submit"),
        ("1|2024-01-01T00:00:00|2024-01-01T00:02:00|2024-01-01T00:01:00|COMPLETED|gres/gpu=1|n1|", "End"),
        ("1|2024-01-01T00:03:00|2024-01-01T00:02:00|2024-01-01T00:04:00|COMPLETED|gres/gpu=1|n1|", "Start"),
        (f"1|{TIMES}|COMPLETED|gres/gpu=1|n[1|", "NodeList"),
        (f"1|{TIMES}|COMPLETED|gres/gpu=1|n[1-999999999]|", "NodeList"),
        (f"1|{TIMES}|COMPLETED|gres/gpu=1|n1|soon", "Timelimit"),
        (f"1|{TIMES}|COMPLETED|gres/gpu=99999999|n1|", "AllocTRES"),
        (f"1|{TIMES}|COMPLETED|gres/gpu=1|n1||extra|bars", "Timelimit"),
        (f"1|{TIMES}|COMPLETED", "AllocTRES"),
    ],
)
def test_bad_rows(row: str, column: str, tmp_path: Path) -> None:
    with pytest.raises(RowError) as caught:
        read(tmp_path, f"{HEADER}0|{TIMES}|COMPLETED|gres/gpu=1|n1|\n{row}\n")
    assert (caught.value.line, caught.value.column) == (3, column)
    assert caught.value.remedy


SET_BACK = "2024-11-02T12:00:00|2024-11-03T01:50:00|2024-11-03T01:10:00"
"""In New York clocks went from 2:00 to 1:00 in that night: it ran for 20 minutes."""


@pytest.mark.parametrize(
    ("columns", "elapsed"),
    [
        ("ElapsedRaw", "1200"),
        ("Elapsed", "00:20:00"),
        ("Elapsed", "0-00:20:00"),
        ("ElapsedRaw|Elapsed", "1200|00:20:00"),
        ("ElapsedRaw|Elapsed", "|00:20:00"),
    ],
)
def test_the_time_that_slurm_counted_stands_when_clocks_were_set_back(
    columns: str, elapsed: str, tmp_path: Path
) -> None:
    header = HEADER.replace("|State", f"|{columns}|State")
    workload = read(tmp_path, f"{header}1|{SET_BACK}|{elapsed}|COMPLETED|gres/gpu=1|n1|\n")
    assert workload.jobs[0].duration_s == 1200.0


def test_a_job_that_was_suspended_counts_without_that(tmp_path: Path) -> None:
    header = HEADER.replace("|State", "|ElapsedRaw|State")
    assert read(tmp_path, f"{header}1|{TIMES}|40|COMPLETED|gres/gpu=1|n1|\n").jobs[0].duration_s == 40.0
    assert read(tmp_path, f"{header}1|{TIMES}||COMPLETED|gres/gpu=1|n1|\n").jobs[0].duration_s == 60.0


def test_a_dump_across_the_end_of_summer_time_says_what_settles_it(tmp_path: Path) -> None:
    with pytest.raises(RowError, match="is before Start") as caught:
        read(tmp_path, f"{HEADER}1|{SET_BACK}|COMPLETED|gres/gpu=1|n1|\n")
    assert "set back" in caught.value.remedy
    assert "add ElapsedRaw to sacct's --format" in caught.value.remedy
    waited = "2024-11-03T01:50:00|2024-11-03T01:10:00|2024-11-03T01:40:00"
    with pytest.raises(RowError, match="is before Submit") as caught:
        read(tmp_path, f"{HEADER}1|{waited}|COMPLETED|gres/gpu=1|n1|\n")
    assert "TZ=UTC sacct" in caught.value.remedy


@pytest.mark.parametrize(
    ("column", "value"), [("ElapsedRaw", "-1"), ("ElapsedRaw", "soon"), ("Elapsed", "soon")]
)
def test_no_run_times(column: str, value: str, tmp_path: Path) -> None:
    header = HEADER.replace("|State", f"|{column}|State")
    with pytest.raises(RowError) as caught:
        read(tmp_path, f"{header}1|{TIMES}|{value}|COMPLETED|gres/gpu=1|n1|\n")
    assert (caught.value.line, caught.value.column, caught.value.value) == (2, column, value)
    assert caught.value.remedy


def test_a_job_listed_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RowError, match="second job"):
        read(tmp_path, HEADER + f"1|{TIMES}|COMPLETED|gres/gpu=1|n1|\n" * 2)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400.0), ("30:00", 1800.0), ("1:00:00", 3600.0), ("1-02", 93600.0), ("1-02:03", 93780.0),
        ("1-02:03:04", 93784.0), ("UNLIMITED", None), ("Partition_Limit", None), ("", None),
    ],
)  # fmt: skip
def test_time_limits(text: str, seconds: float | None) -> None:
    assert limit_seconds(text) == seconds


@pytest.mark.parametrize("text", ["soon", "-5", "1:2:3:4", "1.5", "9" * 40, "1-"])
def test_no_time_limits(text: str) -> None:
    with pytest.raises(ValueError, match="time limit"):
        limit_seconds(text)
