"""Sweeps on this machine: the same results wherever a run is done, kept, resumed, interrupted."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest
from patience import patience, until
from sweep_helpers import (
    EVERYTHING,
    JOBS,
    OWN,
    RACKS,
    command,
    ended,
    figures,
    kept,
    results,
    small,
)

from hemiola.cli.simulate import simulate
from hemiola.core.decisions import WakeAt
from hemiola.core.errors import EngineError, HemiolaError, InputError, PolicyError
from hemiola.sched.policies import POLICIES
from hemiola.simulator.scenario import run_scenario
from hemiola.simulator.simulate import Recording
from hemiola.simulator.sweep import Adaptive, Here, ProcessPool, executor_for, on_ray, sweep
from hemiola.simulator.sweep.on_ray import OnRay
from hemiola.simulator.sweep.tasks import Answers, PickledError, Work, scenario_digest, task_key, tasks_of
from hemiola.trace.decisions import write_decisions
from hemiola.trace.perfetto import write_timeline
from hemiola.trace.results import comparison_as_json, write_jobs_csv


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with policies of a user's own, in which workers find them too."""
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("own", None)


LENGTH_BYTES = 4
"""What a pipe sends before a message."""


@dataclass(frozen=True)
class Counted:
    """Counts what really runs."""

    ran: list[tuple[str, int]]

    def answers(self, work: Work) -> Answers:
        for task, answer in Here().answers(work):
            self.ran.append((task.name, task.seed))
            yield task, answer


# ---- the same everywhere ---------------------------------------------------------------------

SCENARIOS = {
    "every policy": {"policies": tuple(POLICIES)},
    "fitted": {"collectives": "fitted", "workload": "generated:jobs=60,load=0.9,mix=muri"},
    "tiresias' rules": {"semantics": "tiresias-sim", "policies": ()},
    "refused jobs": {"cluster": "flat:hosts=1,gpus_per_host=4"},
}


@pytest.mark.parametrize("changes", SCENARIOS.values(), ids=SCENARIOS)
def test_a_sweep_in_this_process_is_the_comparison(changes: dict[str, object], tmp_path: Path) -> None:
    prepared = small(**changes)
    expected = run_scenario(prepared.scenario, recording=EVERYTHING)
    (swept,) = sweep([prepared], Here(), recording=EVERYTHING)
    assert swept.missing == 0
    assert swept.comparison is not None
    assert _without_clock(swept.comparison) == _without_clock(expected)
    for write in (write_jobs_csv, write_decisions, write_timeline):
        for name, comparison in (("swept", swept.comparison), ("expected", expected)):
            write(comparison, tmp_path / name)
        assert (tmp_path / "swept").read_bytes() == (tmp_path / "expected").read_bytes()


def test_a_decision_about_a_time_that_never_comes_travels_as_it_is(own: Path) -> None:
    prepared = small(policies=("own:NeverWakes",), seeds=1)
    expected = run_scenario(prepared.scenario, recording=EVERYTHING).runs[0].decisions
    (swept,) = sweep([prepared], Here(), recording=EVERYTHING)
    assert swept.comparison is not None
    found = swept.comparison.runs[0].decisions
    assert repr(found) == repr(expected)
    assert {repr(one.decision.time_s) for one in found if isinstance(one.decision, WakeAt)} == {"inf", "nan"}


def _without_clock(comparison: object) -> object:
    value = comparison_as_json(comparison)  # type: ignore[arg-type]
    for run in value["runs"]:
        for name in ("simulation_wall_s", "simulation_cpu_s", "decision_p50_s", "decision_p99_s"):
            del run[name]
    return value


def test_a_pool_gives_the_same_bytes_as_this_process() -> None:
    scenarios = [small(policies=tuple(POLICIES)), small(workload="generated:jobs=80,load=0.9,mix=muri")]
    here = results(Here(), scenarios)
    assert len(here) == 2 * (len(POLICIES) + 2)
    assert results(ProcessPool(2), scenarios) == here
    assert results(Adaptive(ProcessPool(2), patience_s=0.0), scenarios) == here


