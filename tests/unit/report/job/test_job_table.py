"""A job in the terminal and as JSON, and the verb that shows it."""

from __future__ import annotations

import io
import json
import math
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from job_build import Build
from report_sample import ddp
from rich.console import Console

from hemiola.analysis.job.metrics import job_metrics
from hemiola.cli.trace import inspect
from hemiola.core.errors import InputError
from hemiola.core.job_timeline import Rank
from hemiola.report.job.inspection import INSPECTION_SCHEMA, inspection_as_json, write_inspection
from hemiola.report.job.page import render
from hemiola.report.job.table import job_table
from hemiola.report.job.words import finding, labels, reasons
from hemiola.trace.jobs.timeline_json import write_timeline


def told(renderable: object, width: int = 110) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def late_rank(clock_error_s: float = 0.0) -> Build:
    """Rank 1 comes 6 s after rank 0 and the others wait for nothing else but 1 s of transfer."""
    build = Build([Rank(0), Rank(1, clock_error_s=clock_error_s)])
    for rank, ready in ((0, 2), (1, 8)):
        build.span(rank, "compute", 0, ready, "[bold]work")
        sent = build.transfer(rank, "bucket", ready, 8, 9, ready, 9, size=1e9)
        build.span(rank, "wait", ready, 9, transfer=sent)
        build.iteration(rank, 0, 0, 10)
    return build


def test_the_sentences():
    metrics = job_metrics(late_rank().timeline())
    assert finding(metrics) == "40 % of each iteration waits for communication: 4.00 s of 10.00 s."
    first, path, bound, *rest = reasons(metrics)
    assert first == (
        "Rank 1 comes last at 100 % of the collectives, 6.00 s after the one before it: 75 % of all waiting is for it."
    )
    assert path == (
        "The critical path is 80 % computing, 10 % communication, 10 % gaps; its largest piece is [bold]work (80 %)."
    )
    assert (
        bound
        == "Hiding all communication that can be hidden behind computing would save at most 1.00 s of 10.00 s."
    )
    assert rest == [
        "Scheduling efficiency E has no meaning here: neither computing nor communication goes on for 3.00 s of 9.00 s, "
        "longer than all that could be hidden, 1.00 s.",
        "10 % of each iteration has nothing recorded.",
    ]


def test_of_a_gpu_that_waits_for_its_host_that_is_said_first():
    """It works for 4 of 20 s, and 1 s of that is exposed communication."""
    build = Build([Rank(0, device="cuda:0")])
    build.span(0, "other", 0, 20, "backward")
    build.span(0, "compute", 2, 3, lane="stream 7")
    build.span(0, "compute", 10, 12, lane="stream 7")
    build.span(0, "communication", 11, 13, lane="stream 20")
    build.iteration(0, 0, 0, 20)
    metrics = job_metrics(build.timeline())
    unknown = "neither computing nor communication goes on for 7.00 s of 11.00 s, longer than all that could be hidden, 2.00 s"
    idle, _, bound, no_efficiency, _ = reasons(metrics)
    assert idle == (
        "The GPU idles for 80 % of each iteration, mostly while the host works: that costs more than communication does."
    )
    assert bound.endswith("would save at most 1.00 s of 20.00 s.")
    assert no_efficiency == f"Scheduling efficiency E has no meaning here: {unknown}."
    assert "Scheduling efficiency E 0" not in told(job_table(metrics))
    found = inspection_as_json(metrics)
    assert (found["efficiency"]["efficiency"], found["efficiency"]["speedup"]) == (None, None)
    assert (found["efficiency"]["reason"], found["saving_s"]) == (unknown, 1.0)
    page = render(metrics)
    assert "<b>–</b><span>scheduling efficiency E (no meaning here)</span>" in page
    assert f"E has no meaning here: {unknown}." in page


@pytest.mark.parametrize(
    ("awaited", "meanwhile"),
    [(("input", 12), "while waiting for input"), (("other", 1), "while nothing is recorded")],
)
def test_what_goes_on_while_a_gpu_idles_is_told(awaited, meanwhile):
    build = Build([Rank(0, device="cuda:0"), Rank(1, device="cuda:1")])
    for rank in (0, 1):
        build.span(rank, "compute", 0, 4)
        build.span(rank, awaited[0], 4, 4 + awaited[1])
    build.every(0, 0, 16)
    said = f"A GPU idles for 75 % of each iteration, mostly {meanwhile}."
    assert said in reasons(job_metrics(build.timeline()))


@pytest.mark.parametrize(("error_s", "known"), [(math.inf, "not known"), (7.0, "known only within 7.00 s")])
def test_of_clocks_that_do_not_tell_who_is_late_nothing_else_is_said(error_s, known):
    metrics = job_metrics(late_rank(error_s).timeline())
    said = f"Which rank is late cannot be told: how their clocks differ is {known}."
    assert said in reasons(metrics)
    assert said in told(job_table(metrics))


