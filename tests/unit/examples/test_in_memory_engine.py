"""An engine from outside, in one file: every command takes it by name, and nothing else in the tree knows of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from memory_engine import ENGINE, ENGINE_TEXT
from patience import patience
from repository import ROOT, SOURCE

from hemiola.cli.engines import chosen_engine
from hemiola.cli.explain import explain_live
from hemiola.cli.live import doctor
from hemiola.cli.serve import release, serve
from hemiola.cli.top import top
from hemiola.core.errors import InputError
from hemiola.live.engines.base import EngineConnection
from hemiola.live.engines.registry import ENGINES, engine_from_text, engine_of_run, is_same_engine
from hemiola.live.journal import Journal

TABLE = "id,submit_s,gpus,duration_s,user\na,0,8,60,ada\nb,30,8,60,bob\nc,60,16,60,ada\nd,0,64,60,bob\n"


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a daemon that served a table to its end."""
    folder = tmp_path_factory.mktemp("memory")
    (folder / "jobs.csv").write_text(TABLE, encoding="utf-8")
    engine = f"{ENGINE_TEXT},jobs={folder / 'jobs.csv'},pace=200,hosts=2,ends=1"
    done = subprocess.run(
        [sys.executable, "-c", "from hemiola.cli import main; main()", "serve", "--engine", engine, "--policy", "fifo",
         "--mode", "enforce", "--journal", str(folder / "j.db")],
        cwd=ROOT, capture_output=True, text=True, timeout=patience(60), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "j.db"


def test_a_service_on_it_runs_every_job_to_its_end(journal: Path) -> None:
    with Journal.open(journal, read_only=True) as opened:
        (run,) = opened.runs()
        assert (run.opening.engine, run.opening.mode) == ("in-memory 1", "enforce")
        jobs = {job.engine_id: job for job in opened.jobs()}
        assert {name: job.outcome for name, job in jobs.items()} == dict.fromkeys("abc", "finished") | {
            "d": ""
        }
        assert "it wants 64 GPUs, more than the cluster has" in jobs["d"].note
        wide = jobs["c"].placement
        assert wide is not None and wide.hosts == (0, 1) and jobs["c"].user == "ada"


def test_commands_take_it_by_name(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    top(journal=str(journal), engine=ENGINE_TEXT, once=True)
    assert "In-memory answers" in capsys.readouterr().out
    doctor(engine=f"{ENGINE_TEXT},hosts=3", journal=str(journal), json=True)
    found = {check["about"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert found["memory"]["what"] == "3 hosts with 24 GPUs, in this process alone"
    release(engine=ENGINE_TEXT)
    assert capsys.readouterr().out == "released 0 jobs: none was held\n"
    with pytest.raises(InputError, match="it is in the table, and its daemon has another one"):
        explain_live("small", journal=str(journal), partition="hemiola", engine=ENGINE_TEXT, json=False)


def test_nobody_imports_what_a_journal_names(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert engine_of_run("in-memory 1") is None
    top(journal=str(journal), once=True)
    assert "answers" not in capsys.readouterr().out
    with pytest.raises(InputError, match="has no job 'nobody'"):
        explain_live("nobody", journal=str(journal), partition="hemiola", json=False)


def test_a_journal_is_its_own(journal: Path) -> None:
    with pytest.raises(InputError, match=r"is the journal of in-memory 1, and this is other 2"):
        from hemiola.cli.serve import _check_engine

        with Journal.open(journal) as opened:
            _check_engine(opened, "in-memory 2")
            _check_engine(opened, "other 2")
    assert is_same_engine("slurm-wlm 22.05.8", "slurm 24.11 over REST v0.0.42")
    assert is_same_engine("", "slurm 24.11") and not is_same_engine("ray 2.60", "slurm 24.11")


def test_options_stand_behind_the_name() -> None:
    engine, to = chosen_engine(f"{ENGINE_TEXT},hosts=3,pace=2", {}, partition="p")
    assert engine is ENGINE and to.given == {"hosts": 3, "pace": 2.0}
    assert len(ENGINE.topology(ENGINE.connect(to)).hosts.names) == 3
    assert engine_from_text("slurm,slurm_conf=/etc/x").given == {"slurm_conf": Path("/etc/x")}
    assert len(ENGINE.topology(ENGINE.connect(EngineConnection())).hosts.names) == 4


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        (
            "kubernetes",
            "no engine is called 'kubernetes'",
            "choose one of slurm, ray, or package.module:NAME",
        ),
        (":ENGINE", "'' is no module", "write my_engine:ENGINE"),
        ("no_such_engine:ENGINE", "cannot import 'no_such_engine'", "PYTHONPATH"),
        ("examples.in_memory_engine:KUBE", "examples.in_memory_engine has no 'KUBE'", "package.module:NAME"),
        ("examples.in_memory_engine:LOOK_S", "is a float, and no engine", "hemiola.live.engines.base.Engine"),
        (f"{ENGINE_TEXT},racks=2", "in-memory has no option 'racks'", "jobs, pace, hosts, gpus, ends"),
        (f"{ENGINE_TEXT},hosts", "'hosts' has no value", "write hosts=VALUE"),
        (f"{ENGINE_TEXT},hosts=two", "hosts='two' is not a int", "How many hosts"),
    ],
)
def test_what_is_no_engine_is_said_with_a_remedy(text: str, what: str, remedy: str) -> None:
    with pytest.raises(InputError) as caught:
        engine_from_text(text)
    assert what in caught.value.what and remedy in caught.value.remedy


def test_a_flag_of_another_engine_is_not_passed_over(tmp_path: Path) -> None:
    for engine, flags, what in (
        ("ray", {"rest": "http://ctl"}, "--rest is no option of the engine ray"),
        (ENGINE_TEXT, {"slurm_conf": tmp_path}, "--slurm-conf is no option of the engine in-memory"),
    ):
        with pytest.raises(InputError, match=what):
            serve(engine=engine, policy="fifo", journal=str(tmp_path / "j.db"), **flags)
    with pytest.raises(TypeError, match="no engine has an option 'slrum_conf'"):
        serve(engine="slurm", policy="fifo", slrum_conf=tmp_path)


def test_nothing_outside_its_folder_tests_an_engines_name() -> None:
    names = "|".join(ENGINES)
    tests = re.compile(
        rf"""[!=]=\s*["']({names})["']|\(["']({names})["']\)|is_({names})\b|case ["']({names})["']"""
    )
    rooms = [SOURCE / "hemiola" / room for room in ("cli", "live", "lab", "report", "sched", "train")]
    found = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for room in rooms
        for path in room.rglob("*.py")
        if not path.is_relative_to(SOURCE / "hemiola/live/engines")
        for line in path.read_text(encoding="utf-8").splitlines()
        if tests.search(line)
    ]
    assert found == []
