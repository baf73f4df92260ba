"""TIC and TAC: in which order a worker's transfers should come (TicTac, MLSys 2019, section 4).

Both look at each outstanding transfer r: how much computation waits for r alone (P), and the least total
transfer time of a set, r in it, that lets some operation that waits for several go on (M+).

- **TIC** (timing-independent) takes every transfer for as long as any other and computation for nothing:
  the order of M+, where equals share a rank.
- **TAC** (timing-aware) takes the transfers one by one: of a and b, a comes first if
  min(P_b, M_a) < min(P_a, M_b), which is Johnson's rule for two machines; then the smaller M+.

Where the paper is silent: that comparison is not transitive, so "first" is found by one scan against the
best so far, and what is equal in both goes by its place in the graph.

The paper's worker receives parameters from parameter servers before its forward needs them. A plan's transfers are received in
the same way where each parameter is updated on arrival (`update: on-arrival`): what a gradient's transfer brings is what the
first operation that reads the parameter waits for. `Tic` and `Tac` order these; what goes together stays so. Where all transfers
are waited for before forward begins, nothing is received during it, and there is nothing to order: that is an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import GraphError, PlanError
from hemiola.core.graph import PHASES, Graph
from hemiola.core.plan import Plan
from hemiola.core.topology import Topology
from hemiola.kernels.executor import execute
from hemiola.kernels.executor.tasks import Execution, tasks_from_columns
from hemiola.plan.planner import Planner
from hemiola.plan.problem import PlanProblem

__all__ = [
    "OrderEfficiency",
    "ReceiveGraph",
    "Tac",
    "Tic",
    "efficiency",
    "plan_receives",
    "receive_graph",
    "tac",
    "tic",
    "tic_ranks",
]


@dataclass(frozen=True)
class Tic(Planner):
    """TicTac's order that needs no times: by how many transfers let some operation go on; equals share a rank."""

    name = "tic"
    source = "Hashemi, Abdu Jyothi, Campbell: TicTac, MLSys 2019"

    def improve(self, graph: Graph, topology: Topology, cost: PlanProblem, plan: Plan) -> Plan:
        """The same transfers in another order."""
        received, numbers = plan_receives(cost, plan)
        return _ordered(plan, self.name, dict(zip(numbers, tic_ranks(received), strict=True)))


@dataclass(frozen=True)
class Tac(Planner):
    """TicTac's order by times: what lets most computation go on for the least transfer time goes first."""

    name = "tac"
    source = "Hashemi, Abdu Jyothi, Campbell: TicTac, MLSys 2019"

    def improve(self, graph: Graph, topology: Topology, cost: PlanProblem, plan: Plan) -> Plan:
        """The same transfers in another order."""
        received, numbers = plan_receives(cost, plan)
        return _ordered(
            plan, self.name, {numbers[transfer]: rank for rank, transfer in enumerate(tac(received))}
        )


def plan_receives(cost: PlanProblem, plan: Plan) -> tuple[ReceiveGraph, tuple[int, ...]]:
    """What a plan's transfers bring to the next forward, and which of them those are: what nothing reads is left out.

    Each takes as long as its all-reduce by itself.

    Raises:
        PlanError: nothing is received during forward.
        GraphError: forward reads nothing of what is trained.
    """
    if plan.update != "on-arrival":
        raise PlanError(
            f"TicTac orders what arrives while forward computes, and the plan so far ({plan.name}) waits for all transfers before",
            "put a planner before it that updates parameters on arrival: --planner ddp,first-use,tac",
        )
    own, order = cost.following(plan), list(plan.operation_order)
    number = {parameter.name: i for i, parameter in enumerate(own.graph.parameters)}
    groups = [tuple({number[piece.parameter] for piece in t.pieces}) for t in plan.transfers]
    transfer_s = [
        cost.cost(t.size_bytes(own.by_name), t.algorithm).seconds(cost.place) for t in plan.transfers
    ]
    compute_s = cost.compute_s[order] if order else cost.compute_s
    received, numbers = _received(own.graph, compute_s, groups, transfer_s)
    if not numbers:
        raise GraphError(
            f"the forward of {cost.graph.name!r} reads no parameter that gets a gradient: TicTac has nothing to order",
            "capture the whole iteration (hemiola capture), or take a planner that needs no forward: fifo",
        )
    return received, numbers


