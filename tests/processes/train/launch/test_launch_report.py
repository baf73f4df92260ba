"""What `hemiola run` knows before and says after: plans, the state that rank 0 leaves, recordings, the report."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from launching import LIMIT_S, run, start
from patience import patience

from hemiola.core.errors import InputError
from hemiola.core.plan import Acceleration, Plan
from hemiola.trace.jobs.timeline_json import read_timeline
from hemiola.trace.struct_json import read_acceleration, write_acceleration, write_plan

ON = Acceleration(
    state="on", iterations=40, before_s=0.1, predicted_before_s=0.11, predicted_s=0.07, bound_s=0.065, measured_s=0.08,
    exposed_before_s=0.05, exposed_s=0.02, words="1.25 times as fast.",
)  # fmt: skip
TRAINS = (
    "import os, time\nimport torch, torch.distributed as dist\nfrom torch import nn\ndist.init_process_group('gloo')\n"
    "torch.manual_seed(0)\nmodel = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nfor _ in range(6):\n"
    "    optimizer.zero_grad()\n    model(torch.randn(8, 64)).square().mean().backward()\n    optimizer.step()\n"
    "dist.barrier()\ndist.destroy_process_group()\n"
)
LEAVES = "import os, shutil\nif os.environ['RANK'] == '0': shutil.copy('state.json', os.environ['HEMIOLA_RUN_REPORT'])\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "leaves.py").write_text(LEAVES, encoding="utf-8")
    return tmp_path


def rows(printed: str) -> list[list[str]]:
    """A table's cells, row by row."""
    lines = [line.strip("│┃").replace("┃", "│") for line in printed.splitlines() if line[:1] in "│┃"]
    return [[cell.strip() for cell in line.split("│")] for line in lines if line]


def test_the_state_survives_its_file(tmp_path: Path) -> None:
    for state in (ON, Acceleration(state="off", iterations=0)):
        write_acceleration(state, tmp_path / "a.json")
        assert read_acceleration(tmp_path / "a.json") == state
    (tmp_path / "a.json").write_text('{"schema": "hemiola.acceleration/1", "state": "fast", "iterations": 1}')
    with pytest.raises(InputError, match=r"Invalid enum value 'fast' - at `\$.state`"):
        read_acceleration(tmp_path / "a.json")


def test_predicted_measured_and_exposed_are_printed_at_the_end(folder: Path) -> None:
    write_acceleration(ON, folder / "state.json")
    done = run(folder, "--nproc", 2, "--report", "r.json", "leaves.py")
    assert done.returncode == 0, done.stderr
    assert rows(done.stderr) == [
        ["iteration", "as DDP", "by the plan"],
        ["predicted", "110.00 ms", "70.00 ms"],
        ["measured", "100.00 ms", "80.00 ms"],
        ["exposed", "50.00 ms (50 %)", "20.00 ms (25 %)"],
        ["least possible", "–", "65.00 ms"],
    ]
    assert done.stderr.endswith("1.25 times as fast.\n")
    report = json.loads((folder / "r.json").read_text())
    assert report["schema"] == "hemiola.run/1"
    assert report["acceleration"]["measured_s"] == 0.08
    assert (report["status"], report["ranks"], report["hosts"], report["failure"]) == (0, 2, 1, None)
    assert report["command"] == ["leaves.py"]


def test_what_is_not_known_is_left_out(folder: Path) -> None:
    write_acceleration(Acceleration(state="profiling", iterations=3, before_s=0.1), folder / "state.json")
    assert rows(run(folder, "leaves.py").stderr) == [["iteration", "as DDP"], ["measured", "100.00 ms"]]


def test_a_state_of_another_kind_is_no_failure(folder: Path) -> None:
    (folder / "state.json").write_text("{}")
    done = run(folder, "leaves.py")
    assert done.returncode == 0
    assert "what rank 0 left cannot be read" in done.stderr


