"""The command line as a user meets it: every flag, every refusal, Ctrl-C, and what it imports."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import pytest
from patience import patience
from repository import ROOT

from hemiola import cli
from hemiola.cli.simulate import simulate
from hemiola.sched.policies import POLICIES
from hemiola.simulator.rules import known_semantics

JOBS = str(ROOT / "examples/jobs.csv")
RACKS = "leaf-spine:hosts=8,gpus_per_host=4,hosts_per_rack=4,oversubscription=4"
SMALL = "flat:hosts=2,gpus_per_host=4"
WALL_CLOCK = ("simulation_wall_s", "simulation_cpu_s", "decision_p50_s", "decision_p99_s")


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Hemiola = Callable[..., Outcome]


@pytest.fixture
def hemiola(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Hemiola:
    """Run a command line in this process, in an empty folder, on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    app = cli.app

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(cli, "app", partial(app, [str(argument) for argument in arguments]))
        capsys.readouterr()
        code: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


def in_a_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "from hemiola.cli import main; main()", *arguments],
        env={**os.environ, "COLUMNS": "140", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(120),
    )


def table(path: Path, *rows: str, header: str = "id,submit_s,gpus,duration_s") -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def without_wall_clock(path: Path) -> Any:
    value = json.loads(path.read_text(encoding="utf-8"))
    for run in value["runs"]:
        for name in WALL_CLOCK:
            assert run.pop(name) >= 0
    return value


# ---- what it costs to start ------------------------------------------------------------------

HEAVY = ("numpy", "numba", "plotly", "torch", "pandas")


@pytest.mark.parametrize(
    "statement",
    ["import hemiola", "from hemiola.cli import app; app(['--help'], result_action='return_value')"],
    ids=["import", "help"],
)
def test_starting_imports_nothing_heavy(statement: str) -> None:
    program = f"import sys; {statement}; print([n for n in {HEAVY} if n in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip().splitlines()[-1] == "[]"


