"""Finds and ends the processes of one Slurm lab, and of no other Slurm.

Daemons carry a mark in their environment. A slurmstepd, and slurmctld's helper slurmscriptd, write their
titles over that, but hold their daemon's log open. A job's processes have from slurmstepd the path of this lab's
slurm.conf and the node's name; their descendants are found as such, whatever they made of their environment. A shell
in a job of another Slurm may have the path, too, but with a node of that one. The process that looks is none of them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from hemiola.lab.processes import end_processes, matching, parent_and_start
from hemiola.lab.slurm.record import Record
from hemiola.lab.state import Owner

__all__ = ["CONTROLLER", "JOB", "MARK_VARIABLE", "STEP", "Role", "end", "find", "mark"]

MARK_VARIABLE = "HEMIOLA_SLURM_DAEMON"
"""In the environment of each daemon: the lab's id, the daemon, its node."""

STEP, JOB, SCRIPTS = "slurmstepd", "job", "slurmscriptd"
CONTROLLER = frozenset({"slurmctld", SCRIPTS})

GONE_S = 2.0
LOOK_AGAIN_S = 0.005


class Role(msgspec.Struct, frozen=True):
    """What a process is in a Slurm lab.

    Attributes:
        kind: "munged", "slurmctld", "slurmrestd", "slurmd", STEP, JOB or SCRIPTS.
        node: where it runs; "" for those that run beside the controller.
    """

    kind: str
    node: str = ""


Wanted = Callable[[Role], bool]


def mark(record: Record, role: Role) -> str:
    """The value of the mark of a daemon."""
    return f"{record.id}/{role.kind}/{role.node}"


def find(record: Record, wanted: Wanted = lambda role: True) -> dict[int, Role]:
    """The lab's processes, by number, with what each is."""
    found: dict[int, Role] = {}

    def look(pid: int) -> bool:
        role = _role(record, pid)
        if role is not None and wanted(role):
            found[pid] = role
        return False

    matching(look)
    return found


def end(record: Record, wanted: Wanted, *, grace_s: float) -> None:
    """End all processes of these roles, with what jobs started: SIGTERM, after `grace_s` SIGKILL.

    Returns when they have let go of their ports and files.
    """
    found = find(record, wanted)
    jobs = [pid for pid, role in found.items() if role.kind in (STEP, JOB)]
    family = set(_descendants(jobs)) - {Owner.me()}
    ended = {owner for pid in found if (owner := _owner(pid)) is not None} | family

    def test(pid: int) -> bool:
        role = _role(record, pid)
        return (role is not None and wanted(role)) or _owner(pid) in family

    end_processes(test, grace_s=grace_s)
    end_s = time.monotonic() + GONE_S
    while any(owner.lives for owner in ended) and time.monotonic() < end_s:
        time.sleep(LOOK_AGAIN_S)


def _role(record: Record, pid: int) -> Role | None:
    variables, command = _environment(pid), _command(pid)
    id_, _, rest = variables.get(MARK_VARIABLE, "").partition("/")
    if id_ == record.id:
        kind, _, node = rest.partition("/")
        return Role(STEP if command == STEP else kind, node)
    if command in (STEP, SCRIPTS):
        return _by_log(record, pid, command)
    node = variables.get("SLURMD_NODENAME", "")
    if variables.get("SLURM_CONF") == str(record.conf) and node in record.spec.nodes and pid != os.getpid():
        return Role(JOB, node)
    return None


def _by_log(record: Record, pid: int, command: str) -> Role | None:
    with contextlib.suppress(OSError):
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = handle.readlink()
                if target.parent == record.logs:
                    return Role(STEP, target.name.split(".")[1]) if command == STEP else Role(command)
    return None


def _environment(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:  # gone, or another user's
        return {}
    return dict(variable.partition("=")[::2] for variable in text.split("\0"))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _descendants(pids: list[int]) -> Iterator[Owner]:
    """These processes and all that they started and that still hang on them."""
    children: dict[int, list[int]] = {}
    for pid in matching(lambda pid: True):
        children.setdefault(parent_and_start(pid)[0], []).append(pid)
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        owner = _owner(pid)
        if owner is not None:
            yield owner
            waiting += children.get(pid, [])


def _owner(pid: int) -> Owner | None:
    began_ticks = parent_and_start(pid)[1]
    return Owner(pid, began_ticks) if began_ticks else None