def _ordered(plan: Plan, name: str, rank: dict[int, int]) -> Plan:
    """By these ranks; what has none goes last."""
    transfers = tuple(
        msgspec.structs.replace(transfer, priority=rank.get(number, len(plan.transfers)))
        for number, transfer in enumerate(plan.transfers)
    )
    words = f"Gradients go in the order in which TicTac ({name.upper()}) would receive parameters for the next forward."
    return msgspec.structs.replace(
        plan, name=name, transfers=transfers, changes=(*plan.changes, words),
        source=f"{plan.source}, then {name.upper()} (TicTac)",
    )  # fmt: skip


# Computation that waits for tensors from elsewhere: what TicTac orders. One channel brings them, one
# device computes.

CHANNEL, DEVICE = 0, 1


@dataclass(frozen=True, eq=False)
class ReceiveGraph:
    """Transfers and the operations that wait for them.

    Attributes:
        names: of the transfers.
        transfer_s: how long each occupies the channel.
        compute_s: how long each operation computes.
        reads: per operation the transfers that it reads itself.
        after: per operation the operations, all before it, that it waits for.
    """

    names: tuple[str, ...]
    transfer_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    reads: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]

    @cached_property
    def needs(self) -> tuple[int, ...]:
        """Per operation all transfers that have to be there, its own and those of what it waits for, as bits."""
        found: list[int] = []
        for reads, after in zip(self.reads, self.after, strict=True):
            bits = 0
            for transfer in reads:
                bits |= 1 << transfer
            for operation in after:
                bits |= found[operation]
            found.append(bits)
        return tuple(found)

    def execute(self, order: Sequence[int], computed_s: float = 0.0) -> Execution:
        """When everything runs if the channel brings the transfers in this order.

        The device computes what is ready, the first of the program first. Transfers stand before operations in
        the execution's columns.

        Args:
            order: the transfers, first to last; none is left waiting for a later one.
            computed_s: the device is busy for so long first, while transfers come.
        """
        count = len(self.names)
        if sorted(order) != list(range(count)):
            raise GraphError(f"an order of {len(order)} for {count} transfers", "name each of them once")
        rank = np.empty(count, dtype=np.int64)
        rank[list(order)] = np.arange(count)
        operations = range(len(self.compute_s))
        pairs = [(count + i, transfer) for i in operations for transfer in self.reads[i]]
        pairs += [(count + i, count + before) for i in operations for before in self.after[i]]
        tasks = tasks_from_columns(
            [*self.transfer_s, *self.compute_s],
            resource=[CHANNEL] * count + [DEVICE] * len(operations),
            priority=[*rank.tolist(), *operations],
            release_s=[0.0] * count + [computed_s] * len(operations),
            waits=([a for a, _ in pairs], [b for _, b in pairs]),
            resources=2,
        )
        return execute(tasks)


@dataclass(frozen=True)
class OrderEfficiency:
    """TicTac's metrics of one order (its section 4): E is 1 for perfect overlap and 0 for none, S the most that overlap can gain."""

    makespan_s: float
    least_s: float
    most_s: float

    @property
    def efficiency(self) -> float:
        """E = (most - makespan) / (most - least)."""
        return (
            (self.most_s - self.makespan_s) / (self.most_s - self.least_s)
            if self.most_s > self.least_s
            else 1.0
        )

    @property
    def speedup(self) -> float:
        """S = (most - least) / least."""
        return (self.most_s - self.least_s) / self.least_s if self.least_s else 0.0


def efficiency(graph: ReceiveGraph, order: Sequence[int]) -> OrderEfficiency:
    """How well an order hides transfers behind computation."""
    channel_s, device_s = sum(graph.transfer_s), sum(graph.compute_s)
    return OrderEfficiency(graph.execute(order).makespan_s, max(channel_s, device_s), channel_s + device_s)


def receive_graph(graph: Graph, compute_s: NDArray[np.float64], transfer_s: Sequence[float]) -> ReceiveGraph:
    """A worker's forward pass that pulls each parameter before its first use.

    Args:
        graph: the captured iteration; backward and optimizer are left out.
        compute_s: of each of its operations.
        transfer_s: of each of its parameters; parameters that no operation reads are left out.
    """
    received, _ = _received(graph, compute_s, [(i,) for i in range(len(graph.parameters))], transfer_s)
    return received


