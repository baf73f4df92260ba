"""Starts the ranks of a job as real processes: `script.py RANK RANKS ...`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["SOURCE", "run", "start"]

SOURCE = str(Path(__file__).parents[1] / "src")


def start(script: Path, rank: int, ranks: int, *more: str) -> subprocess.Popen[str]:
    """One of them, on loopback."""
    environment = {
        **os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, str(script), str(rank), str(ranks), *more], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(script: Path, ranks: int, *more: str) -> list[str]:
    """What each rank printed; all have to end well."""
    processes = [start(script, rank, ranks, *more) for rank in range(ranks)]
    said = [process.communicate(timeout=240) for process in processes]
    for process, (_, problem) in zip(processes, said, strict=True):
        assert process.returncode == 0, problem[-3000:]
    return [output.strip() for output, _ in said]