def test_a_rank_that_is_never_late_does_not_matter():
    build = Build([Rank(0), Rank(1, clock_error_s=1e-3)])
    for rank in (0, 1):
        build.span(rank, "compute", 0, 2)
        sent = build.transfer(rank, "bucket", 2, 2, 9, 2, 9)
        build.span(rank, "wait", 2, 9, transfer=sent)
    metrics = job_metrics(build.timeline())
    assert "No rank is late enough to matter: the waiting is for the transfers themselves." in reasons(
        metrics
    )


def test_no_communication_is_said():
    build = Build()
    build.span(0, "compute", 0, 4)
    metrics = job_metrics(build.timeline())
    assert finding(metrics) == "No communication was recorded; an iteration takes 4.00 s."
    assert "No rank both computes and communicates: there is nothing to overlap." in list(reasons(metrics))


@pytest.mark.parametrize("width", [80, 140])
def test_the_table(width):
    text = told(job_table(job_metrics(late_rank().timeline())), width)
    assert "a test: measured, 2 ranks, 1 iteration" in text
    assert "[bold]work" in text
    assert "1 of 1 (100 %)" in " ".join(text.split())
    assert ("8 Gbit/s" in text) == (width > 100)
    assert all(len(line) <= width for line in text.splitlines())
    assert "measured: the recording says when each rank stood still" in " ".join(text.split())


def test_two_jobs_of_one_name_are_told_apart():
    one, other = job_metrics(ddp(source="a")), job_metrics(ddp(source="b", rate=1e9))
    assert labels(one, other) == ("b", "a")
    same = job_metrics(ddp(source="a"))
    assert labels(one, same) == ("gpt-small (before)", "gpt-small (after)")
    assert labels(job_metrics(ddp(predicted=True)), other) == ("gpt-small", "gpt-small (predicted)")
    assert "shorter than of b" in " ".join(told(job_table(one, other)).split())


def test_json_has_every_figure_and_no_nan(tmp_path):
    metrics = job_metrics(late_rank().timeline())
    write_inspection(metrics, tmp_path / "found.json", job_metrics(ddp()))
    found = json.loads((tmp_path / "found.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert found["schema"] == INSPECTION_SCHEMA
    assert found["exposed_share"] == pytest.approx(0.4)
    assert found["stragglers"][1]["margin_s"] is None
    assert math.isnan(metrics.stragglers[1].margin_s)
    assert found["critical_path"]["pieces"][0] == {
        "rank": 1, "kind": "compute", "name": "[bold]work", "start_s": 0.0, "end_s": 8.0
    }  # fmt: skip
    parts = ("compute", "overlapped", "exposed", "input", "other", "idle")
    for row in found["iterations"]:
        assert sum(row[f"{part}_s"] for part in parts) == pytest.approx(row["duration_s"])
    assert found["against"]["name"] == "gpt-small"
    assert len(found["differences"]["parts"]) == len(parts) + 1
    assert "differences" not in inspection_as_json(metrics)


def test_files_are_written_whoever_reads(tmp_path, unread):
    write_timeline(ddp(), tmp_path / "job.json")
    with redirect_stdout(unread), pytest.raises(SystemExit):
        inspect(tmp_path / "job.json", json=tmp_path / "out.json")
    assert (tmp_path / "out.json").exists()


def test_the_verb_writes_what_is_asked_for(tmp_path, capsys):
    fast, slow = tmp_path / "fast.json", tmp_path / "slow.json"
    write_timeline(ddp(rate=3e9, name="fast"), fast)
    write_timeline(ddp(name="slow"), slow)
    asked = {name: tmp_path / f"out.{name}" for name in ("report", "json", "perfetto")}
    inspect(fast, against=(slow,), title="Both", **asked)
    out = " ".join(capsys.readouterr().out.split())
    assert "fast: measured, 4 ranks on 2 hosts, 5 iterations" in out
    assert "shorter than of slow" in out
    assert "<h1>Both</h1>" in asked["report"].read_text()
    assert json.loads(asked["json"].read_text())["against"]["name"] == "slow"
    assert json.loads(asked["perfetto"].read_text())


def test_paths_are_printed_as_they_are(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_timeline(ddp(), tmp_path / "job.json")
    inspect(Path("job.json"), report=Path("page[v2]:ram:.html"))
    assert "wrote page[v2]:ram:.html" in capsys.readouterr().err


def test_the_verb_refuses_before_it_works(tmp_path):
    with pytest.raises(InputError, match="no file to inspect"):
        inspect()
    with pytest.raises(InputError, match="there is no folder"):
        inspect(tmp_path / "absent.json", report=tmp_path / "no" / "where.html")
    with pytest.raises(InputError):
        inspect(tmp_path / "absent.json")
