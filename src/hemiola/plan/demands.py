"""What a job on parameter servers asks of a host, from its prediction: the input of `plan.shares`."""

from __future__ import annotations

import math
from dataclasses import replace

from hemiola.core.errors import HardwareError, PlanError
from hemiola.core.hardware import CollectiveCost, Hardware
from hemiola.cost.parallelism import NoExchange
from hemiola.plan.problem import PlanProblem
from hemiola.plan.shares import HostDemand

__all__ = ["demand_of"]

_ADDING = 3
"""Bytes of memory moved per byte that is added: two are read, one is written."""
_PARCEL_BYTES = 2 << 20
"""Parameters travel in parcels of this size at most (`run.servers`)."""


def demand_of(problem: PlanProblem, servers: int, host: int = 0) -> HostDemand:
    """What an iteration asks of one host.

    Server s stands with rank s % ranks, as `hemiola.synchronise` places them.

    Args:
        servers: of the job.
        host: which of the hosts that the ranks stand on.

    Raises:
        PlanError: no such host, or no server.
        HardwareError: what sending costs the processor was not measured.
    """
    place = problem.place
    if servers < 1 or not 0 <= host < len(place.counts):
        raise PlanError(
            f"host {host} of {len(place.counts)}, {servers} servers", "count hosts from 0, and servers from 1"
        )
    ranks, here = place.ranks, place.counts[host][1]
    own = sum(place.host_of[server % ranks] == host for server in range(servers)) / servers
    gradients = float(sum(parameter.gradient_bytes for parameter in problem.trained))
    trained = float(sum(parameter.size_bytes for parameter in problem.trained))
    # waiting for cores is left to `plan.shares`, which divides them
    apart = replace(problem, options=replace(problem.options, cores=math.inf))
    alone = apart.predict_strategy(NoExchange()).breakdown
    threads, sending = max(1, problem.hardware.threads_per_rank), _sending(problem.hardware)
    moved = ranks * (gradients + trained)
    return HostDemand(
        compute_s=(alone.forward_s + alone.backward_s + alone.overhead_s) * threads * here,
        push_bytes=gradients * here * (1 - own),
        answer_bytes=trained * own * (ranks - here),
        communication_s=sending.cpu_s_per_byte * (gradients + trained) * here,
        server_s=own
        * (
            alone.optimizer_s * threads
            + sending.cpu_s_per_byte * moved
            + _ADDING * gradients * ranks / problem.hardware.memory_bytes_per_s
        ),
        messages=max(1.0, trained / _PARCEL_BYTES) * here,
    )


def _sending(hardware: Hardware) -> CollectiveCost:
    """The measurement nearest to sending a message."""
    known = sorted(hardware.collectives, key=lambda c: (c.backend != "hemiola", c.collective != "send"))
    if not known:
        raise HardwareError(
            f"what sending costs {hardware.name!r} was not measured", "calibrate the links between its hosts"
        )
    return known[0]
