"""TicTac's ten models: what their table says, and our graphs of the same shapes. For `benchmarks/ordering.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from statistics import mean

import msgspec
import numpy as np

import hemiola
from hemiola.core.graph import PHASES, Graph
from hemiola.core.hardware import Hardware
from hemiola.core.plan import Plan
from hemiola.core.topology import Topology
from hemiola.core.units import format_bytes
from hemiola.cost.collective.library import GLOO, NCCL, Library
from hemiola.cost.operations import load_hardware, operation_seconds
from hemiola.cost.parallelism import DDP
from hemiola.cost.prediction import PredictionOptions
from hemiola.plan.advice import make_plan
from hemiola.plan.baselines import FifoOrder
from hemiola.plan.bytescheduler import ByteScheduler
from hemiola.plan.caramel import BATCHES, MIB, PIECES, batched, extended, split, widened, with_primitives
from hemiola.plan.p3 import P3
from hemiola.plan.planner import planned
from hemiola.plan.problem import PlanProblem
from hemiola.plan.tictac import OrderEfficiency, ReceiveGraph, efficiency, receive_graph, tac, tic

DEVICE, SLOWER = "V100", "T4"
EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "models"


@dataclass(frozen=True)
class Published:
    """A row of TicTac's table 1.

    Attributes:
        function: of examples/models/slim.py.
        tensors, mib: how many parameters the authors counted, and their size in MiB.
        batch: images per worker.
    """

    function: str
    tensors: int
    mib: int
    batch: int


MODELS = {
    "AlexNet v2": Published("alexnet_v2", 16, 192, 512),
    "Inception v1": Published("inception1", 116, 25, 128),
    "Inception v2": Published("inception2", 141, 43, 128),
    "Inception v3": Published("inception3", 196, 104, 32),
    "ResNet-50 v1": Published("resnet50_v1", 108, 97, 32),
    "ResNet-101 v1": Published("resnet101_v1", 210, 170, 64),
    "ResNet-50 v2": Published("resnet50_v2", 125, 97, 64),
    "ResNet-101 v2": Published("resnet101_v2", 244, 170, 32),
    "VGG-16": Published("vgg16", 32, 528, 32),
    "VGG-19": Published("vgg19", 38, 548, 32),
}


@cache
def captured(name: str) -> Graph:
    """One iteration with the table's batch; nothing is computed."""
    import torch

    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    import slim

    model, inputs, loss = getattr(slim, MODELS[name].function)("meta", MODELS[name].batch)
    return hemiola.capture(model, inputs, loss, torch.optim.SGD(model.parameters(), lr=0.1), name=name)


@cache
def hardware(name: str = DEVICE) -> Hardware:
    """The GPU that all of it is computed for; a shipped one by name, or a file."""
    return certain(load_hardware(name))


def certain(given: Hardware) -> Hardware:
    """The same, of which nothing is uncertain: an iteration is executed once, not again for an interval's ends."""
    exact = {kind: msgspec.structs.replace(one, spread=0.0) for kind, one in given.efficiencies.items()}
    return msgspec.structs.replace(given, noise=0.0, efficiencies=exact)


# Caramel's setting: data parallelism by all-reduce, pass after pass. For `benchmarks/ordering.py`.

HOSTS = (2, 8, 16)
BALANCED = "balanced"
RATES = {BALANCED: 0.0, "10 Gbit/s": 1.25e9, "25 Gbit/s": 3.125e9}
"""Of each host's link; balanced: sending takes as long as computing."""
ONE_BY_ONE = "one by one"
PASSES = (ONE_BY_ONE, "overlapped", "widened", "batched", "extended", "by priority", "split", "primitives")
BUCKETS = (1, 2, 5, 10, 25, 50, 100)
FRAMES = 1514 / 1448
"""Bytes on the wire per byte of a tensor."""


@dataclass(frozen=True)
class Compared:
    """Predicted iterations of one model on so many hosts, in seconds.

    Attributes:
        bytes_per_s: of a host's link.
        compute_s: without any communication.
        passes: after each of `PASSES`.
        others: by name.
        sizes: that were chosen, in words.
        bound_s: no order of the same work takes less.
    """

    bytes_per_s: float
    compute_s: float
    passes: dict[str, float]
    others: dict[str, float]
    bound_s: float
    sizes: dict[str, str] = field(default_factory=dict)

    @property
    def best_s(self) -> float:
        """By the plan that Hemiola makes."""
        return self.others["plan"]


