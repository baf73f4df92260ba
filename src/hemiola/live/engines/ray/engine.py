"""Ray as an engine: what `hemiola serve --engine ray` and its like call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hemiola.live.engines.base import Engine, EngineConnection, EngineOption, Examination

if TYPE_CHECKING:
    from hemiola.core.job import Profile
    from hemiola.core.topology import Topology
    from hemiola.live.check import Check
    from hemiola.live.engines.ray.client import Ray
    from hemiola.live.engines.ray.driver import RayDriver
    from hemiola.live.service import Session

__all__ = ["RAY"]

ADDRESS = EngineOption(
    "ray_address",
    "Ray only: the address of its head. A node of Ray has to run on this host.",
    default="127.0.0.1:6379",
)


def _connect(to: EngineConnection) -> Ray:
    from hemiola.live.engines.ray.client import Ray

    return Ray(to.option(ADDRESS))


def _topology(ray: Ray) -> Topology:
    from hemiola.live.engines.ray.snapshot import ray_topology

    return ray_topology(ray)


def _version(ray: Ray) -> str:
    ray.ask("names")
    return f"ray {ray.version}"


def _driver(ray: Ray, run: Session, profile: Callable[[str], Profile]) -> RayDriver:
    from hemiola.live.engines.ray.driver import RayDriver
    from hemiola.live.engines.ray.tracked_job import RayRecoveryKey
    from hemiola.live.tracked_job import recovered

    return RayDriver(
        ray, run.machine, acts=run.acts, clock=run.clock, may_act=run.may_act, turned=run.turned,
        recovered=recovered(run.recovered, RayRecoveryKey), profile=profile,
    )  # fmt: skip


def _doctor(ray: Ray, what: Examination) -> Iterator[Check]:
    from hemiola.live.engines.ray.doctor import ray_checks

    yield from ray_checks(ray, what.topology, what.mode)


def _release(ray: Ray) -> tuple[list[str], list[str]]:
    from hemiola.live.engines.ray.release import hand_back

    return hand_back(ray), []


def _close(ray: Ray) -> None:
    ray.close()


RAY = Engine(
    name="ray", connect=_connect, topology=_topology, version=_version, driver=_driver, doctor=_doctor,
    release=_release, options=(ADDRESS,), close=_close,
)  # fmt: skip
