"""Result files: exact keys, repeatable to the byte, whole or not there."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import msgspec
import pytest
from report_build import comparison

from hemiola.analysis.cluster_metrics import finish_time_fairness, summary
from hemiola.core.errors import FormatError, InputError
from hemiola.core.result import Run
from hemiola.core.timeline import Timeline
from hemiola.trace.atomic import replacing
from hemiola.trace.decisions import read_decisions, write_decisions
from hemiola.trace.perfetto import write_timeline
from hemiola.trace.results import read_comparison, write_jobs_csv, write_json

KEYS = [
    "policy",
    "seed",
    "semantics",
    "jobs_submitted",
    "jobs_finished",
    "jobs_unfinished",
    "makespan_s",
    "jct_mean_s",
    "jct_p50_s",
    "jct_p95_s",
    "jct_p99_s",
    "queueing_mean_s",
    "exposed_communication_fraction",
    "gpu_utilization",
    "gpu_seconds",
    "preemptions",
    "migrations",
    "simulation_wall_s",
    "simulation_cpu_s",
    "decisions",
]
WRITERS = (write_json, write_jobs_csv, write_decisions, write_timeline)


def test_json_has_the_agreed_keys_in_order(tmp_path):
    found = comparison(seeds=(0, 1))
    write_json(found, tmp_path / "c.json")
    value = read_comparison(tmp_path / "c.json")
    assert value["schema"] == "hemiola.comparison/1"
    assert value["baseline"] == "fifo"
    for run, row in zip(found.runs, value["runs"], strict=True):
        assert list(row)[: len(KEYS)] == KEYS
        whole = summary(run, found.topology)
        assert row["jct_p99_s"] == whole.jct_p99_s
        assert sum(row["gpu_seconds"].values()) == pytest.approx(found.topology.gpus * row["makespan_s"])
        assert row["interrupted"] is False
        assert row["fairness"]["rho_max"] == whole.fairness.rho_max


def test_json_has_null_never_nan(tmp_path):
    write_json(comparison(stop_s=1001.0), tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text()
    json.loads(text, parse_constant=lambda word: pytest.fail(word))
    row = read_comparison(tmp_path / "c.json")["runs"][0]
    assert row["jct_mean_s"] is None
    assert row["interrupted"] is True


@pytest.mark.parametrize("write", WRITERS)
def test_a_seeded_run_repeats_to_the_byte(tmp_path, write):
    for name in ("a", "b"):
        write(comparison(seeds=(0, 1), count=10), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_csv_has_a_row_for_each_job_of_each_run(tmp_path):
    found = comparison(seeds=(0, 1), stop_s=9000.0)
    write_jobs_csv(found, tmp_path / "jobs.csv")
    with (tmp_path / "jobs.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == sum(len(run.records) for run in found.runs)
    assert {row["interrupted"] for row in rows} == {"yes"}
    run = found.runs[0]
    for row, record, rho in zip(rows, run.records, finish_time_fairness(run, found.topology), strict=False):
        assert row["job"] == record.id
        assert row["jct_s"] == ("" if record.jct_s is None else repr(record.jct_s))
        assert row["rho"] == ("" if record.jct_s is None else repr(float(rho)))
        assert float(row["tier_cluster_s"]) == record.tiers_s[2]


def test_decisions_come_back_as_they_were(tmp_path):
    found = comparison(seeds=(0, 1))
    write_decisions(found, tmp_path / "d.jsonl")
    log = read_decisions(tmp_path / "d.jsonl")
    made = [(run, logged) for run in found.runs for logged in run.decisions]
    assert len(log.lines) == len(made)
    for line, (run, logged) in zip(log.lines, made, strict=True):
        assert (line.policy, line.seed, line.time_s) == (run.policy, run.seed, logged.time_s)
        assert (line.job, line.reason) == (logged.decision.job_id, logged.decision.reason)
        names = found.topology.hosts.names
        placement = getattr(logged.decision, "placement", None)
        ranks = [] if placement is None else [(names[host], gpu) for host, gpu in placement.ranks()]
        assert [(place.host, gpu) for place in line.placement for gpu in place.gpus] == ranks
    assert {line.kind for line in log.lines} == {"start", "stop", "wake"}


def test_spans_of_the_header_hold_all_gpu_time(tmp_path):
    found = comparison(policies=("srtf",))
    write_decisions(found, tmp_path / "d.jsonl")
    facts = read_decisions(tmp_path / "d.jsonl").header.runs[0]
    for job, record in zip(facts.jobs, found.runs[0].records, strict=True):
        assert sum(span.end_s - span.start_s for span in job.spans) == pytest.approx(record.run_s)
        assert {span.gpus for span in job.spans} == {record.gpus}
        assert [span.outcome for span in job.spans].count("pre-empted") == record.preemptions


@pytest.mark.parametrize(
    ("write", "gone"),
    [
        (write_decisions, {"decisions": ()}),
        (write_decisions, {"timeline": Timeline.from_rows([])}),
        (write_timeline, {"timeline": None}),
        (write_timeline, {"timeline": Timeline.from_rows([])}),
    ],
)
def test_what_was_not_kept_is_not_made_up(tmp_path, write, gone):
    found = comparison(policies=("fifo",))
    bare: Run = msgspec.structs.replace(found.runs[0], **gone)
    found = type(found)(found.topology, (bare,), "fifo")
    with pytest.raises(InputError, match=r"kept no timeline|did not keep its"):
        write(found, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{}", b'{"schema": "hemiola.comparison/2"}', b"[1]", b"no json"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "other"
    path.write_bytes(content)
    for read in (read_comparison, read_decisions):
        with pytest.raises(FormatError, match="is not a file of schema"):
            read(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*nothing"):
        read_decisions(tmp_path / "nothing")


def test_a_cut_off_file_names_the_line(tmp_path):
    path = tmp_path / "d.jsonl"
    write_decisions(comparison(policies=("fifo",), count=3), path)
    path.write_bytes(path.read_bytes()[:-20])
    lines = path.read_bytes().count(b"\n") + 1
    with pytest.raises(InputError, match=f"d.jsonl:{lines}: not a decision"):
        read_decisions(path)


@pytest.mark.parametrize("write", WRITERS)
def test_a_full_disk_is_said_in_words(write):
    if not Path("/dev/full").exists():
        pytest.fail("this system has no /dev/full")
    with pytest.raises(InputError, match="cannot write '/dev/full'") as caught:
        write(comparison(count=3), Path("/dev/full"))
    assert "free some space" in caught.value.remedy


@pytest.mark.parametrize("write", WRITERS)
def test_a_missing_folder_is_said_in_words(tmp_path, write):
    with pytest.raises(InputError, match=r"cannot write .*missing") as caught:
        write(comparison(count=3), tmp_path / "missing" / "file")
    assert "create the folder" in caught.value.remedy


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(InputError, match="cannot write") as caught:
        write_json(comparison(count=3), tmp_path)
    assert "not a folder" in caught.value.remedy


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(InputError, match="No space left"), replacing(path) as stream:
        stream.write(b"half")
        raise OSError(28, "No space left on device")
    with pytest.raises(KeyboardInterrupt), replacing(path) as stream:
        raise KeyboardInterrupt
    assert path.read_text() == "before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_name_may_be_as_long_as_the_disk_allows(tmp_path):
    path = tmp_path / ("й" * 120 + ".json")
    with replacing(path) as stream:
        stream.write(b"all")
    assert path.read_bytes() == b"all"


def test_a_link_stays_a_link_and_permissions_are_the_usual(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("before")
    link.symlink_to(target)
    with replacing(link) as stream:
        stream.write(b"after")
    assert link.is_symlink()
    assert target.read_text() == "after"
    plain = tmp_path / "plain"
    plain.touch()
    assert target.stat().st_mode == plain.stat().st_mode
