"""What changes a service: its part of the state machine.

Arrived            -> known, without replicas
known --Scale-->      these replicas, and no others
starting --ReplicaReady--> ready
starting/ready --ReplicaLost/NodeLost--> gone
known --Finished/Failed--> withdrawn, its GPUs free
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from hemiola.core.decisions import Placement, Scale
from hemiola.core.errors import InputError
from hemiola.core.events import Failed, Finished, Load, NodeLost, ReplicaLost, ReplicaReady
from hemiola.core.job import Service
from hemiola.sched.job_state import ServiceState
from hemiola.sched.view import ClusterView

__all__ = ["ServiceHandlers", "ServiceState", "service_handlers"]


class ServiceHandlers:
    """What the state machine does about services.

    Args:
        view: with the services.
        vacated: told of GPUs that were given back.
    """

    def __init__(self, view: ClusterView, vacated: Callable[[Placement], None]) -> None:
        self._view, self._vacated = view, vacated

    def arrived(self, service: Service) -> None:
        """A service that was not known."""
        view = self._view
        if service.id in view.jobs or service.id in view.services:
            raise InputError(f"the job {service.id!r} arrived twice", "give every job an id of its own")
        if flaw := service.flaw():
            raise InputError(f"service {service.id!r} cannot be: {flaw}", "correct it")
        view.services[service.id] = ServiceState(service)

    def scale(self, decision: Scale) -> str:
        """Have it run these replicas; return why not."""
        state = self._view.services.get(decision.job_id)
        if state is None:
            return f"no service is called {decision.job_id!r}"
        leaving = [place for place in state.replicas if place not in decision.replicas]
        coming = [place for place in decision.replicas if place not in state.replicas]
        why = self._flaw(state.service, decision.replicas) or self._problem(state, leaving, coming)
        if not why:
            self._give_up(state, leaving)
            for place in coming:
                self._view.inventory.take(place)
                self._view.inventory.spare.take(state.key(place), state.service.resources, place)
                state.replicas[place] = False
        return why

    def _flaw(self, service: Service, replicas: tuple[Placement, ...]) -> str:
        if not service.replicas_min <= len(replicas) <= service.replicas_max:
            return f"it runs on {service.replicas_min} to {service.replicas_max} replicas, not on {len(replicas)}"
        if twice := [place for place, times in Counter(replicas).items() if times > 1]:
            return f"two of its replicas are to run at {twice[0]}"
        for place in replicas:
            if why := self._misplaced(service, place):
                return why
        return ""

    def _misplaced(self, service: Service, place: Placement) -> str:
        """Why a replica could never run there; "" if it could."""
        hosts = place.hosts
        if len(hosts) != len(place.masks) or len(set(hosts)) != len(hosts) or 0 in place.masks:
            return "the placement names a host twice, or without GPUs"
        if place.gpus != service.gpus:
            return f"a replica has {service.gpus} GPUs, not {place.gpus}"
        if not all(0 <= host < len(self._view.inventory.masks) for host in hosts):
            return "some of these GPUs are occupied, down or not there"
        reach = self._view.reaches.of(
            service.gpus, service.gpu_type, service.required, service.preferred, service.hosts
        )
        if isinstance(reach, str):
            return reach
        if service.hosts and any(m.bit_count() * service.hosts != service.gpus for m in place.masks):
            return f"it wants {service.gpus // service.hosts} GPUs on each of {service.hosts} hosts"
        _, widest, _, pools, _ = reach
        used = {self._view.inventory.pool_of[host].gpu_type for host in hosts}
        if len(used) > 1 or not used <= {pool.gpu_type for pool in pools}:
            return f"the GPUs are of type {' and '.join(sorted(used))}, which it cannot use together"
        if len(hosts) > 1 and self._view.topology.span(hosts) > widest:
            return f"it must stay within one {self._view.topology.tiers[widest]}"
        return ""

    def _problem(self, state: ServiceState, leaving: list[Placement], coming: list[Placement]) -> str:
        """Whether there is room for those that come once the others have left."""
        inventory = self._view.inventory
        with self._view.supposing() as trial:
            for place in leaving:
                trial.release(place, state.key(place), state.service.resources)
            for place in coming:
                if not inventory.is_free(place):
                    return "some of these GPUs are occupied, down or not there"
                if why := inventory.spare.lack_of(state.service.resources, place):
                    return why
                trial.take(place, state.service.resources)
        return ""

    def _give_up(self, state: ServiceState, places: Iterable[Placement]) -> None:
        for place in places:
            del state.replicas[place]
            self._view.inventory.release(place)
            self._view.inventory.spare.give(state.key(place))
            self._vacated(place)

    def ready(self, event: ReplicaReady) -> None:
        """A replica takes requests, unless it was given up meanwhile."""
        state = self._view.services.get(event.job_id)
        if state is not None and event.placement in state.replicas:
            state.replicas[event.placement] = True

    def lost(self, event: ReplicaLost) -> None:
        """A replica is gone, unless it was given up meanwhile."""
        state = self._view.services.get(event.job_id)
        if state is not None and event.placement in state.replicas:
            self._give_up(state, (event.placement,))
            state.losses, state.lost_s = state.losses + 1, event.time_s

    def loaded(self, event: Load) -> None:
        """What it had to do last."""
        state = self._view.services.get(event.job_id)
        if state is not None:
            state.load = event

    def node_lost(self, event: NodeLost) -> None:
        """Every replica on that host is gone."""
        for state in self._view.services.values():
            self._give_up(state, [place for place in state.replicas if event.host in place.hosts])

    def withdrawn(self, event: Finished | Failed) -> None:
        """Nobody asks for it any more."""
        state = self._view.services.pop(event.job_id)
        self._give_up(state, tuple(state.replicas))


def service_handlers(handlers: ServiceHandlers) -> dict[type, Callable[[Any], None]]:
    """What happens on each event of a service alone."""
    return {ReplicaReady: handlers.ready, ReplicaLost: handlers.lost, Load: handlers.loaded}
