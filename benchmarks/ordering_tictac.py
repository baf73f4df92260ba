"""TicTac's setting: a worker pulls its parameters over one channel while it computes. For `benchmarks/ordering.py`.

The channel's bandwidth is set so that all transfers together take `rho` times the forward pass. In inference
an iteration is that pass; in training the backward pass follows it and takes twice as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean

import numpy as np
from ordering_models import DEVICE, captured, hardware

from hemiola.core.graph import PHASES, Graph
from hemiola.cost.operations import operation_seconds
from hemiola.plan.tictac import OrderEfficiency, ReceiveGraph, efficiency, receive_graph, tac, tic

__all__ = ["BACKWARD", "ORDERS", "RHOS", "Orders", "first_use", "orders", "worker"]

RHOS = (0.5, 1.0, 2.0, 3.0)
SEEDS = 60
WORKERS = 4
BACKWARD = 2.0
"""Of the forward pass' length."""
ORDERS = ("TIC", "TAC", "first use", "reverse")


@dataclass(frozen=True)
class Orders:
    """What the orders of one model make of one ratio.

    Attributes:
        rho: transfers by the forward pass' computation.
        forward_s: that computation.
        random: by seed.
        ordered: by the order's name.
    """

    rho: float
    forward_s: float
    random: tuple[OrderEfficiency, ...]
    ordered: dict[str, OrderEfficiency]

    @property
    def bound(self) -> float:
        """What the best conceivable order would gain over the mean random one, in inference."""
        return self.mean_s / self.random[0].least_s - 1

    @cached_property
    def mean_s(self) -> float:
        """Makespan of the random orders."""
        return mean(one.makespan_s for one in self.random)

    @property
    def efficiency(self) -> float:
        """E of the random orders, their mean."""
        return mean(one.efficiency for one in self.random)

    def gain(self, order: str, backward: float = 0.0) -> float:
        """Throughput over the mean random order's; with `backward` times the forward pass behind either."""
        rest_s = backward * self.forward_s
        return (self.mean_s + rest_s) / (self.ordered[order].makespan_s + rest_s) - 1

    def percentile(self, share: float) -> float:
        """Of the random orders' makespans."""
        return float(np.percentile([one.makespan_s for one in self.random], share))

    def straggling(self, backward: float = 0.0) -> float:
        """How long the first of four workers, each with a random order, waits for the last, as a share of the iteration."""
        rest_s = backward * self.forward_s
        groups = _groups([one.makespan_s + rest_s for one in self.random])
        return mean(1 - min(group) / max(group) for group in groups)


def _groups(values: Sequence[float]) -> list[Sequence[float]]:
    return [values[i : i + WORKERS] for i in range(0, len(values) - WORKERS + 1, WORKERS)]


def orders(name: str, rho: float, device: str = DEVICE) -> Orders:
    """All orders of one model at one ratio, on some GPU."""
    graph = worker(captured(name), rho, device)
    count = len(graph.names)
    first = first_use(graph)
    planned = {"TIC": tic(graph), "TAC": tac(graph), "first use": first, "reverse": first[::-1]}
    random = tuple(
        efficiency(graph, np.random.default_rng(seed).permutation(count).tolist()) for seed in range(SEEDS)
    )
    forward_s = sum(graph.compute_s)
    return Orders(rho, forward_s, random, {name: efficiency(graph, order) for name, order in planned.items()})


def worker(graph: Graph, rho: float, device: str = DEVICE) -> ReceiveGraph:
    """The forward pass and its transfers, as long as `rho` says."""
    seconds = operation_seconds(graph, hardware(device)).seconds
    forward_s = float(seconds[graph.operations.phase == PHASES.index("forward")].sum())
    per_byte_s = rho * forward_s / sum(p.size_bytes for p in graph.parameters if p.first_use >= 0)
    return receive_graph(graph, seconds, [p.size_bytes * per_byte_s for p in graph.parameters])


def first_use(graph: ReceiveGraph) -> tuple[int, ...]:
    """The transfers in the order in which the program reads them."""
    read = [transfer for reads in graph.reads for transfer in reads]
    return tuple(dict.fromkeys(read))
