"""Training on parameter servers in real processes: what it computes, who waits for whom, what is left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import patience
from ranks import run
from repository import SOURCE

from hemiola.comm.transport import TransportOptions
from hemiola.train.parameter_server.children import Child

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow
ALONE = {
    "place": 0, "places": 1, "secret": bytes(32), "options": TransportOptions(interface="127.0.0.1"), "paces": {}, "cores": (),
}  # fmt: skip


class Job:
    """Two ranks of one scenario."""

    def __init__(self, folder: Path, scenario: str) -> None:
        self.mark = f"HEMIOLA_TEST_MARK={uuid.uuid4()}"
        environment = {
            **os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR",
        }  # fmt: skip
        name, _, value = self.mark.partition("=")
        logs = [(folder / f"log.{rank}").open("w") for rank in range(2)]
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(HERE / "job.py"), str(rank), str(folder), scenario],
                env={**environment, name: value}, stdout=subprocess.PIPE, stderr=log, text=True,
            )
            for rank, log in enumerate(logs)
        ]  # fmt: skip
        for log in logs:
            log.close()
        self.folder = folder

    def next(self, rank: int) -> dict[str, Any]:
        """What a rank says next."""
        stdout = self.ranks[rank].stdout
        assert stdout is not None
        line = stdout.readline()
        assert line, self.log()
        found: dict[str, Any] = json.loads(line)
        return found

    def log(self) -> str:
        return "\n".join((self.folder / f"log.{rank}").read_text()[-3000:] for rank in range(2))

    def end(self, *ranks: int) -> None:
        for rank in ranks or (0, 1):
            assert self.ranks[rank].wait(patience(60)) == 0, self.log()

    def left(self) -> list[str]:
        """Processes of this job that still run."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return [what for what in found if what]

    def nothing_left(self) -> bool:
        """Whether all its processes end."""
        limit = time.monotonic() + patience(20)
        while self.left() and time.monotonic() < limit:
            time.sleep(0.05)
        return not self.left()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    jobs: list[Job] = []

    def begin(scenario: str) -> Job:
        jobs.append(Job(tmp_path, scenario))
        return jobs[-1]

    yield begin
    for job in jobs:
        for process in job.ranks:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """What two ranks say that train undisturbed under one scheme after the other."""
    job = Job(tmp_path_factory.mktemp("calm"), "equal,local,bounded,resumed,unfrozen,tuned,tidy")
    output = [process.communicate(timeout=patience(240))[0] for process in job.ranks]
    assert [process.returncode for process in job.ranks] == [0, 0], job.log()
    assert job.nothing_left()
    return [[json.loads(line) for line in each.splitlines()] for each in output]


@pytest.mark.parametrize("turn", [0, 1], ids=["SGD, own processes", "AdamW, coupled"])
def test_bsp_is_ddp_to_the_bit(said, turn):
    both = [rank[turn] for rank in said]
    assert len({one[by] for one in both for by in ("ddp", "servers")}) == 1


@pytest.mark.parametrize("turn", [5, 6], ids=["SGD", "AdamW"])
def test_what_was_saved_goes_on_to_the_bit_and_is_ddps(said, turn):
    both = [rank[turn] for rank in said]
    assert len({one[by] for one in both for by in ("ddp", "servers")}) == 1


@pytest.mark.parametrize("turn", [2, 3], ids=["LBFGS", "SGD"])
def test_local_steps_are_averaged_as_by_hand(said, turn):
    both = [rank[turn] for rank in said]
    assert len({one[by] for one in both for by in ("by_hand", "servers")}) == 1


def test_what_is_unfrozen_later_is_refused(said):
    for rank in said:
        assert "0.bias requires a gradient only since synchronise" in rank[3]["problem"]


def test_what_is_unfrozen_as_the_refusal_says_goes_on_with_the_state_of_the_others(said):
    for rank in said:
        assert "keep optimizer.state_dict(), close this optimizer" in rank[7]["problem"]
        assert rank[7]["trained"] == 4
        assert rank[7]["end"] == said[0][7]["end"]


def test_what_an_optimizer_has_of_frozen_parameters_stays_and_is_rank_0s(said):
    assert said[0][8]["had"] != said[1][8]["had"]
    for rank in said:
        assert rank[8]["kept"] == said[0][8]["had"]


def test_copies_hold_what_the_rank_has_done_and_are_modules_by_themselves(said):
    for rank in said:
        assert rank[8]["copied"] == [True] * 4


def test_what_was_closed_is_gone(said):
    for rank in said:
        assert rank[9]["alive"] == 0
        assert rank[9]["more_pipes"] <= 6  # of its own server and of the two last ones, which may still end


