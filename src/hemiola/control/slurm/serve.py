"""A service on a Slurm."""

from __future__ import annotations

from pathlib import Path

from hemiola.control.journal import Journal
from hemiola.control.live.models import profiles_by_model
from hemiola.control.live.remembered import remembered
from hemiola.control.live.service import Run, Service, Settings
from hemiola.control.slurm.client import Slurm
from hemiola.control.slurm.driver import SlurmDriver
from hemiola.control.slurm.memory import Clues
from hemiola.core.errors import InputError
from hemiola.core.topology import Topology
from hemiola.trace.topologies.read import read_topology

__all__ = ["slurm_service", "slurm_topology", "slurm_version"]


def slurm_service(
    settings: Settings,
    journal: Journal,
    topology: Topology,
    *,
    slurm: Slurm,
    partition: str,
    profiles: Path | None = None,
) -> Service:
    """Serve one partition.

    Args:
        profiles: a file of job profiles; those that come with Hemiola unless given.

    Raises:
        EngineError: Slurm does not answer at all, or the partition is not there.
    """
    profile = profiles_by_model(profiles)
    slurm.ask("scontrol", "show", "partition", partition)

    def make(run: Run) -> SlurmDriver:
        return SlurmDriver(
            slurm, run.machine, partition, acts=run.acts, clock=run.clock, may_act=run.may_act, turned=run.turned,
            remembered=remembered(run.remembered, Clues), profile=profile,
        )  # fmt: skip

    return Service(settings, journal, topology, make)


def slurm_version(slurm: Slurm) -> str:
    """Its name and version.

    Raises:
        EngineError: there is no Slurm here.
    """
    return slurm.ask("squeue", "--version").strip()


def slurm_topology(slurm: Slurm, options: dict[str, str] | None = None) -> Topology:
    """The cluster as Slurm's own configuration says: topology.conf, gres.conf and slurm.conf beside each other.

    Raises:
        InputError, FormatError: they are not there, or have no tree; give a topology file then.
    """
    for line in slurm.ask("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "SLURM_CONF":
            return read_topology(str(Path(value.strip()).parent), options)
    raise InputError(
        "Slurm does not say where its slurm.conf is", "give the topology as a file: --topology FILE"
    )