def test_where_nothing_is_known_it_says_how_to_know(folder: Path) -> None:
    (folder / "pass.py").write_text("")
    done = run(folder, "pass.py")
    assert done.stderr == (
        "nothing was predicted or measured: --trace FILE records the job, hemiola.accelerate in the script speeds it up\n"
    )


def test_a_failure_is_in_the_report(folder: Path) -> None:
    (folder / "fails.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    done = run(folder, "--report", "r.json", "fails.py")
    assert done.returncode == 137
    assert done.stderr == "hemiola run: rank 0 failed, with signal 9 (SIGKILL)\n"
    report = json.loads((folder / "r.json").read_text())
    assert report["status"] == 137
    assert report["failure"] == {"rank": 0, "host": "", "status": -9, "last_words": []}


def test_a_plan_reaches_the_script_and_must_fit_the_ranks(folder: Path) -> None:
    write_plan(
        Plan(name="p", graph="g", ranks=2, update="together", chunk_bytes=1, transfers=()),
        folder / "plan.json",
    )
    (folder / "show.py").write_text("import os\nprint(os.environ['HEMIOLA_PLAN'])\n")
    done = run(folder, "--nproc", 2, "--plan", "plan.json", "show.py")
    path = str(folder / "plan.json")
    assert sorted(done.stdout.splitlines()) == sorted([path, f"[rank1] {path}"])
    done = run(folder, "--nproc", 3, "--plan", "plan.json", "show.py")
    assert done.returncode == 2
    assert "the plan in plan.json is for 2 ranks, and this job has 3" in done.stderr
    assert done.stdout == ""
    done = run(folder, "--plan", "show.py", "show.py")
    assert done.returncode == 2
    assert "is not a plan" in done.stderr


def test_what_is_refused_leaves_the_parts_of_an_earlier_recording(folder: Path) -> None:
    write_plan(
        Plan(name="p", graph="g", ranks=2, update="together", chunk_bytes=1, transfers=()),
        folder / "plan.json",
    )
    part = folder / "run.json.parts" / "rank00000-1-1.a.jsonl"
    part.parent.mkdir()
    part.touch()
    for words in (["nowhere.py"], ["--plan", "plan.json", "leaves.py"]):
        assert run(folder, "--trace", "run.json", *words).returncode == 2
        assert part.exists()
    assert not (folder / "run.json.lock").exists()


@pytest.mark.slow
def test_a_recording_says_what_was_measured(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINS)
    done = run(folder, "--nproc", 2, "--trace", "run.json", "--report", "r.json", "train.py")
    assert done.returncode == 0, done.stderr
    assert f"recorded 6 iterations of 2 ranks into {folder / 'run.json'}" in done.stderr
    assert rows(done.stderr)[0] == ["iteration", "measured", "exposed"]
    report = json.loads((folder / "r.json").read_text())
    assert report["trace"] == str(folder / "run.json")
    assert 0 <= report["exposed_s"] < report["iteration_s"]


@pytest.mark.slow
def test_of_hosts_started_by_hand_the_first_puts_the_recording_together(folder: Path) -> None:
    (folder / "train.py").write_text(f"{TRAINS}time.sleep(int(os.environ['RANK']))\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["--nnodes", 2, "--nproc", 1, "--master-addr", "127.0.0.1", "--master-port", port]
    hosts = [start(folder, *words, "--node-rank", i, "--trace", "run.json", "train.py") for i in (0, 1)]
    said = [host.communicate(timeout=patience(LIMIT_S))[1] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    assert f"recorded 6 iterations of 2 ranks into {folder / 'run.json'}" in said[0]
    assert not any(words in said[1] for words in ("recorded", "nothing was", "Traceback"))
    timeline = read_timeline(folder / "run.json")
    assert (len(timeline.ranks), timeline.facts.get("partial")) == (2, None)
    assert not (folder / "run.json.parts").exists()
