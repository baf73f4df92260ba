"""One point of the study of network sensitivity: a cell (jobs, fabric, law), a policy and a seed.

Run times are those on the reference fabric (`REFERENCE`), so that a job does equally many iterations
on every fabric. Knows neither which points are run nor what is made of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from workloads import ALL

import hemiola
from hemiola import ClusterView, Job, Policy, Topology, Workload
from hemiola.analysis.cluster_metrics import summary
from hemiola.core.decisions import Decision, Start
from hemiola.core.result import Run
from hemiola.cost.contention import by_name
from hemiola.sched.delay import Delay
from hemiola.sched.policies import policy_from_text
from hemiola.simulator.rules import Semantics

HOSTS, GPUS_PER_HOST, HOSTS_PER_RACK = 64, 8, 8
GPUS = HOSTS * GPUS_PER_HOST
REFERENCE = (100.0, 1.0)
"""NIC in Gbit/s and oversubscription of the fabric on which run times are taken to be recorded."""
FRESH = 100
"""Seeds from here on confirm what the others found."""
LEAN = hemiola.Recording(timeline=False)
RESETS_ALWAYS, RESETS_NEVER = "dally, timers reset at every start", "dally, timers never reset"


@dataclass(frozen=True)
class Mix:
    """A kind of jobs.

    Attributes:
        jobs: how many make one workload.
        generator: what `hemiola.generate` is told beside jobs and load.
        profiles: the mix that models are drawn from.
        says: in words.
    """

    jobs: int
    generator: str
    profiles: str
    says: str


MIXES = {
    "lingjun": Mix(
        500, "mix=lingjun,largest=128,duration_max=12h", "lingjun-like",
        "sizes falling by 0.78 per doubling up to 128 GPUs, GPTs beside BERT and ResNet, run times cut at 12 h",
    ),
    "muri": Mix(
        1000, "mix=muri,duration_max=24h", "muri",
        "sizes of Muri's traces (1 to 32 GPUs), its eight models evenly, run times cut at 24 h",
    ),
    "philly": Mix(
        2000, "mix=philly", "default",
        "consecutive jobs of Philly as they were, another stretch of the trace per seed, arrivals stretched to the "
        "load; models by the default mix",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """What policies are compared under.

    Attributes:
        mix: of `MIXES`.
        nic_gbit: of each host.
        oversubscription: of each rack's uplink; 1 for full bisection.
        load: GPU-seconds of the jobs on the reference fabric over those of the cluster while they arrive.
        law: of contention.
        scale: of the number of jobs.
    """

    mix: str
    nic_gbit: float
    oversubscription: float
    load: float = 1.0
    law: str = "max-min"
    scale: float = 1.0


@dataclass(frozen=True)
class Point:
    """One replay."""

    cell: Cell
    policy: str
    seed: int


Row = dict[str, Any]


class KeepsTime(Policy):
    """Dally with another rule for the reset of its timers: after every start, or never.

    Attributes:
        always: whether what a job has paid by waiting is forgotten whenever it starts.
    """

    name = "keeps-time"

    def __init__(self, always: bool) -> None:
        self.inner = policy_from_text("dally")
        self.always = always
        self.placement = getattr(self.inner, "placement", None)

    def card(self) -> dict[str, str]:
        """Dally's, with this rule."""
        return {**self.inner.card(), "reset": "at every start" if self.always else "never"}

    def decide(self, view: ClusterView) -> Iterator[Decision]:
        """Dally's decisions."""
        paid: tuple[Delay, int] | None = None
        for decision in self.inner.decide(view):
            self._restore(paid)
            yield decision
            paid = self._after(view, decision)
        self._restore(paid)

    def _after(self, view: ClusterView, decision: Decision) -> tuple[Delay, int] | None:
        if not isinstance(decision, Start):
            return None
        job = view.jobs[decision.job_id]
        if self.always:
            job.note = Delay(job.narrowest)
        return None if job.note is None else (job.note, job.note.allowed)

    def _restore(self, paid: tuple[Delay, int] | None) -> None:
        if paid is not None and not self.always:
            note, allowed = paid
            note.allowed = allowed


