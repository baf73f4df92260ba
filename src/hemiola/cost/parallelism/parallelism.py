"""What a parallelism is (data parallel, sharded, parameter servers): which tensors a graph's ranks exchange, when each is ready and who needs it.

A parallelism knows the graph's order, not time: how long a transfer takes is `collectives`', and when it
happens the prediction's answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from hemiola.core.graph import PHASES, Graph

__all__ = ["Device", "Parallelism", "Transfer", "first_of_phase"]

Device = Literal["cpu", "gpu"]
"""What computes: a GPU's streams run beside the host's thread, a CPU's collectives may block it."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One tensor (a bucket, a unit, a parameter) that ranks exchange in an iteration.

    Attributes:
        name: what to call it ("bucket 0").
        collective: "all-reduce", "all-gather", "reduce-scatter", "push" or "pull".
        size_bytes: of the whole tensor: what is reduced, what is gathered, what a worker pushes.
        parameters: indices into the graph's parameters.
        after: the operation whose end makes it ready; -1 for the iteration's start.
        before: the operation that needs it; the number of operations for the iteration's end, -1 for nobody.
        next_iteration: whether `before` belongs to the next iteration.
        pack_bytes, unpack_bytes: copied by the rank's own computation before it is sent, and after.
        follows: the transfer (index) that has to be complete on all ranks first; -1 for none.
        server: the parameter server it goes to or comes from; -1 for a collective.
        priority: the lowest goes first and pauses others, where the parallelism is preemptive.
        algorithm: that it is to be done by; "" for the library's choice.
        completes: the parameters that can be updated once it is there, where that is the rank's work on arrival.
    """

    name: str
    collective: str
    size_bytes: float
    parameters: tuple[int, ...]
    after: int
    before: int
    next_iteration: bool = False
    pack_bytes: float = 0.0
    unpack_bytes: float = 0.0
    follows: int = -1
    server: int = -1
    priority: int = 0
    algorithm: str = ""
    completes: tuple[int, ...] = ()


class Parallelism(ABC):
    """How ranks keep their parameters equal. A value: frozen, compared by its fields."""

    preemptive: ClassVar[bool] = False
    """Whether a transfer of lower priority number pauses others on its links."""
    library: ClassVar[str] = ""
    """The collective library that it needs; "" for PyTorch's choice."""

    @abstractmethod
    def transfers(self, graph: Graph, ranks: int, device: Device = "gpu") -> tuple[Transfer, ...]:
        """What the ranks exchange in one iteration, in the order in which it is issued.

        Raises:
            GraphError: the graph cannot be trained this way.
        """

    @abstractmethod
    def memory_bytes(self, graph: Graph, ranks: int) -> float:
        """Most bytes that one rank holds at once: parameters, gradients, optimizer, activations, buffers."""

    @property
    @abstractmethod
    def label(self) -> str:
        """As it is written on the command line; `parse_parallelism` reads it back."""

    @property
    def updates_on_arrival(self) -> bool:
        """Whether what a transfer brings is applied by the rank when it needs it, and not by the optimizer's operations."""
        return False

    def optimizer_share(self, ranks: int) -> float:
        """How much of the optimizer's work each rank does."""
        return 1.0


def first_of_phase(graph: Graph, phase: str) -> int:
    """The first operation of a phase, or of what comes after it where the graph has none of it."""
    number = PHASES.index(phase)
    later = np.flatnonzero(graph.operations.phase >= number)
    return int(later[0]) if later.size else len(graph.operations)
