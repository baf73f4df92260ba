"""Which ranks run on which host, and the environment in which they find each other: torchrun's. Starts nothing."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hemiola.core.errors import InputError
from hemiola.train.launch.agent import gpus

__all__ = [
    "REMOTE_SHELL",
    "Failure",
    "HostFacts",
    "HostNumber",
    "LaunchOutcome",
    "LaunchSpec",
    "World",
    "defaults",
    "divided",
    "ending",
    "rank_environments",
]


# What is to be launched, and how it ended. Knows no process.

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


DEFAULT_PORT = 29500
"""torchrun's, where hosts are started by hand and have to agree without talking."""


class HostFacts(msgspec.Struct, frozen=True):
    """What a host says of itself: its name, its cores and GPUs, a free port, OMP_NUM_THREADS if set."""

    host: str
    cores: int
    gpus: int
    port: int
    threads: str


@dataclass(frozen=True)
class HostPlace:
    """A host's share: its number, its first rank, how many ranks, threads of each (0: left alone)."""

    number: int
    first: int
    ranks: int
    threads: int


@dataclass(frozen=True)
class World:
    """All of a job: hosts that are started here, ranks and hosts of the whole, where rank 0 is.

    Attributes:
        keeper: whether a process of its own, beside rank 0, keeps the ranks' store.
    """

    places: tuple[HostPlace, ...]
    ranks: int
    hosts: int
    address: str
    port: int
    keeper: bool = False


def divided(job: LaunchSpec, facts: Sequence[HostFacts]) -> World:
    """Give each host its ranks.

    Raises:
        InputError: no such number of ranks is possible.
    """
    counts = [_count(job, each) for each in facts]
    first_host = job.nodes.rank if job.nodes else 0
    first_rank = first_host * counts[0]
    firsts = [first_rank + sum(counts[:i]) for i in range(len(counts))]
    places = tuple(
        HostPlace(first_host + i, firsts[i], counts[i], _threads(job, each, counts[i]))
        for i, each in enumerate(facts)
    )
    ranks = job.nodes.count * counts[0] if job.nodes else sum(counts)
    hosts = job.nodes.count if job.nodes else len(counts)
    port = job.master_port or (DEFAULT_PORT if job.nodes else facts[0].port)
    return World(places, ranks, hosts, _address(job), port, job.goes_on)


def rank_environments(world: World, place: HostPlace, run: str) -> list[tuple[int, dict[str, str]]]:
    """The variables of each rank of a host, as torchrun sets them; `run` names the run."""
    common = {
        "MASTER_ADDR": world.address,
        "MASTER_PORT": str(world.port),
        "WORLD_SIZE": str(world.ranks),
        "LOCAL_WORLD_SIZE": str(place.ranks),
        "GROUP_RANK": str(place.number),
        "GROUP_WORLD_SIZE": str(world.hosts),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(world.ranks),
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": str(world.keeper),
    }
    return [
        (rank, common | {"RANK": str(rank), "ROLE_RANK": str(rank), "LOCAL_RANK": str(rank - place.first)})
        for rank in range(place.first, place.first + place.ranks)
    ]


def defaults(place: HostPlace) -> dict[str, str]:
    """What ranks get where nobody has said otherwise: output as it comes, and a fair share of the cores."""
    found = {"PYTHONUNBUFFERED": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    return found | ({"OMP_NUM_THREADS": str(place.threads)} if place.threads else {})


def _count(job: LaunchSpec, facts: HostFacts) -> int:
    asked, seen, visible = job.ranks_per_host, facts.gpus, job.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # ranks get it, and the host has counted by its own
        seen = min(seen, gpus(visible, Path("/dev")))
    known = {"": seen or 1, "auto": seen or facts.cores, "gpu": seen, "cpu": facts.cores}
    count = known[asked] if asked in known else int(asked) if asked.isdecimal() else 0
    if asked == "gpu" and not count:
        raise InputError(
            f"--nproc gpu: {facts.host} has no GPU that can be seen", "give a number of processes"
        )
    if count < 1:
        raise InputError(f"--nproc {asked}", "give a number of processes per host, or auto, gpu or cpu")
    return count


def _threads(job: LaunchSpec, facts: HostFacts, ranks: int) -> int:
    if ranks == 1 or facts.threads or "OMP_NUM_THREADS" in job.environment:
        return 0
    return max(1, facts.cores // ranks)


def _address(job: LaunchSpec) -> str:
    if job.master_address:
        return job.master_address
    return job.hosts[0] if len(job.hosts) > 1 else "127.0.0.1"
