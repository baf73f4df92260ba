"""P3: priority-based parameter propagation (Jayarajan et al., "Priority-based Parameter Propagation for Distributed DNN Training", MLSys 2019).

1. **Parameter slicing**: every parameter goes in slices of at most 50,000 elements, each by itself.
2. **Priority-based update**: slices go by the layer's place in the next forward, the first layer's
   before all others, and a slice that becomes ready goes before those of lower priority that wait.

Where the paper is silent, or this differs: the paper's slices go to parameter servers and back, here they are all-reduced.
Its slices are not interrupted, here one of higher priority pauses what is on its way. Of two parameters that one operation
reads, the one whose gradient is ready first goes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from hemiola.core.errors import PlanError
from hemiola.core.graph import Graph
from hemiola.core.plan import Plan
from hemiola.core.topology import Topology
from hemiola.plan.planner import Planner
from hemiola.plan.problem import PlanProblem, sliced

__all__ = ["P3"]


@dataclass(frozen=True)
class P3(Planner):
    """Every parameter in slices, by first use.

    Args:
        elements: the most in a slice; the paper's own.
    """

    name = "p3"
    source = "Jayarajan et al.: Priority-based Parameter Propagation, MLSys 2019"

    elements: int = 50_000

    def __post_init__(self) -> None:
        if self.elements < 1:
            raise PlanError(f"p3: slices of {self.elements} elements", "give elements= at least 1")

    def improve(self, graph: Graph, topology: Topology, cost: PlanProblem, plan: Plan) -> Plan:
        """What went together goes apart."""
        words = f"Gradients go in slices of at most {self.elements:,} elements, by the first use of their parameters."
        return msgspec.structs.replace(
            sliced(cost, plan, lambda parameter: self.elements),
            name=self.name, changes=(*plan.changes, words), source=f"P3, slices of {self.elements:,} elements",
        )  # fmt: skip
