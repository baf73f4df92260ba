"""10,000 Philly jobs on 512 GPUs: each policy as a multiple of the bare loop, measured in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import floor
from clocks import Took, floor_s, spread, table, timed, verdict
from workloads import SLICE_JOBS, SMALL, SMALL_FLAT, philly_slice, rows, with_models

import hemiola
from hemiola import Recording, Topology, Workload
from hemiola.kernels.fluid import warm_up

LIMITS = {"fifo": 8, "srtf": 15, "tiresias": 40, "dally": 80}
LEAN = Recording(timeline=False)
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


def measure(jobs: int = SLICE_JOBS, rounds: int = 5, policies: Sequence[str] = tuple(LIMITS)) -> str:
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
                _once(found[policy, setting.name], policy, setting, floors, replayed, hosts)
    return "\n\n".join(
        [
            f"{philly_slice(jobs).says} on 512 GPUs, {rounds} rounds, floor and policies by turns. "
            f"The floor took {spread([1000 * s for s in floors], 1)} ms of CPU. Each multiple is of the floor "
            "measured right before and after it: median (least–most).",
            _table(found, settings, policies),
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
        Setting("everything on", full, network, LEAN),
        Setting("... and every decision and span recorded", full, network, FULL),
        Setting("without a network (no models)", bare, hemiola.read_topology(SMALL_FLAT), LEAN),
    ]
    took = {"read": reading.cpu_s, "assign": assigning.cpu_s, "topology": building.cpu_s}
    return settings, bare, took


def _once(
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


def _table(found: dict[tuple[str, str], Row], settings: list[Setting], policies: Sequence[str]) -> str:
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
    comparison = hemiola.simulate(bare, hemiola.read_topology(SMALL_FLAT), ["fifo"], recording=LEAN)
    done = [record.jct_s for record in comparison.runs[0].records if record.jct_s is not None]
    ours, floors = sum(done) / len(done), floor.replay(rows(bare.jobs), hosts, 8)
    if abs(ours - floors) > 1e-6 * floors:
        raise AssertionError(f"FIFO and the floor disagree: mean completion {ours} s and {floors} s")
    return f"FIFO without a network and the floor agree: a mean completion time of {floors:,.1f} s."
