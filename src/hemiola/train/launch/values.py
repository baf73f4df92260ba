"""What is to be launched, and how it ended. Knows no process."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

__all__ = ["REMOTE_SHELL", "Failure", "LaunchSpec", "HostNumber", "LaunchOutcome", "ending"]

REMOTE_SHELL = "ssh -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=30 {host} {command}"


@dataclass(frozen=True)
class HostNumber:
    """Where each host is started by hand: this host's number, of how many."""

    rank: int
    count: int


@dataclass(frozen=True)
class LaunchSpec:
    """What to run on which hosts.

    Attributes:
        command: what each rank runs.
        needs: ("script", path), ("program", name), or ("", "") if nothing is to be looked for first.
        hosts: names for the remote shell, rank 0's first; () for this host.
        ranks_per_host: a number, "auto" (a host's GPUs, else its cores), "gpu", "cpu", or "" (its GPUs, else 1).
        nodes: if other hosts are started by hand.
        master_address: that of rank 0's host; its name unless given.
        master_port: a free one unless given.
        environment: what ranks get beside rendezvous and the environment of their host.
        remote_shell: how to run a command on a host: words with {host} and {command}, the latter for a shell there.
        python: for the hosts' agents.
        logs: a folder for what each rank prints.
        shown: ranks whose output is shown; None for all.
        goes_on: whether the others go on when a rank fails; a process of its own keeps the ranks' store then.
        ranks_min: with fewer left, all are ended.
    """

    command: tuple[str, ...]
    needs: tuple[str, str] = ("", "")
    hosts: tuple[str, ...] = ()
    ranks_per_host: str = ""
    nodes: HostNumber | None = None
    master_address: str = ""
    master_port: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    remote_shell: str = REMOTE_SHELL
    python: str = "python3"
    logs: Path | None = None
    shown: frozenset[int] | None = None
    goes_on: bool = False
    ranks_min: int = 1


class Failure(msgspec.Struct, frozen=True):
    """Who failed, and how.

    Attributes:
        rank: None if a host was lost.
        host: "" for this one.
        status: the exit status; negative for the signal that ended it.
        last_words: the last lines of its standard error.
    """

    rank: int | None
    host: str
    status: int
    last_words: tuple[str, ...]


def ending(status: int) -> str:
    """How a process ended.

    Example:
        >>> ending(1), ending(-9)
        ('exit status 1', 'signal 9 (SIGKILL)')
    """
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"


class LaunchOutcome(msgspec.Struct, frozen=True):
    """How a run ended.

    Attributes:
        status: as a shell gives it: 0, or that of the rank that failed first, 128 + the signal that ended it.
        failure: who failed first.
        interrupted: the launcher or a host was asked to end before.
        ranks: of the whole job.
        hosts: of the whole job.
        wall_s: from the ranks' start to the end of the last.
        report: what rank 0 left in HEMIOLA_RUN_REPORT; "" if nothing.
        lost: who failed while the others went on.
    """

    status: int
    failure: Failure | None
    interrupted: bool
    ranks: int
    hosts: int
    wall_s: float
    report: str
    lost: tuple[Failure, ...] = ()
