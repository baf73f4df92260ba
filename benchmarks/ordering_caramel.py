"""Caramel's setting: data parallelism by all-reduce, pass after pass. For `benchmarks/ordering.py`.

The passes are applied one after the other: first on a library whose collectives run two at a time in the order of
issue (gloo's costs), as the authors had TensorFlow's; then by priority on Hemiola's transport.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from ordering_models import DEVICE, captured, hardware

from hemiola.core.graph import Graph
from hemiola.core.plan import Plan
from hemiola.core.topology import Topology
from hemiola.core.units import format_bytes
from hemiola.cost.collective.library import GLOO, NCCL, Library
from hemiola.cost.operations import operation_seconds
from hemiola.cost.parallelism import DDP
from hemiola.cost.prediction import PredictionOptions
from hemiola.plan.advice import make_plan
from hemiola.plan.baselines import Fifo
from hemiola.plan.bytescheduler import ByteScheduler
from hemiola.plan.caramel import BATCHES, MIB, PIECES, batched, extended, split, widened, with_primitives
from hemiola.plan.p3 import P3
from hemiola.plan.planner import planned
from hemiola.plan.problem import PlanProblem

__all__ = ["BALANCED", "HOSTS", "ONE_BY_ONE", "PASSES", "RATES", "Compared", "compared"]

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
    found[ONE_BY_ONE] = serial.predict(planned(serial, Fifo())).iteration_s
    found["overlapped"] = usual.predict(planned(usual, Fifo())).iteration_s
    issued, urgent = _on(problem, wide), PlanProblem(wide, problem.hardware, problem.topology, problem.ranks)
    plan = planned(issued, Fifo())
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
        "one by one, NCCL": quick.predict(planned(quick, Fifo())).iteration_s,
        "DDP": ddp[0],
        "DDP, best buckets": min(ddp),
        "fifo": problem.predict(planned(problem, Fifo())).iteration_s,
        "P3": problem.predict(planned(problem, P3())).iteration_s,
        "ByteScheduler": problem.predict(planned(problem, ByteScheduler())).iteration_s,
    }
