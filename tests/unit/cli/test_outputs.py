"""Outputs that cannot be written: refused before the work, or told after all others were written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nobody import as_nobody

from hemiola import cli
from hemiola.cli.output import folder_writable, writable
from hemiola.cli.simulate import explain
from hemiola.core.errors import InputError
from hemiola.core.result import Comparison
from hemiola.simulator.sweep.tasks import RunStore

SMALL = "flat:hosts=2,gpus_per_host=4"
JOBS = "generated:jobs=5,gpus=8"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that anyone may read and search, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_that_cannot_be_changed_is_refused(open_folder: Path, there: bool) -> None:
    closed = open_folder / "closed"
    closed.mkdir()
    path = closed / "run.json"
    if there:
        path.touch()
        path.chmod(0o666)
    closed.chmod(0o555)
    said = as_nobody(lambda: writable(path))
    assert said.startswith(f"InputError: {path} cannot be written: the folder {closed} cannot be changed")
    assert "hint: name a path that you may write to" in said


def test_a_file_that_cannot_be_written_is_refused(open_folder: Path) -> None:
    folder = open_folder / "open"
    folder.mkdir()
    folder.chmod(0o777)
    path = folder / "run.json"
    path.write_text("before")
    path.chmod(0o444)
    assert as_nobody(lambda: writable(path)).startswith(f"InputError: {path} is there and cannot be written")
    assert as_nobody(lambda: writable(folder / "other.json")) == ""


def test_a_folder_that_cannot_be_looked_into_is_refused(open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir()
    closed.chmod(0o600)
    assert as_nobody(lambda: writable(closed / "run.json")).startswith("InputError: ")


def test_a_folder_in_which_no_run_can_be_kept_is_refused(open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    assert as_nobody(lambda: RunStore(closed)).startswith(f"InputError: cannot keep runs in '{closed}'")


@pytest.mark.parametrize("name", ["", "new"])
def test_a_folder_that_can_neither_be_filled_nor_made_is_refused(open_folder: Path, name: str) -> None:
    closed = open_folder / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    said = as_nobody(lambda: folder_writable(closed / name))
    assert said.startswith("InputError: ") and f"the folder {closed} cannot be changed" in said


def test_a_link_counts_as_what_it_points_to(open_folder: Path) -> None:
    folder = open_folder / "open"
    folder.mkdir()
    folder.chmod(0o777)
    link = open_folder / "link.json"
    link.symlink_to(folder / "run.json")
    open_folder.chmod(0o555)
    assert as_nobody(lambda: writable(link)) == ""


def test_two_outputs_are_not_one_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(InputError, match=r"two outputs would both be .*link/run\.json"):
        writable(tmp_path / "run.json", None, tmp_path / "link/run.json")
    writable(tmp_path / "run.json", tmp_path / "page.html", Path(os.devnull), Path(os.devnull))


def test_devices_and_new_files_are_written() -> None:
    assert as_nobody(lambda: writable(Path(os.devnull))) == ""
    writable(Path("new.json"))


def test_decisions_that_may_not_be_read_are_refused(open_folder: Path) -> None:
    path = open_folder / "why.jsonl"
    path.write_text("{}")
    path.chmod(0o600)
    assert as_nobody(lambda: explain(str(path), "a")).startswith("InputError: cannot read")


# ---- simulate --------------------------------------------------------------------------------

Hemiola = Callable[..., Any]


@pytest.fixture
def hemiola(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hemiola:
    """Run a command line in this process, in an empty folder; its exit status."""
    monkeypatch.chdir(tmp_path)
    app = cli.app

    def run(*arguments: str) -> Any:
        monkeypatch.setattr(cli, "app", partial(app, list(arguments)))
        try:
            cli.main()
        except SystemExit as end:
            return end.code or 0
        return 0

    return run


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics and the report find no space, after the run."""

    def no_space(_: Comparison, path: Path) -> None:
        raise InputError(f"cannot write {str(path)!r}: no space", "free some")

    monkeypatch.setattr("hemiola.trace.results.write_json", no_space)
    monkeypatch.setattr("hemiola.report.html.write_report", no_space)


@pytest.mark.usefixtures("full_disk")
def test_other_outputs_are_written_and_each_that_is_not_is_told(
    hemiola: Hemiola, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = hemiola(
        "simulate", JOBS, "--cluster", SMALL, "--policy", "fifo", "--json", "run.json", "--report", "run.html",
        "--jobs-csv", "jobs.csv", "--timeline", "time.json", "--decisions", "why.jsonl",
    )  # fmt: skip
    assert code == 2
    assert {path.name for path in tmp_path.iterdir()} == {"jobs.csv", "time.json", "why.jsonl"}
    said = capsys.readouterr().err
    assert said.index("error: cannot write 'run.html'") < said.index("error: cannot write 'run.json'")
    assert "wrote run.json" not in said


PRESSES_CTRL_C = """
import os, signal
from dataclasses import dataclass
from hemiola.sched.policies.fifo import Fifo

@dataclass(frozen=True)
class PressesCtrlC(Fifo):
    name = "presses"
    def decide(self, view):
        if view.ended == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return super().decide(view)
"""


@pytest.mark.usefixtures("full_disk")
def test_an_interrupted_run_ends_as_one_and_tells_what_is_not_written(
    hemiola: Hemiola, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pressing.py").write_text(PRESSES_CTRL_C)
    monkeypatch.syspath_prepend(tmp_path)
    code = hemiola(
        "simulate", "generated:jobs=50,gpus=8", "--cluster", SMALL, "--policy", "pressing:PressesCtrlC", "fifo",
        "--json", "run.json", "--jobs-csv", "jobs.csv", "--workers", "1",
    )  # fmt: skip
    said = capsys.readouterr().err
    assert code == 130, said
    assert "interrupted: " in said
    assert "error: cannot write 'run.json'" in said
    assert (tmp_path / "jobs.csv").exists()


@pytest.mark.usefixtures("full_disk")
def test_other_scenarios_are_written_too(hemiola: Hemiola, tmp_path: Path) -> None:
    text = f"workload = {JOBS!r}\ncluster = {SMALL!r}\npolicies = ['fifo']\n"
    for name in "ab":
        (tmp_path / f"{name}.toml").write_text(text)
    arguments = ("--scenario", "a.toml", "--scenario", "b.toml", "--workers", "1")
    assert hemiola("simulate", *arguments, "--json", "runs", "--jobs-csv", "jobs") == 2
    assert {path.name for path in (tmp_path / "jobs").iterdir()} == {"a.csv", "b.csv"}


def test_of_several_scenarios_no_file_may_be_a_folder(
    hemiola: Hemiola, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"workload = {JOBS!r}\ncluster = {SMALL!r}\npolicies = ['fifo']\n"
    for name in "ab":
        (tmp_path / f"{name}.toml").write_text(text)
    (tmp_path / "runs" / "b.json").mkdir(parents=True)
    assert hemiola("simulate", "--scenario", "a.toml", "--scenario", "b.toml", "--json", "runs") == 2
    assert "b.json is a folder" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "a.json").exists()
