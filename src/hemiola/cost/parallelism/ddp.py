"""PyTorch's DistributedDataParallel: gradients in buckets, all-reduced while backward goes on.

Read from torch 2.13 (`torch/nn/parallel/distributed.py`, `torch/csrc/distributed/c10d/reducer.cpp`):

1. In the first iteration all parameters are one bucket. It is rebuilt then: parameters in the order
   in which their gradients became ready, per dtype, a bucket closed as soon as it reaches its limit;
   the first limit is 1 MiB, the others 25 MiB. A `bucket_cap_mb` of the user's is the first limit too.
2. With `find_unused_parameters` nothing is rebuilt: buckets go over the parameters in the model's own
   order, the first (the model's first parameters) with the small limit, and are then reversed.
3. Bucket i is sent only after bucket i - 1 was, so that all ranks send in one order.
4. At the end of backward the reducer waits for the buckets in order and copies each back into the
   gradients, unless the gradients are views of the buckets.

A parameter without a gradient makes plain DDP fail in its second iteration, so `None` for
`find_unused_parameters` means: as needed. Under gradient accumulation only the last micro-step
exchanges (`no_sync`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hemiola.core.errors import GraphError
from hemiola.core.graph import Graph, Parameter
from hemiola.core.plan import Plan, PlannedTransfer
from hemiola.cost.parallelism.parallelism import Device, Parallelism, Transfer, first_of_phase

__all__ = ["DDP", "PLAIN_DDP", "NoExchange", "Planned", "assign_buckets"]


MIB = 2**20
FIRST_BUCKET_BYTES = MIB
BUCKET_BYTES = 25 * MIB


@dataclass(frozen=True)
class DDP(Parallelism):
    """Data parallelism with bucketed all-reduce.

    Attributes:
        bucket_bytes: a bucket is closed once it holds so much; None for PyTorch's 25 MiB.
        first_bucket_bytes: of the first bucket; None for 1 MiB beside PyTorch's own size, else `bucket_bytes`.
        gradient_as_bucket_view: gradients live in the buckets, so that nothing is copied.
        find_unused_parameters: as in PyTorch; None for only where a parameter gets no gradient.
    """

    bucket_bytes: float | None = None
    first_bucket_bytes: float | None = None
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool | None = None

    @property
    def label(self) -> str:
        """For instance "ddp:bucket=2097152B"."""
        parts = [
            f"{key}={value:.0f}B"
            for key, value in (("bucket", self.bucket_bytes), ("first", self.first_bucket_bytes))
            if value is not None
        ]
        parts += ["view=yes"] if self.gradient_as_bucket_view else []
        if self.find_unused_parameters is not None:
            parts.append(f"unused={'yes' if self.find_unused_parameters else 'no'}")
        return ":".join(filter(None, ("ddp", ",".join(parts))))

    @property
    def limits(self) -> tuple[float, float]:
        """Bytes at which the first bucket is closed, and every other."""
        others = BUCKET_BYTES if self.bucket_bytes is None else self.bucket_bytes
        first = FIRST_BUCKET_BYTES if self.bucket_bytes is None else others
        return (first if self.first_bucket_bytes is None else self.first_bucket_bytes), others

    def buckets(self, graph: Graph) -> list[list[int]]:
        """Indices of parameters per bucket, in the order in which the buckets are sent.

        Raises:
            GraphError: a parameter gets no gradient, and `find_unused_parameters` is False.
        """
        parameters = graph.parameters
        trained = [i for i, parameter in enumerate(parameters) if parameter.trainable]
        unused = [i for i in trained if parameters[i].gradient_ready < 0]
        if unused and self.find_unused_parameters is False:
            raise GraphError(
                f"the parameter {parameters[unused[0]].name!r} gets no gradient, and DDP would stop at it",
                "give find_unused_parameters=True (ddp:unused=yes), or freeze the parameter",
            )
        rebuilt = not (unused if self.find_unused_parameters is None else self.find_unused_parameters)
        if rebuilt:
            trained.sort(key=lambda i: parameters[i].gradient_ready)
        sized = [(i, parameters[i].dtype, parameters[i].size_bytes) for i in trained]
        found = assign_buckets(sized, self.limits)
        return found if rebuilt else sorted(found, key=min)[::-1]

    def transfers(self, graph: Graph, ranks: int, device: Device = "gpu") -> tuple[Transfer, ...]:
        """One all-reduce per bucket, all needed before the optimizer's first operation, or when they are ready if that is later."""
        if ranks < 2:
            return ()
        optimizer = first_of_phase(graph, "optimizer")
        ready = first_of_phase(graph, "backward") - 1
        found = []
        for number, bucket in enumerate(self.buckets(graph)):
            ready = max(ready, *(graph.parameters[i].gradient_ready for i in bucket))
            size = float(sum(graph.parameters[i].size_bytes for i in bucket))
            copied = 0.0 if self.gradient_as_bucket_view else size
            found.append(
                Transfer(
                    f"bucket {number}",
                    "all-reduce",
                    size,
                    tuple(bucket),
                    ready,
                    max(optimizer, ready + 1),
                    pack_bytes=copied,
                    unpack_bytes=copied,
                )
            )
        return tuple(found)

    def memory_bytes(self, graph: Graph, ranks: int) -> float:
        """Everything on every rank; buckets beside the gradients unless these are views of them."""
        trained = sum(p.size_bytes for p in graph.parameters if p.trainable)
        buckets = 0 if self.gradient_as_bucket_view or ranks < 2 else trained
        buffers = sum(buffer.size_bytes for buffer in graph.buffers)
        own = graph.parameter_bytes + trained + buckets + buffers
        return own + graph.optimizer_bytes + graph.saved_bytes


PLAIN_DDP = DDP()
"""As PyTorch has it unless told otherwise."""


def assign_buckets(parameters: list[tuple[int, str, int]], limits: tuple[float, ...]) -> list[list[int]]:
    """PyTorch's `compute_bucket_assignment_by_size`: (index, dtype, bytes) in order, limits in order.

    Per dtype a bucket is closed once it reaches its limit; the last limit holds for all further ones.
    What is left open at the end is appended.
    """
    open_: dict[str, list[int]] = {}
    size: dict[str, float] = {}
    closed: dict[str, int] = {}
    found = []
    for index, dtype, size_bytes in parameters:
        bucket = open_.setdefault(dtype, [])
        bucket.append(index)
        size[dtype] = size.get(dtype, 0.0) + size_bytes
        if size[dtype] >= limits[min(closed.get(dtype, 0), len(limits) - 1)]:
            found.append(bucket)
            closed[dtype] = closed.get(dtype, 0) + 1
            del open_[dtype], size[dtype]
    return found + list(open_.values())


# No exchange: one rank alone, or ranks that know nothing of each other.


@dataclass(frozen=True)
class NoExchange(Parallelism):
    """Nothing is sent."""

    @property
    def label(self) -> str:
        """Just "none"."""
        return "none"

    def transfers(self, graph: Graph, ranks: int, device: Device = "gpu") -> tuple[Transfer, ...]:
        """None at all."""
        return ()

    def memory_bytes(self, graph: Graph, ranks: int) -> float:
        """Parameters, gradients, optimizer, activations, buffers."""
        gradients = sum(p.gradient_bytes for p in graph.parameters)
        buffers = sum(buffer.size_bytes for buffer in graph.buffers)
        return graph.parameter_bytes + gradients + buffers + graph.optimizer_bytes + graph.saved_bytes


# Data parallelism by a plan: gradients in the plan's pieces, by its priorities, across the iteration's
# end.


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
