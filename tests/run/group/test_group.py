"""The backend against gloo, in real processes: the same results, the same training, clear errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = str(HERE.parents[2] / "src")
pytestmark = pytest.mark.slow


def start(script: str, rank: int, ranks: int, *more: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, str(HERE / script), str(rank), str(ranks), *more], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(script: str, ranks: int, *more: str) -> list[str]:
    """What each rank printed."""
    processes = [start(script, rank, ranks, *more) for rank in range(ranks)]
    said = [process.communicate(timeout=120) for process in processes]
    for process, (_, problem) in zip(processes, said, strict=True):
        assert process.returncode == 0, problem[-3000:]
    return [output.strip() for output, _ in said]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_collective_gives_what_gloo_gives(ranks, tmp_path):
    assert run("compare.py", ranks, str(tmp_path / "meet")) == ["all the same"] * ranks


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_training_on_two_ranks_is_gloos_to_the_bit(kind, tmp_path):
    ours = run("train.py", 2, str(tmp_path / "ours"), "hemiola", kind)
    gloo = run("train.py", 2, str(tmp_path / "gloo"), "gloo", kind)
    assert ours == gloo
    assert ours[0] == ours[1]


def test_a_killed_rank_ends_the_others_collective_with_its_name(tmp_path):
    processes = [start("waits.py", rank, 2, str(tmp_path / "meet")) for rank in range(2)]
    until = time.monotonic() + 60
    while not (tmp_path / "meet.1").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGKILL)
    output, problem = processes[0].communicate(timeout=60)
    assert "rank 1 is gone" in output, problem[-2000:]
    processes[1].communicate()