def policy_of(name: str) -> Policy:
    """The policy that a point names."""
    if name in (RESETS_ALWAYS, RESETS_NEVER):
        return KeepsTime(name == RESETS_ALWAYS)
    return policy_from_text(name)


@lru_cache(maxsize=32)
def fabric(nic_gbit: float, oversubscription: float) -> Topology:
    """512 GPUs in 8 racks of 8 hosts."""
    return hemiola.read_topology(
        f"leaf-spine:hosts={HOSTS},gpus_per_host={GPUS_PER_HOST},hosts_per_rack={HOSTS_PER_RACK},"
        f"nic={nic_gbit:g}gbit,oversubscription={oversubscription:g}"
    )


@lru_cache(maxsize=4)
def workload(mix: str, load: float, scale: float, seed: int) -> Workload:
    """The jobs of a seed with their models."""
    kind = MIXES[mix]
    count = max(2, round(kind.jobs * scale))
    folder = os.environ.get("HEMIOLA_SHARED")
    if mix == "philly" and folder:
        jobs = stretch(philly(str(Path(folder) / ALL)), count, seed, load)
    else:
        jobs = hemiola.generate(
            f"generated:jobs={count},load={load:g},{kind.generator}", seed=seed, gpus=GPUS
        )
    return hemiola.assign(jobs, hemiola.load_library(None), mix=kind.profiles, seed=seed)


@lru_cache(maxsize=1)
def philly(path: str) -> Workload:
    """All of Philly."""
    return hemiola.read_workload(path)


def stretch(trace: Workload, count: int, seed: int, load: float) -> Workload:
    """`count` consecutive jobs, others for each seed, their arrivals stretched to the load."""
    stretches = len(trace.jobs) // count
    place = seed if seed < FRESH else seed - FRESH + stretches // 2
    first = (place * 17 % stretches) * count
    jobs = trace.jobs[first : first + count]
    work_gpu_s = sum(job.gpus * job.duration_s for job in jobs)
    began_s = jobs[0].submit_s
    factor = work_gpu_s / (load * GPUS) / max(jobs[-1].submit_s - began_s, 1.0)
    moved = [msgspec.structs.replace(job, submit_s=(job.submit_s - began_s) * factor) for job in jobs]
    return msgspec.structs.replace(trace, jobs=tuple(moved))


def replay(point: Point) -> Row:
    """Run one point; a flat row of what it was and what came out, times in seconds."""
    cell = point.cell
    jobs = workload(cell.mix, cell.load, cell.scale, point.seed)
    topology = fabric(cell.nic_gbit, cell.oversubscription)
    run = hemiola.simulate(
        jobs, topology, [policy_of(point.policy)], semantics=Semantics(law=by_name(cell.law)), seeds=[point.seed],
        recorded_on=fabric(*REFERENCE), recording=LEAN,
    ).runs[0]  # fmt: skip
    return asdict(cell) | {"policy": point.policy, "seed": point.seed} | figures(run, topology, jobs.jobs)


def figures(run: Run, topology: Topology, jobs: tuple[Job, ...]) -> Row:
    """What is kept of a run.

    `floor_gpu_s` is the exposed communication of the same jobs, each alone on its best placement on
    this fabric; `offered` the load that they offer to this fabric in the time in which they arrive.
    """
    whole = summary(run, topology)
    span_s = max(jobs[-1].submit_s - jobs[0].submit_s, 1e-9)
    return {
        "makespan_s": whole.makespan_s, "jct_mean_s": whole.jct_mean_s, "jct_p50_s": whole.jct_p50_s,
        "jct_p99_s": whole.jct_p99_s, "queueing_mean_s": whole.queueing_mean_s,
        "exposed_gpu_s": whole.gpu_seconds.exposed_communication,
        "exposed_fraction": whole.exposed_communication_fraction,
        "floor_gpu_s": sum(r.gpus * max(0.0, r.ideal_s - r.useful_s) for r in run.records),
        "offered": sum(r.gpus * r.ideal_s for r in run.records) / (topology.gpus * span_s),
        "gpu_utilization": whole.gpu_utilization, "preemptions": whole.preemptions,
        "migrations": whole.migrations, "unfinished": whole.jobs_unfinished, "cpu_s": whole.simulation_cpu_s,
    }  # fmt: skip