def test_cores_that_were_shared_out_are_given_back(said):
    for rank in said:
        assert rank[9]["confined"] and rank[9]["given_back"]


def test_pushes_to_another_rank_have_the_whole_rate(said):
    assert said[1][9]["pace"] == 64e6
    assert said[0][9]["pace"] > 1e9  # its server is beside it


def test_ssp_lets_nobody_be_further_ahead_than_its_bound(said):
    fast, slow = (rank[4] for rank in said)
    assert fast["bounded"] == 2
    assert slow["bounded"] <= 2
    assert fast["end"] == slow["end"]


def test_what_lies_in_the_present_folder_is_nobodys_module(tmp_path, monkeypatch):
    (tmp_path / "queue.py").write_text("raise RuntimeError('of the job, and no library')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])  # a script's own has its folder
    child = Child("a communication process", "hemiola.train.parameter_server.courier", ALONE)
    try:
        assert child.address()[0] == "127.0.0.1"
    finally:
        child.kill()


def test_a_communication_process_ends_with_who_started_it_whatever_that_has_forked():
    child = Child("a communication process", "hemiola.train.parameter_server.courier", ALONE)
    child.address()
    os.kill(child.pid, signal.SIGUSR2)  # which asks all of a job for a trace
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    forked.start()
    try:
        child.release()
        assert child._process.wait(patience(20)) == 0
    finally:
        forked.kill()
        forked.join()
        child.kill()


RECORDED = """
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

from hemiola.profiler.trace.injected import start, variables
from hemiola.profiler.trace.values import TraceOptions
from hemiola.train.parameter_server import synchronise

folder = sys.argv[3]
os.environ |= variables(TraceOptions(f"{folder}/run.json", f"{folder}/parts"), os.environ)
sys.path.insert(0, os.environ["PYTHONPATH"].partition(os.pathsep)[0])  # as it is where Python begins with these
start()
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
model = nn.Linear(2, 2)
model, optimizer = synchronise(model, torch.optim.SGD(model.parameters(), lr=0.1), "bsp")
with optimizer:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
dist.destroy_process_group()
print(os.getpid())
"""


def test_of_a_job_that_is_recorded_ranks_leave_parts_and_servers_do_not(tmp_path):
    script = tmp_path / "recorded.py"
    script.write_text(RECORDED)
    (rank,) = run(script, 1, str(tmp_path))
    assert {part.name.split("-")[1] for part in (tmp_path / "parts").iterdir()} == {rank}


def test_asp_waits_for_nobody_and_ctrl_c_leaves_nothing(start):
    job = start("free")
    assert job.next(0)["finite"]
    assert job.next(1)["finite"]
    assert "0.weight was changed since synchronise" in job.next(1)["problem"]
    assert "lr of the optimizer was 0.01 when gradients were sent" in job.next(1)["problem"]
    assert "0.weight was used before the forward of the module" in job.next(1)["problem"]
    assert "got a gradient twice before optimizer.step()" in job.next(1)["problem"]
    assert "was changed after it had been sent" in job.next(1)["problem"]
    assert "2.bias was changed since synchronise" in job.next(1)["problem"]
    job.end(0)  # its server was needed until rank 1 had left
    job.ranks[1].send_signal(signal.SIGINT)
    assert job.ranks[1].wait(patience(30)) != 0
    assert "KeyboardInterrupt" in job.log()
    assert job.nothing_left()


def test_whoever_is_missing_ends_the_job_on_all_ranks_with_its_name(start):
    job = start("failing")

    def training() -> list[dict[str, Any]]:
        return [job.next(rank)["pids"] for rank in range(2)]

    training()
    assert "rank 1 has left after 5 iterations" in job.next(0)["problem"]
    pids = training()
    os.kill(pids[1]["courier"][0], signal.SIGKILL)
    assert "rank 1 was lost before it said goodbye" in job.next(0)["problem"]
    assert "the communication process of rank 1 is gone (killed by signal 9)" in job.next(1)["problem"]
    pids = training()
    os.kill(pids[0]["server"][0], signal.SIGKILL)
    for rank in range(2):
        assert "a parameter server is lost" in job.next(rank)["problem"]
    (child,) = training()[1]["child"]
    job.ranks[1].kill()
    assert "rank 1 was lost before it said goodbye" in job.next(0)["problem"]
    assert Path(f"/proc/{child}/cmdline").read_bytes(), "it was told only once that had ended"
    os.kill(child, signal.SIGKILL)
    job.end(0)
    assert job.nothing_left()
