"""The backend against gloo, in real processes: the same results, the same training, clear errors."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from ranks import run, start

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_collective_gives_what_gloo_gives(ranks, tmp_path):
    assert run(HERE / "compare.py", ranks, str(tmp_path / "meet")) == ["all the same"] * ranks


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_training_on_two_ranks_is_gloos_to_the_bit(kind, tmp_path):
    ours = run(HERE / "train.py", 2, str(tmp_path / "ours"), "hemiola", kind)
    gloo = run(HERE / "train.py", 2, str(tmp_path / "gloo"), "gloo", kind)
    assert ours == gloo
    assert ours[0] == ours[1]


def test_a_killed_rank_ends_the_others_collective_with_its_name(tmp_path):
    processes = [start(HERE / "waits.py", rank, 2, str(tmp_path / "meet")) for rank in range(2)]
    until = time.monotonic() + 60
    while not (tmp_path / "meet.1").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGKILL)
    output, problem = processes[0].communicate(timeout=60)
    assert "rank 1 is gone" in output, problem[-2000:]
    processes[1].communicate()
