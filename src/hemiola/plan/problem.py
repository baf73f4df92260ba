"""What a plan is made for, as one value that planners ask for predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola._moved import renamed
from hemiola.core.graph import Graph, Parameter
from hemiola.core.hardware import Hardware
from hemiola.core.plan import ROWS_MOST, Part, Piece, Plan, PlannedTransfer
from hemiola.core.topology import Topology
from hemiola.cost.collective.library import HEMIOLA, Cost, collective_cost
from hemiola.cost.operations import operation_seconds
from hemiola.cost.parallelism import DDP, Parallelism, Planned
from hemiola.cost.places import RankPlaces, place_ranks
from hemiola.cost.prediction import USUAL, Prediction, PredictionOptions, predict

__all__ = ["PlanProblem", "sliced", "used_at", "whole"]

__getattr__ = renamed(__name__)

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
    _known: dict[Parallelism, Prediction] = field(default_factory=dict, init=False, repr=False)

    def predict(self, plan: Plan) -> Prediction:
        """The iteration by this plan; the same plan is executed once, whatever it says of itself."""
        return self.predict_parallelism(Planned(msgspec.structs.replace(plan, changes=(), source="")))

    def predict_parallelism(self, parallelism: Parallelism) -> Prediction:
        """The iteration by any way to exchange."""
        if parallelism not in self._known:
            self._known[parallelism] = predict(
                self.graph, self.hardware, self.topology, self.ranks, parallelism,
                placement=self.placement, options=self.options, seconds=self.seconds,
            )  # fmt: skip
        return self._known[parallelism]

    @cached_property
    def compute_s(self) -> NDArray[np.float64]:
        """What each operation computes."""
        return operation_seconds(self.graph, self.hardware).seconds if self.seconds is None else self.seconds

    def following(self, plan: Plan) -> PlanProblem:
        """The same with the graph's operations in the order of a plan; not to be asked about plans with an order."""
        order = list(plan.operation_order)
        if not order:
            return self
        seconds = None if self.seconds is None else self.seconds[order]
        return replace(self, graph=self.graph.reordered(order), seconds=seconds)

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


def sliced(problem: PlanProblem, plan: Plan, elements: Callable[[Parameter], int]) -> Plan:
    """Every parameter by itself in slices of equal size, by first use, and updated on arrival; parts of tables stay as they are.

    Args:
        elements: the most in a slice of a parameter.
    """
    own = problem.following(plan)
    known, place = own.by_name, {parameter.name: number for number, parameter in enumerate(own.trained)}
    found: list[tuple[tuple[int, int], PlannedTransfer]] = []
    for transfer in plan.transfers:
        for piece in transfer.pieces:
            parameter = known[piece.parameter]
            urgency = used_at(parameter, own.graph), place.get(parameter.name, -1)
            pieces = _slices(piece, elements(parameter)) if transfer.part == "all" else ()
            apart = [PlannedTransfer(name=piece.parameter, pieces=(one,)) for one in pieces] or [transfer]
            found += [(urgency, one) for one in apart]
    return msgspec.structs.replace(plan, update="on-arrival", transfers=tuple(_numbered(found)))


def _numbered(found: list[tuple[tuple[int, int], PlannedTransfer]]) -> Iterator[PlannedTransfer]:
    """By urgency, then by place in the parameter; slices get numbers behind their names."""
    count: dict[str, int] = {}
    for priority, (_, transfer) in enumerate(sorted(found, key=lambda f: (f[0], f[1].pieces[0].start))):
        name = transfer.name
        if transfer.part == "all":
            number = count[name] = count.get(name, -1) + 1
            name = f"{name} [{number}]"
        yield msgspec.structs.replace(transfer, name=name, priority=priority)


def _slices(piece: Piece, elements: int) -> Iterator[Piece]:
    for start in range(piece.start, piece.stop, elements):
        yield Piece(piece.parameter, start, min(start + elements, piece.stop))