def test_simulating_never_imports_torch(tmp_path: Path) -> None:
    program = (
        "import sys, hemiola; "
        f"hemiola.simulate(hemiola.read_workload({JOBS!r}), hemiola.read_topology({RACKS!r}), ['fifo', 'dally']); "
        "print([n for n in ('torch', 'ray', 'plotly', 'rich') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- what it does ----------------------------------------------------------------------------


def test_help_and_version(hemiola: Hemiola) -> None:
    assert "simulate" in hemiola("--help").out
    shown = hemiola("simulate", "--help").out
    for flag in ("--cluster", "--policy", "--baseline", "--json", "--scenario", "--skip-bad-rows", "--demo"):
        assert flag in shown
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", hemiola("--version").out)


def test_every_flag_at_once(hemiola: Hemiola, tmp_path: Path) -> None:
    outputs = {
        flag: tmp_path / name
        for flag, name in {
            "--json": "run.json", "--jobs-csv": "jobs.csv", "--decisions": "decisions.jsonl",
            "--report": "report.html", "--timeline": "timeline.json",
        }.items()
    }  # fmt: skip
    written = [part for flag, path in outputs.items() for part in (flag, path)]
    done = hemiola(
        "simulate", JOBS, "--cluster", RACKS, "--policy", "fifo:placement=best-fit", "srtf",
        "--baseline", "srtf", "--semantics", "event-driven", "--contention", "colliding",
        "--seeds", "2", "--limit", "12", "--skip-bad-rows", *written,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert all(path.stat().st_size > 100 for path in outputs.values())
    comparison = json.loads(outputs["--json"].read_text(encoding="utf-8"))
    assert comparison["baseline"] == "srtf"
    assert [(run["policy"], run["seed"]) for run in comparison["runs"]] == [
        ("fifo:placement=best-fit", 0), ("srtf", 0), ("fifo:placement=best-fit", 1), ("srtf", 1),
    ]  # fmt: skip
    assert {run["jobs_submitted"] for run in comparison["runs"]} == {12}
    assert comparison["runs"][0]["semantics"]["contention"].startswith("colliding")
    with outputs["--jobs-csv"].open(encoding="utf-8") as stream:
        assert len(list(csv.DictReader(stream))) == 4 * 12
    assert "recognised" in done.err or "read as native-csv" in done.err


def test_json_schema(hemiola: Hemiola, tmp_path: Path) -> None:
    hemiola("simulate", JOBS, "--cluster", RACKS, "--policy", "fifo", "dally", "--json", "run.json")
    value = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert value["schema"] == "hemiola.comparison/1"
    gpus = value["topology"]["gpus"]
    for run in value["runs"]:
        kinds: dict[str, type | tuple[type, ...]] = {
            "policy": str, "seed": int, "semantics": dict, "jobs_submitted": int, "jobs_finished": int,
            "jobs_unfinished": int, "makespan_s": float, "jct_mean_s": float, "jct_p50_s": float,
            "jct_p95_s": float, "jct_p99_s": float, "queueing_mean_s": float,
            "exposed_communication_fraction": float, "gpu_utilization": float, "gpu_seconds": dict,
            "preemptions": int, "migrations": int, "simulation_wall_s": float, "simulation_cpu_s": float,
            "decisions": int,
        }  # fmt: skip
        for name, kind in kinds.items():
            assert isinstance(run[name], kind), name
        assert run["jobs_submitted"] == run["jobs_finished"] + run["jobs_unfinished"] == 20
        assert sum(run["gpu_seconds"].values()) == pytest.approx(gpus * run["makespan_s"], rel=1e-9)


def test_a_seeded_run_repeats(hemiola: Hemiola, tmp_path: Path) -> None:
    command = (
        "simulate", "generated:jobs=60,load=0.9,mix=muri,seed=3", "--cluster", RACKS,
        "--policy", "fifo:placement=random", "dally",
    )  # fmt: skip
    for name in ("first.json", "second.json"):
        assert hemiola(*command, "--json", name).code == 0
    assert without_wall_clock(tmp_path / "first.json") == without_wall_clock(tmp_path / "second.json")


def test_seeds_give_confidence_intervals(hemiola: Hemiola) -> None:
    done = hemiola(
        "simulate", "generated:jobs=40,load=0.9,mix=muri", "--cluster", RACKS, "--policy", "fifo", "srtf",
        "--seeds", "3",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "3 seeds" in done.out
    assert "95 % confidence" in done.out
    assert re.search(r"^ ?srtf .*±", done.out, re.MULTILINE)


def test_a_scenario_and_flags_over_it(hemiola: Hemiola) -> None:
    scenario = ROOT / "examples/scenario.toml"
    done = hemiola("simulate", "--scenario", scenario, "--policy", "sjf", "fifo", "--json", "run.json")
    assert done.code == 0, done.err
    value = json.loads(Path("run.json").read_text(encoding="utf-8"))
    assert [run["policy"] for run in value["runs"]] == ["sjf", "fifo"]
    assert value["baseline"] == "fifo"
    assert value["runs"][0]["gpu_seconds"]["down"] == 4 * 3600


def test_a_policy_from_outside(hemiola: Hemiola, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    name = "shortest_gpu_first:ShortestGpuFirst,placement=best-fit,patience=6"
    done = hemiola("simulate", JOBS, "--cluster", RACKS, "--policy", "fifo", name, "--json", "run.json")
    assert done.code == 0, done.err
    fifo, own = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["runs"]
    assert own["policy"] == name
    assert own["jobs_finished"] == 20
    assert own["jct_mean_s"] < fifo["jct_mean_s"]
    assert own["semantics"]["placement"].startswith("best-fit")


def test_the_present_folder_gives_policies_and_hides_no_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("csv.py").write_text("raise SystemExit('mine')\n", encoding="utf-8")
    Path("mine.py").write_text("from hemiola.sched.policies.fifo import Fifo as Mine\n", encoding="utf-8")
    done = in_a_process("simulate", JOBS, "--cluster", SMALL, "--policy", "mine:Mine", PYTHONSAFEPATH="1")
    assert done.returncode == 0, done.stderr
    assert "mine:Mine" in done.stdout


def test_policies_lists_all_with_parameters_and_sources(hemiola: Hemiola) -> None:
    for semantics, rules in known_semantics().items():
        out = hemiola("policies", "--semantics", semantics).out
        assert all(re.search(rf"\b{re.escape(name)}\b", out) for name in rules.policies)
    out = hemiola("policies").out
    assert "NSDI'19" in out
    assert "thresholds=3250/7200" in out


def test_files_whose_names_are_no_utf_8(hemiola: Hemiola, tmp_path: Path) -> None:
    jobs, racks = (tmp_path / os.fsdecode(b"caf\xe9" + ending) for ending in (b".csv", b".toml"))
    table(jobs, "a,0,2,60")
    racks.write_text('[[hosts]]\nnames = "n[0-1]"\ngpus = 4\nnic = "10gbit"\n')
    outputs = [
        word
        for name in ("json", "jobs-csv", "decisions", "report", "timeline")
        for word in (f"--{name}", tmp_path / name)
    ]
    done = hemiola("simulate", jobs.name, "--cluster", racks.name, "--policy", "fifo", *outputs)
    assert done.code == 0, done.err
    assert "caf\ufffd: 1 jobs on" in done.out
    told = without_wall_clock(tmp_path / "json")
    assert told["workload"]["name"] == "caf\ufffd" and "caf\ufffd.toml" in told["topology"]["source"]
    assert "finished" in hemiola("explain", "decisions", "a").out
    (folder := tmp_path / "scenarios").mkdir()
    scenario = f"workload = {JOBS!r}\ncluster = {SMALL!r}\npolicies = ['fifo']\n"
    (folder / racks.name).write_text(scenario, encoding="utf-8")
    done = hemiola("simulate", "--scenario", folder)
    assert done.code == 0, done.err
    assert done.out.startswith("caf\ufffd ")


def test_explain_tells_a_job_s_story(hemiola: Hemiola) -> None:
    done = hemiola("simulate", JOBS, "--cluster", RACKS, "--policy", "fifo", "srtf", "--decisions", "d.jsonl")
    assert done.code == 0, done.err
    story = hemiola("explain", "d.jsonl", "gpt-b").out
    assert "Job gpt-b under fifo" in story
    assert "Job gpt-b under srtf" in story
    assert "16 GPUs" in story
    assert "waited" in story
    assert "srtf" not in hemiola("explain", "d.jsonl", "gpt-b", "--policy", "fifo").out
    lost = hemiola("explain", "d.jsonl", "gpt")
    assert lost.code == 2
    assert "'gpt'" in lost.err
    assert "did you mean" in lost.err


def test_the_smallest_demo(hemiola: Hemiola, tmp_path: Path) -> None:
    done = hemiola("simulate", "--demo", "--limit", "30", "--policy", "fifo", "dally")
    assert done.code == 0, done.err
    assert (tmp_path / "hemiola-demo.html").stat().st_size > 1000


# ---- what it refuses -------------------------------------------------------------------------

REFUSALS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "policy": ((JOBS, "--cluster", SMALL, "--policy", "lottery"), "'lottery'", "fifo-backfill"),
    "outside policy": ((JOBS, "--cluster", SMALL, "--policy", "no.such:Thing"), "no.such", "PYTHONPATH"),
    "parameter": ((JOBS, "--cluster", SMALL, "--policy", "fifo:speed=1"), "'speed'", "placement"),
    "parameter value": ((JOBS, "--cluster", SMALL, "--policy", "tiresias:promote=x"), "'x'", "8.0"),
    "placement": ((JOBS, "--cluster", SMALL, "--policy", "fifo:placement=up"), "'up'", "best-fit"),
    "policy twice": ((JOBS, "--cluster", SMALL, "--policy", "fifo", "fifo"), "'fifo'", "once"),
    "baseline": ((JOBS, "--cluster", SMALL, "--policy", "fifo", "--baseline", "sjf"), "'sjf'", "fifo"),
    "semantics": ((JOBS, "--cluster", SMALL, "--semantics", "real"), "'real'", "event-driven"),
    "contention": ((JOBS, "--cluster", SMALL, "--contention", "none"), "'none'", "max-min"),
    "seeds": ((JOBS, "--cluster", SMALL, "--seeds", "-2"), "-2", "1 or more"),
    "limit": ((JOBS, "--cluster", SMALL, "--limit", "-2"), "-2", "1 or more"),
    "no workload": ((), "no workload", "generated:"),
    "no cluster": ((JOBS,), "no cluster", "--cluster"),
    "missing workload": (("nowhere.csv", "--cluster", SMALL), "nowhere.csv", "path"),
    "folder as workload": ((str(ROOT), "--cluster", SMALL), "is a folder", "file"),
    "wrong file": ((str(ROOT / "LICENSE"), "--cluster", SMALL), "no known format", "native-csv"),
    "wrong format": ((f"muri:{JOBS}", "--cluster", SMALL), "is not muri", "native-csv"),
    "format's name": ((f"native:{JOBS}", "--cluster", SMALL), "'native' is no known format", "native-"),
    "generator": (("generated:jobs=3,color=red", "--cluster", SMALL), "'color=red'", "jobs"),
    "no hosts": ((JOBS, "--cluster", "flat:hosts=0,gpus_per_host=4"), "'0'", ""),
    "missing cluster": ((JOBS, "--cluster", "nowhere.toml"), "nowhere.toml", "leaf-spine"),
    "folder as output": ((JOBS, "--cluster", SMALL, "--json", "."), ". is a folder", "file"),
    "no such folder": ((JOBS, "--cluster", SMALL, "--report", "no/where.html"), "no folder", "create it"),
    "below a file": ((JOBS, "--cluster", SMALL, "--json", f"{JOBS}/run.json"), "jobs.csv", "run.json"),
    "missing scenario": (("--scenario", "nowhere.toml"), "nowhere.toml", "TOML"),
    "scenario and demo": (("--scenario", "a.toml", "--demo"), "--demo and --scenario", "one of them"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_name_the_value_and_the_remedy(hemiola: Hemiola, case: str) -> None:
    arguments, what, remedy = REFUSALS[case]
    done = hemiola("simulate", *arguments)
    error, _, hint = done.err.partition("error: ")[2].partition("hint: ")
    assert done.code == 2
    assert done.out == ""
    assert what in error
    assert remedy in hint
    assert "Traceback" not in done.err


def test_a_scenario_may_begin_with_a_byte_order_mark(hemiola: Hemiola, tmp_path: Path) -> None:
    text = f"workload = {JOBS!r}\ncluster = {SMALL!r}\npolicies = ['fifo']\n"
    (tmp_path / "s.toml").write_text(text, encoding="utf-8-sig")
    assert hemiola("simulate", "--scenario", "s.toml").code == 0


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        ("policies = [", "not TOML", "docs/guides/simulate.md"),
        ("nonsense = 3", "nonsense", "checkpoint_interval"),
        ("seeds = 'two'", "seeds", "checkpoint_interval"),
        ("preemption_cost = -1.0", "-1.0", "0 or more"),
        ("preemption_cost = nan", "nan", "0 or more"),
        ("checkpoint_interval = '30'", "'30'", "unit"),
        ("checkpoint_interval = '0s'", "'0s'", "more than 0"),
        ("mix = 'fruit'", "fruit", "muri"),
        ("failures = 'nowhere.csv'", "nowhere.csv", "CSV"),
    ],
)
def test_bad_scenarios(hemiola: Hemiola, tmp_path: Path, text: str, what: str, remedy: str) -> None:
    whole = f"workload = {JOBS!r}\ncluster = {SMALL!r}\npolicies = ['fifo']\n"
    whole = text if "policies" in text else whole + text
    (tmp_path / "s.toml").write_text(whole, encoding="utf-8")
    done = hemiola("simulate", "--scenario", "s.toml")
    assert done.code == 2, done.err
    error, _, hint = done.err.partition("error: ")[2].partition("hint: ")
    assert what in error
    assert remedy in hint


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("a,0,1,nan", "'nan'"),
        ("a,0,1,-5", "'-5'"),
        ("a,-1,1,5", "'-1'"),
        ("a,inf,1,5", "'inf'"),
        ("a,0,x,5", "'x'"),
    ],
)
def test_bad_rows_name_line_and_column(hemiola: Hemiola, tmp_path: Path, row: str, what: str) -> None:
    path = table(tmp_path / "jobs.csv", "good,0,1,10", row)
    done = hemiola("simulate", path, "--cluster", SMALL, "--policy", "fifo")
    assert done.code == 2
    assert f"{path}:3: column" in done.err
    assert what in done.err
    done = hemiola(
        "simulate", path, "--cluster", SMALL, "--policy", "fifo", "--skip-bad-rows", "--json", "r.json"
    )
    assert done.code == 0, done.err
    assert "left out: 1 rows" in done.err
    assert json.loads(Path("r.json").read_text(encoding="utf-8"))["runs"][0]["jobs_submitted"] == 1


def test_an_empty_workload(hemiola: Hemiola, tmp_path: Path) -> None:
    done = hemiola("simulate", table(tmp_path / "jobs.csv"), "--cluster", SMALL)
    assert done.code == 2
    assert "holds no GPU job" in done.err


def test_jobs_larger_than_the_cluster_and_without_length(hemiola: Hemiola, tmp_path: Path) -> None:
    path = table(tmp_path / "jobs.csv", "huge,0,100,10", "instant,5,1,0", "last,6,8,60")
    done = hemiola("simulate", path, "--cluster", SMALL, "--policy", "fifo", "srtf", "--jobs-csv", "out.csv")
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert "! 1 of 3 jobs can never run here: it wants 100 GPUs" in done.out.splitlines()[1]
    assert "1 of 3 jobs did not finish" in said and "1 of them: it wants 100 GPUs, more than" in said
    with (tmp_path / "out.csv").open(encoding="utf-8") as stream:
        rows = {(row["policy"], row["job"]): row for row in csv.DictReader(stream)}
    for policy in ("fifo", "srtf"):
        assert rows[policy, "huge"]["status"] == "refused"
        assert "more than the cluster has" in rows[policy, "huge"]["why"]
        assert float(rows[policy, "instant"]["jct_s"]) == 0
        assert rows[policy, "last"]["status"] == "finished"


def test_a_comparison_in_which_nothing_ran_is_an_error_that_names_jobs_and_types(
    hemiola: Hemiola, tmp_path: Path
) -> None:
    rows = [f"{n}|2024-01-02T10:00:0{n}|2024-01-02T10:01:00|2024-01-02T11:00:00|COMPLETED|gres/gpu=4|gres/gpu:a100=4,gres/gpu=4" for n in range(5)]  # fmt: skip
    path = tmp_path / "typed.txt"
    path.write_text("\n".join(["JobID|Submit|Start|End|State|AllocTRES|ReqTRES", *rows]), encoding="utf-8")
    done = hemiola("simulate", path, "--cluster", SMALL, "--policy", "fifo", "srtf")
    assert done.code == 0 and "types are left aside" in done.out and "never run" not in done.out
    done = hemiola(
        "simulate",
        path,
        "--cluster",
        f"{SMALL},gpu_type=h100",
        "--policy",
        "fifo",
        "srtf",
        "--json",
        "r.json",
    )
    assert done.code == 1
    why = "no host has GPUs of type 'a100' (there are h100)"
    assert f"! 5 of 5 jobs can never run here: {why} (job 0, 1, 2 and 2 more)" in done.out.splitlines()[1]
    assert f"error: under fifo, srtf, none of 5 jobs ran to its end; 5 of them: {why}" in done.err
    assert json.loads(Path("r.json").read_text(encoding="utf-8"))["never_ran"] == [
        {"why": why, "jobs": 5, "first": ["0", "1", "2"]}
    ]


def test_what_is_left_out_of_a_cluster_is_printed_and_written(hemiola: Hemiola, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/slurm.conf").write_text(
        "NodeName=DEFAULT Gres=gpu:8\nNodeName=n[0-7]\nNodeName=n[8-9] State=FUTURE\nDownNodes=n7 State=DRAIN\n"
    )
    given = (
        "simulate",
        JOBS,
        "--policy",
        "fifo",
        "--json",
        "r.json",
        "--report",
        "r.html",
        "--resume",
        "kept",
    )
    told = "cluster: 3 of 10 hosts with 24 GPUs left out: 2 FUTURE, 1 DRAIN"
    for _ in range(2):  # the second time from what was kept
        done = hemiola(*given, "--cluster", "conf")
        assert done.code == 0, done.err
        assert "on slurm, 56 GPUs" in done.out and f"- {told}" in done.out
        value = json.loads(Path("r.json").read_text(encoding="utf-8"))
        assert value["notes"][0] == told and told in value["topology"]["source"]
        assert value["topology"]["gpus"] == 56 and told in Path("r.html").read_text(encoding="utf-8")
    assert "on slurm, 80 GPUs" in hemiola(*given, "--cluster", "conf,unusable=keep").out


def test_unknown_flags_and_commands_exit_with_2(hemiola: Hemiola) -> None:
    assert hemiola("simulate", JOBS, "--polcy", "fifo").code == 2
    assert hemiola("simulate", JOBS, "--seeds", "many").code == 2
    assert hemiola("stimulate").code == 2


def test_explain_refuses_other_files(hemiola: Hemiola, tmp_path: Path) -> None:
    assert "nowhere.jsonl" in hemiola("explain", "nowhere.jsonl", "a").err
    done = hemiola("explain", JOBS, "a")
    assert done.code == 2
    assert "hemiola.decisions/1" in done.err


@pytest.mark.parametrize("flag", ["--json", "--jobs-csv", "--decisions", "--report", "--timeline"])
def test_a_full_disk(hemiola: Hemiola, flag: str) -> None:
    done = hemiola("simulate", JOBS, "--cluster", SMALL, "--policy", "fifo", flag, "/dev/full")
    assert done.code == 2
    assert "fifo" in done.out  # the table is printed all the same
    assert "'/dev/full': No space left on device" in done.err
    assert "free some space" in done.err


def test_a_failed_write_keeps_what_was_there(hemiola: Hemiola, tmp_path: Path) -> None:
    kept = tmp_path / "run.json"
    kept.write_text("before", encoding="utf-8")
    done = hemiola("simulate", JOBS, "--cluster", SMALL, "--policy", "lottery", "--json", kept)
    assert done.code == 2
    assert kept.read_text(encoding="utf-8") == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


# ---- how it is stopped -----------------------------------------------------------------------

PRESSES_CTRL_C = """
import os, signal
from dataclasses import dataclass
from hemiola.sched.policies.fifo import Fifo

@dataclass(frozen=True)
class PressesCtrlC(Fifo):
    name = "presses"
    def decide(self, view):
        if view.ended == 200:
            os.kill(os.getpid(), signal.SIGINT)
        return super().decide(view)
"""


def test_ctrl_c_gives_what_is_done_so_far(tmp_path: Path) -> None:
    (tmp_path / "presses.py").write_text(PRESSES_CTRL_C, encoding="utf-8")
    output = tmp_path / "run.json"
    done = in_a_process(
        "simulate", "generated:jobs=20000,load=0.8,mix=philly", "--cluster", "flat:hosts=64,gpus_per_host=8",
        "--policy", "sjf", "presses:PressesCtrlC", "srtf", "--json", str(output), "--workers", "1",
        PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert "(interrupted)" in done.stdout
    runs = json.loads(output.read_text(encoding="utf-8"))["runs"]
    assert [(run["policy"], run["interrupted"]) for run in runs] == [
        ("sjf", False), ("presses:PressesCtrlC", True),
    ]  # fmt: skip
    assert runs[0]["jobs_finished"] == 20000
    assert 200 <= runs[1]["jobs_finished"] < 20000


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = [sys.executable, "-c", "from hemiola.cli import main; main()", "policies"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


def test_a_reader_that_goes_away_loses_no_file(tmp_path: Path, unread: TextIO) -> None:
    with redirect_stdout(unread), pytest.raises(SystemExit):
        simulate(JOBS, cluster=SMALL, policy=("fifo",), json=tmp_path / "run.json")
    assert [run["policy"] for run in without_wall_clock(tmp_path / "run.json")["runs"]] == ["fifo"]


def test_every_policy_runs_from_its_name(hemiola: Hemiola, tmp_path: Path) -> None:
    done = hemiola("simulate", JOBS, "--cluster", RACKS, "--policy", *POLICIES, "--json", "run.json")
    assert done.code == 0, done.err
    runs = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["runs"]
    assert [run["policy"] for run in runs] == list(POLICIES)
    assert all(run["jobs_finished"] == 20 for run in runs)
