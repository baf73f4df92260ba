"""How fast Hemiola is, in multiples of a bare event loop measured in the same run.

    python benchmarks/speed.py                                  # all sections, to the terminal
    python benchmarks/speed.py --only floor curve               # some of them
    python benchmarks/speed.py --write docs/results/speed.md    # with the picture beside it

HEMIOLA_SHARED names the folder with the real traces; without it the jobs are generated.
"""

from __future__ import annotations

import argparse
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import child
import floor
from clocks import Took, floor_s, timed
from page import LogLine, draw_curves, measured_with, spread, table, verdict, write_page
from workloads import (
    ALL_JOBS,
    HUGE,
    PHILLY,
    SLICE_JOBS,
    SMALL,
    SMALL_FLAT,
    Source,
    generated,
    leaf_spine,
    philly_all,
    philly_slice,
    rows,
    with_models,
)

import hemiola
from hemiola import Recording, Topology, Workload
from hemiola.kernels.fluid import warm_up

HEAD = """# Speed

Every figure here is measured by one command, and most are multiples of a bare event loop
(`benchmarks/floor.py`: a heap, hosts bucketed by free GPUs, strict FIFO, best fit; no validation, no
accounting, no network), measured in the same run. CPU time is the figure, because the machine is shared; wall time stands beside it.
"Everything on" means: every decision validated, every GPU-second accounted for, models drawn for all
jobs, and contention on the links of a leaf–spine.
"""
PICTURE = "speed-curve.svg"
TITLES = {
    "floor": "10,000 jobs on 512 GPUs",
    "startup": "From keystroke to table",
    "philly": "All of Philly",
    "huge": "100,000 GPUs",
    "curve": "Cost per event against the size of the cluster",
    "peers": "Other simulators",
}


