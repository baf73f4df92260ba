"""Finds and ends the processes of a lab: those in its namespaces, or those of one run.

A process is found by what the kernel says of it, not by a number written down, and is signalled
through a handle (pidfd), so that a number used again is never hit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

__all__ = ["RUN_VARIABLE", "belonging", "end_processes", "inside", "matching", "parent_and_start", "tell"]

RUN_VARIABLE = "HEMIOLA_LAB_RUN"
"""In the environment of all that a run starts; a child inherits it, wherever it wanders."""

LOOK_AGAIN_S = 0.02
KILL_S = 2.0


def inside(namespaces: set[tuple[int, int] | None]) -> Callable[[int], bool]:
    """Whether a process lives in one of these namespaces (device and inode); this one never does."""

    def test(pid: int) -> bool:
        try:
            found = Path(f"/proc/{pid}/ns/net").stat()
        except OSError:  # gone, or a zombie
            return False
        return pid != os.getpid() and (found.st_dev, found.st_ino) in namespaces

    return test


def belonging(run: str) -> Callable[[int], bool]:
    """Whether a process was started by this run (or any run of this lab), or by one that was."""
    sign = f"{RUN_VARIABLE}={run}".encode()

    def test(pid: int) -> bool:
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return pid != os.getpid() and any(variable.startswith(sign) for variable in variables)

    return test


def matching(test: Callable[[int], bool]) -> list[int]:
    """All processes of the machine that pass."""
    return [
        pid
        for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        if test(pid)
    ]


def tell(test: Callable[[int], bool], number: signal.Signals, *, groups: Collection[int] = ()) -> set[int]:
    """Signal all processes that pass, and these groups of processes as a whole.

    Returns:
        The processes that heard it: what a shell starts in the background ignores SIGINT.
    """
    found = matching(test)
    heard = {pid for pid in found if _hears(pid, number)}
    apart = [pid for pid in found if _group_of(pid) not in groups]
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
    for pid in apart:
        _send(pid, number, test)
    return heard


def end_processes(test: Callable[[int], bool], *, grace_s: float, asked: Collection[int] = ()) -> None:
    """Ask all processes that pass to end (SIGTERM), and after `grace_s` kill those that did not.

    What they start to end well, such as a copy of a checkpoint, is theirs: it is only killed. Returns when
    none is left, or two seconds after the kill: then one hangs in the kernel.

    Args:
        asked: those that were asked before: another signal could break off what they do at their end.
    """
    told = set(asked)
    kill_at_s = time.monotonic() + grace_s
    while time.monotonic() < kill_at_s + KILL_S:
        found = matching(test)
        if not found:
            return
        killing = time.monotonic() >= kill_at_s
        ending = told.intersection(found)
        for pid in found:
            if killing or not (pid in told or parent_and_start(pid)[0] in ending):
                _send(pid, signal.SIGKILL if killing else signal.SIGTERM, test)
        told.update(found)
        time.sleep(LOOK_AGAIN_S)


def _hears(pid: int, number: signal.Signals) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:  # gone
        return False
    ignored = status.partition("\nSigIgn:")[2].split(maxsplit=1)[0]
    return not int(ignored, 16) >> (number - 1) & 1


def parent_and_start(pid: int) -> tuple[int, int]:
    """A process's parent, and when it began; zeros where it is gone, or only its exit status is left."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0, 0
    return (0, 0) if words[0] in "ZX" else (int(words[1]), int(words[19]))


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _send(pid: int, number: signal.Signals, test: Callable[[int], bool]) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if test(pid):  # still the same process, now that it cannot be confused
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
