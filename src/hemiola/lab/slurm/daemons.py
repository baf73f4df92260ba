"""Starts the daemons of a Slurm lab, each in the foreground of a session of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hemiola.core.errors import LabError
from hemiola.lab.namespaces import end_processes, matching, parent_and_start
from hemiola.lab.slurm.config import check_programs, program, rest_version
from hemiola.lab.slurm.record import Record
from hemiola.lab.state import Owner

__all__ = [
    "CONTROLLER_PROGRAM",
    "JOB",
    "STEP",
    "Role",
    "ask",
    "end",
    "environ",
    "find",
    "mark",
    "node_states",
    "start_controller",
    "start_node",
]


# Finds and ends the processes of one Slurm lab, and of no other Slurm.

MARK_VARIABLE = "HEMIOLA_SLURM_DAEMON"
"""In the environment of each daemon: the lab's id, the daemon, its node."""

STEP, JOB, SCRIPTS = "slurmstepd", "job", "slurmscriptd"
CONTROLLER_PROGRAM = frozenset({"slurmctld", SCRIPTS})

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


Process = subprocess.Popen[Any]

START_S = 30.0
MUNGED = Role("munged")
CONTROLLER = Role("slurmctld")
REST = Role("slurmrestd")
NOBODY = 65534
ONE_PLUGIN, OLD_PLUGIN = (23, 11), "openapi/v0.0.38"
"""Since then one plugin speaks all versions. Those for accounting, which the lab has not, are not to be loaded."""


def start_munged(record: Record) -> Process:
    """Start what vouches for users to daemons; return when it can be asked."""
    run = record.folder / "run"
    words = [
        "--foreground",
        "--force",  # the folders' parents may be anyone's, the key's is ours
        f"--socket={run}/munge.sock",
        f"--key-file={record.folder}/etc/munge.key",
        f"--pid-file={run}/munged.pid",
        f"--seed-file={run}/munged.seed",
    ]
    process = _start(record, MUNGED, words)
    _wait_for(record, process, "munged", (run / "munge.sock").is_socket)
    return process


def start_controller(record: Record) -> Process:
    """Start slurmctld; return when it answers. Since 24.11 it takes connections before it has read its settings."""
    process = _start(record, CONTROLLER, ["-D", "-f", str(record.conf)])
    _wait_for(
        record,
        process,
        "slurmctld",
        lambda: _listens(record.controller_address, record.port) and answers(record),
    )
    return process


def start_node(record: Record, node: str) -> Process:
    """Start a node's slurmd, on the node's own network if it has one; return at once."""
    return _start(record, Role("slurmd", node), ["-D", "-f", str(record.conf), "-N", node])


def start_rest(record: Record) -> Process:
    """Start slurmrestd; return when it takes connections.

    It wants to be neither root nor SlurmUser. Who is not root is SlurmUser here, which Slurm 26.05 refuses.
    """
    is_root = os.geteuid() == 0
    plugin = "slurmctld" if rest_version() >= ONE_PLUGIN else OLD_PLUGIN
    own = {"SLURM_JWT": "daemon"} | ({} if is_root else {"SLURMRESTD_SECURITY": "disable_user_check"})
    where = f"127.0.0.1:{record.rest_port}"
    process = _start(record, REST, ["-s", plugin, where], own, as_nobody=is_root)
    _wait_for(record, process, "slurmrestd", lambda: _listens("127.0.0.1", record.rest_port))
    return process


def wait_for_node(record: Record, node: str, process: Process) -> None:
    """Wait until a node's slurmd takes connections."""
    _wait_for(record, process, f"slurmd.{node}", lambda: _listens(*record.node_address(node)))


def _start(
    record: Record,
    role: Role,
    words: Sequence[str],
    more: Mapping[str, str] | None = None,
    *,
    as_nobody: bool = False,
) -> Process:
    path = program(role.kind)
    if path is None:
        check_programs()
    own = {MARK_VARIABLE: mark(record, role), **environ(record), **(more or {})}
    name = f"{role.kind}.{role.node}" if role.node else role.kind
    with (record.logs / f"{name}.err").open("ab") as output:
        places: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": output,
            "stderr": output,
            "cwd": record.folder / "spool",
        }
        command = [str(path), *words]
        if as_nobody:
            places |= {"user": NOBODY, "group": NOBODY, "extra_groups": ()}
        if record.subnet and role.node:
            return _start_apart(record, role.node, command, own, places)
        return subprocess.Popen(command, env=_clean() | own, start_new_session=True, **places)


def _start_apart(
    record: Record, node: str, command: list[str], own: dict[str, str], places: dict[str, Any]
) -> Process:
    """Start a command on a host of the lab below: with its network, its name and its /etc/hosts."""
    from hemiola.lab import state, watch

    lab = state.load(record.spec.lab_name)
    return watch.start(lab, node, command, run=lab.id, env=own, **places)


def _clean() -> dict[str, str]:
    """This process's variables, without those of a Slurm that it may itself be a job of."""
    return {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}


def _wait_for(record: Record, process: Process, name: str, condition: Any) -> None:
    def settled() -> bool:
        if process.poll() is not None:
            raise LabError(
                f"{name} ended at once, with status {process.returncode}: "
                + last_lines(record, f"{name}.err", count=4),
                see_logs(record),
            )
        return bool(condition())

    wait_until(
        record,
        settled,
        limit_s=START_S,
        what=lambda: f"{name} does not answer: {last_lines(record, f'{name}.err')}",
    )


def _listens(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


# Asks a Slurm lab by its own commands: sinfo, squeue, scontrol.

ASK_AGAIN_S = 0.01
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
        time.sleep(ASK_AGAIN_S)


def last_lines(record: Record, log: str, count: int = 2) -> str:
    """The end of a daemon's log, on one line."""
    path = record.logs / log
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return " | ".join(lines[-count:]) or "its log is empty"
