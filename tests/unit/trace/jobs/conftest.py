"""The real traces that the tests share: recorded once, on this machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from patience import patience
from repository import HELPERS


@pytest.fixture(scope="session")
def gloo_traces(tmp_path_factory):
    """A folder with the Kineto and execution traces of both ranks of a real DDP job on gloo."""
    folder = tmp_path_factory.mktemp("gloo")
    script = HELPERS / "gloo_job.py"
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}  # a host's name need not resolve
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder), str(rank), "2"],
            stderr=subprocess.PIPE,
            env=environment,
        )
        for rank in (0, 1)
    ]
    for rank in ranks:
        _, said = rank.communicate(timeout=patience(60))
        assert rank.returncode == 0, said.decode()[-2000:]
    (folder / "rendezvous").unlink(missing_ok=True)
    return folder
