"""Whatever becomes of the process that made a lab, nothing of the lab is left, or it can be taken down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lab_helpers import hemiola, left_of, processes_with
from patience import until

OWNER = """
import sys, time
from hemiola.lab import Lab
name = sys.argv[1]
with Lab(2, name=name) as lab:
    lab.start("h0", ["sh", "-c", f"trap '' INT; sleep 600; : {name}-child"])
    print("up", flush=True)
    if sys.argv[2] == "raise":
        raise RuntimeError
    time.sleep(600)
"""


def owner(name: str, how: str = "wait") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, name, how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    return process


def gone(name: str) -> bool:
    return left_of(name) == [] and processes_with(name) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_owner_leaves_nothing(name: str, number: signal.Signals) -> None:
    with owner(name) as process:
        process.send_signal(number)
        process.wait()
    until(lambda: gone(name))


def test_an_owner_that_fails_leaves_nothing(name: str) -> None:
    with owner(name, "raise") as process:
        assert process.wait() == 1
    assert left_of(name) == []
    until(lambda: gone(name))


@pytest.mark.parametrize("namespaces", [1, 3])
def test_an_owner_killed_while_it_builds_leaves_nothing(name: str, namespaces: int) -> None:
    process = subprocess.Popen(hemiola("lab", "up", "--hosts", "40", "--name", name))
    until(lambda: len([path for path in left_of(name) if path.startswith("/run/netns")]) >= namespaces)
    process.kill()
    assert process.wait() == -9
    until(lambda: gone(name))


CLAIMED = """
import os, sys
from hemiola.lab import Lab, lab
def dies(*given):
    done(*given)
    os.kill(os.getpid(), 9)
done, lab.claim = lab.claim, dies
Lab(2, name=sys.argv[1]).up()
"""


def test_an_owner_killed_before_it_builds_leaves_nothing(name: str) -> None:
    assert subprocess.run([sys.executable, "-c", CLAIMED, name]).returncode == -signal.SIGKILL
    until(lambda: gone(name))


def test_without_its_guardian_a_dead_owners_lab_is_stale_and_can_be_removed(name: str) -> None:
    with owner(name) as process:
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            if b"hemiola.lab.guardian" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
        process.kill()
        process.wait()
    status = subprocess.run(
        hemiola("lab", "status", "--name", name), capture_output=True, text=True, check=True
    )
    assert f"{name}: stale" in status.stdout
    assert f"hemiola lab down --name {name}" in status.stdout
    assert processes_with(f"{name}-child") != []
    subprocess.run(hemiola("lab", "down", "--name", name), capture_output=True, check=True)
    assert gone(name)
