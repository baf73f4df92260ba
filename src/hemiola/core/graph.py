"""One training iteration as a dataflow graph: operations, what they depend on, and the parameters.

A graph knows work (FLOP, bytes) and order, not time: how long an operation takes on some hardware
is `cost`'s answer. Columnar inside, since a large model has a hundred thousand operations; rows are
in program order, and an operation depends on earlier rows only, so every graph is acyclic by
construction. Files are `trace`'s business.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import GraphError

__all__ = ["KINDS", "PHASES", "Buffer", "Graph", "Operations", "Parameter", "Signature", "in_order"]


KINDS = (
    "matmul", "convolution", "attention", "normalization", "softmax", "activation", "elementwise",
    "reduction", "pooling", "embedding", "copy", "random", "loss", "view", "other",
)  # fmt: skip
"""What an operation is, for its efficiency on some hardware. A "view" moves nothing and costs only its call."""

PHASES = ("forward", "backward", "optimizer")

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operation's name and the shapes it meets: all that its time depends on.

    Attributes:
        operation: as the framework calls it ("aten.addmm.default").
        arguments: what it was called with, in order; a tensor is {"shape", "dtype", "stride"}, a list
            of tensors a list of those, anything else itself (numbers, text, booleans, None, lists).
            What JSON has no word for is text: "torch.float32", "torch.contiguous_format", any device "device".
        keywords: the same by name.
    """

    operation: str
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trained (or frozen) tensor of the model.

    Attributes:
        name: as the model names it first.
        aliases: its further names, where weights are tied.
        module: path of the module that owns it.
        shape: dimensions.
        dtype: "float32", "bfloat16", ...
        size_bytes: of the parameter.
        gradient_bytes: of its gradient; 0 if it gets none.
        trainable: whether it asks for a gradient.
        first_use: the operation that reads it first in forward (a view of it reads nothing); -1 if none does.
        gradient_ready: the operation after which its gradient is complete (of the last micro-step); -1 if never.
        updated: the optimizer's last operation on it; -1 if none.
        touched: share of its gradient's rows that are expected not to be zero on some rank: an embedding's table has
            a gradient where its rows were looked up. Where `head_ready` is known: that change after it.
        head_ready: of a table that is the output layer's weight too, the operation after which that layer's part of
            its gradient is there; -1 if it has none, or it is not known.
    """

    name: str
    module: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    aliases: tuple[str, ...] = ()
    gradient_bytes: int = 0
    trainable: bool = True
    first_use: int = -1
    gradient_ready: int = -1
    updated: int = -1
    touched: float = 1.0
    head_ready: int = -1


class Buffer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tensor of the model's state that is not trained (running mean, position ids)."""

    name: str
    module: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int


@dataclass(frozen=True, eq=False)
class Operations:
    """One entry per operation in every column, in program order.

    Attributes:
        name: as the framework calls it ("aten.addmm.default").
        kind: index into `KINDS`.
        phase: index into `PHASES`.
        micro_step: 0, 1, ... where gradients are accumulated over several forward and backward passes.
        flop: floating point operations (a multiply-add counts two).
        read_bytes, written_bytes: of its tensors, each once; of a table only the rows that are looked up.
        module: index into the graph's `modules`.
        forward: for a backward operation the forward operation it belongs to; -1 elsewhere.
        signature: index into the graph's `signatures`.
        dep_start, dep: operation i waits for `dep[dep_start[i] : dep_start[i + 1]]`, all below i.
    """

    name: tuple[str, ...]
    kind: NDArray[np.int8]
    phase: NDArray[np.int8]
    micro_step: NDArray[np.int16]
    flop: Floats
    read_bytes: Floats
    written_bytes: Floats
    module: Ints
    forward: Ints
    signature: Ints
    dep_start: Ints
    dep: Ints

    def __len__(self) -> int:
        return len(self.name)

    def dependencies(self, operation: int) -> Ints:
        """The operations that this one waits for."""
        return self.dep[self.dep_start[operation] : self.dep_start[operation + 1]]


