"""A service on a Slurm."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from hemiola.core.errors import EngineError, InputError
from hemiola.core.hostlist import compress
from hemiola.core.topology import Topology
from hemiola.live.engines.slurm.client import Slurm, SlurmInterface, settings_of
from hemiola.live.engines.slurm.driver import SlurmDriver
from hemiola.live.engines.slurm.rest.client import INSTALL, RestSlurm
from hemiola.live.engines.slurm.rest.http import Address, Http, Token
from hemiola.live.engines.slurm.tracked_job import SlurmRecoveryKey
from hemiola.live.job_labels import profiles_by_model
from hemiola.live.journal import Journal
from hemiola.live.logging_setup import check_folder
from hemiola.live.polling_driver import Wake
from hemiola.live.service import Service, Session, SessionSettings
from hemiola.live.tracked_job import recovered
from hemiola.trace.topologies.options import TopologyOptions
from hemiola.trace.topologies.read import read_topology
from hemiola.trace.topologies.slurm import read_slurm

__all__ = ["rest_slurm", "slurm_service", "slurm_topology", "slurm_version"]


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
            recovered=recovered(run.recovered, SlurmRecoveryKey), profile=profile, wake=Wake(wake) if wake is not None else None,
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


# The network of a Slurm: from its configuration where that is at hand, else as `scontrol` shows it.

_NODE = re.compile(r"NodeName=([\w.-]{1,255})\s.*?\sGres=(\S{1,1024})\s")
_NO_GPUS = "(null)"


def slurm_topology(slurm: Slurm, options: Mapping[str, str] | None = None) -> Topology:
    """The cluster as Slurm knows it.

    From topology.conf, gres.conf and slurm.conf beside each other; from `scontrol` where they are not on this host, or
    a topology.yaml stands in their place. A Slurm without a topology is one switch with all nodes that have GPUs.

    Raises:
        EngineError: Slurm does not answer.
        InputError, TopologyError: what it says is no tree, or no node has GPUs.
    """
    folder = _folder(slurm)
    if folder is not None and _is_file(folder / "topology.conf") and not _is_file(folder / "topology.yaml"):
        return read_topology(str(folder), options, keep_unusable=True)  # nodes that are down may come back
    nodes = _NODE.findall(slurm.ask("scontrol", "-o", "show", "node"))
    with_gpus = [name for name, gres in nodes if gres != _NO_GPUS]
    if not with_gpus:
        raise InputError(
            "no node of this Slurm has GPUs (Gres=gpu:...)",
            "configure them in slurm.conf and gres.conf, or give the topology as a file: --topology FILE",
        )
    files = {
        "topology.conf": slurm.ask("scontrol", "show", "topology").strip()
        or f"SwitchName=cluster Nodes={compress(with_gpus)}",
        "slurm.conf": "\n".join(f"NodeName={name} Gres={gres}" for name, gres in nodes),
    }
    return read_slurm(files, "scontrol", TopologyOptions(options or {}, "scontrol"))


def _folder(slurm: Slurm) -> Path | None:
    """With its slurm.conf, as Slurm says."""
    conf = settings_of(slurm.ask("scontrol", "show", "config")).get("SLURM_CONF")
    return Path(conf).parent if conf else None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False
