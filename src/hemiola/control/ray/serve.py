"""A service on a Ray cluster."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hemiola.control.journal import JobRecord, Journal
from hemiola.control.live.service import Run, Service, Settings
from hemiola.control.ray.client import Ray
from hemiola.control.ray.driver import RayDriver
from hemiola.control.ray.memory import Clues, Remembered
from hemiola.core.errors import InputError
from hemiola.core.job import Profile
from hemiola.core.topology import Topology
from hemiola.cost.profiles import load_library

__all__ = ["ray_service", "ray_version"]


def ray_service(
    settings: Settings, journal: Journal, topology: Topology, *, ray: Ray, profiles: Path | None = None
) -> Service:
    """Serve one cluster.

    Args:
        profiles: a file of job profiles; those that come with Hemiola unless given.
    """
    library = load_library(str(profiles) if profiles else None)

    def profile(model: str) -> Profile:
        found = library.find(model)
        if found is None:
            raise InputError(
                f"no profile has the model {model!r}", f"there are {', '.join(library.names[:5])}, ..."
            )
        return found

    def make(run: Run) -> RayDriver:
        return RayDriver(
            ray, run.machine, acts=run.acts, clock=run.clock, may_act=run.may_act, turned=run.turned,
            remembered=[memory for record in run.remembered if (memory := _memory(record)) is not None],
            profile=profile,
        )  # fmt: skip

    return Service(settings, journal, topology, make)


def _memory(record: JobRecord) -> Remembered | None:
    """What the journal has of a job, as the driver wants it; None for another engine's."""
    try:
        clues = msgspec.json.decode(record.memory, type=Clues)
    except msgspec.DecodeError:
        return None
    return Remembered(
        uuid=record.uuid, engine_id=record.engine_id, clues=clues, running=record.status == "running",
        since_s=record.since_s, done_s=record.done_s, served_s=record.served_s, queued_s=record.queued_s,
        preemptions=record.preemptions,
    )  # fmt: skip


def ray_version(ray: Ray) -> str:
    """Its name and version.

    Raises:
        EngineError: there is no Ray at its address.
    """
    ray.ask("names")
    return f"ray {ray.version}"
