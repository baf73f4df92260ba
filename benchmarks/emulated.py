"""Models whose computation is a sleep: the parameters and the order of a real one, and times that are known.

What is predicted of them errs by the network's part alone: sleeping frees the processor as a GPU does,
so that neither the machine's noise nor the estimate of operations plays a part.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import cycle
from pathlib import Path
from statistics import median

import numpy as np

from hemiola.core.graph import KINDS, PHASES, Graph, Operations, Parameter, Signature

FORWARD_S = 0.06
LEAST_SLEEP_S = 0.0005
OTHER = KINDS.index("other")
FORWARD, BACKWARD, OPTIMIZER = (PHASES.index(name) for name in ("forward", "backward", "optimizer"))


@dataclass(frozen=True)
class Layer:
    """One layer: its parameters together, and how long it takes."""

    size_bytes: int
    forward_s: float
    backward_s: float


def layers_of(graph: Graph, forward_s: float = FORWARD_S) -> list[Layer]:
    """A layer per module with parameters, in the order of first use; time by its share of FLOP, backward twice.

    Layers too short to be slept are added to the next one.
    """
    operations = graph.operations
    forward = operations.phase == FORWARD
    flop = np.bincount(
        operations.module[forward], weights=operations.flop[forward] + 1.0, minlength=len(graph.modules)
    )
    sizes: dict[str, int] = {}
    for parameter in sorted(graph.parameters, key=lambda p: p.first_use):
        if parameter.gradient_ready >= 0:
            sizes[parameter.module] = sizes.get(parameter.module, 0) + parameter.size_bytes
    shares = np.array([flop[graph.modules.index(module)] for module in sizes])
    shares /= shares.sum()
    layers: list[Layer] = []
    size, share = 0, 0.0
    for own_size, own_share in zip(sizes.values(), shares.tolist(), strict=True):
        size, share = size + own_size, share + own_share
        if share * forward_s >= LEAST_SLEEP_S:
            layers.append(Layer(size, share * forward_s, 2 * share * forward_s))
            size, share = 0, 0.0
    if size:
        layers.append(Layer(size, LEAST_SLEEP_S, 2 * LEAST_SLEEP_S))
    return layers


@cache
def lateness_s() -> float:
    """By how much a sleeping layer is late: timer, waking, autograd. The median of one process with layers of its own."""
    import torch
    from prediction_job import Emulated

    layers, sleep_s = 40, 0.0015
    model = Emulated([(4096, sleep_s, 2 * sleep_s)] * layers)
    late = []
    for _ in range(12):
        start = time.perf_counter()
        model(torch.ones(1, requires_grad=True)).backward()
        late.append((time.perf_counter() - start - 3 * sleep_s * layers) / (2 * layers))
    return median(late)


def emulated_graph(
    name: str, layers: list[Layer], memory_bytes_per_s: float, late_s: float = 0.0
) -> tuple[Graph, np.ndarray]:
    """The graph of such a model, and the seconds of each of its operations.

    Args:
        memory_bytes_per_s: at which autograd adds a gradient to the one that is there (two are read, one is
            written), and at which all are set to zero before the next iteration.
        late_s: by how much each sleep is late.
    """
    count = len(layers)
    copied_s_per_byte = 3 / memory_bytes_per_s
    zeroed_s = sum(layer.size_bytes for layer in layers) / memory_bytes_per_s
    rows = 2 * count + 1
    phase = np.array([FORWARD] * count + [BACKWARD] * count + [OPTIMIZER], dtype=np.int8)
    seconds = np.array(
        [layer.forward_s + late_s for layer in layers]
        + [layer.backward_s + late_s + layer.size_bytes * copied_s_per_byte for layer in reversed(layers)]
        + [zeroed_s]
    )
    operations = Operations(
        name=("sleep",) * rows,
        kind=np.full(rows, OTHER, dtype=np.int8),
        phase=phase,
        micro_step=np.zeros(rows, dtype=np.int16),
        flop=np.zeros(rows),
        read_bytes=np.zeros(rows),
        written_bytes=np.zeros(rows),
        module=np.zeros(rows, dtype=np.int64),
        forward=np.array([-1] * count + list(range(count))[::-1] + [-1]),
        signature=np.zeros(rows, dtype=np.int64),
        dep_start=np.concatenate([[0], np.arange(rows)]),
        dep=np.arange(rows - 1),
    )
    parameters = tuple(
        Parameter(
            name=f"weights.{i}", module="", shape=(layer.size_bytes // 4,), dtype="float32",
            size_bytes=layer.size_bytes, gradient_bytes=layer.size_bytes,
            first_use=i, gradient_ready=2 * count - 1 - i,
        )
        for i, layer in enumerate(layers)
    )  # fmt: skip
    graph = Graph(name=name, operations=operations, parameters=parameters, signatures=(Signature("sleep"),))
    return graph.check(), seconds


# Emulated models of `benchmarks/accelerate.py`: layers that sleep, and the tables that language models
# really look up in.

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
