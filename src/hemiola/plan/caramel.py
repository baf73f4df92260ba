"""Caramel's passes (Hashemi, Abdu Jyothi, Godfrey and Campbell, "Caramel", arXiv 2004.14020).

The paper's abstract names them, its code is not public; what a pass does in detail is decided here:

1. `widened`: of the orders in which operations can be executed, one that finishes gradients early, so that
   each has a wider window in which it can be sent.
2. `batched`: small transfers that are needed one after the other go together, up to a size.
3. `extended`: what is not needed before the end of backward is sent during the next forward.
4. `split`: large transfers go in pieces, so that one is reduced while the next is on its way.
5. `with_primitives`: ring, halving-doubling or direct, whichever is cheapest for the size.

`hemiola.plan.planner` picks sizes for 2 and 4 by predicting the outcome.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from hemiola.core.graph import PHASES, Graph, in_order
from hemiola.core.plan import FEW, SMALL_BYTES, Piece, Plan, PlannedTransfer
from hemiola.cost.collective.duration import SAME
from hemiola.plan.problem import PlanProblem, used_at

__all__ = ["batched", "extended", "split", "widened", "with_primitives"]

BACKWARD = PHASES.index("backward")


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
    known, graph = problem.by_name, problem.graph
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
