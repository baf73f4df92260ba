"""Makes the plan that a training job adopts, and says what it gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from hemiola.core.errors import PlanError
from hemiola.core.plan import Plan
from hemiola.cost.parallelism import PLAIN_DDP
from hemiola.cost.prediction import Prediction
from hemiola.plan.auto import Auto
from hemiola.plan.planner import Planner
from hemiola.plan.problem import PlanProblem

__all__ = ["Advice", "make_plan"]

AUTO = Auto()


@dataclass(frozen=True, eq=False)
class Advice:
    """A plan and what it is predicted to do.

    Attributes:
        plan: verified.
        before: the iteration as PyTorch's DistributedDataParallel has it, on its own collective library.
        after: by the plan.
        steps: each pass that was kept, and the iteration with it.
        planners: whose passes they are, in order.
    """

    plan: Plan
    before: Prediction
    after: Prediction
    steps: tuple[tuple[str, float], ...]
    planners: tuple[str, ...] = (AUTO.name,)

    @property
    def gain(self) -> float:
        """Relative: 0.3 for an iteration that is 1.3 times as fast."""
        return self.before.iteration_s / self.after.iteration_s - 1

    @property
    def bound_s(self) -> float:
        """No order of the same work takes less."""
        return self.after.bound_s


def make_plan(problem: PlanProblem, planners: Sequence[Planner] = (AUTO,)) -> Advice:
    """The plan that these planners make, one after the other; unless given, the best that Hemiola finds.

    Raises:
        GraphError, InputError, TopologyError: what is asked cannot be predicted.
        PlanError: a planner can do nothing here, or made what does not train the graph.
    """
    before = problem.predict_parallelism(PLAIN_DDP)
    steps, plan = [("buckets of 25 MiB (DDP)", before.iteration_s)], problem.apart()
    for planner in planners:
        for what, made in planner.passes(problem.graph, problem.topology, problem, plan):
            plan = _checked(made, planner, problem)
            if what:
                steps.append((what, problem.predict(plan).iteration_s))
    names = tuple(planner.name or type(planner).__name__ for planner in planners)
    if len(names) > 1:
        plan = msgspec.structs.replace(plan, name=", ".join(names))
    return Advice(plan, before, problem.predict(plan), tuple(steps), names)


def _checked(plan: Plan, planner: Planner, problem: PlanProblem) -> Plan:
    """What a planner made, if it trains this graph on these ranks."""
    name = planner.name or type(planner).__name__
    if not isinstance(plan, Plan):
        raise PlanError(f"the planner {name} made no plan but {plan!r}", "return a hemiola.core.plan.Plan")
    if plan.ranks != problem.ranks:
        raise PlanError(
            f"the planner {name} made a plan for {plan.ranks} ranks, not {problem.ranks}", "keep plan.ranks"
        )
    try:
        return plan.verify(problem.graph, problem.topology, problem.placement)
    except PlanError as error:
        raise PlanError(f"the planner {name}: {error.what}", error.remedy) from error
