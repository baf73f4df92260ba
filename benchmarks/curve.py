"""What one event costs as the cluster grows, jobs growing with it so that the load stays the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from chart import Line, draw
from clocks import table
from workloads import generated, leaf_spine, with_models

import hemiola
from hemiola.sim.fluid import warm_up

SIZES = (64, 256, 1024, 4096, 16384, 100_000)
POLICIES = ("fifo", "srtf", "tiresias")
LEAN = hemiola.Recording(timeline=False)
RELAXED, CROWDED = 0.8, 10.0
CROWDED_MOST = 16384
EVENTS_LEAST = 20_000
JOBS_REPEATED = 40_000

Costs = dict[tuple[float, str], dict[int, float]]


def measure(
    picture: Path | None = None, sizes: Sequence[int] = SIZES, jobs_per_gpu: float = 2.0, rounds: int = 3
) -> str:
    """The section with its table; the picture goes to a file of its own."""
    warm_up()
    costs: Costs = {(load, policy): {} for load in (RELAXED, CROWDED) for policy in POLICIES}
    waits: dict[tuple[float, int], str] = {}
    for load in (RELAXED, CROWDED):
        for gpus in sizes:
            if load == RELAXED or gpus <= CROWDED_MOST:
                waits[load, gpus] = _size(
                    costs, load, gpus, jobs_per_gpu * (1 if load == RELAXED else 2), rounds
                )
    if picture is not None:
        picture.write_text(_picture(costs), encoding="utf-8")
    return "\n\n".join([_says(jobs_per_gpu), *(_table(costs, load, waits) for load in (RELAXED, CROWDED))])


def _size(costs: Costs, load: float, gpus: int, jobs_per_gpu: float, rounds: int) -> str:
    """Measure all policies on one cluster; return FIFO's mean wait in words.

    A small cluster replays several workloads, so that it too has events enough to be timed.
    """
    topology = leaf_spine(gpus)
    jobs = max(100, int(jobs_per_gpu * gpus))
    seeds = range(max(1, EVENTS_LEAST // (2 * jobs)))
    workloads = [with_models(generated(jobs, load).read(gpus, seed)) for seed in seeds]
    waited = 0.0
    for policy in POLICIES:
        found: list[float] = []
        for _ in range(rounds if jobs < JOBS_REPEATED else 1):
            runs = [hemiola.simulate(jobs, topology, [policy], recording=LEAN).runs[0] for jobs in workloads]
            found.append(1e6 * sum(run.cpu_s for run in runs) / sum(run.events for run in runs))
        costs[load, policy][gpus] = median(found)
        if policy == "fifo":
            waited = sum(record.queueing_s for run in runs for record in run.records)
    return f"{waited / (jobs * len(workloads)):,.0f}"


def _says(jobs_per_gpu: float) -> str:
    return (
        "CPU µs per event (arrival, end, timer) of the replay, everything on, jobs in the style of Philly on "
        f"leaf–spines of growing size: {jobs_per_gpu:g} jobs per GPU at load {RELAXED:g}, where few wait, and twice as "
        f"many at load {CROWDED:g}, where jobs queue and pre-empt (up to {CROWDED_MOST:,} GPUs). The last column is "
        "what growth with the logarithm of the cluster's size would allow: log(largest) / log(smallest)."
    )


def _table(costs: Costs, load: float, waits: dict[tuple[float, int], str]) -> str:
    sizes = sorted(next(costs[load, policy] for policy in POLICIES))
    lines = []
    for policy in POLICIES:
        cost = costs[load, policy]
        grown = cost[sizes[-1]] / cost[sizes[0]]
        allowed = math.log(sizes[-1]) / math.log(sizes[0])
        said = f"{allowed:.2f}x: {'met' if grown <= allowed else 'missed'}"
        lines.append([policy, *(f"{cost[size]:.1f}" for size in sizes), f"{grown:.2f}x", said])
    lines.append(["mean wait under fifo, s", *(waits[load, size] for size in sizes), "", ""])
    return table([f"load {load:g}", *(f"{size:,} GPUs" for size in sizes), "grew", "log allows"], lines)


def _picture(costs: Costs) -> str:
    lines = [
        Line(
            f"{policy}{'' if load == RELAXED else ', crowded'}", cost, POLICIES.index(policy), load != RELAXED
        )
        for (load, policy), cost in costs.items()
    ]
    return draw(lines, "CPU µs per event against GPUs in the cluster")
