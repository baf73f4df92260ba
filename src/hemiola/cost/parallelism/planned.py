"""Data parallelism by a plan: gradients in the plan's pieces, by its priorities, across the iteration's end.

What `hemiola.accelerate` executes. Transfers of a plan are messages between pairs of ranks, not calls that
all have to make in one order, so an urgent one overtakes and pauses what is on its way. A parameter is
updated when its gradient has arrived: all together at the iteration's end, or each before its first use in
the next forward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hemiola.core.graph import Graph, Parameter
from hemiola.core.plan import Plan, PlannedTransfer
from hemiola.cost.parallelism.parallelism import Device, Parallelism, Transfer, first_of_phase

__all__ = ["Planned"]


@dataclass(frozen=True)
class Planned(Parallelism):
    """Exchange by a plan, over Hemiola's transport."""

    plan: Plan

    preemptive = True
    library = "hemiola"

    @property
    def label(self) -> str:
        """For instance "plan:first use"."""
        return f"plan:{self.plan.name}"

    @property
    def updates_on_arrival(self) -> bool:
        """Whether each parameter is updated by itself, before its first use."""
        return self.plan.update == "on-arrival"

    def optimizer_share(self, ranks: int) -> float:
        """None of its operations where parameters are updated on arrival."""
        return 0.0 if self.updates_on_arrival and ranks > 1 else 1.0

    def transfers(self, graph: Graph, ranks: int, device: Device = "gpu") -> tuple[Transfer, ...]:
        """One all-reduce per transfer of the plan, in the order in which they become ready.

        Raises:
            PlanError: the plan is not this graph's.
        """
        self.plan.verify(graph)
        if ranks < 2:
            return ()
        number = {parameter.name: i for i, parameter in enumerate(graph.parameters)}
        known = {parameter.name: parameter for parameter in graph.parameters}
        optimizer = first_of_phase(graph, "optimizer")
        found = []
        by_urgency = sorted(self.plan.transfers, key=lambda planned: planned.priority)
        last = {piece.parameter: planned for planned in by_urgency for piece in planned.pieces}
        for planned in by_urgency:
            names = tuple(dict.fromkeys(piece.parameter for piece in planned.pieces))
            members = [known[name] for name in names]
            size, whole = planned.size_bytes(known), sum(parameter.size_bytes for parameter in members)
            used = [parameter.first_use for parameter in members if parameter.first_use >= 0]
            across = self.updates_on_arrival and bool(used)
            ready = planned.ready(known)
            copied = size if len(planned.pieces) > 1 or planned.part != "all" else 0.0
            found.append(
                Transfer(
                    planned.name, "all-reduce", size,
                    tuple(number[name] for name in names), ready,
                    min(used) if across else max(optimizer, ready + 1), next_iteration=across,
                    priority=planned.priority, algorithm=_executed(planned.algorithm, ranks),
                    completes=tuple(number[name] for name in names if last[name] is planned),
                    pack_bytes=whole if planned.part == "rows" else copied,  # rows are looked for in all
                    unpack_bytes=copied - _staying_bytes(planned, known),
                )
            )  # fmt: skip
        return tuple(sorted(found, key=lambda t: (t.after, t.priority)))

    def memory_bytes(self, graph: Graph, ranks: int) -> float:
        """Everything on every rank; what goes together lies in a buffer beside the gradients until it is all there, what of
        them goes in parts until it is back."""
        trained = sum(p.gradient_bytes for p in graph.parameters)
        buffers = sum(buffer.size_bytes for buffer in graph.buffers)
        known = {parameter.name: parameter for parameter in graph.parameters}
        beside = [
            (t.size_bytes(known), _staying_bytes(t, known)) for t in self.plan.transfers if len(t.pieces) > 1
        ]
        copies = sum(size - staying for size, staying in beside) + max((s for _, s in beside), default=0.0)
        return graph.parameter_bytes + trained + copies + buffers + graph.optimizer_bytes + graph.saved_bytes


def _executed(algorithm: str, ranks: int) -> str:
    """What an all-reduce then goes by: halving and doubling needs a power of two."""
    return "direct" if algorithm == "halving-doubling" and ranks & (ranks - 1) else algorithm


def _staying_bytes(planned: PlannedTransfer, known: Mapping[str, Parameter]) -> float:
    """Of gradients that go whole and with others: these stay in the buffer in which they go."""
    if planned.part != "all" or len(planned.pieces) < 2:
        return 0.0
    members = [(known[piece.parameter], piece) for piece in planned.pieces]
    return sum(p.size_bytes for p, piece in members if piece.stop - piece.start == math.prod(p.shape))