def test_what_is_quick_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessPool, "answers", None)
    assert len(results(Adaptive(ProcessPool(2), patience_s=60.0), [small()])) == 4


def test_where_to_run() -> None:
    assert executor_for(workers=1) == Here()
    assert executor_for(workers=3) == ProcessPool(3)
    assert executor_for(ray="a:1") == OnRay("a:1")
    for wrong in ({"workers": 0}, {"workers": 2, "ray": "auto"}):
        with pytest.raises(InputError):
            executor_for(**wrong)  # type: ignore[arg-type]


# ---- processes that die, runs that fail ------------------------------------------------------


def test_a_worker_that_is_killed_is_replaced(own: Path) -> None:
    killer = f"own:KillsItsProcess,memory={own / 'killed'}"
    scenarios = [small(policies=("fifo", killer, "srtf"))]
    found = results(ProcessPool(2), scenarios)
    assert (own / "killed").exists()
    assert found == results(Here(), scenarios)


def test_workers_that_always_die_end_the_sweep(own: Path) -> None:
    with pytest.raises(EngineError, match="own:KillsItsProcess, seed 0: its process was killed 3 times"):
        results(ProcessPool(2), [small(policies=("own:KillsItsProcess",), seeds=1)])


@pytest.mark.parametrize(("policy", "kind"), [("own:Refuses", PolicyError), ("own:Fails", IndexError)])
def test_a_run_that_fails_fails_alike(own: Path, policy: str, kind: type[Exception]) -> None:
    said = []
    for executor in (Here(), ProcessPool(2)):
        with pytest.raises(kind) as caught:
            results(executor, [small(policies=("fifo", policy), seeds=1)])
        said.append((str(caught.value), getattr(caught.value, "remedy", "")))
    assert said[0] == said[1]


def test_wrong_policies_are_refused_before_anything_runs() -> None:
    ran: list[tuple[str, int]] = []
    for changes in ({"policies": ("fifo", "lottery")}, {"baseline": "sjf"}, {"policies": ("fifo", "fifo")}):
        with pytest.raises(HemiolaError):
            list(sweep([small(), small(**changes)], Counted(ran), recording=EVERYTHING))
    assert not ran


# ---- kept runs -------------------------------------------------------------------------------


def test_kept_runs_are_not_done_again(tmp_path: Path) -> None:
    ran: list[tuple[str, int]] = []
    said: list[str] = []
    first, again = (
        [
            _without_clock(swept.comparison)
            for swept in sweep(
                [small(), small(policies=("srtf", "dally"))], Counted(ran), recording=EVERYTHING,
                folder=tmp_path, say=said.append,
            )
        ]
        for _ in range(2)
    )  # fmt: skip
    assert first == again
    assert len(ran) == 8
    assert said == [f"kept runs: 0 of 8 are in {tmp_path}", f"kept runs: 8 of 8 are in {tmp_path}"]
    # "dally" of both scenarios is the same run: it is kept once
    assert len(list(tmp_path.glob("*.run"))) == 6


@pytest.mark.parametrize("damage", [b"", b"hemiola.run/1\n", b"no such file"])
def test_damaged_files_are_done_again_with_a_word(tmp_path: Path, damage: bytes) -> None:
    ran: list[tuple[str, int]] = []
    said: list[str] = []
    list(sweep([small()], Counted(ran), recording=EVERYTHING, folder=tmp_path))
    whole = {file: file.read_bytes() for file in tmp_path.iterdir()}
    cut, flipped = list(whole)[:2]
    cut.write_bytes(damage or whole[cut][:-1])
    flipped.write_bytes(whole[flipped][:-1] + bytes([whole[flipped][-1] ^ 1]))
    (tmp_path / ".half.run.part").write_bytes(b"half")
    list(sweep([small()], Counted(ran), recording=EVERYTHING, folder=tmp_path, say=said.append))
    assert len(ran) == 6
    assert sum("is done again" in line for line in said) == 2
    assert said[-1] == f"kept runs: 2 of 4 are in {tmp_path}"
    found = {file: file.read_bytes() for file in whole}
    assert {file for file in whole if len(found[file]) > len(damage)} == set(whole)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot keep runs"):
        list(sweep([small()], Here(), recording=EVERYTHING, folder=tmp_path / "file"))


