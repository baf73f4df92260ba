"""Hemiola's own choice: passes of Caramel's kind, each predicted, and kept where it shortens the iteration.

1. By first use, across the iteration's end, unless the plan so far is faster.
2. Of embeddings' tables the rows in use.
3. Small ones together: of sizes whose predictions are within 0.3 % of the best the one of fewest transfers, for each costs its
   hosts processor time that no prediction sees.
4. Large ones in pieces.
5. Each transfer's algorithm by its size; always, as predictions have the cheapest anyhow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from hemiola.core.graph import Graph
from hemiola.core.plan import Plan
from hemiola.core.topology import Topology
from hemiola.core.units import format_bytes, format_duration
from hemiola.cost.parallelism import PLAIN_DDP
from hemiola.plan.caramel import BATCHES, PIECES, batched, extended, split, with_primitives
from hemiola.plan.planner import Planner, better
from hemiola.plan.problem import PlanProblem

__all__ = ["Auto"]

AS_FAST = 0.003
"""Of plans that are predicted so little apart the one of fewest transfers: each costs its hosts something."""
FIRST_USE = (
    "Gradients go by the first use of their parameters in the next forward, and forward starts as soon as its first parameters "
    "are there."
)
TABLES = (
    "Of embeddings' tables only the rows go that some rank has looked up; where a table is the output layer's weight too, that "
    "layer's part of its gradient goes at the beginning of backward."
)


@dataclass(frozen=True)
class Auto(Planner):
    """What is predicted to be best."""

    name = "auto"
    source = "Hemiola"

    def improve(self, graph: Graph, topology: Topology, cost: PlanProblem, plan: Plan) -> Plan:
        """The last pass' plan."""
        *_, (_, last) = self.passes(graph, topology, cost, plan)
        return last

    def passes(
        self, graph: Graph, topology: Topology, cost: PlanProblem, plan: Plan
    ) -> Iterator[tuple[str, Plan]]:
        """Those that were kept."""
        first = extended(cost, plan)
        if cost.predict(first).iteration_s <= cost.predict(plan).iteration_s:
            plan = _said(first, FIRST_USE)
            yield "by first use, across the iteration's end", plan
        tables = better(cost, plan, _by_rows(cost, plan))
        if tables is not plan:
            plan = _said(tables, TABLES)
            yield "of tables the rows in use", plan
        together = _together(cost, plan)
        if together is not plan:
            plan = together
            yield "small ones together", plan
        pieces = better(cost, plan, _in_pieces(cost, plan))
        if pieces is not plan:
            plan = _said(pieces, "Large gradients go in pieces.")
            yield "large ones in pieces", plan
        yield "", _with_algorithms(cost, plan)


def _said(plan: Plan, words: str) -> Plan:
    return msgspec.structs.replace(plan, changes=(*plan.changes, words))


def _by_rows(cost: PlanProblem, plan: Plan) -> list[Plan]:
    """With parts of tables in place of everything, where that is another plan."""
    tables = cost.apart(by_rows=True).transfers
    known = {transfer.part for transfer in plan.transfers} != {"all"} or all(t.part == "all" for t in tables)
    return [] if known else [msgspec.structs.replace(plan, transfers=tables)]


def _together(cost: PlanProblem, plan: Plan) -> Plan:
    """Small gradients together, in the way of fewest transfers among those that are about as fast as any."""
    tried = [(batched(cost, plan, limit), limit) for limit in BATCHES]
    fewer = [(one, limit) for one, limit in tried if len(one.transfers) < len(plan.transfers)]
    fastest_s = min(cost.predict(one).iteration_s for one in (plan, *(one for one, _ in fewer)))
    for one, limit in sorted(fewer, key=lambda each: len(each[0].transfers)):
        if cost.predict(one).iteration_s <= fastest_s * (1 + AS_FAST):
            counts = f"{len(one.transfers)} transfers instead of {len(plan.transfers)}"
            return _said(one, f"Small gradients go together, up to {format_bytes(limit)}: {counts}.")
    return plan


def _in_pieces(cost: PlanProblem, plan: Plan) -> list[Plan]:
    tried = [split(cost, plan, limit) for limit in PIECES]
    return [one for one in tried if one.transfers != plan.transfers]


def _with_algorithms(cost: PlanProblem, plan: Plan) -> Plan:
    """The finished plan."""
    named = with_primitives(cost, plan)
    if by := Counter(transfer.algorithm for transfer in named.transfers if transfer.algorithm):
        words = ", ".join(f"{count} by {algorithm}" for algorithm, count in by.items())
        named = _said(
            named, f"Transfers are reduced by the algorithm that is cheapest for their size: {words}."
        )
    before_s = cost.predict_parallelism(PLAIN_DDP).iteration_s
    source = (
        f"for {cost.ranks} ranks on {cost.topology.name} with {cost.hardware.name}: {format_duration(before_s)} as "
        f"DistributedDataParallel, {format_duration(cost.predict(plan).iteration_s)} by this plan"
    )
    return msgspec.structs.replace(named, name="accelerated", source=source)
