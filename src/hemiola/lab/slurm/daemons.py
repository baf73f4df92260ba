"""Starts the daemons of a Slurm lab, each in the foreground of a session of its own."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from hemiola.core.errors import LabError
from hemiola.lab.slurm import clients, finding
from hemiola.lab.slurm.finding import Role
from hemiola.lab.slurm.programs import check_programs, program, rest_version
from hemiola.lab.slurm.record import Record

__all__ = ["start_controller", "start_munged", "start_node", "start_rest", "wait_for_node"]

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
        lambda: _listens(record.controller_address, record.port) and clients.answers(record),
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
    own = {finding.MARK_VARIABLE: finding.mark(record, role), **clients.environ(record), **(more or {})}
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
    from hemiola.lab import launch, state

    lab = state.load(record.spec.lab_name)
    return launch.start(lab, node, command, run=lab.id, env=own, **places)


def _clean() -> dict[str, str]:
    """This process's variables, without those of a Slurm that it may itself be a job of."""
    return {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}


def _wait_for(record: Record, process: Process, name: str, condition: Any) -> None:
    def settled() -> bool:
        if process.poll() is not None:
            raise LabError(
                f"{name} ended at once, with status {process.returncode}: "
                + clients.last_lines(record, f"{name}.err", count=4),
                clients.see_logs(record),
            )
        return bool(condition())

    clients.wait_until(
        record,
        settled,
        limit_s=START_S,
        what=lambda: f"{name} does not answer: {clients.last_lines(record, f'{name}.err')}",
    )


def _listens(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0
