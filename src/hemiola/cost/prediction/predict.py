"""Predicts what one training iteration takes somewhere: DeepProphet's offline prediction.

"Offline analysis of the dataflow graph with given hardware" (Xia, HKUST 2019: abstract only; text and code
are not public), so everything below the idea is ours:

1. every operation gets its time on the hardware (`cost.operations`);
2. the parallelism says what is exchanged, when it is ready and who needs it (`cost.parallelism`);
3. collectives become latencies and bytes on the placement's links (`cost.collective.library`);
4. all of it is executed for several iterations on shared links and cores (`kernels.executor`);
5. the steady iteration is read: its length, its parts, its critical path (`account`).
"""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import GraphError
from hemiola.core.graph import Graph
from hemiola.core.hardware import Hardware
from hemiola.core.plan import Plan
from hemiola.core.topology import Topology
from hemiola.cost.parallelism import PLAIN_DDP, Parallelism, Planned
from hemiola.cost.places import place_ranks
from hemiola.cost.prediction import account
from hemiola.cost.prediction.account import bound_s, transfer_bound_s
from hemiola.cost.prediction.lower import CostFactors
from hemiola.cost.prediction.setting import USUAL, PredictionOptions, Setting, estimate, exact
from hemiola.cost.prediction.steady import SteadyRun, run_steady
from hemiola.cost.prediction.timeline import predicted_timeline
from hemiola.cost.prediction.uncertainty import interval_scales, straggling
from hemiola.cost.prediction.value import Prediction

__all__ = ["predict"]


def predict(
    graph: Graph,
    hardware: Hardware,
    topology: Topology,
    ranks: int,
    parallelism: Parallelism = PLAIN_DDP,
    *,
    placement: tuple[int, ...] | None = None,
    options: PredictionOptions = USUAL,
    seconds: NDArray[np.float64] | None = None,
    plan: Plan | None = None,
) -> Prediction:
    """What one iteration takes on so many ranks.

    Args:
        graph: one rank's iteration.
        hardware: what each rank computes on.
        topology: where the ranks are; each takes a GPU (a slot) of a host.
        parallelism: how they exchange.
        placement: ranks per host in order; None fills the hosts in order.
        options: overlap, straggling, symmetry, shared cores.
        seconds: of every operation, in place of the hardware's estimate (emulated computation).
        plan: by which they exchange, in place of `parallelism`.

    Raises:
        GraphError: an empty graph, or one that the parallelism cannot train.
        InputError: more ranks than GPUs, a placement that does not fit.
        PlanError: the plan is not this graph's.
        TopologyError: a link without bandwidth.
        HardwareError: hardware that cannot be.
    """
    if plan is not None:
        parallelism = Planned(plan)
    if isinstance(parallelism, Planned) and parallelism.plan.operation_order:
        order = list(parallelism.plan.verify(graph).operation_order)
        graph, seconds = graph.reordered(order), None if seconds is None else seconds[order]
        parallelism = Planned(msgspec.structs.replace(parallelism.plan, operation_order=()))
    if not len(graph.operations):
        raise GraphError(f"the graph {graph.name!r} has no operations", "capture it again")
    topology.check()
    hardware.check()
    place = place_ranks(topology, ranks, placement, hardware)
    estimates = estimate(graph, hardware) if seconds is None else exact(seconds)
    setting = Setting(graph, hardware, place, parallelism, estimates, options)
    expected = CostFactors(straggling(setting))
    run = run_steady(setting, expected)
    low_s, high_s = _interval(setting, expected, run.iteration_s)
    alone_s = run.iteration_s if expected == CostFactors() else run_steady(setting, CostFactors()).iteration_s
    return _read(setting, run, low_s, high_s, max(0.0, run.iteration_s - alone_s))


def _interval(setting: Setting, expected: CostFactors, middle_s: float) -> tuple[float, float]:
    scales = interval_scales(setting, expected)
    if scales is None:
        return middle_s, middle_s
    ends = [run_steady(setting, scale).iteration_s for scale in scales]
    return min(*ends, middle_s), max(*ends, middle_s)


def _read(setting: Setting, run: SteadyRun, low_s: float, high_s: float, straggling_s: float) -> Prediction:
    parts, gaps = account.breakdown(run)  # gaps: of communication alone
    place, graph = setting.place, setting.graph
    links = account.link_uses(setting, run.iteration_s)
    length_s = max(run.iteration_s, 1e-300)
    likely = (low_s, high_s) if high_s > low_s else None
    notes = setting.notes
    if not run.settled:
        notes += ("iterations do not repeat exactly: the mean of several is given",)
    return Prediction(
        name=graph.name,
        hardware=setting.hardware.name,
        topology=place.topology.name,
        parallelism=setting.parallelism.label,
        ranks=place.ranks,
        hosts=len(place.counts),
        iteration_s=run.iteration_s,
        low_s=low_s,
        high_s=high_s,
        confidence=setting.options.confidence,
        bound_s=bound_s(setting, run),
        breakdown=parts,
        communication_s=account.busy_s(run),
        transfers=account.transfer_uses(setting, run, gaps),
        critical_path=account.critical_path(setting, run),
        links=links,
        shape=account.link_shape(setting, run, links[0].name if links else ""),
        flop_per_s=graph.flop / length_s,
        memory_bytes=setting.parallelism.memory_bytes(graph, place.ranks),
        samples_per_s=graph.samples * place.ranks / length_s,
        straggling_s=straggling_s,
        schedules=setting.schedule_uses,
        notes=notes,
        _transfer_bound=partial(transfer_bound_s, setting, run),
        _timeline=partial(predicted_timeline, setting, run, graph.name, likely),
    )
