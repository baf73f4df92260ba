"""A measured iteration as the graph, hardware and topology that predictions are made from.

One operation lies between two moments that matter: a parameter's first use, a gradient's readiness. Its
time is the measured one, so neither FLOP nor a calibration is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, median_low
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from hemiola.core.errors import HemiolaError
from hemiola.core.graph import KINDS, PHASES, Graph, Operations, Parameter, Signature
from hemiola.core.hardware import Hardware, KindEfficiency, PhaseCost
from hemiola.core.plan import Plan
from hemiola.core.topology import Topology
from hemiola.core.units import format_duration
from hemiola.cost.prediction import PredictionOptions
from hemiola.cost.prediction.setting import QUARTILE
from hemiola.cost.prediction.uncertainty import expected_maximum
from hemiola.plan.problem import PlanProblem
from hemiola.train.accelerate.probe import Cores, RankLinks
from hemiola.train.accelerate.profile import MeasuredIteration

__all__ = ["AutoPlan", "IterationWork", "autoplan", "change", "mean_of", "measured_graph", "problem_of"]


_FRAME = 1514 / 1448
"""A frame's bytes on the wire per byte that it carries: the link is as much faster than what arrives."""


def mean_of(found: Sequence[MeasuredIteration]) -> MeasuredIteration:
    """The ranks' iterations as one."""

    def mean(rows: list[dict[str, float]]) -> dict[str, float]:
        return {
            name: fmean(row[name] for row in rows) for name in rows[0] if all(name in row for row in rows)
        }

    return MeasuredIteration(
        used_s=mean([m.used_s for m in found]),
        forward_end_s=fmean(m.forward_end_s for m in found),
        ready_s=mean([m.ready_s for m in found]),
        step_start_s=fmean(m.step_start_s for m in found),
        end_s=fmean(m.end_s for m in found),
        busy=fmean(m.busy for m in found),
        head_s=mean([m.head_s for m in found]),
        touched={
            name: np.bitwise_or.reduce([m.touched[name] for m in found])
            for name in found[0].touched
            if all(name in m.touched for m in found)
        },
        computed_s=tuple(max(times) for times in zip(*(m.computed_s for m in found), strict=True)),
        noise=_noise(found),
    )


def _noise(found: Sequence[MeasuredIteration]) -> float:
    """The spread of ranks by themselves with which waiting for the slowest of them takes as long as it did."""
    matched = zip(*(m.computed_s for m in found), strict=True)
    waits = [max(times) / fmean(times) - 1 for times in matched if any(times)]
    return median(waits) * QUARTILE / expected_maximum(len(found)) if waits and len(found) > 1 else 0.0


def measured_graph(
    name: str, measured: MeasuredIteration, parameters: dict[str, nn.Parameter]
) -> tuple[Graph, np.ndarray]:
    """The graph of this iteration, and the seconds of its operations.

    What is not always used counts as used at forward's end, and as ready at backward's.
    Tables count as touched where some rank has touched them in the last iteration.
    """
    used = {
        p: min(measured.used_s.get(p, measured.forward_end_s), measured.forward_end_s) for p in parameters
    }
    last = max(measured.ready_s.values(), default=measured.forward_end_s)
    ready = {p: max(measured.ready_s.get(p, last), measured.forward_end_s) for p in parameters}
    head = {p: max(s, measured.forward_end_s) for p, s in measured.head_s.items() if p in measured.ready_s}
    uses = sorted(set(used.values()))
    readies = sorted({*ready.values(), *head.values()})
    forward = np.diff([0.0, *uses, measured.forward_end_s])  # before the first use, and after each
    backward = np.diff([measured.forward_end_s, *readies])
    step_s = max(measured.end_s - measured.step_start_s, 0.0)
    seconds = np.concatenate([forward, backward, [step_s]])
    counts = (len(forward), len(backward), 1)
    rows = sum(counts)
    operations = Operations(
        name=("measured",) * rows,
        kind=np.full(rows, KINDS.index("other"), dtype=np.int8),
        phase=np.repeat(np.arange(len(PHASES), dtype=np.int8), counts),
        micro_step=np.zeros(rows, dtype=np.int16),
        flop=np.zeros(rows),
        read_bytes=np.zeros(rows),
        written_bytes=np.zeros(rows),
        module=np.zeros(rows, dtype=np.int64),
        forward=np.full(rows, -1),
        signature=np.zeros(rows, dtype=np.int64),
        dep_start=np.concatenate([[0], np.arange(rows)]),
        dep=np.arange(rows - 1),
    )
    place = {moment: number for number, moment in enumerate(uses, start=1)}
    end = {moment: len(forward) + number for number, moment in enumerate(readies)}
    listed = tuple(
        Parameter(
            name=p, module="", shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."),
            size_bytes=tensor.numel() * tensor.element_size(), gradient_bytes=tensor.numel() * tensor.element_size(),
            first_use=place[used[p]], gradient_ready=end[ready[p]],
            head_ready=end[head[p]] if p in head else -1, touched=_share(measured.touched.get(p), tensor),
        )
        for p, tensor in parameters.items()
    )  # fmt: skip
    graph = Graph(name=name, operations=operations, parameters=listed, signatures=(Signature("measured"),))
    return graph.check(), seconds