def _received(
    graph: Graph,
    compute_s: NDArray[np.float64],
    groups: Sequence[tuple[int, ...]],
    transfer_s: Sequence[float],
) -> tuple[ReceiveGraph, tuple[int, ...]]:
    """A forward pass that receives parameters in groups, and which of the groups it reads.

    Args:
        groups: the parameters that each transfer brings.
        transfer_s: of each group.
    """
    operations, parameters = graph.operations, graph.parameters
    forward = np.flatnonzero(operations.phase == PHASES.index("forward"))
    place = {int(operation): i for i, operation in enumerate(forward)}
    used = [g for g, group in enumerate(groups) if any(parameters[i].first_use in place for i in group)]
    reads: list[list[int]] = [[] for _ in forward]
    for number, g in enumerate(used):
        for operation in sorted({parameters[i].first_use for i in groups[g]} & place.keys()):
            reads[place[operation]].append(number)
    after = [tuple(place[d] for d in operations.dependencies(int(o)).tolist() if d in place) for o in forward]
    found = ReceiveGraph(
        names=tuple(parameters[groups[g][0]].name for g in used),
        transfer_s=tuple(float(transfer_s[g]) for g in used),
        compute_s=tuple(float(compute_s[o]) for o in forward),
        reads=tuple(map(tuple, reads)),
        after=tuple(after),
    )
    return found, tuple(used)


def tic_ranks(graph: ReceiveGraph) -> tuple[int, ...]:
    """The rank of each transfer; equals share one, and the next is counted on (0, 0, 2)."""
    count = len(graph.names)
    _, least = _properties(_waiting(graph, timed=False), np.ones(count), np.ones(count, dtype=bool))
    return tuple(int((least < own).sum()) for own in least)


def tic(graph: ReceiveGraph) -> tuple[int, ...]:
    """The transfers, first to last; equals by their place in the graph."""
    ranks = tic_ranks(graph)
    return tuple(sorted(range(len(ranks)), key=lambda transfer: ranks[transfer]))


def tac(graph: ReceiveGraph) -> tuple[int, ...]:
    """The transfers, first to last."""
    time_s = graph.transfer_s
    waiting, seconds = _waiting(graph, timed=True), np.array(time_s)
    left = np.ones(len(time_s), dtype=bool)
    order: list[int] = []
    while left.any():
        alone_s, least_s = (found.tolist() for found in _properties(waiting, seconds, left))
        first, *others = np.flatnonzero(left).tolist()
        for transfer in others:
            if _before(transfer, first, alone_s, time_s, least_s):
                first = transfer
        order.append(first)
        left[first] = False
    return tuple(order)


def _before(a: int, b: int, alone_s: list[float], time_s: tuple[float, ...], least_s: list[float]) -> bool:
    """Whether `a` has to come before `b`."""
    first, second = min(alone_s[b], time_s[a]), min(alone_s[a], time_s[b])
    return first < second or (first == second and least_s[a] < least_s[b])


def _waiting(graph: ReceiveGraph, *, timed: bool) -> tuple[NDArray[np.bool_], list[float]]:
    """Sets of transfers that some computation waits for (a row each), and how much computation that is."""
    found: dict[int, float] = {}
    for bits, seconds in zip(graph.needs, graph.compute_s, strict=True):
        if bits:
            found[bits] = found.get(bits, 0.0) + (seconds if timed else 0.0)
    members = np.zeros((len(found), len(graph.names)), dtype=bool)
    for row, bits in enumerate(found):
        members[row, _members(bits)] = True
    return members, list(found.values())


def _properties(
    waiting: tuple[NDArray[np.bool_], list[float]], time_s: NDArray[np.float64], left: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """P and M+ of each transfer, given those that are outstanding."""
    alone_s, least_s = np.zeros(len(time_s)), np.full(len(time_s), math.inf)
    outstanding = waiting[0] & left
    counts = outstanding.sum(axis=1)
    for row in np.flatnonzero(counts == 1).tolist():
        alone_s[outstanding[row].argmax()] += waiting[1][row]
    for row in np.flatnonzero(counts > 1).tolist():
        own = outstanding[row]
        total_s = time_s[own].cumsum()[-1]  # one after the other, so that equal sets have equal times
        least_s[own] = np.minimum(least_s[own], total_s)
    return alone_s, least_s


def _members(bits: int) -> list[int]:
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found