def test_whatever_changes_a_result_changes_its_key(own: Path) -> None:
    jobs = own / "jobs.csv"
    jobs.write_text(Path(JOBS).read_text(encoding="utf-8"), encoding="utf-8")
    base = {"workload": str(jobs), "policies": ("own:Own",), "seeds": 1}

    def key(recording: Recording = EVERYTHING, seed: int = 0, **changes: object) -> str:
        prepared = small(**{**base, **changes})
        (task,) = tasks_of([prepared])
        return task_key(scenario_digest(prepared), replace(task, seed=seed), recording)

    keys = [
        key(),
        key(seed=1),
        key(recording=Recording()),
        key(policies=("fifo",)),
        key(contention="isolated"),
        key(preemption_cost=2.0),
        key(limit=5),
        key(mix="none"),
        key(cluster=RACKS.replace("oversubscription=4", "oversubscription=2")),
        key(recorded_on="flat:hosts=8,gpus_per_host=4"),
        key(workload="generated:jobs=5,load=0.5"),
    ]
    assert key() == keys[0]
    jobs.write_text(jobs.read_text(encoding="utf-8").replace("0,", "0.5,", 1), encoding="utf-8")
    keys.append(key())
    (own / "own.py").write_text(OWN + "\n# another\n", encoding="utf-8")
    keys.append(key())
    assert len(set(keys)) == len(keys)
    moved = own / "moved.csv"
    jobs.rename(moved)
    assert key(workload=str(moved)) == keys[-1]


def test_a_policy_that_is_edited_while_its_runs_are_done_leaves_none_that_are_taken_for_the_new_ones(
    own: Path,
) -> None:
    ran: list[tuple[str, int]] = []

    def edit(*_: object) -> None:
        (own / "own.py").write_text(OWN + "\n# another\n", encoding="utf-8")

    for progress in (edit, None):
        prepared = small(policies=("own:Own",))
        list(sweep([prepared], Counted(ran), recording=EVERYTHING, folder=own / "kept", progress=progress))
    assert ran == [("own:Own", 0), ("own:Own", 1)] * 2
    (own / "own.py").write_text(OWN, encoding="utf-8")
    list(sweep([small(policies=("own:Own",))], Counted(ran), recording=EVERYTHING, folder=own / "kept"))
    assert len(ran) == 4, "those of the program that began are kept as its own"


def test_a_worker_that_finds_the_policy_edited_does_no_run_of_it(own: Path) -> None:
    prepared = small(policies=("own:Own",), seeds=1)
    work = Work([prepared], tasks_of([prepared]), EVERYTHING)
    (own / "own.py").write_text(OWN + "\n# another\n", encoding="utf-8")
    with pytest.raises(InputError, match="own:Own was changed while the sweep ran"):
        list(ProcessPool(1).answers(work))


def test_runs_of_a_policy_whose_file_is_gone_are_not_kept(own: Path) -> None:
    prepared = small(policies=("own:Own",), seeds=1)
    tasks_of([prepared])  # imports it
    (own / "own.py").unlink()
    assert len(results(Here(), [prepared])) == 1
    with pytest.raises(InputError, match="own:Own cannot be read"):
        list(sweep([prepared], Here(), recording=EVERYTHING, folder=own / "kept"))


def test_runs_of_a_policy_in_another_encoding_and_with_a_built_in_base_are_kept(own: Path) -> None:
    (own / "other.py").write_text(
        "# coding: latin-1, as in café\nfrom own import Own\nclass Other(Own, dict): ...\n",
        encoding="latin-1",
    )
    ran: list[tuple[str, int]] = []
    try:
        prepared = small(policies=("other:Other",), seeds=1)
        for _ in range(2):
            list(sweep([prepared], Counted(ran), recording=EVERYTHING, folder=own / "kept"))
    finally:
        sys.modules.pop("other", None)
    assert ran == [("other:Other", 0)]


# ---- killed, interrupted ---------------------------------------------------------------------


