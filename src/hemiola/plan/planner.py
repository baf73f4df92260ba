"""The one seam between Hemiola and a planner: a plan in, a better plan out. What planners exist is not known here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar

from hemiola.core.graph import Graph
from hemiola.core.plan import Plan
from hemiola.core.topology import Topology
from hemiola.plan.problem import PlanProblem

__all__ = ["WORTH", "Planner", "better", "planned"]

WORTH = 0.001
"""What is tried has to shorten the iteration by so much to be kept."""


class Planner(ABC):
    """Makes a plan of a plan. A value: a frozen dataclass whose fields are its parameters.

    Planners follow one another: each gets what the one before it made. The first gets every parameter by itself, by its first
    use in the next forward, updated on arrival.

    Attributes:
        name: as in `--planner NAME`.
        source: the paper or system it follows.
    """

    name: ClassVar[str] = ""
    source: ClassVar[str] = ""

    @abstractmethod
    def improve(self, graph: Graph, topology: Topology, cost: PlanProblem, plan: Plan) -> Plan:
        """A plan for the same graph and ranks.

        Args:
            graph: the iteration whose gradients go by the plan.
            topology: where its ranks are.
            cost: what things take there: `cost.predict(plan)` an iteration, `cost.compute_s` each operation,
                `cost.cost(size_bytes)` an all-reduce; and how many ranks there are.
            plan: so far.

        Raises:
            PlanError, GraphError: it can do nothing with this plan or graph; says why and what to do.
        """

    def passes(
        self, graph: Graph, topology: Topology, cost: PlanProblem, plan: Plan
    ) -> Iterator[tuple[str, Plan]]:
        """The same step by step: what was done, and the plan with it, the last of which is what `improve` returns.

        What changes nothing that a prediction sees is called "".
        """
        yield self.name or type(self).__name__, self.improve(graph, topology, cost, plan)


def planned(problem: PlanProblem, *planners: Planner) -> Plan:
    """What these planners make of a problem, one after the other."""
    plan = problem.apart()
    for planner in planners:
        plan = planner.improve(problem.graph, problem.topology, problem, plan)
    return plan


def better(cost: PlanProblem, plan: Plan, candidates: Iterable[Plan]) -> Plan:
    """Of candidates the one with the shortest iteration, if it is worth it; else the plan as it was."""
    best = min(candidates, key=lambda one: cost.predict(one).iteration_s, default=plan)
    limit_s = cost.predict(plan).iteration_s * (1 - WORTH)
    return best if cost.predict(best).iteration_s <= limit_s else plan
