"""Slurm as an engine: what `hemiola serve --engine slurm` and its like call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hemiola.core.errors import EngineError, InputError
from hemiola.live.engines.base import Engine, EngineConnection, EngineOption, Examination

if TYPE_CHECKING:
    from hemiola.core.job import Profile
    from hemiola.core.topology import Topology
    from hemiola.live.check import Check
    from hemiola.live.engines.slurm.client import Slurm, SlurmInterface
    from hemiola.live.engines.slurm.driver import SlurmDriver
    from hemiola.live.service import Session

__all__ = ["SLURM", "SlurmPartition"]

CONF = EngineOption(
    "slurm_conf", "Slurm only: its slurm.conf. Default: where Slurm's commands look.", Path, None,
    ("serve", "doctor", "release", "top"),
)  # fmt: skip
REST = EngineOption(
    "rest", "Slurm only: use its slurmrestd at this address: http[s]://[USER@]HOST[:PORT] or unix:/PATH.",
    verbs=("serve",),
)  # fmt: skip
TOKEN = EngineOption(
    "rest_token",
    'Slurm only: a file of mode 0600 with what "scontrol token" prints, read anew each time. Default: the variable SLURM_JWT.',
    Path, None, ("serve",),
)  # fmt: skip
WAKE = EngineOption(
    "wake",
    "Slurm only: a file that job_submit.lua writes when a job comes. Hemiola then looks at once, not up to 0.1 s later.",
    Path, None, ("serve",),
)  # fmt: skip
QUICK_S = 5.0


@dataclass(frozen=True)
class SlurmPartition:
    """One partition of a Slurm.

    Attributes:
        slurm: what the partition is spoken to through.
        commands: Slurm's own, for what only they can tell.
        name: the partition's.
        wake: a file that job_submit.lua writes when a job comes: it is looked at Slurm then.
    """

    slurm: SlurmInterface
    commands: Slurm
    name: str = "hemiola"
    wake: Path | None = None


def _connect(to: EngineConnection) -> SlurmPartition:
    import shutil

    from hemiola.live.engines.slurm.client import Slurm

    url, token = to.option(REST), to.option(TOKEN)
    if token is not None and not url:
        raise InputError(
            "--rest-token without --rest", "say where slurmrestd listens: --rest http://HOST:PORT"
        )
    if url and not to.has_topology and shutil.which("scontrol") is None:
        raise InputError(
            "slurmrestd does not say how the nodes are connected", "say it in a file: --topology FILE"
        )
    commands = Slurm(to.option(CONF))
    if not url:
        return SlurmPartition(commands, commands, to.partition, to.option(WAKE))
    from hemiola.live.engines.slurm.rest.client import rest_slurm

    return SlurmPartition(
        rest_slurm(url, token, commands, acts=to.acts), commands, to.partition, to.option(WAKE)
    )


def _topology(its: SlurmPartition) -> Topology:
    from hemiola.live.engines.slurm.snapshot import slurm_topology

    return slurm_topology(its.commands)


def _version(its: SlurmPartition) -> str:
    if its.slurm is not its.commands:
        return str(its.slurm)
    return its.commands.ask("squeue", "--version").strip()


def _check(its: SlurmPartition) -> None:
    from hemiola.live.logging_setup import check_folder

    check_folder(its.wake, "--wake")
    if not its.slurm.nodes(its.name):
        raise EngineError(
            f"there is no partition {its.name!r} with nodes",
            "name the one that Hemiola manages: --partition",
        )


def _driver(its: SlurmPartition, run: Session, profile: Callable[[str], Profile]) -> SlurmDriver:
    from hemiola.live.engines.slurm.driver import SlurmDriver
    from hemiola.live.engines.slurm.tracked_job import SlurmRecoveryKey
    from hemiola.live.polling_driver import Wake
    from hemiola.live.tracked_job import recovered

    return SlurmDriver(
        its.slurm, run.machine, its.name, acts=run.acts, clock=run.clock, may_act=run.may_act, turned=run.turned,
        recovered=recovered(run.recovered, SlurmRecoveryKey), profile=profile,
        wake=Wake(its.wake) if its.wake is not None else None,
    )  # fmt: skip


def _doctor(its: SlurmPartition, what: Examination) -> Iterator[Check]:
    from hemiola.live.engines.slurm.doctor import slurm_checks

    yield from slurm_checks(its.commands, its.name, what.topology, what.alive, what.mode)


def _release(its: SlurmPartition) -> tuple[list[str], list[str]]:
    from hemiola.live.engines.slurm.release import hand_back

    return hand_back(its.slurm, its.name)


def _answers(its: SlurmPartition) -> None:
    its.commands.within(QUICK_S).table("squeue", "-t", "SUSPENDED", "-o", "%i")


def _why_unknown(its: SlurmPartition, job: str, topology: Topology) -> tuple[str, str]:
    from hemiola.live.engines.slurm.doctor import why_unknown

    why = why_unknown(its.commands, job, its.name, topology)
    return why, f"see what Slurm says: scontrol show job {job}"


SLURM = Engine(
    name="slurm", connect=_connect, topology=_topology, version=_version, driver=_driver, doctor=_doctor,
    release=_release, options=(CONF, REST, TOKEN, WAKE), check=_check, answers=_answers,
    why_unknown=_why_unknown, has_time_limits=True,
)  # fmt: skip