def test_a_driver_that_is_killed_goes_on_where_it_was(own: Path) -> None:
    folder, output = own / "kept", own / "figures.json"
    asked = (
        JOBS, "--cluster", RACKS, "--policy", "fifo", f"own:Waits,folder={folder}", "--seeds", 4, "--workers", 2,
        "--resume", folder,
    )  # fmt: skip
    driver = command(*asked, folder=own)
    until(lambda: kept(folder) >= 2, "two runs before the workers wait")
    workers = _children(driver.pid)
    assert len(workers) >= 2
    driver.kill()
    driver.communicate()
    until(lambda: not any(_alive(pid) for pid in workers), "the workers end with their driver")
    done = kept(folder)
    assert done < 8
    (folder / "go").touch()
    code, _, err = ended(command(*asked, "--json", output, folder=own))
    assert code == 0, err
    assert f"kept runs: {done} of 8 are in {folder}" in err.replace("\n", " ")
    assert ended(command(*asked[:-2], "--json", own / "whole.json", folder=own))[0] == 0
    assert figures(output) == figures(own / "whole.json")


def _children(pid: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ctrl_c_keeps_what_is_finished(own: Path) -> None:
    folder, output = own / "kept", own / "figures.json"
    process = command(
        JOBS, "--cluster", RACKS, "--policy", "fifo", "own:Slow", "--seeds", "4",
        "--workers", "2", "--resume", folder, "--json", output, folder=own,
    )  # fmt: skip
    until(lambda: kept(folder) == 2, "two runs before both workers are slow")
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130, err
    assert "Traceback" not in err
    assert "6 runs are not done; the same command goes on" in err
    runs = figures(output)["runs"]
    assert [run["policy"] for run in runs if not run["interrupted"]] == ["fifo", "fifo"]
    assert [run["policy"] for run in runs if run["interrupted"]] in ([], ["own:Slow"])
    assert kept(folder) == 2


def test_ctrl_c_in_the_middle_of_an_answer_ends_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    receive, sizes = Connection._recv, list[int]()  # type: ignore[attr-defined]

    def torn(pipe: Connection, size: int) -> Any:
        if size <= LENGTH_BYTES:
            return receive(pipe, size)
        sizes.append(size)
        receive(pipe, 1)  # what comes next would be taken for the length of something large
        raise KeyboardInterrupt if len(sizes) == 1 else EOFError

    monkeypatch.setattr(Connection, "_recv", torn)
    assert results(ProcessPool(1), [small()]) == {}
    assert len(sizes) == 1, "nobody reads on in the middle of an answer"


# ---- several scenarios -----------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Path:
    folder = tmp_path / "scenarios"
    folder.mkdir()
    for name, policies in (("a", '"fifo", "dally"'), ("b", '"srtf"')):
        (folder / f"{name}.toml").write_text(
            f'workload = "{JOBS}"\ncluster = "{RACKS}"\npolicies = [{policies}]\n', encoding="utf-8"
        )
    return folder


@pytest.mark.parametrize("by_folder", [True, False])
def test_several_scenarios_write_a_file_each(
    two: Path, by_folder: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    files = (two / "a.toml", two / "b.toml")
    simulate(scenario=(two,) if by_folder else files, json=two / "out", jobs_csv=two / "out/rows")
    shown = capsys.readouterr().out
    assert shown.index("a ─") < shown.index("dally") < shown.index("b ─") < shown.index("srtf")
    assert sorted(path.name for path in (two / "out").iterdir()) == ["a.json", "b.json", "rows"]
    assert sorted(path.name for path in (two / "out/rows").iterdir()) == ["a.csv", "b.csv"]
    for file in files:
        simulate(scenario=(file,), json=two / "alone.json")
        assert figures(two / "alone.json") == figures(two / "out" / f"{file.stem}.json")


def test_a_reader_that_goes_away_stops_no_scenario(two: Path, unread: TextIO) -> None:
    with redirect_stdout(unread), pytest.raises(SystemExit):
        simulate(scenario=(two,), json=two / "out")
    assert sorted(path.name for path in (two / "out").iterdir()) == ["a.json", "b.json"]


def test_scenarios_that_cannot_be_swept(two: Path) -> None:
    (two / "empty").mkdir()
    (two / "file").touch()
    for given, what in (
        ({"scenario": (two / "empty",)}, "has no scenario"),
        ({"scenario": (two, two / "a.toml")}, "are called a"),
        ({"scenario": (two,), "json": two / "file"}, "cannot be a folder"),
        ({"scenario": (two,), "json": two / "out", "timeline": two / "out"}, r"would both be .*out/a\.json"),
    ):
        with pytest.raises(InputError, match=what):
            simulate(**given)  # type: ignore[arg-type]


# ---- a Ray that is not there -----------------------------------------------------------------


def test_without_ray_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError) as caught:
        results(OnRay("auto"), [small()])
    assert caught.value.remedy == "pip install 'hemiola[ray]'"


@pytest.mark.parametrize("listens", [False, True], ids=["closed", "silent"])
def test_a_ray_that_is_away_is_told_soon(listens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs hemiola[ray]")
    monkeypatch.setattr(on_ray, "REACH_S", 1.0)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        began_s = time.monotonic()
        with pytest.raises(InputError, match="no Ray cluster at"):
            results(OnRay(f"127.0.0.1:{server.getsockname()[1]}"), [small()])
        assert time.monotonic() - began_s < patience(30)


class FromOutside:
    """A Ray whose head has an address that leads nowhere from here, and whose task is done at the tenth look."""

    def __init__(self) -> None:
        self._looks = 0

    def remote(self, **_: object) -> Any:
        return lambda _: SimpleNamespace(remote=lambda *_: "the task")

    def put(self, _: bytes) -> None: ...

    def init(self, **_: object) -> None: ...

    def shutdown(self) -> None: ...

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address="10.0.0.1:6379")

    def wait(self, running: list[str], **_: object) -> tuple[list[str], list[str]]:
        self._looks += 1
        return (running, []) if self._looks == 10 else ([], running)

    def get(self, reference: str) -> str:
        return f"what {reference} gives"


@pytest.mark.parametrize("address", ["ray://head:10001", "auto"])
def test_the_head_is_watched_where_a_client_reaches_it(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(where: tuple[str, int], timeout: float) -> Any:
        if where != ("head", 10001):
            raise ConnectionRefusedError
        return nullcontext()

    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    monkeypatch.setenv("RAY_USE_TLS", "1")  # so that nothing is said on the connection
    monkeypatch.setattr(on_ray.socket, "create_connection", connect)
    monkeypatch.setattr(on_ray, "time", SimpleNamespace(monotonic=count(step=20).__next__))
    monkeypatch.setattr(on_ray, "_imported", FromOutside)
    work = Work([small()], tasks_of([small()])[:1], EVERYTHING)
    assert list(OnRay(address).answers(work)) == [(work.tasks[0], "what the task gives")]
    with pytest.raises(ConnectionError, match="has been away for 30 s"):
        list(on_ray._spread(FromOutside(), work, "10.0.0.1:6379"))


def test_all_kept_needs_no_ray(tmp_path: Path) -> None:
    for executor in (Here(), OnRay("127.0.0.1:1")):
        (swept,) = sweep([small()], executor, recording=EVERYTHING, folder=tmp_path)
        assert swept.missing == 0


def test_ctrl_c_in_this_process_ends_the_sweep(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "presses.py").write_text(
        "import os, signal\nfrom own import Own\nclass CtrlC(Own):\n    def decide(self, view):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n        return super().decide(view)\n",
        encoding="utf-8",
    )
    prepared = small(policies=("fifo", "presses:CtrlC", "srtf"))
    for executor in (Here(), ProcessPool(2)):
        (swept,) = sweep([prepared], executor, recording=EVERYTHING)
        assert swept.comparison is not None
        assert [run.policy for run in swept.comparison.runs if run.interrupted] == ["presses:CtrlC"]
        assert swept.missing >= 3
    sys.modules.pop("presses", None)


def test_another_hemiola_is_refused() -> None:
    answer = on_ray._work(b"", "", tasks_of([small()])[0], EVERYTHING, "another")
    assert isinstance(answer, PickledError)
    assert "has another Hemiola" in answer.what