@dataclass(frozen=True, eq=False)
class Graph:
    """One training iteration of one rank.

    Attributes:
        name: what to call it.
        operations: forward, backward and optimizer, in program order.
        modules: the paths of the model's modules; "" is the model itself.
        blocks: the paths of the modules that repeat (a transformer's layers): what FSDP2 wraps unless told otherwise.
        signatures: what operations look like, each once.
        parameters: in the model's own order (`named_parameters`).
        buffers: the model's other state.
        samples: sequences or images per iteration and rank, all micro-steps together; 0 if not known.
        saved_bytes: most bytes alive at once beside parameters, buffers, gradients and optimizer state (activations).
        optimizer_bytes: of the optimizer's state.
        source: where it came from and how (framework's version, mixed precision, assumptions).
    """

    name: str
    operations: Operations
    modules: tuple[str, ...] = ("",)
    blocks: tuple[str, ...] = ()
    signatures: tuple[Signature, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    samples: int = 0
    saved_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    source: str = ""

    @property
    def flop(self) -> float:
        """Of the whole iteration."""
        return float(self.operations.flop.sum())

    @property
    def parameter_bytes(self) -> int:
        """Of all parameters, tied ones once."""
        return sum(parameter.size_bytes for parameter in self.parameters)

    def reordered(self, order: Sequence[int]) -> Graph:
        """The same iteration with its operations in another order.

        Args:
            order: the present numbers of the operations, first to last; each after what it waits for.

        Raises:
            GraphError: an operation comes before one that it waits for, or is missing.
        """
        count = len(self.operations)
        if sorted(order) != list(range(count)):
            raise GraphError(
                f"an order of {len(order)} for {count} operations", "name each operation exactly once"
            )
        chosen = np.array(order, dtype=np.int64)
        place = np.empty(count + 1, dtype=np.int64)
        place[chosen], place[-1] = np.arange(count), -1  # -1 stays -1
        old = self.operations
        deps = [place[old.dependencies(i)] for i in order]
        start = np.concatenate([[0], np.cumsum([len(dep) for dep in deps])]).astype(np.int64)
        operations = replace(
            old,
            name=tuple(old.name[i] for i in order),
            dep_start=start,
            dep=np.concatenate(deps) if deps else old.dep,
            forward=place[old.forward[chosen]],
            **{
                column: getattr(old, column)[chosen]
                for column in (
                    "kind", "phase", "micro_step", "flop", "read_bytes", "written_bytes", "module", "signature"
                )
            },
        )  # fmt: skip
        parameters = tuple(
            msgspec.structs.replace(
                p, first_use=int(place[p.first_use]), gradient_ready=int(place[p.gradient_ready]),
                updated=int(place[p.updated]), head_ready=int(place[p.head_ready]),
            )
            for p in self.parameters
        )  # fmt: skip
        return replace(self, operations=operations, parameters=parameters).check()

    def check(self) -> Graph:
        """Return this graph, or refuse it.

        Raises:
            GraphError: naming the operation or parameter that cannot be.
        """
        if strangers := set(self.blocks) - set(self.modules):
            raise GraphError(f"the block {min(strangers)!r} is no module of the graph", "capture it again")
        _check_columns(self)
        _check_dependencies(self)
        _check_parameters(self)
        return self


def _check_columns(graph: Graph) -> None:
    operations = graph.operations
    rules = (
        ("kind", len(KINDS), 0), ("phase", len(PHASES), 0), ("module", len(graph.modules), 0),
        ("signature", len(graph.signatures), 0), ("forward", len(operations), -1), ("micro_step", 1 << 15, 0),
    )  # fmt: skip
    for column, count, least in rules:
        values = getattr(operations, column)
        if len(values) != len(operations):
            raise GraphError(
                f"{column} has {len(values)} entries for {len(operations)} operations", "capture it again"
            )
        bad = np.flatnonzero((values < least) | (values >= count))
        if bad.size:
            i = int(bad[0])
            raise GraphError(
                f"operation {i} ({operations.name[i]}): {column} is {values[i]}, not in {least}..{count - 1}",
                "the file is damaged: capture it again",
            )
    for column in ("flop", "read_bytes", "written_bytes"):
        values = getattr(operations, column)
        bad = np.flatnonzero(~((values >= 0) & np.isfinite(values)))
        if len(values) != len(operations) or bad.size:
            where = f"operation {int(bad[0])}" if bad.size else f"{len(values)} entries"
            raise GraphError(f"{column}: {where} is not a finite number of 0 or more", "capture it again")


def _check_dependencies(graph: Graph) -> None:
    operations = graph.operations
    start, dep = operations.dep_start, operations.dep
    if (
        len(start) != len(operations) + 1
        or start[0] != 0
        or start[-1] != len(dep)
        or (np.diff(start) < 0).any()
    ):
        raise GraphError(
            "the dependencies' offsets do not fit the operations", "the file is damaged: capture it again"
        )
    owner = np.repeat(np.arange(len(operations)), np.diff(start))
    bad = np.flatnonzero((dep < 0) | (dep >= owner))
    if bad.size:
        i = int(bad[0])
        raise GraphError(
            f"operation {int(owner[i])} ({operations.name[int(owner[i])]}) waits for {int(dep[i])}, which is not before it",
            "operations stand in program order: capture it again",
        )


def _check_parameters(graph: Graph) -> None:
    seen: set[str] = set()
    for parameter in graph.parameters:
        for name in (parameter.name, *parameter.aliases):
            if name in seen:
                raise GraphError(
                    f"the parameter {name!r} appears twice", "give every parameter a name of its own"
                )
            seen.add(name)
        if parameter.size_bytes < 0 or parameter.gradient_bytes < 0:
            raise GraphError(f"the parameter {parameter.name!r} has a negative size", "capture it again")
        if not 0 <= parameter.touched <= 1:
            raise GraphError(
                f"the parameter {parameter.name!r}: {parameter.touched} of its rows are touched",
                "give a share between 0 and 1",
            )
        for field in ("first_use", "gradient_ready", "updated", "head_ready"):
            if not -1 <= getattr(parameter, field) < len(graph.operations):
                raise GraphError(
                    f"the parameter {parameter.name!r}: {field} is {getattr(parameter, field)}, not an operation",
                    "capture it again",
                )


# Numbers in an order in which each follows those that it waits for.


def in_order(after: Sequence[Iterable[int]], key: Callable[[int], Any] = lambda number: number) -> list[int]:
    """Numbers, each after those that it has to follow; of those that could be next, the least by key, then by number.

    What is in a circle, or follows one, is left out.

    Args:
        after: by number, which ones it follows.

    Example:
        >>> in_order([[2], [], [1]])
        [1, 2, 0]
    """
    left = [0] * len(after)
    following: list[list[int]] = [[] for _ in after]
    for number, before in enumerate(after):
        for one in before:
            following[one].append(number)
            left[number] += 1
    ready = [(key(number), number) for number, count in enumerate(left) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for one in following[number]:
            left[one] -= 1
            if not left[one]:
                heapq.heappush(ready, (key(one), one))
    return order
