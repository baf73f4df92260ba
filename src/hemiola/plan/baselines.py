"""Orders to compare with, which no paper claims: DistributedDataParallel's own, first in first out, by first use."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from hemiola.core.graph import Graph
from hemiola.core.plan import Plan
from hemiola.core.topology import Topology
from hemiola.plan.caramel import extended
from hemiola.plan.planner import Planner
from hemiola.plan.problem import PlanProblem

__all__ = ["Ddp", "FifoOrder", "FirstUse"]


@dataclass(frozen=True)
class Ddp(Planner):
    """The buckets of PyTorch's DistributedDataParallel, in its order, all before the optimizer; begins anew.

    They go over Hemiola's transport, as any plan does: DistributedDataParallel on its own library is what
    `hemiola plan` compares with.
    """

    name = "ddp"
    source = "PyTorch 2.13, torch/csrc/distributed/c10d/reducer.cpp"

    def improve(self, graph: Graph, topology: Topology, cost: PlanProblem, plan: Plan) -> Plan:
        """Whatever the plan so far is."""
        return cost.usual()


@dataclass(frozen=True)
class FifoOrder(Planner):
    """What goes together stays so, and goes as it becomes ready, all before the optimizer."""

    name = "fifo"
    source = "first in, first out"

    def improve(self, graph: Graph, topology: Topology, cost: PlanProblem, plan: Plan) -> Plan:
        """The same transfers in another order."""
        known = cost.following(plan).by_name
        order = sorted(plan.transfers, key=lambda transfer: transfer.ready(known))
        transfers = tuple(msgspec.structs.replace(t, priority=rank) for rank, t in enumerate(order))
        return msgspec.structs.replace(
            plan, name=self.name, update="together", transfers=transfers, source=self.source
        )


@dataclass(frozen=True)
class FirstUse(Planner):
    """What goes together stays so, and goes by its first use in the next forward, each parameter updated on arrival."""

    name = "first-use"
    source = "by first use"

    def improve(self, graph: Graph, topology: Topology, cost: PlanProblem, plan: Plan) -> Plan:
        """The same transfers in another order, across the iteration's end."""
        return msgspec.structs.replace(extended(cost, plan), name="first use", source=self.source)