def _share(touched: np.ndarray | None, table: nn.Parameter) -> float:
    """Of a table's rows: those that some rank has touched."""
    return 1.0 if touched is None else int(np.unpackbits(touched).sum()) / len(table)


def problem_of(
    graph: Graph,
    seconds: np.ndarray,
    links: RankLinks,
    ranks: int,
    cores: Cores,
    noise: float = 0.0,
    computing: float = 0.0,
    sending: float = 0.0,
) -> PlanProblem:
    """What a plan is to be made for. Every rank counts as a host: its rate was measured with all others sending.

    Args:
        noise: of computing, relative: ranks wait for the slowest of them.
        computing, sending: shares of an iteration by a plan in which ranks compute and send.
    """
    hardware = Hardware(
        name="this job", kind="cpu", peak_flop_per_s={"float32": 1e12}, memory_bytes_per_s=2 * cores.copied_bytes_per_s,
        memory_bytes=1e15, phases={phase: PhaseCost(operation_s=0.0, view_s=0.0) for phase in PHASES},
        efficiencies={kind: KindEfficiency(compute=1.0, memory=1.0) for kind in KINDS if kind != "view"},
        cores=cores.cores, threads_per_rank=cores.threads,
        collectives=(links.cost("hemiola", ranks, computing, sending), links.cost("gloo", ranks)),
        measured_on="the first iterations", noise=noise,
    )  # fmt: skip
    topology = Topology.flat(hosts=ranks, gpus_per_host=1, nic_bytes_per_s=links.bytes_per_s * _FRAME)
    return PlanProblem(graph, hardware, topology, ranks, options=PredictionOptions(), seconds=seconds)


# How much an iteration does: times are compared only where it was the same.


class IterationWork(NamedTuple):
    """Of one iteration: forwards that a backward may follow, how many of them are exchanged, and elements that they are given."""

    forwards: int = 0
    exchanged: int = 0
    elements: int = 0

    def more(self, syncs: bool, given: Any) -> IterationWork:
        """With another forward."""
        return IterationWork(
            self.forwards + 1, self.exchanged + bool(syncs), self.elements + _elements(given)
        )


def _elements(given: Any, depth: int = 5) -> int:
    """Of all tensors in it, so deep; whatever it holds beside them takes next to no time."""
    if isinstance(given, Tensor):
        return int(given.numel())
    if depth == 0 or isinstance(given, (int, float, str)):
        return 0
    if isinstance(given, Mapping):
        given = list(given.values())
    return sum(_elements(each, depth - 1) for each in given) if isinstance(given, (list, tuple)) else 0


_WORDS = ("{} forwards", "{} exchanges of gradients", "{:,} elements of input")


