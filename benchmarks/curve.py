"""What one event costs as the cluster grows, jobs growing with it so that the load stays the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from chart import LogLine, draw_curves
from clocks import table
from workloads import generated, leaf_spine, with_models

import hemiola
from hemiola.kernels.fluid import warm_up

SIZES = (64, 256, 1024, 4096, 16384, 100_000)
POLICIES = ("fifo", "srtf", "tiresias")
LEAN = hemiola.Recording(timeline=False)
EVENTS_LEAST = 20_000
JOBS_REPEATED = 40_000
SOME_CHANGES = 0.5
"""Of speed, per event: from so many on they are told apart."""


@dataclass(frozen=True)
class Regime:
    """How full the cluster is, and whether jobs meet on the network.

    Attributes:
        jobs: per GPU, as a multiple of what was asked for.
        models: whether jobs have models; without, they run equally fast everywhere.
        gpus_most: no larger cluster is measured.
        dash: of its lines in the picture.
    """

    name: str
    load: float
    jobs: float
    models: bool
    gpus_most: int
    dash: str


REGIMES = (
    Regime("few wait", 0.8, 1, True, 100_000, ""),
    Regime("crowded, no network", 10.0, 2, False, 16384, "7 4"),
    Regime("crowded", 10.0, 2, True, 16384, "2 3"),
)

Costs = dict[tuple[Regime, str], dict[int, float]]
"""CPU µs per event."""
Changes = dict[tuple[Regime, str], dict[int, float]]
"""Of speed, per event."""


def measure(
    picture: Path | None = None, sizes: Sequence[int] = SIZES, jobs_per_gpu: float = 2.0, rounds: int = 3
) -> str:
    """The section with its tables; the picture goes to a file of its own."""
    warm_up()
    costs: Costs = {(regime, policy): {} for regime in REGIMES for policy in POLICIES}
    changes: Changes = {key: {} for key in costs}
    waits = {
        (regime, gpus): _size(costs, changes, regime, gpus, jobs_per_gpu * regime.jobs, rounds)
        for regime in REGIMES
        for gpus in sizes
        if gpus <= regime.gpus_most
    }
    if picture is not None:
        picture.write_text(_picture(costs), encoding="utf-8")
    return "\n\n".join([_says(jobs_per_gpu), *(_table(costs, changes, regime, waits) for regime in REGIMES)])


def _size(costs: Costs, changes: Changes, regime: Regime, gpus: int, jobs_per_gpu: float, rounds: int) -> str:
    """Measure all policies on one cluster; return FIFO's mean wait in words.

    A small cluster replays several workloads, so that it too has events enough to be timed.
    """
    topology = leaf_spine(gpus)
    jobs = max(100, int(jobs_per_gpu * gpus))
    seeds = range(max(1, EVENTS_LEAST // (2 * jobs)))
    workloads = [generated(jobs, regime.load).read(gpus, seed) for seed in seeds]
    if regime.models:
        workloads = [with_models(workload) for workload in workloads]
    waited = 0.0
    for policy in POLICIES:
        found: list[float] = []
        for _ in range(rounds if jobs < JOBS_REPEATED else 1):
            runs = [hemiola.simulate(jobs, topology, [policy], recording=LEAN).runs[0] for jobs in workloads]
            events = sum(run.events for run in runs)
            found.append(1e6 * sum(run.cpu_s for run in runs) / events)
            changes[regime, policy][gpus] = sum(run.speed_changes for run in runs) / events
        costs[regime, policy][gpus] = median(found)
        if policy == "fifo":
            waited = sum(record.queueing_s for run in runs for record in run.records)
    return f"{waited / (jobs * len(workloads)):,.0f}"


def _says(jobs_per_gpu: float) -> str:
    few, _, crowded = REGIMES
    return (
        "CPU µs per event (arrival, end, timer) of the replay, jobs in the style of Philly on leaf–spines of growing "
        f"size. “{few.name.capitalize()}”: {jobs_per_gpu * few.jobs:g} jobs per GPU at load {few.load:g}, everything "
        f"on. “{crowded.name.capitalize()}”: {jobs_per_gpu * crowded.jobs:g} per GPU at load {crowded.load:g}, so that "
        f"jobs queue and pre-empt each other, up to {crowded.gpus_most:,} GPUs; once without models, which is what "
        "scheduling alone costs, and once with them, where an event also changes the speed of the jobs that hang together "
        "with it through shared links: in a larger cluster more of them do, and each is worked out, told to the policy and "
        "gets another end. So the cost is given per event, and with those changes counted as events too. The last column is "
        "what growth with the logarithm of the cluster's size would allow: log(largest) / log(smallest)."
    )


def _table(costs: Costs, changes: Changes, regime: Regime, waits: dict[tuple[Regime, int], str]) -> str:
    sizes = sorted(costs[regime, POLICIES[0]])
    lines = []
    for policy in POLICIES:
        cost, more = costs[regime, policy], changes[regime, policy]
        lines.append(_grown(policy, cost, sizes))
        if max(more.values()) > SOME_CHANGES:
            lines.append(
                [f"{policy}: changes of speed per event", *(f"{more[size]:.2f}" for size in sizes), "", ""]
            )
            with_changes = {size: cost[size] / (1 + more[size]) for size in sizes}
            lines.append(_grown(f"{policy}: per event or change", with_changes, sizes))
    lines.append(["mean wait under fifo, s", *(waits[regime, size] for size in sizes), "", ""])
    return table([regime.name, *(f"{size:,} GPUs" for size in sizes), "grew", "log allows"], lines)


def _grown(name: str, cost: dict[int, float], sizes: list[int]) -> list[str]:
    grown = cost[sizes[-1]] / cost[sizes[0]]
    allowed = math.log(sizes[-1]) / math.log(sizes[0])
    said = f"{allowed:.2f}x: {'met' if grown <= allowed else 'missed'}"
    return [name, *(f"{cost[size]:.1f}" for size in sizes), f"{grown:.2f}x", said]


def _picture(costs: Costs) -> str:
    lines = [
        LogLine(f"{policy}, {regime.name}", costs[regime, policy], POLICIES.index(policy), regime.dash)
        for regime in REGIMES
        for policy in POLICIES
    ]
    return draw_curves(lines, "CPU µs per event against GPUs in the cluster")