def sections(picture: Path | None, rounds: int) -> dict[str, Callable[[], str]]:
    """Each section of the report, by name."""
    return {
        "floor": lambda: against_floor(rounds=rounds),
        "startup": lambda: startup(rounds=rounds),
        "philly": lambda: philly(rounds=max(1, rounds // 2 + 1)),
        "huge": huge,
        "curve": lambda: curve(picture),
        "peers": other_simulators,
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure what was asked for; print it, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=TITLES, default=list(TITLES), help="which sections")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is repeated (default 5)")
    parser.add_argument(
        "--write", type=Path, metavar="FILE.md", help="write the page there, its picture beside it"
    )
    asked = parser.parse_args(arguments)
    picture = None if asked.write is None else asked.write.with_name(PICTURE)
    known = sections(picture, asked.rounds)
    command = "python benchmarks/speed.py " + " ".join(sys.argv[1:] if arguments is None else arguments)
    page = [HEAD, measured_with(command.strip())]
    for name in asked.only:
        print(f"measuring: {TITLES[name]} ...", file=sys.stderr, flush=True)
        text = known[name]()
        if name == "curve" and picture is not None:
            text += f"\n\n![CPU time per event against the size of the cluster]({PICTURE})"
        page.append(f"## {TITLES[name]}\n\n{text}")
        print(page[-1], end="\n\n", flush=True)
    if asked.write is not None:
        write_page(asked.write, "\n\n".join(page) + "\n")


# What other simulators took for the same kind of work, as multiples of the same bare loop.

FLOOR_S = {5_000: 0.012, 10_000: 0.024, 20_000: 0.05}
PEERS = (
    ("Tiresias simulator (2019), fifo", 10_000, 83.0),
    ("Tiresias simulator (2019), dlas-gpu", 10_000, 104.0),
    ("Gavel (2020), fifo", 5_000, 33.4),
    ("AccaSim, FIFO and first fit", 20_000, 43.4),
)


def other_simulators() -> str:
    """The section of the report."""
    lines = [
        [name, f"{jobs:,}", f"{cpu_s:g}", f"{FLOOR_S[jobs]:g}", f"{cpu_s / FLOOR_S[jobs]:,.0f}"]
        for name, jobs, cpu_s in PEERS
    ]
    return "\n\n".join(
        [
            "Measured once each, earlier, on the same kind of machine, on slices of the same trace and 512 GPUs; "
            "the floor for 5,000 jobs is half of that for 10,000. None of them models a network here. Compare with "
            "the first table's multiples.",
            table(["simulator", "jobs", "CPU s", "floor, CPU s", "floors"], lines),
        ]
    )


# All of Philly on its 2,816 GPUs, and 200,000 jobs on 100,000 GPUs: each replay in its own process.

LIMITS_S = {"fifo": 2.5, "tiresias": 10.0, "dally": 20.0}
MEMORY_MIB = 1024.0
HUGE_S, DECISION_S = 60.0, 0.005
HUGE_POLICIES = ("fifo", "srtf", "tiresias", "dally")
RELAXED, CROWDED = 0.8, 10.0
HUGE_HEAD = (
    "CPU s, at most 60",
    "peak MiB",
    "mean wait, s",
    "pre-emptions",
    "µs per event",
    "decision p50, µs",
    "p99, µs, at most 5,000",
    "longest, µs",
    "all of an instant, p99, µs",
)


def philly(jobs: int = ALL_JOBS, rounds: int = 3, policies: Sequence[str] = tuple(LIMITS_S)) -> str:
    """The section about the whole trace."""
    source = philly_all(jobs)
    lines, first = [], {}
    for policy in policies:
        runs = [_replay(source, PHILLY, policy) for _ in range(rounds)]
        first = first or runs[0]
        cpu = [run["cpu_s"] for run in runs]
        limit = LIMITS_S.get(policy)
        said = "" if limit is None else f"{limit:g} s: {verdict(median(cpu), limit)}"
        walls = spread([run["wall_s"] for run in runs])
        loop = spread([run["loop_s"] for run in runs])
        peak = max(run["peak_mib"] for run in runs)
        lines.append(
            [policy, said, loop, spread(cpu), walls, f"{peak:.0f}", f"{runs[0]['events']:,}", _us(runs[0])]
        )
    head = ["policy", "target", "replay, CPU s", "`simulate()`, CPU s", "wall s", "peak MiB", "events", "µs per event"]  # fmt: skip
    return "\n\n".join(
        [
            f"{source.says} on 2,816 GPUs (`{PHILLY}`), models by the default mix, contention on; {rounds} runs, "
            f"each in a process of its own: median (least–most). Reading them takes {first['read_s']:.2f} s of CPU, "
            f"drawing models {first['assign_s']:.2f} s.",
            table(head, lines),
            _memory(jobs, policies),
        ]
    )


def _memory(jobs: int, policies: Sequence[str]) -> str:
    counts = [jobs // 4, jobs // 2, jobs]
    lines = []
    for policy in policies:
        peaks = [_replay(philly_all(count), PHILLY, policy)["peak_mib"] for count in counts]
        per_job = [
            1024 * (b - a) / (m - n) for a, b, n, m in zip(peaks, peaks[1:], counts, counts[1:], strict=False)
        ]
        lines.append(
            [policy, *(f"{peak:.0f}" for peak in peaks), *(f"{kib:.1f}" for kib in per_job), verdict(peaks[-1], MEMORY_MIB)]
        )  # fmt: skip
    head = ["peak MiB of the process", *(f"{count:,} jobs" for count in counts), "KiB per job, first step", "second step", "under 1 GiB"]  # fmt: skip
    return table(head, lines)


def huge(
    jobs: int = 200_000, cluster: str = HUGE, policies: Sequence[str] = HUGE_POLICIES, limit_s: float = 150.0
) -> str:
    """The section about the largest cluster, with the time that each decision takes.

    Args:
        limit_s: wall time after which a replay is given up, and the table says so.
    """
    parts = [
        f"{jobs:,} generated jobs in the style of Philly (`{cluster}`), models by the default mix, contention on, "
        "one run each. A decision's time is wall time from asking the policy for it (or for word that there is "
        f"none) to having it; CPU includes taking it. Replays are given up after {limit_s:g} s."
    ]
    for load in (RELAXED, CROWDED):
        lines = [_huge(generated(jobs, load), cluster, policy, limit_s) for policy in policies]
        parts.append(table([f"load {load:g}", *HUGE_HEAD], lines))
    parts.append(
        f"At load {RELAXED:g} hardly anybody waits. At load {CROWDED:g} the same jobs arrive within {RELAXED / CROWDED:.0%} "
        "of the time: the cluster fills, jobs queue and pre-empt each other, and links are congested."
    )
    return "\n\n".join(parts)


def _huge(source: Source, cluster: str, policy: str, limit_s: float) -> list[str]:
    try:
        run = _replay(source, cluster, policy, latency=True, limit_s=limit_s)
    except TimeoutError:
        return [policy, f"more than {limit_s:g} wall s: missed", *[""] * (len(HUGE_HEAD) - 1)]
    return [
        policy,
        f"{run['cpu_s']:.1f}: {verdict(run['cpu_s'], HUGE_S)}",
        f"{run['peak_mib']:.0f}",
        f"{run['queueing_mean_s']:.0f}",
        f"{run['preemptions']:,}",
        _us(run),
        _microseconds(run, "step_p50_s"),
        f"{_microseconds(run, 'step_p99_s')}: {verdict(run['step_p99_s'], DECISION_S)}",
        _microseconds(run, "step_max_s"),
        _microseconds(run, "instant_p99_s"),
    ]


def _replay(source: Source, cluster: str, policy: str, **more: Any) -> dict[str, Any]:
    return child.run(workload=source.text, limit=source.limit, cluster=cluster, policy=policy, **more)


def _us(run: dict[str, Any]) -> str:
    return f"{1e6 * run['loop_s'] / run['events']:.1f}"


def _microseconds(run: dict[str, Any], name: str) -> str:
    return f"{1e6 * run[name]:,.0f}"


# From keystroke to table: the command line in processes of its own, in wall and CPU time.

HEMIOLA = [sys.executable, "-c", "from hemiola.cli import main; main()"]
IMPORT = [sys.executable, "-c", "import hemiola"]


def startup(jobs: int = SLICE_JOBS, rounds: int = 5) -> str:
    """The section of the report."""
    source = philly_slice(jobs)
    simulate = [*HEMIOLA, "simulate", *source.command(), "--cluster", SMALL]
    commands: list[tuple[str, Sequence[str], float | None]] = [
        ("`python -c 'import hemiola'`", IMPORT, 0.3),
        ("`hemiola --help`", [*HEMIOLA, "--help"], 0.5),
        *(
            (f"`hemiola simulate ... --policy {p}`", [*simulate, "--policy", p], 3.0)
            for p in ("fifo", "srtf", "tiresias", "dally")
        ),
        (
            "`hemiola simulate ... --policy fifo tiresias dally`",
            [*simulate, "--policy", "fifo", "tiresias", "dally"],
            None,
        ),
    ]
    lines = []
    for name, command, limit in commands:
        took = [_once(command) for _ in range(rounds + 1)][1:]
        said = "" if limit is None else f"{limit:g} s: {verdict(median(t.wall_s for t in took), limit)}"
        lines.append([name, said, spread([t.wall_s for t in took]), spread([t.cpu_s for t in took])])
    return "\n\n".join(
        [
            f"`...` stands for {source.says} and `--cluster {SMALL}`; {rounds} runs after one that fills caches, "
            "median (least–most).",
            table(["command", "target", "wall s", "CPU s"], lines),
        ]
    )


def _once(command: Sequence[str]) -> Took:
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    wall = time.perf_counter() - wall
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall)


# What one event costs as the cluster grows, jobs growing with it so that the load stays the same.

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


def curve(
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


# 10,000 Philly jobs on 512 GPUs: each policy as a multiple of the bare loop, measured in the same run.

LIMITS = {"fifo": 8, "srtf": 15, "tiresias": 40, "dally": 80}
LEAN_SETTING = Recording(timeline=False)
FULL = Recording(timeline=True, decisions=True)


@dataclass(frozen=True)
class Setting:
    """One column: a cluster, jobs on it, and what is recorded."""

    name: str
    workload: Workload
    topology: Topology
    recording: Recording


@dataclass
class Row:
    """What was measured of one policy in one setting, one entry per round."""

    floors: list[float] = field(default_factory=list)
    loop_floors: list[float] = field(default_factory=list)
    took: list[Took] = field(default_factory=list)


def against_floor(jobs: int = SLICE_JOBS, rounds: int = 5, policies: Sequence[str] = tuple(LIMITS)) -> str:
    """The section of the report, in Markdown."""
    settings, bare, reading = _settings(jobs)
    hosts = len(settings[0].topology.hosts)
    replayed = rows(bare.jobs)
    found = {(policy, setting.name): Row() for policy in policies for setting in settings}
    floors: list[float] = []
    warm_up()
    for _ in range(rounds):
        for setting in settings:
            for policy in policies:
                _replayed_once(found[policy, setting.name], policy, setting, floors, replayed, hosts)
    return "\n\n".join(
        [
            f"{philly_slice(jobs).says} on 512 GPUs, {rounds} rounds, floor and policies by turns. "
            f"The floor took {spread([1000 * s for s in floors], 1)} ms of CPU. Each multiple is of the floor "
            "measured right before and after it: median (least–most).",
            _floor_table(found, settings, policies),
            _absolute(found, settings, policies),
            f"Quoted apart: reading the trace takes {reading['read']:.2f} s of CPU, drawing a model for each job "
            f"{reading['assign']:.2f} s, building the cluster {reading['topology']:.3f} s.",
            _agreement(bare, hosts),
        ]
    )


def _settings(jobs: int) -> tuple[list[Setting], Workload, dict[str, float]]:
    network, building = timed(lambda: hemiola.read_topology(SMALL))
    bare, reading = timed(lambda: philly_slice(jobs).read(network.gpus))
    full, assigning = timed(lambda: with_models(bare))
    settings = [
        Setting("everything on", full, network, LEAN_SETTING),
        Setting("... and every decision and span recorded", full, network, FULL),
        Setting("without a network (no models)", bare, hemiola.read_topology(SMALL_FLAT), LEAN_SETTING),
    ]
    took = {"read": reading.cpu_s, "assign": assigning.cpu_s, "topology": building.cpu_s}
    return settings, bare, took


def _replayed_once(
    row: Row,
    policy: str,
    setting: Setting,
    floors: list[float],
    replayed: list[tuple[float, int, float]],
    hosts: int,
) -> None:
    before = floor_s(replayed, hosts, 8)
    comparison, took = timed(
        lambda: hemiola.simulate(setting.workload, setting.topology, [policy], recording=setting.recording)
    )
    after = floor_s(replayed, hosts, 8)
    near = (before + after) / 2
    floors += [before, after]
    row.floors.append(took.cpu_s / near)
    row.loop_floors.append(comparison.runs[0].cpu_s / near)
    row.took.append(took)


def _floor_table(found: dict[tuple[str, str], Row], settings: list[Setting], policies: Sequence[str]) -> str:
    lines = []
    for policy in policies:
        first = found[policy, settings[0].name]
        limit = LIMITS.get(policy)
        said = "" if limit is None else f"{limit} floors: {verdict(median(first.loop_floors), limit)}"
        columns = [spread(found[policy, setting.name].floors, 1) for setting in settings]
        lines.append([policy, said, spread(first.loop_floors, 1), *columns])
    names = [f"`simulate()`: {setting.name}" for setting in settings]
    return table(["policy", "target", "replay alone: everything on", *names], lines)


def _absolute(found: dict[tuple[str, str], Row], settings: list[Setting], policies: Sequence[str]) -> str:
    lines = []
    for policy in policies:
        took = found[policy, settings[0].name].took
        lines.append([policy, spread([t.cpu_s for t in took]), spread([t.wall_s for t in took])])
    return table(["`simulate()`, everything on", "CPU s", "wall s"], lines)


def _agreement(bare: Workload, hosts: int) -> str:
    """The floor is no straw man: it computes the same schedule as FIFO without a network."""
    comparison = hemiola.simulate(bare, hemiola.read_topology(SMALL_FLAT), ["fifo"], recording=LEAN_SETTING)
    done = [record.jct_s for record in comparison.runs[0].records if record.jct_s is not None]
    ours, floors = sum(done) / len(done), floor.replay(rows(bare.jobs), hosts, 8)
    if abs(ours - floors) > 1e-6 * floors:
        raise AssertionError(f"FIFO and the floor disagree: mean completion {ours} s and {floors} s")
    return f"FIFO without a network and the floor agree: a mean completion time of {floors:,.1f} s."


if __name__ == "__main__":
    main()
