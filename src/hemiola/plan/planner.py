"""Makes the plan that a training job adopts, and says why: candidates are predicted, the best one is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from hemiola.core.plan import Plan
from hemiola.core.units import format_bytes, format_duration
from hemiola.cost.parallelism import DDP
from hemiola.cost.prediction import Prediction
from hemiola.plan.caramel import batched, split, with_primitives
from hemiola.plan.problem import PlanProblem

__all__ = ["Advice", "make_plan"]

KIB, MIB = 1 << 10, 1 << 20
BATCHES = (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB)
PIECES = (4 * MIB, 16 * MIB)
WORTH = 0.001
"""A further pass has to shorten the iteration by so much to be kept."""
AS_FAST = 0.003
"""Of plans that are predicted so little apart the one of fewest transfers: each costs its hosts something."""


@dataclass(frozen=True, eq=False)
class Advice:
    """A plan and what it is predicted to do.

    Attributes:
        plan: verified.
        before: the iteration as PyTorch's DistributedDataParallel has it, on its own collective library.
        after: by the plan.
        steps: each pass that was kept, and the iteration with it.
    """

    plan: Plan
    before: Prediction
    after: Prediction
    steps: tuple[tuple[str, float], ...]

    @property
    def gain(self) -> float:
        """Relative: 0.3 for an iteration that is 1.3 times as fast."""
        return self.before.iteration_s / self.after.iteration_s - 1

    @property
    def bound_s(self) -> float:
        """No order of the same work takes less."""
        return self.after.bound_s


def make_plan(problem: PlanProblem, progress: Callable[[str], None] = lambda what: None) -> Advice:
    """The best plan found.

    Args:
        progress: told what is tried.

    Raises:
        GraphError, InputError, TopologyError: what is asked cannot be predicted.
    """
    before = problem.predict_parallelism(DDP())
    best, steps, changes = problem.apart(), [("buckets of 25 MiB (DDP)", before.iteration_s)], list[str]()
    progress("by first use")
    time_s = problem.predict(best).iteration_s
    steps.append(("by first use, across the iteration's end", time_s))
    changes.append(
        "Gradients go by the first use of their parameters in the next forward, and forward starts as soon as "
        "its first parameters are there."
    )

    def kept(what: str, words: str, candidates: list[Plan]) -> bool:
        nonlocal best, time_s
        progress(what)
        tried = [(problem.predict(plan).iteration_s, number) for number, plan in enumerate(candidates)]
        found_s, number = min(tried, default=(time_s, -1))
        if found_s > time_s * (1 - WORTH):
            return False
        best, time_s = candidates[number], found_s
        steps.append((what, found_s))
        changes.append(words)
        return True

    tables = problem.apart(by_rows=True)
    if tables.transfers != best.transfers:
        kept(
            "of tables the rows in use",
            "Of embeddings' tables only the rows go that some rank has looked up; where a table is the output layer's weight "
            "too, that layer's part of its gradient goes at the beginning of backward.",
            [tables],
        )
    progress("small ones together")
    batches = [(problem.predict(plan).iteration_s, plan, limit) for plan, limit in _batches(problem, best)]
    fastest_s = min([time_s, *(seconds for seconds, _, _ in batches)])
    for seconds, plan, limit in sorted(batches, key=lambda entry: len(entry[1].transfers)):
        if seconds <= fastest_s * (1 + AS_FAST):
            changes.append(
                f"Small gradients go together, up to {format_bytes(limit)}: {len(plan.transfers)} transfers instead of "
                f"{len(best.transfers)}."
            )
            best, time_s = plan, seconds
            steps.append(("small ones together", seconds))
            break
    kept(
        "large ones in pieces",
        "Large gradients go in pieces.",
        [
            plan
            for plan in (split(problem, best, limit) for limit in PIECES)
            if plan.transfers != best.transfers
        ],
    )
    named = with_primitives(problem, best)
    if by := Counter(transfer.algorithm for transfer in named.transfers if transfer.algorithm):
        words = ", ".join(f"{count} by {algorithm}" for algorithm, count in by.items())
        changes.append(f"Transfers are reduced by the algorithm that is cheapest for their size: {words}.")
    plan = msgspec.structs.replace(
        named, name="accelerated", changes=tuple(changes), source=_source(problem, before, time_s)
    ).verify(problem.graph)
    return Advice(plan, before, problem.predict(plan), tuple(steps))


def _batches(problem: PlanProblem, plan: Plan) -> list[tuple[Plan, int]]:
    """This plan with small gradients together, in several ways, and the limit of each."""
    found = [(batched(problem, plan, limit), limit) for limit in BATCHES]
    return [(other, limit) for other, limit in found if len(other.transfers) < len(plan.transfers)]


def _source(problem: PlanProblem, before: Prediction, time_s: float) -> str:
    return (
        f"for {problem.ranks} ranks on {problem.topology.name} with {problem.hardware.name}: "
        f"{format_duration(before.iteration_s)} as DistributedDataParallel, {format_duration(time_s)} by this plan"
    )
