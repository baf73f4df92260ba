"""Runs `hemiola run` as a process, as a user's shell would, with small real scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from patience import patience
from repository import SOURCE

RUN = [sys.executable, "-c", "from hemiola.cli import main; main()", "run"]
LIMIT_S = 120
PATIENCE_S = 60
STAYS = """\
import os, signal, subprocess, sys, time
wanders = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", wanders], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""
"""A rank that leaves behind a process in a session of its own, deaf to SIGTERM."""

REMOTE = """\
import os, subprocess, sys
host, command = sys.argv[1:]
if host == "gone":
    sys.exit("no route to host gone")
print("Welcome to", host, end="")  # as a login may: it must not be taken for the agent's words
sys.stdout.flush()
kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
sys.exit(subprocess.call(["sh", "-c", command], env={**kept, "REMOTE_HOST": host}))
"""
"""A remote shell in earnest, but for the way: an environment of its own, a shell that splits words, its own standard input."""


def environment(**more: str) -> dict[str, str]:
    source = str(SOURCE)
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return inherited | {"PYTHONPATH": source, "COLUMNS": "140"} | more


def run(folder: Path, *words: object, given: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """To its end; bytes that are no UTF-8 come as surrogates."""
    return subprocess.run(
        [*RUN, *map(str, words)], cwd=folder, env=environment(**more), capture_output=True, encoding="utf-8",
        errors="surrogateescape", timeout=patience(LIMIT_S), input=given,
    )  # fmt: skip


def start(folder: Path, *words: object) -> subprocess.Popen[str]:
    """With SIGINT as a terminal leaves it; what it prints can be read line by line."""
    return subprocess.Popen(
        [*RUN, *map(str, words)], cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


def remote_shell(folder: Path) -> str:
    """The value of --remote-shell for hosts that are called anything but "gone"."""
    script = folder / "remote.py"
    script.write_text(REMOTE, encoding="utf-8")
    return f"{sys.executable} {script} {{host}} {{command}}"


def alive(mark: str) -> list[int]:
    """Processes with that word in their environment: all that a run started, wherever it wandered."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                if mark.encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
    return found


def ready(process: subprocess.Popen[str], ranks: int, word: str = "ready") -> None:
    """Wait until each rank has said the word."""
    assert process.stdout is not None
    for _ in range(ranks):
        assert word in process.stdout.readline()


def parents(process: subprocess.Popen[str], ranks: int) -> list[int]:
    """The ranks' parents, one a host, once each rank has said "ready" and its own; of the hosts in any order."""
    assert process.stdout is not None
    return list({int(process.stdout.readline().split()[-1]) for _ in range(ranks)})


def all_there(mark: str, count: int) -> bool:
    """One that has just been started has no environment for a moment."""
    return _met(lambda: len(alive(mark)) == count)


def none_left(mark: str) -> bool:
    return _met(lambda: not alive(mark))


def reaped(process: int) -> bool:
    return _met(lambda: not Path(f"/proc/{process}").exists())


def _met(condition: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + patience(PATIENCE_S)
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.02)
    return condition()
