"""No exchange: one rank alone, or ranks that know nothing of each other."""

from __future__ import annotations

from dataclasses import dataclass

from hemiola.core.graph import Graph
from hemiola.cost.parallelism.parallelism import Device, Parallelism, Transfer

__all__ = ["NoExchange"]


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
