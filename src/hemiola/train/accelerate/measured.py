"""A measured iteration as the graph, hardware and topology that predictions are made from.

One operation lies between two moments that matter: a parameter's first use, a gradient's readiness. Its
time is the measured one, so neither FLOP nor a calibration is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np
from torch import nn

from hemiola.core.graph import KINDS, PHASES, Graph, Operations, Parameter, Signature
from hemiola.core.hardware import KindEfficiency, Hardware, PhaseCost
from hemiola.core.topology import Topology
from hemiola.cost.prediction import PredictionOptions
from hemiola.cost.prediction.estimates import QUARTILE
from hemiola.cost.prediction.uncertainty import expected_maximum
from hemiola.plan.problem import PlanProblem
from hemiola.train.accelerate.probe import RankLinks
from hemiola.train.accelerate.processors import Cores
from hemiola.train.accelerate.profile import MeasuredIteration

__all__ = ["mean_of", "measured_graph", "problem_of"]

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
