"""The services of a simulated cluster: their replicas on its GPUs, from start to end.

starting --cold start--> ready --Scale without it--> drains, and its GPUs are handed over
starting/ready --crash, host lost--> gone; its requests wait again

The simulated driver calls this from its one heap of events; nothing here has a clock of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from hemiola.core.decisions import Placement, Scale
from hemiola.core.events import Event, Load, ReplicaLost, ReplicaReady
from hemiola.core.job import Service
from hemiola.core.result import ServiceRecord
from hemiola.simulator.records import ServingRules
from hemiola.simulator.serving.arrivals import RequestSource
from hemiola.simulator.serving.fluid import FluidQueue
from hemiola.simulator.serving.queue import RequestQueue
from hemiola.simulator.serving.requests import SingleRequests

__all__ = ["Serving"]

Push = Callable[[float, Any, int], None]


class Replica(msgspec.Struct, eq=False):
    """One replica on its GPUs.

    Attributes:
        is_ready: whether it takes requests.
        version: of its next entry in the heap; older ones are void.
    """

    service: ServedService
    placement: Placement
    is_ready: bool = False
    version: int = 0


class ServedService(msgspec.Struct, eq=False):
    """Physical truth about one service.

    Attributes:
        held_gpus, ready_gpus: GPUs of its replicas, and of those that take requests; in GPU-seconds so far `held_gpu_s` and
            `ready_gpu_s`.
        starts, losses: replicas that were started, and that were lost.
        rows: of each control interval: time, requests per second, answered in time (share), replicas, ready ones, waiting.
    """

    service: Service
    queue: RequestQueue
    chance: np.random.Generator
    replicas: dict[Placement, Replica] = {}
    held_gpus: int = 0
    ready_gpus: int = 0
    held_gpu_s: float = 0.0
    ready_gpu_s: float = 0.0
    starts: int = 0
    losses: int = 0
    rows: list[tuple[float, float, float, int, int, float]] = []
    before: tuple[float, float] = (0.0, 0.0)


class Serving:
    """All services of a run.

    Args:
        services: in order of arrival; each with a latency profile.
        push: enters something into the driver's heap: (time, what, version).
    """

    def __init__(self, services: Sequence[Service], rules: ServingRules, push: Push, *, record: bool) -> None:
        self._rules, self._push, self._record = rules, push, record
        self._services = services
        self._served: dict[str, ServedService] = {}
        self.settled_s = max(service.settled_s for service in services)
        self.first_s = services[0].submit_s

    def owns(self, what: object) -> bool:
        """Whether something in the heap is a service's."""
        return isinstance(what, Service | ServedService | Replica)

    def arrive(self, service: Service, now: float) -> None:
        """A service is submitted."""
        number = self._services.index(service)
        seed = (self._rules.seed, number)
        source = RequestSource(service, seed)
        kind = FluidQueue if self._rules.fidelity == "fluid" else SingleRequests
        served = ServedService(service, kind(service, source), np.random.default_rng([*seed, 3]), {}, rows=[])
        self._served[service.id] = served
        self._push(now + self._rules.interval_s, served, 0)

    def due(self, what: Any, version: int, now: float) -> Event | None:
        """Something that was entered into the heap is due; None if it is void."""
        if isinstance(what, ServedService):
            return self._load(what, now)
        assert isinstance(what, Replica)
        if what.version != version:
            return None
        return self._crash(what, now) if what.is_ready else self._get_ready(what, now)

    def _load(self, served: ServedService, now: float) -> Load:
        served.queue.advance(now)
        found = served.queue.load(now)
        if self._record:
            self._note(served, found, now)
        self._push(now + self._rules.interval_s, served, 0)
        return found

    def _note(self, served: ServedService, found: Load, now: float) -> None:
        counts = served.queue.counts
        done, missed = counts.answered + counts.refused, counts.missed
        fresh = done - served.before[0]
        share = 1.0 - (missed - served.before[1]) / fresh if fresh > 0 else 1.0
        served.before = done, missed
        ready = sum(replica.is_ready for replica in served.replicas.values())
        row = now, found.requests_per_s, share, len(served.replicas), ready, counts.waiting
        served.rows.append(row)

    def _get_ready(self, replica: Replica, now: float) -> Event:
        served, life_s = replica.service, replica.service.service.replica_life_s
        served.queue.advance(now)
        if life_s == 0:
            return self._crash(replica, now)
        replica.is_ready = True
        served.ready_gpus += replica.placement.gpus
        served.queue.join(replica)
        if life_s is not None:
            self._push(now + float(served.chance.exponential(life_s)), replica, replica.version)
        return ReplicaReady(now, served.service.id, replica.placement)

    def _crash(self, replica: Replica, now: float) -> ReplicaLost:
        served = replica.service
        why = "it ended by itself" if replica.is_ready else "it ended while it started"
        self._drop(replica, now, lost=True)
        return ReplicaLost(now, served.service.id, replica.placement, why)

    def _drop(self, replica: Replica, now: float, *, lost: bool) -> float:
        """Its GPUs are free from when on?"""
        served = replica.service
        del served.replicas[replica.placement]
        replica.version += 1
        served.held_gpus -= replica.placement.gpus
        served.ready_gpus -= replica.placement.gpus * replica.is_ready
        served.losses += lost
        if not replica.is_ready:
            return now
        served.queue.advance(now)
        return served.queue.leave(replica, lost=lost)

    def scale(
        self,
        decision: Scale,
        now: float,
        delay_s: Callable[[Placement], float],
        hand_over: Callable[[Placement, float], None],
    ) -> None:
        """Start and end replicas.

        Args:
            delay_s: until who had these GPUs before has left them.
            hand_over: told who still has which GPUs until when.
        """
        served = self._served[decision.job_id]
        for replica in [r for place, r in served.replicas.items() if place not in decision.replicas]:
            until_s = self._drop(replica, now, lost=False)
            if until_s > now:
                hand_over(replica.placement, until_s)
        for place in decision.replicas:
            if place not in served.replicas:
                replica = served.replicas[place] = Replica(served, place)
                served.starts += 1
                served.held_gpus += place.gpus
                self._push(now + delay_s(place) + self._cold_start_s(served), replica, 0)

    def _cold_start_s(self, served: ServedService) -> float:
        service = served.service
        if not service.cold_start_spread:
            return service.cold_start_s
        return service.cold_start_s * math.exp(
            service.cold_start_spread * float(served.chance.standard_normal())
        )

    def lose_host(self, host: int, now: float) -> None:
        """Every replica there is gone."""
        for served in self._served.values():
            for replica in [r for r in served.replicas.values() if host in r.placement.hosts]:
                self._drop(replica, now, lost=True)

    def pass_time(self, seconds: float) -> None:
        """Count the GPU-seconds that replicas hold."""
        for served in self._served.values():
            served.held_gpu_s += seconds * served.held_gpus
            served.ready_gpu_s += seconds * served.ready_gpus

    def close(self, now: float) -> None:
        """Let what is in hand stand as it is now."""
        for served in self._served.values():
            served.queue.advance(now)

    @property
    def held_gpu_s(self) -> float:
        """GPU-seconds of all replicas."""
        return math.fsum(served.held_gpu_s for served in self._served.values())

    def records(self) -> tuple[ServiceRecord, ...]:
        """What became of each service, in order of arrival."""
        return tuple(_record(served) for served in self._served.values())


def _record(served: ServedService) -> ServiceRecord:
    counts, service = served.queue.counts, served.service
    return ServiceRecord(
        id=service.id, gpus=service.gpus, objective_s=service.objective.latency_s, share=service.objective.share,
        arrived=counts.arrived, answered=counts.answered, refused=counts.refused, missed=counts.missed,
        waiting=counts.waiting, slo_attainment=counts.attainment, starts=served.starts, losses=served.losses,
        held_gpu_s=served.held_gpu_s, ready_gpu_s=served.ready_gpu_s, rows=tuple(served.rows),
    )  # fmt: skip
