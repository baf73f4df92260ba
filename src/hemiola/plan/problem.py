"""What a plan is made for, as one value that planners ask for predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hemiola.core.graph import Graph, Parameter
from hemiola.core.hardware import Hardware
from hemiola.core.plan import ROWS_MOST, Part, Piece, Plan, PlannedTransfer
from hemiola.core.topology import Topology
from hemiola.cost.collective.library import HEMIOLA, Cost, collective_cost
from hemiola.cost.parallelism import DDP, Parallelism, Planned
from hemiola.cost.places import RankPlaces, place_ranks
from hemiola.cost.prediction import USUAL, Prediction, PredictionOptions, predict

__all__ = ["PlanProblem", "used_at"]

HEADS_MOST = 0.5
"""Up to which share of touched rows the head's part of a tied table is worth sending before."""


@dataclass(frozen=True, eq=False)
class PlanProblem:
    """One graph on so many ranks of a cluster.

    Attributes:
        graph, hardware, topology, ranks, placement, options, seconds: as `cost.prediction.predict` takes them.
    """

    graph: Graph
    hardware: Hardware
    topology: Topology
    ranks: int
    placement: tuple[int, ...] | None = None
    options: PredictionOptions = USUAL
    seconds: NDArray[np.float64] | None = None
    _known: dict[Plan, Prediction] = field(default_factory=dict, init=False, repr=False)

    def predict(self, plan: Plan) -> Prediction:
        """The iteration by this plan; the same plan is executed once."""
        if plan not in self._known:
            self._known[plan] = self.predict_parallelism(Planned(plan))
        return self._known[plan]

    def predict_parallelism(self, parallelism: Parallelism) -> Prediction:
        """The iteration by any way to exchange."""
        return predict(
            self.graph, self.hardware, self.topology, self.ranks, parallelism,
            placement=self.placement, options=self.options, seconds=self.seconds,
        )  # fmt: skip

    @cached_property
    def place(self) -> RankPlaces:
        """Where the ranks are."""
        return place_ranks(self.topology, self.ranks, self.placement, self.hardware)

    @cached_property
    def trained(self) -> tuple[Parameter, ...]:
        """Parameters that get a gradient, in the order in which it becomes ready."""
        found = [p for p in self.graph.parameters if p.gradient_ready >= 0 and p.size_bytes]
        return tuple(sorted(found, key=lambda p: p.gradient_ready))

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        """Parameters by name."""
        return {p.name: p for p in self.graph.parameters}

    def cost(self, size_bytes: float, algorithm: str = "") -> Cost:
        """Of an all-reduce over Hemiola's transport."""
        return collective_cost("all-reduce", size_bytes, self.place, HEMIOLA, self.hardware, algorithm)

    def usual(self) -> Plan:
        """What PyTorch's DistributedDataParallel does: buckets in the order of gradients, all before the optimizer."""
        transfers = []
        for number, bucket in enumerate(DDP().buckets(self.graph)):
            members = [self.graph.parameters[i] for i in bucket]
            pieces = tuple(whole(p) for p in members if p.gradient_ready >= 0 and p.size_bytes)
            if pieces:
                transfers.append(PlannedTransfer(name=f"bucket {number}", pieces=pieces, priority=number))
        return Plan(
            name="buckets", graph=self.graph.name, ranks=self.ranks, update="together",
            chunk_bytes=1 << 20, transfers=tuple(transfers), source="as DistributedDataParallel",
        )  # fmt: skip

    def apart(self, by_rows: bool = False) -> Plan:
        """Every parameter by itself, by its first use in the next forward, across the iteration's end.

        Args:
            by_rows: of tables only the rows that are touched, and of tied ones the head's part before, where that is less.
        """
        transfers: list[PlannedTransfer] = []
        for parameter in sorted(self.trained, key=lambda p: used_at(p, self.graph)):
            parts: tuple[Part, ...] = ("all",)
            if by_rows and len(parameter.shape) == 2 and parameter.touched <= ROWS_MOST:
                tied = parameter.head_ready >= 0
                parts = (
                    ("rows",) if not tied else ("head", "rows") if parameter.touched <= HEADS_MOST else parts
                )
            for part in parts:
                name = parameter.name if part == "all" else f"{parameter.name} ({part})"
                transfers.append(
                    PlannedTransfer(name=name, pieces=(whole(parameter),), priority=len(transfers), part=part)
                )
        return Plan(
            name="first use", graph=self.graph.name, ranks=self.ranks, update="on-arrival",
            chunk_bytes=512 << 10, transfers=tuple(transfers), source="by first use",
        )  # fmt: skip


def whole(parameter: Parameter) -> Piece:
    """All of a parameter."""
    return Piece(parameter.name, 0, math.prod(parameter.shape))


def used_at(parameter: Parameter, graph: Graph) -> int:
    """Its first use; after everything if nothing uses it."""
    return parameter.first_use if parameter.first_use >= 0 else len(graph.operations)
