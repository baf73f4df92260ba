"""One point of the study of network sensitivity: a cell (jobs, fabric, law), a policy and a seed.

Run times are those on the reference fabric (`REFERENCE`), so that a job does equally many iterations
on every fabric. Knows neither which points are run nor what is made of them.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

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


# Which points the study of network sensitivity runs: the full study, and a quick one.

DALLY = "dally"
TIMERS = {
    "auto": DALLY,
    "break-even": "dally:timer=break-even",
    "break-even, oracle": "dally:timer=break-even,oracle=true",
    "manual": "dally:timer=manual",
    "always-wait": "dally:timer=always-wait",
    "never-wait": "dally:timer=never-wait",
}
BASELINES = {
    "FIFO, consolidated": "fifo-backfill:placement=consolidated",
    "Tiresias, consolidated": "tiresias:placement=consolidated",
    "Tiresias": "tiresias",
    "Gandiva": "gandiva",
    "FIFO, tier-aware": "fifo-backfill",
}
NO_PREEMPTION = "dally:preempt=false"
POLICIES = (*BASELINES.values(), *TIMERS.values(), NO_PREEMPTION)
RESETS = {
    "a paid timer is kept (as it is)": DALLY,
    "reset at every start": RESETS_ALWAYS,
    "never reset": RESETS_NEVER,
}
LAWS = ("max-min", "interleaved", "colliding", "isolated")
LAW_POLICIES = (*BASELINES.values(), DALLY, TIMERS["break-even"], TIMERS["always-wait"], TIMERS["never-wait"])


@dataclass(frozen=True)
class Study:
    """The grid.

    Attributes:
        nics: fabric speeds at oversubscription `over` and load 1.
        others: further fabrics, as (NIC, oversubscription), at load 1.
        loads: further loads, each at the NICs in `load_nics`; `batch` is one that is all at once.
        special: (mix, NIC, oversubscription) at which laws and reset rules are compared.
        seeds, fresh: how many seeds find, and how many others confirm.
        scale: of the number of jobs.
    """

    mixes: tuple[str, ...] = ("lingjun", "muri", "philly")
    nics: tuple[float, ...] = (10, 25, 50, 100, 200, 400, 800, 1600)
    over: float = 4
    others: tuple[tuple[float, float], ...] = ((10, 1), (25, 1), (100, 1), (25, 8), (100, 8))
    loads: tuple[float, ...] = (0.6, 0.8, 1.2)
    load_nics: tuple[float, ...] = (10, 25, 100)
    batch: float = 20.0
    batch_nics: tuple[float, ...] = (10, 25)
    special: tuple[tuple[str, float, float], ...] = (("lingjun", 25, 4), ("muri", 10, 4))
    seeds: int = 5
    fresh: int = 10
    scale: float = 1.0

    def cells(self) -> Iterator[Cell]:
        """Every cell of the search, each once. Raw Philly gets fewer: most of them are alike."""
        for mix in self.mixes:
            real = mix == "philly"
            fabrics = [(nic, self.over, 1.0) for nic in self.nics]
            fabrics += [(nic, over, 1.0) for nic, over in self.others if not real or nic == 25]
            nics = [nic for nic in self.load_nics if not real or nic == 25]
            fabrics += [(nic, self.over, load) for load in self.loads for nic in nics]
            fabrics += [(nic, self.over, self.batch) for nic in self.batch_nics]
            for nic, over, load in fabrics:
                yield Cell(mix, nic, over, load, scale=self.scale)

    def points(self) -> list[Point]:
        """Everything but the confirmation."""
        points = [
            Point(cell, policy, seed)
            for cell in self.cells()
            for policy in POLICIES
            for seed in range(self.seeds)
        ]
        for cell, policies in self.extras():
            points += [Point(cell, policy, seed) for policy in policies for seed in range(self.seeds)]
        return list(dict.fromkeys(points))

    def extras(self) -> Iterator[tuple[Cell, Sequence[str]]]:
        """Laws and reset rules."""
        for mix, nic, over in self.special:
            if mix in self.mixes:
                yield Cell(mix, nic, over, scale=self.scale), tuple(RESETS.values())
                for law in LAWS:
                    yield Cell(mix, nic, over, law=law, scale=self.scale), LAW_POLICIES

    def confirmation(self, cell: Cell, baseline: str) -> list[Point]:
        """The same cell on jobs that it was not chosen by."""
        return [
            Point(cell, policy, FRESH + seed) for policy in (DALLY, baseline) for seed in range(self.fresh)
        ]


FULL = Study()
QUICK = Study(
    mixes=("lingjun", "muri"), nics=(10, 50, 400), others=((50, 1),), loads=(0.6,), load_nics=(50,), batch_nics=(),
    special=(("lingjun", 50, 4),), seeds=3, fresh=3,
)  # fmt: skip


# Runs points in processes of their own and remembers them, so that a study can be taken up again.

MATTERS = ("core", "kernels", "sched", "cost", "trace", "simulator")


def fingerprint() -> str:
    """Twelve hexadecimal digits of the code and of where real data comes from."""
    package = Path(hemiola.__file__).parent
    digest = hashlib.sha256(os.environ.get("HEMIOLA_SHARED", "").encode())
    digest.update(Path(__file__).read_bytes())
    for folder in MATTERS:
        for file in sorted(package.glob(f"{folder}/**/*.*")):
            if file.suffix in (".py", ".json"):
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def key(point: Point) -> str:
    """What a point is remembered by."""
    return json.dumps([asdict(point.cell), point.policy, point.seed], sort_keys=True)


class Memory:
    """Points that were run before.

    Args:
        folder: where it is kept; None for nowhere.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / f"points-{fingerprint()}.jsonl"
        self._rows: dict[str, Row] = {}
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._read(self._file)

    def _read(self, file: Path) -> None:
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        for line in lines:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # the run was cut off while it wrote this line
            self._rows[entry["key"]] = entry["row"]

    def __contains__(self, point: Point) -> bool:
        return key(point) in self._rows

    def row(self, point: Point) -> Row:
        """What came out."""
        return self._rows[key(point)]

    def add(self, point: Point, row: Row) -> None:
        """Remember it, at once and on disk."""
        self._rows[key(point)] = row
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"key": key(point), "row": row}) + "\n")


def run_all(points: Sequence[Point], memory: Memory, workers: int, says: TextIO = sys.stderr) -> list[Row]:
    """The rows of all points, in their order; those not remembered are run."""
    missing = sorted(
        {point for point in points if point not in memory},
        key=lambda p: (p.cell.mix, p.cell.load, p.seed, p.cell.nic_gbit, p.cell.oversubscription, p.policy),
    )
    if missing:
        print(f"{len(missing):,} replays to do, {len(points) - len(missing):,} known", file=says, flush=True)
        began = time.perf_counter()
        for done, (point, row) in enumerate(_replays(missing, workers), 1):
            memory.add(point, row)
            if done % max(1, len(missing) // 20) == 0 or done == len(missing):
                spent = time.perf_counter() - began
                print(f"  {done:,} of {len(missing):,} after {spent:.0f} s", file=says, flush=True)
    return [memory.row(point) for point in points]


def _replays(points: Sequence[Point], workers: int) -> Iterator[tuple[Point, Row]]:
    if workers <= 1:
        yield from map(_one, points)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(_one, points, chunksize=12)


def _one(point: Point) -> tuple[Point, Row]:
    return point, replay(point)
