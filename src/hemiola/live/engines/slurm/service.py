"""A service on a Slurm."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from hemiola.live.journal import Journal
from hemiola.live.files import check_folder
from hemiola.live.polling_driver import Wake
from hemiola.live.models import profiles_by_model
from hemiola.live.recovered_job import remembered
from hemiola.live.service import Session, Service, SessionSettings
from hemiola.live.engines.slurm.client import Slurm
from hemiola.live.engines.slurm.driver import SlurmDriver
from hemiola.live.engines.slurm.engine import SlurmInterface
from hemiola.live.engines.slurm.memory import SlurmRecoveryKey
from hemiola.live.engines.slurm.rest.client import INSTALL, RestSlurm
from hemiola.live.engines.slurm.rest.address import Address, Token
from hemiola.live.engines.slurm.rest.http import Http
from hemiola.core.errors import EngineError
from hemiola.core.topology import Topology

__all__ = ["rest_slurm", "slurm_service", "slurm_version"]

_log = logging.getLogger("hemiola.slurm")


def slurm_service(
    settings: SessionSettings,
    journal: Journal,
    topology: Topology,
    *,
    slurm: SlurmInterface,
    partition: str,
    profiles: Path | None = None,
    wake: Path | None = None,
) -> Service:
    """Serve one partition.

    Args:
        profiles: a file of job profiles; those that come with Hemiola unless given.
        wake: a file that job_submit.lua writes when a job comes: it is looked at Slurm then.

    Raises:
        EngineError: Slurm does not answer at all, or the partition is not there.
        InputError: no such profiles, or a folder that is not there.
    """
    profile = profiles_by_model(profiles)
    check_folder(wake, "--wake")
    if not slurm.nodes(partition):
        raise EngineError(
            f"there is no partition {partition!r} with nodes",
            "name the one that Hemiola manages: --partition",
        )

    def make(run: Session) -> SlurmDriver:
        return SlurmDriver(
            slurm, run.machine, partition, acts=run.acts, clock=run.clock, may_act=run.may_act, turned=run.turned,
            remembered=remembered(run.remembered, SlurmRecoveryKey), profile=profile, wake=Wake(wake) if wake is not None else None,
        )  # fmt: skip

    return Service(settings, journal, topology, make)


def rest_slurm(url: str, token: Path | None, slurm: Slurm, *, acts: bool) -> RestSlurm:
    """The Slurm behind a slurmrestd.

    Args:
        url: http[s]://[USER@]HOST[:PORT] or unix:/PATH.
        token: a file with what `scontrol token` prints; the variable SLURM_JWT counts unless given.
        slurm: its commands, for what slurmrestd does not offer, if they are installed.
        acts: whether jobs are to be placed.

    Raises:
        InputError: no such address, or no such token.
        EngineError: nobody answers there, with nothing that takes lists of nodes, or there is no scontrol for what it
            lacks.
    """
    address, proof = Address.of(url), Token.given(token)
    if address.is_open:
        _log.warning("%s is asked without TLS: whoever sees the traffic sees the token", address)
    found = RestSlurm(Http(address, proof), slurm if shutil.which("scontrol") else None)
    if acts and found.lacks:
        raise EngineError(f"{found} cannot {found.lacks}, and there is no scontrol here that could", INSTALL)
    return found


def slurm_version(slurm: Slurm) -> str:
    """Its name and version.

    Raises:
        EngineError: there is no Slurm here.
    """
    return slurm.ask("squeue", "--version").strip()
