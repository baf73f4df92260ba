"""A model of equal layers, and a GPU that is as fast as its memory."""

from __future__ import annotations

import numpy as np
from tiny_graphs import device, layers

from hemiola.core.graph import Graph
from hemiola.core.hardware import Hardware

LAYERS = 12


def model(layer_bytes: int = 40_000_000, seconds: float = 0.01) -> Graph:
    """Equal layers whose forward reads as many bytes as memory gives in `seconds`, backward twice that."""
    graph, _ = layers([layer_bytes] * LAYERS, [1] * LAYERS, [1] * LAYERS, blocks=True)
    work = np.array([seconds] * LAYERS + [2 * seconds] * LAYERS + [0.0])
    graph.operations.read_bytes[:] = work * 1e12
    graph.operations.written_bytes[:] = 0
    graph.operations.flop[:] = 0
    return graph


def gpu(name: str = "one", rate: float = 1e12) -> Hardware:
    return device(name=name, memory_bytes_per_s=rate)
