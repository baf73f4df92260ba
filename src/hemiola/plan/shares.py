"""What each side of a job gets of a host's cores and of its link: SaSP's scheduler, as a pure function.

After SaSP (Xia, HKUST 2019; only its abstract is public), which gives computation and communication processes of
one job their shares apart. The model here is ours. On a host with n cores an iteration needs, in seconds of
one core: C for forward and backward, of which the part `serial` cannot be spread; K for the communication
process; V for the servers that stand there. P bytes leave the host with pushes, Q as servers' answers, over a
link of B bytes/s. All of that overlaps, so

    apart:   T = max(C (serial + (1 - serial) / c), K, V, P / p, Q / q)        each side on cores of its own
    helped:  T = max(C (serial + (1 - serial) / c), K + V, P / p, Q / q)       communication and servers on one core
    shared:  T = max(C (serial + (1 - serial) / n), (C + K + V) / n, P / p, Q / q) + w d

with c + 2 = n, c + 1 = n and p + q = B. A communication process and a server are loops of one thread and use one
core. Where cores are shared, one of the w messages of an iteration waits d seconds on average until the
core on which it is handled is free of computing. The shortest T wins, the simplest among equals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hemiola._moved import renamed
from hemiola.core.errors import HardwareError, PlanError
from hemiola.core.hardware import CollectiveCost, Hardware
from hemiola.cost.parallelism import NoExchange
from hemiola.plan.problem import PlanProblem

__all__ = ["HostDemand", "Shares", "demand_of", "share"]

__getattr__ = renamed(__name__)


@dataclass(frozen=True)
class HostDemand:
    """What one iteration asks of one host.

    Attributes:
        compute_s: C, in seconds of one core.
        push_bytes: P, from here to servers elsewhere.
        answer_bytes: Q, from servers here to workers elsewhere.
        communication_s: K.
        server_s: V; 0 where no server stands.
        serial: part of C that one core does, from 0 to 1.
        messages: w, that are waited for.
        delay_s: d.
    """

    compute_s: float
    push_bytes: float
    answer_bytes: float
    communication_s: float = 0.0
    server_s: float = 0.0
    serial: float = 0.0
    messages: float = 0.0
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < math.inf:
                raise PlanError(f"{name} is {value}", "give a finite number of 0 or more")
        if self.serial > 1:
            raise PlanError(f"serial is {self.serial}", "give a part from 0 to 1")

    def compute_on(self, cores: int) -> float:
        """Seconds of forward and backward on so many cores."""
        return self.compute_s * (self.serial + (1 - self.serial) / cores)


@dataclass(frozen=True)
class Shares:
    """Who gets what on a host.

    Attributes:
        compute_cores, communication_cores, server_cores: of each side's own; 0 where it shares all of them
            with the others (then all three are 0) or, for servers only, the core of the communication process.
        push_bytes_per_s, pull_bytes_per_s: of the link's rate for what leaves the host as pushes, and as
            answers to pulls; None for as fast as it goes.
        iteration_s: what the model says, in seconds.
    """

    compute_cores: int
    communication_cores: int
    server_cores: int
    push_bytes_per_s: float | None
    pull_bytes_per_s: float | None
    iteration_s: float

    @property
    def shared(self) -> bool:
        """Whether no core is any side's own."""
        return self.compute_cores == 0


def share(demand: HostDemand, cores: int, link_bytes_per_s: float) -> Shares:
    """The best shares in the model above.

    Args:
        cores: n, of the host.
        link_bytes_per_s: B, of its link, each way.

    Raises:
        PlanError: no core or no rate.
    """
    if cores < 1 or not link_bytes_per_s > 0:
        raise PlanError(f"{cores} cores and {link_bytes_per_s} bytes/s", "give a core and a rate at least")
    push, pull, wire_s = _rates(demand, link_bytes_per_s)
    both_s = demand.communication_s + demand.server_s
    waits_s = demand.messages * demand.delay_s
    shared_s = max(demand.compute_on(cores), (demand.compute_s + both_s) / cores, wire_s) + waits_s
    found = [Shares(0, 0, 0, push, pull, shared_s)]
    if cores > 1:
        helped_s = max(demand.compute_on(cores - 1), both_s, wire_s)
        found.append(Shares(cores - 1, 1, 0, push, pull, helped_s))
    if cores > 2 and demand.server_s:
        apart_s = max(demand.compute_on(cores - 2), demand.communication_s, demand.server_s, wire_s)
        found.append(Shares(cores - 2, 1, 1, push, pull, apart_s))
    return min(found, key=lambda shares: shares.iteration_s)


def _rates(demand: HostDemand, link_bytes_per_s: float) -> tuple[float | None, float | None, float]:
    """The link by the bytes that each class sends, so that both end together; and when."""
    if link_bytes_per_s == math.inf:
        return None, None, 0.0
    total = demand.push_bytes + demand.answer_bytes
    wire_s = total / link_bytes_per_s
    push = link_bytes_per_s * (demand.push_bytes / total) if demand.push_bytes else None
    pull = link_bytes_per_s - push if push is not None else link_bytes_per_s
    return push, (pull if demand.answer_bytes else None), wire_s


# What a job on parameter servers asks of a host, from its prediction: the input of `plan.shares`.

_ADDING = 3
"""Bytes of memory moved per byte that is added: two are read, one is written."""
_PARCEL_BYTES = 2 << 20
"""Parameters travel in parcels of this size at most (`train.parameter_server`)."""


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
    alone = apart.predict_parallelism(NoExchange()).breakdown
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
