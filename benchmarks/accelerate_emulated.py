"""Emulated models of `benchmarks/accelerate.py`: layers that sleep, and the tables that language models really look up in.

A tied table is real: its rows are looked up, the lookup's gradient is PyTorch's own, and the output layer, which sleeps,
has a gradient for all of it. It has the real model's rows, and is as narrow as its share of the scaled bytes asks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path

import numpy as np
from prediction_emulated import FORWARD, Layer, layers_of

from hemiola.core.graph import Graph

__all__ = ["TOKENS", "Shape", "Tied", "shape_of", "words"]

TOKENS = 8192
"""Looked up per rank and iteration: eight sequences of 1,024."""
_BATCHES = 16
"""That are drawn beforehand and come again and again: by each its rows are others."""


@dataclass(frozen=True)
class Tied:
    """A table that is the output layer's weight too.

    Attributes:
        rows, width: of its single precision numbers.
        forward_s, backward_s: of the output layer.
    """

    rows: int
    width: int
    forward_s: float
    backward_s: float

    @property
    def size_bytes(self) -> int:
        """Of its gradient."""
        return 4 * self.rows * self.width


@dataclass(frozen=True)
class Shape:
    """A model's layers in the order of their use; `tied` is looked up in before the first, and multiplied with after the last."""

    layers: tuple[Layer, ...]
    tied: Tied | None = None

    @property
    def size_bytes(self) -> int:
        """Of all gradients."""
        return sum(layer.size_bytes for layer in self.layers) + (self.tied.size_bytes if self.tied else 0)

    def write(self, path: Path) -> None:
        """For the ranks to read."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Shape:
        """What `write` wrote."""
        found = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            tuple(Layer(**layer) for layer in found["layers"]), found["tied"] and Tied(**found["tied"])
        )


def shape_of(graph: Graph, forward_s: float, size_bytes: float) -> Shape:
    """A real model's, scaled to so many bytes of gradients; time by share of FLOP, backward twice."""
    table = next((p for p in graph.parameters if p.aliases), None)
    scale = size_bytes / sum(p.size_bytes for p in graph.parameters if p.gradient_ready >= 0)
    if table is None:
        return Shape(_scaled(layers_of(graph, forward_s), scale))
    modules = [graph.modules.index(name.rpartition(".")[0]) for name in table.aliases]
    own = graph.operations.phase == FORWARD
    flop = graph.operations.flop[own]
    share = float(flop[np.isin(graph.operations.module[own], modules)].sum() / flop.sum())
    others = tuple(p for p in graph.parameters if p is not table)
    layers = layers_of(replace(graph, parameters=others), forward_s * (1 - share))
    rows, width = table.shape
    tied = Tied(rows, max(1, round(width * scale)), forward_s * share, 2 * forward_s * share)
    return Shape(_scaled(layers, scale), tied)


def _scaled(layers: list[Layer], scale: float) -> tuple[Layer, ...]:
    return tuple(
        replace(layer, size_bytes=max(4, int(layer.size_bytes * scale) // 4 * 4)) for layer in layers
    )


def words(vocabulary: int, count: int, seed: int) -> Iterator[np.ndarray]:
    """Batches of so many words each, by Zipf's law: the r-th most frequent one comes with a frequency of 1/r."""
    source = np.random.default_rng(seed)
    chances = 1 / np.arange(1, vocabulary + 1)
    chances /= chances.sum()
    names = np.random.default_rng(0).permutation(vocabulary)  # everywhere; frequent ones are no neighbours
    return cycle([names[source.choice(vocabulary, count, p=chances)] for _ in range(_BATCHES)])
