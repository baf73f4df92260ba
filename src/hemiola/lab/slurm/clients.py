"""Asks a Slurm lab by its own commands: sinfo, squeue, scontrol."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence

from hemiola.core.errors import LabError
from hemiola.lab.slurm.programs import program
from hemiola.lab.slurm.record import Record

__all__ = ["GOOD", "answers", "ask", "environ", "last_lines", "node_states", "see_logs", "wait_until"]

LOOK_AGAIN_S = 0.01
ASK_S = 15.0
GOOD = frozenset({"idle", "mixed", "allocated", "completing", "reserved"})
"""States of a node that takes jobs or has some; others, and any with a mark such as idle*, are not."""


def environ(record: Record) -> dict[str, str]:
    """The variables with which Slurm's commands find this Slurm."""
    return {"SLURM_CONF": str(record.conf)}


def ask(record: Record, command: Sequence[str], *, limit_s: float = ASK_S) -> str:
    """Run a command against this Slurm, and return what it printed.

    Raises:
        LabError: it failed, or took longer than `limit_s`.
    """
    path = program(command[0])
    words = [str(path) if path else command[0], *command[1:]]
    try:
        done = subprocess.run(
            words,
            env={**os.environ, **environ(record)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"`{' '.join(command)}` gave no answer in {limit_s:g} s", see_logs(record)) from None
    except OSError as error:
        raise LabError(f"cannot run {command[0]!r}: {error.strerror}", "see: hemiola lab slurm up") from error
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or "it said nothing"
        raise LabError(
            f"`{' '.join(command)}` failed with status {done.returncode}: {said}",
            see_logs(record),
        )
    return done.stdout


def see_logs(record: Record) -> str:
    """What to do when Slurm does not do what it should."""
    return f"see the logs in {record.logs}"


def answers(record: Record) -> bool:
    """Whether the controller answers now."""
    try:
        return "is UP" in ask(record, ["scontrol", "ping"], limit_s=2.0)
    except LabError:
        return False


def node_states(record: Record, *, limit_s: float = ASK_S) -> dict[str, str]:
    """Each node's state as sinfo has it, such as "idle", "mixed", "down*"; GPUs included in what it checks.

    Raises:
        LabError: the controller does not answer.
    """
    words = ["sinfo", "-h", "-N", "-p", record.spec.partition, "-o", "%N %T %G"]
    lines = ask(record, words, limit_s=limit_s).splitlines()
    states = {}
    for line in lines:
        node, state, counted = line.split()
        states[node] = state if counted == (record.spec.gres(node) or "(null)") else f"{state} with {counted}"
    return states


def wait_until(
    record: Record, condition: Callable[[], bool], *, limit_s: float, what: Callable[[], str]
) -> None:
    """Look again and again until it is so.

    Raises:
        LabError: it did not become so; `what` says what is missing.
    """
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end_s:
            raise LabError(f"after {limit_s:g} s {what()}", see_logs(record))
        time.sleep(LOOK_AGAIN_S)


def last_lines(record: Record, log: str, count: int = 2) -> str:
    """The end of a daemon's log, on one line."""
    path = record.logs / log
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return " | ".join(lines[-count:]) or "its log is empty"