def change(before: Sequence[IterationWork], now: Sequence[IterationWork]) -> str:
    """What usual iterations do otherwise than those before, in words; "" where they do the same.

    Where batches are of many sizes, the usual one of each is among those of the other.
    """
    if not before or not now:
        return ""
    for kind, words in enumerate(_WORDS):
        old, new = [work[kind] for work in before], [work[kind] for work in now]
        usual, usual_now = median_low(old), median_low(new)
        if not (min(new) <= usual <= max(new) and min(old) <= usual_now <= max(old)):
            return f"an iteration had {words.format(usual)} then and has {words.format(usual_now)} now"
    return ""


# A plan for what was measured of an iteration and of the links, if it is worth it.

_BUCKETS_BYTES = tuple(count << 20 for count in (1, 2, 4, 8))


@dataclass(frozen=True)
class AutoPlan:
    """What is proposed.

    Attributes:
        plan: None if none is worth it.
        bucket_bytes: in which DistributedDataParallel is fastest where no plan is followed; None for its own.
        bucket_s: predicted in those; None where they are DDP's own.
        words: what is predicted, or why there is no plan.
        figures: of `core.plan.Acceleration`.
    """

    plan: Plan | None
    words: str
    bucket_bytes: int | None = None
    bucket_s: float | None = None
    figures: dict[str, float] = field(default_factory=dict)


def autoplan(
    name: str, measured: MeasuredIteration, parameters: dict[str, nn.Parameter], links: RankLinks, ranks: int, cores: Cores,
    min_gain: float,
) -> AutoPlan:  # fmt: skip
    """The best plan for a model of this name, if it is predicted to gain so much.

    Args:
        min_gain: as a share: 0.03 for 1.03 times as fast.
    """
    from hemiola.cost.parallelism import DDP
    from hemiola.plan.advice import make_plan

    graph, seconds = measured_graph(name, measured, parameters)
    problem = problem_of(graph, seconds, links, ranks, cores, measured.noise)
    try:
        advice = make_plan(problem)
        buckets = [(problem.predict_parallelism(DDP(size)).iteration_s, size) for size in _BUCKETS_BYTES]
        computing = max(0.0, 1 - advice.after.breakdown.exposed_s / advice.after.iteration_s)
        sending = max((link.busy for link in advice.after.links), default=0.0)
        mixed = problem_of(graph, seconds, links, ranks, cores, measured.noise, computing, sending)
        after = mixed.predict(advice.plan)
    except HemiolaError as error:
        return AutoPlan(None, f"no plan could be made: {error}")
    before_s, after_s = advice.before.iteration_s, after.iteration_s
    gain = before_s / after_s - 1
    figures = {"predicted_before_s": before_s, "predicted_s": after_s}
    rate = f"{links.bytes_per_s * 8e-6:,.0f} Mbit/s"
    bucket: int | None
    bucket_s, bucket = min(buckets)
    if before_s / bucket_s - 1 <= min_gain:
        bucket_s, bucket = before_s, None
    if gain >= min_gain and advice.after.iteration_s <= bucket_s:  # both beside links as they are alone
        words = (
            f"{format_duration(after_s)} per iteration predicted instead of {format_duration(before_s)} "
            f"({1 + gain:.2f} times as fast) at {rate}"
        )
        figures["bound_s"] = after.transfer_bound_s  # PyTorch decides the order of operations
        return AutoPlan(advice.plan, words, bucket, None if bucket is None else bucket_s, figures)
    if bucket is None:
        return AutoPlan(None, f"no plan gains more than {max(gain, 0.0):.1%} at {rate}", None, None, figures)
    words = (
        f"no plan is faster than DDP in buckets of {bucket >> 20} MiB, which it has now: {format_duration(bucket_s)} "
        f"per iteration predicted instead of {format_duration(before_s)} at {rate}"
    )
    return AutoPlan(None, words, bucket, bucket_s, figures | {"predicted_s": bucket_s})
