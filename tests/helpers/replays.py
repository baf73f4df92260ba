"""Small clusters, jobs by hand, and a replay in which every step is checked: what several test files share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np

from hemiola.core.decisions import Decision, Placement, Start, WakeAt
from hemiola.core.events import Event, NodeBack, NodeLost
from hemiola.core.job import Demand, Job, Profile, batch_job
from hemiola.core.result import Run
from hemiola.core.topology import Hosts, Level, Topology
from hemiola.sched.machine import StateMachine
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import Costs
from hemiola.simulator.rules import Semantics
from hemiola.simulator.simulate import Recording, simulate

FREE = Costs(checkpoint_s=0.0, restore_s=0.0)
NO_LIMIT = 1e18


def job(name: str, submit_s: float, gpus: int, duration_s: float, **more: Any) -> Job:
    return batch_job(id=name, submit_s=submit_s, gpus=gpus, duration_s=duration_s, **more)


def cluster(
    *racks: Sequence[int],
    pods: Sequence[int] = (),
    types: Sequence[str] = (),
    nic: float = 1.0,
    uplink: float = 1.0,
    pod_uplink: float = 1.0,
    fabric: float = NO_LIMIT,
    bus: float = NO_LIMIT,
    island: int = 0,
    latency_s: float = 0.0,
) -> Topology:
    """Racks of hosts with so many GPUs each; one rack makes a flat cluster. `pods` says which pod a rack is in."""
    gpus = np.array([count for rack in racks for count in rack], dtype=np.int64)
    count = len(gpus)
    rack_of = np.array([i for i, rack in enumerate(racks) for _ in rack], dtype=np.int64)
    levels = []
    if len(racks) > 1:
        names = tuple(f"r{i}" for i in range(len(racks)))
        levels.append(Level("rack", names, rack_of, np.full(len(racks), uplink)))
    if pods:
        pod_of = np.array([pods[rack] for rack in rack_of], dtype=np.int64)
        pod_names = tuple(f"p{i}" for i in range(max(pods) + 1))
        levels.append(Level("pod", pod_names, pod_of, np.full(len(pod_names), pod_uplink)))
    hosts = Hosts(
        names=tuple(f"n{i}" for i in range(count)),
        gpus=gpus,
        gpu_types=tuple(types) or ("",) * count,
        nic_bytes_per_s=np.full(count, nic),
        nic_latency_s=np.full(count, latency_s),
        fabric_bytes_per_s=np.full(count, fabric),
        island_gpus=np.maximum(gpus, 1) if not island else np.full(count, island, dtype=np.int64),
        bus_bytes_per_s=np.full(count, bus),
    )
    return Topology("small", hosts, tuple(levels)).check()


def profile(
    compute_s: float = 1.0, traffic_bytes: float = 1.0, gpus: int = 1024, name: str = "m", **more: Any
) -> Profile:
    """The same demand on any number of GPUs above one."""
    return Profile(name=name, demands=(Demand(gpus, compute_s, traffic_bytes),), **more)


def replay(
    jobs: Sequence[Job],
    topology: Topology,
    policy: Policy | str,
    *,
    costs: Costs = FREE,
    failures: Sequence[NodeLost | NodeBack] = (),
    seed: int = 0,
    **more: Any,
) -> Run:
    """One run, with its decisions, and with the state machine checked at every step."""
    with patch("hemiola.simulator.simulate.StateMachine", CheckedMachine):
        comparison = simulate(
            jobs, topology, [policy], semantics=Semantics(costs=costs), node_events=failures, seeds=[seed],
            recording=Recording(decisions=True, traffic=True), **more,
        )  # fmt: skip
    return comparison.runs[0]


def times(run: Run) -> dict[str, tuple[float | None, float | None]]:
    """(first start, end) of every job."""
    return {record.id: (record.first_start_s, record.finish_s) for record in run.records}


def steps(run: Run) -> list[tuple[float, str, str]]:
    """(when, what, which job) of the decisions that were carried out, without timers."""
    return [
        (entry.time_s, type(entry.decision).__name__, entry.decision.job_id)
        for entry in run.decisions
        if not entry.refused and type(entry.decision).__name__ != "WakeAt"
    ]


class CheckedMachine(StateMachine):
    """Validates itself after every event and decision; a refused decision must change nothing."""

    def apply(self, *events: Event) -> None:
        for event in events:
            super().apply(event)
            self.validate()

    def execute(self, decision: Decision) -> str:
        before = self._fingerprint()
        problem = super().execute(decision)
        self.validate()
        if problem:
            assert self._fingerprint() == before, (decision, problem)
        return problem

    def _fingerprint(self) -> Any:
        view = self.view
        jobs = [
            (s.id, s.status, s.since_s, s.gpus, s.placement, s.done_s, s.queued_s, s.served_s, s.preemptions)
            for s in view.jobs.values()
        ]
        return jobs, list(view.waiting), list(view.running), list(view.inventory.masks), view.free, view.now


def check_run(run: Run, jobs: Sequence[Job], topology: Topology) -> None:
    """Everything that holds of any run whatever, interrupted or not."""
    _check_gpu_seconds(run, topology)
    assert [r.id for r in run.records] == [j.id for j in jobs]
    for record in run.records:
        parts = record.useful_s + record.exposed_communication_s + record.checkpoint_s + record.lost_s
        assert math.isclose(record.run_s, parts, rel_tol=1e-9, abs_tol=1e-9), record
        assert math.isclose(record.run_s, sum(record.tiers_s), rel_tol=1e-9, abs_tol=1e-9), record
        assert min(record.useful_s, record.checkpoint_s, record.lost_s, record.queueing_s) >= 0, record
        assert record.exposed_communication_s >= -1e-9, record
        if record.status == "finished":
            assert not record.why
            assert record.jct_s is not None and record.finish_s is not None
            assert math.isclose(record.jct_s, record.finish_s - record.submit_s, abs_tol=1e-9)
            assert math.isclose(record.jct_s, record.queueing_s + record.run_s, rel_tol=1e-9, abs_tol=1e-9)
            assert record.finish_s <= run.end_s
        else:
            assert record.why and record.finish_s is None and record.jct_s is None, record
    _check_timeline(run, jobs, topology)


def _check_gpu_seconds(run: Run, topology: Topology) -> None:
    whole = topology.gpus * (run.end_s - run.origin_s)
    assert math.isclose(run.gpu_seconds.total, whole, rel_tol=1e-9, abs_tol=1e-9), (run.gpu_seconds, whole)
    for name in run.gpu_seconds.__struct_fields__:
        assert getattr(run.gpu_seconds, name) >= -1e-9 * max(whole, 1.0), name


def _check_timeline(run: Run, jobs: Sequence[Job], topology: Topology) -> None:
    """No GPU is held twice; every span has its whole gang, one GPU type, and its constraint."""
    line = run.timeline
    held: dict[int, list[tuple[float, float, int]]] = {}
    gangs: dict[tuple[int, float, float], list[tuple[int, int]]] = {}
    runnable = sorted(jobs, key=lambda job: job.submit_s)
    for row in range(len(line.job)):
        start, end = float(line.start_s[row]), float(line.end_s[row])
        host, mask = int(line.host[row]), int(line.gpu_mask[row])
        assert mask and mask < 1 << int(topology.hosts.gpus[host])
        assert start <= float(line.resume_s[row]) <= end or float(line.resume_s[row]) == start
        for other_start, other_end, other in held.setdefault(host, []):
            assert not mask & other or end <= other_start or other_end <= start
        if end > start:
            held[host].append((start, end, mask))
            gangs.setdefault((int(line.job[row]), start, end), []).append((host, mask))
    for (index, _, _), parts in gangs.items():
        wanted = runnable[index]
        assert sum(mask.bit_count() for _, mask in parts) in wanted.sizes, wanted
        kinds = {topology.hosts.gpu_types[host] for host, _ in parts}
        assert len(kinds) == 1 and (not wanted.gpu_type or kinds == {wanted.gpu_type})
        if wanted.required:
            span = topology.span(tuple(host for host, _ in parts))
            assert span <= topology.tier_index(wanted.required)


class Script(Policy):
    """Does what it is told when it is told: {time: decisions}; nothing else."""

    name = "script"

    def __init__(self, lines: dict[float, list[Decision]]) -> None:
        self.lines = dict(sorted(lines.items()))

    def decide(self, view: ClusterView) -> Iterator[Decision]:
        for time_s in [t for t in self.lines if t <= view.now]:
            yield from self.lines.pop(time_s)
        for time_s in list(self.lines)[:1]:
            yield WakeAt(time_s, "", "the script goes on")


def start(name: str, *parts: tuple[int, int]) -> Start:
    """Start this job on (host, mask) pairs."""
    return Start(name, at(*parts), "told so")


def at(*parts: tuple[int, int]) -> Placement:
    """A placement from (host, mask) pairs."""
    return Placement(tuple(host for host, _ in parts), tuple(mask for _, mask in parts))
