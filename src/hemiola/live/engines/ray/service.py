"""A service on a Ray cluster."""

from __future__ import annotations

from pathlib import Path

from hemiola.live.journal import Journal
from hemiola.live.models import profiles_by_model
from hemiola.live.recovered_job import remembered
from hemiola.live.service import Session, Service, SessionSettings
from hemiola.live.engines.ray.client import Ray
from hemiola.live.engines.ray.driver import RayDriver
from hemiola.live.engines.ray.memory import RayRecoveryKey
from hemiola.core.topology import Topology

__all__ = ["ray_service", "ray_version"]


def ray_service(
    settings: SessionSettings, journal: Journal, topology: Topology, *, ray: Ray, profiles: Path | None = None
) -> Service:
    """Serve one cluster.

    Args:
        profiles: a file of job profiles; those that come with Hemiola unless given.
    """
    profile = profiles_by_model(profiles)

    def make(run: Session) -> RayDriver:
        return RayDriver(
            ray, run.machine, acts=run.acts, clock=run.clock, may_act=run.may_act, turned=run.turned,
            remembered=remembered(run.remembered, RayRecoveryKey), profile=profile,
        )  # fmt: skip

    return Service(settings, journal, topology, make)


def ray_version(ray: Ray) -> str:
    """Its name and version.

    Raises:
        EngineError: there is no Ray at its address.
    """
    ray.ask("names")
    return f"ray {ray.version}"
