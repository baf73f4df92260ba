"""Caramel's passes (Hashemi, Abdu Jyothi, Godfrey and Campbell, "Caramel", arXiv 2004.14020).

The paper's abstract names them, its code is not public; what a pass does in detail is decided here:

1. `widened`: of the orders in which operations can be executed, one that finishes gradients early, so that
   each has a wider window in which it can be sent.
2. `batched`: small transfers that are needed one after the other go together, up to a size.
3. `extended`: what is not needed before the end of backward is sent during the next forward.
4. `split`: large transfers go in pieces, so that one is reduced while the next is on its way.
5. `with_primitives`: ring, halving-doubling or direct, whichever is cheapest for the size.

`Caramel` makes them in that order on the plan so far. Sizes for 2 and 4 are tried and predicted, and one is kept where the
iteration becomes at least 0.1 % shorter. 1 is left out unless asked for (`caramel:widen=yes`): PyTorch's eager autograd has an
order of its own, so only who executes the graph itself can follow the plan's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from hemiola.core.graph import PHASES, Graph, in_order
from hemiola.core.plan import FEW, SMALL_BYTES, Piece, Plan, PlannedTransfer
from hemiola.core.topology import Topology
from hemiola.core.units import format_bytes
from hemiola.cost.collective.duration import SAME
from hemiola.plan.planner import Planner, better
from hemiola.plan.problem import PlanProblem, used_at

__all__ = [
    "BATCHES",
    "MIB",
    "PIECES",
    "Caramel",
    "batched",
    "extended",
    "split",
    "widened",
    "with_primitives",
]

BACKWARD = PHASES.index("backward")
KIB, MIB = 1 << 10, 1 << 20
BATCHES = (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB)
PIECES = (4 * MIB, 16 * MIB)


@dataclass(frozen=True)
class Caramel(Planner):
    """The passes one after the other; sizes by predicting.

    Args:
        widen: whether operations get another order too, which PyTorch's eager autograd does not follow.
    """

    name = "caramel"
    source = "in the style of Hashemi et al.: Caramel, arXiv 2004.14020 (abstract only)"

    widen: bool = False

    def improve(self, graph: Graph, topology: Topology, cost: PlanProblem, plan: Plan) -> Plan:
        """The last pass' plan."""
        *_, (_, last) = self.passes(graph, topology, cost, plan)
        return last

    def passes(
        self, graph: Graph, topology: Topology, cost: PlanProblem, plan: Plan
    ) -> Iterator[tuple[str, Plan]]:
        """Those that changed something, and the last."""
        plan = msgspec.structs.replace(plan, name=self.name, source="Caramel's passes")
        if self.widen:
            plan = _said(_widened_plan(cost, plan), "Backward comes to gradients as early as it can.")
            yield "caramel: widened", plan
        best = better(cost, plan, [batched(cost, plan, limit) for limit in BATCHES])
        if best is not plan:
            largest = max(transfer.size_bytes(cost.by_name) for transfer in best.transfers)
            plan = _said(
                best,
                f"Small gradients go together: {len(best.transfers)} transfers, the largest of {format_bytes(largest)}.",
            )
            yield "caramel: batched", plan
        plan = _said(
            extended(cost, plan),
            "Gradients go by the first use of their parameters, across the iteration's end.",
        )
        yield "caramel: extended", plan
        best = better(cost, plan, [split(cost, plan, limit) for limit in PIECES])
        if best is not plan:
            plan = _said(best, "Large gradients go in pieces.")
            yield "caramel: split", plan
        yield "", with_primitives(cost, plan)


def _said(plan: Plan, words: str) -> Plan:
    return msgspec.structs.replace(plan, changes=(*plan.changes, words))


def _widened_plan(cost: PlanProblem, plan: Plan) -> Plan:
    own = cost.following(plan)
    seconds = cost.compute_s[list(plan.operation_order)] if plan.operation_order else cost.compute_s
    order, before = widened(own.graph, seconds), plan.operation_order
    return msgspec.structs.replace(plan, operation_order=tuple(before[i] for i in order) if before else order)


