"""Reports of jobs and hosts: what is written is read once, and nothing strange is read at all."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from hemiola.core.errors import InputError
from hemiola.trace.reports import HostReport, JobReport, Reports, check_reports, write_report


def job(**more: object) -> JobReport:
    facts = {
        "job": "17_3", "time_s": 1e9, "gpus": 4, "iterations": 10, "iteration_s": 0.5, "compute_s": 0.4,
        "traffic_bytes": 1e6,
    }  # fmt: skip
    return JobReport(**{**facts, **more})  # type: ignore[arg-type]


HOST = HostReport(host="n1", time_s=1e9, sent_bytes_per_s=5.0, received_bytes_per_s=6.0)


def test_a_report_is_handed_out_once_and_its_successor_again(tmp_path: Path) -> None:
    reports = Reports(tmp_path)
    write_report(tmp_path, job())
    write_report(tmp_path, HOST)
    found = {type(r.report).__name__: r for r in reports.fresh()}
    assert found["JobReport"].report == job()
    assert found["HostReport"].report == HOST
    assert {r.uid for r in found.values()} == {os.getuid()}
    assert not list(reports.fresh())
    write_report(tmp_path, job(iterations=20))
    assert [r.report for r in reports.fresh()] == [job(iterations=20)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        b'{"x":' + b"[" * 30_000,
        msgspec.json.encode(job()) + b" " * 70_000,
        msgspec.json.encode(job()).replace(b"17_3", b"17;rm"),
        msgspec.json.encode(job()).replace(b'"iteration_s":0.5', b'"iteration_s":-1'),
        msgspec.json.encode(job()).replace(b'"iteration_s":0.5', b'"iteration_s":1e400'),
        msgspec.json.encode(job()).replace(b'"gpus":4', b'"gpus":4,"more":1'),
        msgspec.json.encode(job()).replace(b"reports/1", b"reports/9"),
    ],
)
def test_what_is_no_report_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    reports = Reports(tmp_path)
    (tmp_path / "job-9.json").write_bytes(content)
    assert not list(reports.fresh())
    assert reports.damaged == {"job-9.json"}
    (tmp_path / "job-9.json").unlink()
    assert not list(reports.fresh())
    assert not reports.damaged


def test_links_pipes_and_folders_are_not_opened(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    write_report(tmp_path, job())
    (folder / "job-1.json").symlink_to(tmp_path / "job-17_3.json")
    os.mkfifo(folder / "job-2.json")
    (folder / "job-3.json").mkdir()
    reports = Reports(folder)
    assert not list(reports.fresh())
    assert reports.damaged == {"job-1.json", "job-2.json", "job-3.json"}


def test_what_lies_where_a_report_goes_does_not_say_where_it_is_written(tmp_path: Path) -> None:
    folder, target = tmp_path / "reports", tmp_path / "elsewhere.json"
    folder.mkdir()
    target.write_text("somebody's own")
    (folder / "job-17_3.json").symlink_to(target)
    os.mkfifo(folder / "host-n1.json")
    write_report(folder, job())
    write_report(folder, HOST)
    assert target.read_text() == "somebody's own"
    assert {one.name for one in folder.iterdir()} == {"job-17_3.json", "host-n1.json"}
    assert {one.report for one in Reports(folder).fresh()} == {job(), HOST}


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not there"):
        check_reports(tmp_path / "none")
    (tmp_path / "was").mkdir()
    reports = Reports(tmp_path / "was")
    (tmp_path / "was").rmdir()
    assert not list(reports.fresh())


def test_a_job_without_a_name_cannot_report() -> None:
    with pytest.raises(ValueError, match="no job reports this"):
        job(job="../../etc/passwd")
