"""Runs the tests' training jobs, under `hemiola trace` or by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from patience import patience
from repository import SOURCE

SCRIPTS = Path(__file__).parent / "record_scripts"
TRACE = [sys.executable, "-c", "from hemiola.cli import main; main()", "trace"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TRAIN = str(SCRIPTS / "train.py")


def ranks(folder: Path, script: str = TRAIN, number: int = 2) -> list[str]:
    return [sys.executable, str(SCRIPTS / "ranks.py"), str(folder), str(number), script]


def environment(**more: str) -> dict[str, str]:
    source = str(SOURCE)
    inherited = os.environ.get("PYTHONPATH", "")
    return (
        os.environ
        | {"PYTHONPATH": os.pathsep.join(filter(None, (source, inherited))), "OMP_NUM_THREADS": "1"}
        | more
    )


def start(command: list[str], **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(command: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, timeout=patience(300)
    )