def widened(graph: Graph, seconds: np.ndarray) -> tuple[int, ...]:
    """An order of the graph's operations, in which backward comes to gradients as early as it can.

    Of the operations of backward that could be next, the one that leads to a gradient soonest goes first: by the
    computation that is left until the nearest gradient it contributes to. What leads to none goes last.
    Forward and the optimizer stay as they are, also between the backwards of several micro-steps.

    Args:
        seconds: of each operation.
    """
    count = len(graph.operations)
    own = np.flatnonzero(graph.operations.phase == BACKWARD)
    if not own.size:
        return tuple(range(count))
    first, last = int(own[0]), int(own[-1]) + 1
    users: list[list[int]] = [[] for _ in range(count)]
    for operation in range(first, last):
        for before in graph.operations.dependencies(operation).tolist():
            users[before].append(operation)
    gradients = {p.gradient_ready for p in graph.parameters if p.gradient_ready >= 0}
    left_s = [math.inf] * count
    for operation in range(last - 1, first - 1, -1):
        after_s = (
            0.0 if operation in gradients else min((left_s[u] for u in users[operation]), default=math.inf)
        )
        left_s[operation] = after_s + float(seconds[operation])
    order = list(range(count))
    for stretch in np.split(own, np.flatnonzero(np.diff(own) > 1) + 1):
        first, last = int(stretch[0]), int(stretch[-1]) + 1
        waits = [graph.operations.dependencies(operation).tolist() for operation in range(first, last)]
        after = [[before - first for before in each if before >= first] for each in waits]
        order[first:last] = [first + number for number in in_order(after, left_s[first:last].__getitem__)]
    return tuple(order)


def batched(problem: PlanProblem, plan: Plan, limit_bytes: float) -> Plan:
    """Transfers that follow each other in urgency go together while they are of one type and no larger than that."""
    known = problem.by_name
    found: list[PlannedTransfer] = []
    for transfer in sorted(plan.transfers, key=lambda t: t.priority):
        last = found[-1] if found else None
        fits = (
            last is not None
            and last.part == transfer.part == "all"
            and known[last.pieces[0].parameter].dtype == known[transfer.pieces[0].parameter].dtype
            and last.size_bytes(known) + transfer.size_bytes(known) <= limit_bytes
        )
        if last is None or not fits:
            found.append(msgspec.structs.replace(transfer, priority=len(found)))
            continue
        more = len({piece.parameter for piece in (*last.pieces, *transfer.pieces)}) - 1
        name = f"{last.pieces[0].parameter} and {more} more"
        found[-1] = msgspec.structs.replace(last, name=name, pieces=last.pieces + transfer.pieces)
    return msgspec.structs.replace(plan, transfers=tuple(found))


def extended(problem: PlanProblem, plan: Plan) -> Plan:
    """Across the end of the iteration: each parameter is updated on arrival, and what is used first goes first."""
    own = problem.following(plan)
    known, graph = own.by_name, own.graph
    order = sorted(
        plan.transfers, key=lambda t: min(used_at(known[piece.parameter], graph) for piece in t.pieces)
    )
    transfers = tuple(msgspec.structs.replace(t, priority=rank) for rank, t in enumerate(order))
    return msgspec.structs.replace(plan, update="on-arrival", transfers=transfers)


def split(problem: PlanProblem, plan: Plan, limit_bytes: float) -> Plan:
    """Transfers of one parameter that are larger than that go in equal pieces; those of rows stay whole, which are cut anyhow."""
    known = problem.by_name
    found: list[PlannedTransfer] = []
    for transfer in sorted(plan.transfers, key=lambda t: t.priority):
        size = transfer.size_bytes(known)
        parts = math.ceil(size / limit_bytes) if len(transfer.pieces) == 1 and transfer.part == "all" else 1
        only = transfer.pieces[0]
        edges = np.linspace(only.start, only.stop, parts + 1).astype(int).tolist()
        for number in range(parts):
            pieces = (
                (Piece(only.parameter, edges[number], edges[number + 1]),) if parts > 1 else transfer.pieces
            )
            name = f"{transfer.name} [{number}]" if parts > 1 else transfer.name
            found.append(msgspec.structs.replace(transfer, name=name, pieces=pieces, priority=len(found)))
    return msgspec.structs.replace(plan, transfers=tuple(found))


def with_primitives(problem: PlanProblem, plan: Plan) -> Plan:
    """Each transfer's algorithm: the one that takes the shortest by itself; "" where that is direct, as it then goes anyhow."""
    transfers = tuple(
        msgspec.structs.replace(t, algorithm=_primitive(problem, t.size_bytes(problem.by_name)))
        for t in plan.transfers
    )
    return msgspec.structs.replace(plan, transfers=transfers)


def _primitive(problem: PlanProblem, size_bytes: float) -> str:
    if size_bytes <= SMALL_BYTES and problem.ranks <= FEW:
        return ""
    least, direct = problem.cost(size_bytes), problem.cost(size_bytes, "direct")
    slower = direct.seconds(problem.place) > least.seconds(problem.place) * (1 + SAME)
    return least.algorithm if slower else ""