def compared(name: str, hosts: int, rate: str, device: str = DEVICE) -> Compared:
    """One case: passes, other systems, our plan, the bound."""
    graph, chip = captured(name), hardware(device)
    seconds = operation_seconds(graph, chip).seconds
    compute_s, size = float(seconds.sum()), sum(p.gradient_bytes for p in graph.parameters)
    bytes_per_s = RATES[rate] or 2 * (hosts - 1) / hosts * size * FRAMES / compute_s
    flat = Topology.flat(hosts=hosts, gpus_per_host=1, nic_bytes_per_s=bytes_per_s)
    problem = PlanProblem(graph, chip, flat, hosts)
    advice = make_plan(problem)
    passes, sizes = _passes(problem, graph.reordered(widened(graph, seconds)))
    others = _others(problem) | {"plan": advice.after.iteration_s}
    return Compared(bytes_per_s, compute_s, passes, others, advice.bound_s, sizes)


def _passes(problem: PlanProblem, wide: Graph) -> tuple[dict[str, float], dict[str, str]]:
    found: dict[str, float] = {}
    serial, usual = _on(problem, overlap=False), _on(problem)
    found[ONE_BY_ONE] = serial.predict(planned(serial, FifoOrder())).iteration_s
    found["overlapped"] = usual.predict(planned(usual, FifoOrder())).iteration_s
    issued, urgent = _on(problem, wide), PlanProblem(wide, problem.hardware, problem.topology, problem.ranks)
    plan = planned(issued, FifoOrder())
    found["widened"] = issued.predict(plan).iteration_s
    plan, batch = _best(
        issued, plan, ((limit, batched(issued, plan, limit)) for limit in (*BATCHES, 64 * MIB))
    )
    found["batched"] = issued.predict(plan).iteration_s
    found["extended"] = issued.predict(msgspec.structs.replace(plan, update="on-arrival")).iteration_s
    plan = extended(urgent, plan)
    found["by priority"] = urgent.predict(plan).iteration_s
    plan, piece = _best(urgent, plan, ((limit, split(urgent, plan, limit)) for limit in PIECES))
    found["split"] = urgent.predict(plan).iteration_s
    found["primitives"] = urgent.predict(with_primitives(urgent, plan)).iteration_s
    return found, {"batched": batch, "split": piece}


def _on(
    problem: PlanProblem, graph: Graph | None = None, overlap: bool = True, library: Library = GLOO
) -> PlanProblem:
    """The same on a library's collectives, which run in the order of issue."""
    options = PredictionOptions(overlap=overlap, library=library)
    return PlanProblem(
        graph or problem.graph, problem.hardware, problem.topology, problem.ranks, options=options
    )


def _best(problem: PlanProblem, plan: Plan, candidates: Iterable[tuple[int, Plan]]) -> tuple[Plan, str]:
    """The candidate with the shortest iteration, and its size; the plan as it was where none is shorter."""
    best, size = plan, "none"
    for limit, candidate in candidates:
        if problem.predict(candidate).iteration_s < 0.999 * problem.predict(best).iteration_s:
            best, size = candidate, format_bytes(limit)
    return best, size


def _others(problem: PlanProblem) -> dict[str, float]:
    """DistributedDataParallel on NCCL, and the published schedulers on Hemiola's transport."""
    buckets = [DDP(), *(DDP(bucket_bytes=size * MIB) for size in BUCKETS)]
    ddp = [problem.predict_parallelism(parallelism).iteration_s for parallelism in buckets]
    quick = _on(problem, overlap=False, library=NCCL)
    return {
        "one by one, NCCL": quick.predict(planned(quick, FifoOrder())).iteration_s,
        "DDP": ddp[0],
        "DDP, best buckets": min(ddp),
        "fifo": problem.predict(planned(problem, FifoOrder())).iteration_s,
        "P3": problem.predict(planned(problem, P3())).iteration_s,
        "ByteScheduler": problem.predict(planned(problem, ByteScheduler())).iteration_s,
    }


# TicTac's setting: a worker pulls its parameters over one channel while it computes. For
# `benchmarks/ordering.py`.

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
