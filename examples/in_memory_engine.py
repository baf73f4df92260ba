"""A third engine in one file: a cluster that is only a table of jobs in this process, and a clock.

    hemiola serve --engine examples.in_memory_engine:ENGINE --policy fifo --mode enforce --journal memory.db
    hemiola serve --engine examples.in_memory_engine:ENGINE,jobs=examples/jobs.csv,pace=600,ends=1 --policy srtf ...

It shows all that a driver for Kubernetes, say, has to bring, and that nothing elsewhere has to know of it. A job that is
stopped begins anew when it is started again. See docs/guides/write-an-engine.md.
"""

from __future__ import annotations

import itertools
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import msgspec

from hemiola.core.decisions import Decision, Move, Placement, Resize, Start, Stop, WakeAt, placement_of
from hemiola.core.events import Event, Finished, Started
from hemiola.core.job import Batch, Profile
from hemiola.core.topology import Topology
from hemiola.live.check import Check
from hemiola.live.engines.base import Engine, EngineConnection, EngineOption, Examination
from hemiola.live.live_driver import Vanished
from hemiola.live.polling_driver import Clock, Diff, PollingDriver
from hemiola.live.session import Session
from hemiola.live.tracked_job import RecoveredJob, TrackedJob, entered, given_back, recovered
from hemiola.sched.machine import StateMachine
from hemiola.trace.topologies.read import read_topology
from hemiola.trace.workloads.read import read_workload

__all__ = ["ENGINE", "MemoryCluster", "MemoryDriver"]

LOOK_S = 0.05
JOBS = [
    Batch(id="small", submit_s=0.0, gpus=2, duration_s=1.0, user="ada"),
    Batch(id="whole", submit_s=0.0, gpus=8, duration_s=1.0, user="bob"),
    Batch(id="late", submit_s=0.5, gpus=16, duration_s=0.5, user="ada"),
]
"""What there is to do unless a table says so."""


# ---- the engine itself: what a Slurm, a Ray or a Kubernetes is to its own driver


class MemoryRow(msgspec.Struct, frozen=True):
    """A job as this engine shows it.

    Attributes:
        cluster: a mark of the cluster that has it: another process has another one, whose jobs are called alike.
        placement: where it runs, or ran last.
        since_s: since when it runs; once it has ended, when that was.
    """

    id: str
    job: Batch
    cluster: str
    state: str = "waiting"
    placement: Placement | None = None
    since_s: float = 0.0


class MemoryCluster:
    """Jobs, and hosts with GPUs.

    Attributes:
        held: whether jobs wait until somebody starts them; if not, the cluster does so itself, first come, first served.
    """

    def __init__(self, topology: Topology, jobs: Sequence[Batch] = (), *, ends: bool = False) -> None:
        self.topology, self.held, self._ends = topology, False, ends
        self._mark = secrets.token_hex(4)
        self._coming = sorted(jobs, key=lambda job: job.submit_s)
        self._rows: dict[str, MemoryRow] = {}

    def submit(self, job: Batch) -> None:
        """One more, from `job.submit_s` on."""
        self._coming = sorted([*self._coming, job], key=lambda job: job.submit_s)

    def look(self, now_s: float) -> dict[str, MemoryRow]:
        """All jobs that have come, as they are now."""
        while self._coming and self._coming[0].submit_s <= now_s:
            job = self._coming.pop(0)
            self._rows[job.id] = MemoryRow(job.id, job, self._mark)
        for row in list(self._rows.values()):
            end_s = row.since_s + row.job.duration_s
            if row.state == "running" and end_s <= now_s:
                self._change(row, state="ended", since_s=end_s)
            elif row.state == "waiting" and not self.held and (room := self._room(row.job)) is not None:
                self.start(row.id, room, now_s)
        return dict(self._rows)

    def start(self, name: str, placement: Placement, now_s: float) -> str:
        """Run a job there; "" or why that cannot be."""
        row, free = self._rows[name], self._free()
        if row.state != "waiting":
            return f"it is {row.state}"
        taken = [
            host for host, mask in zip(placement.hosts, placement.masks, strict=True) if mask & ~free[host]
        ]
        if taken:
            return f"GPUs of {self.topology.hosts.names[taken[0]]} are taken"
        self._change(row, state="running", placement=placement, since_s=now_s)
        return ""

    def stop(self, name: str) -> None:
        """It waits again, and has lost what it had done."""
        if (row := self._rows[name]).state == "running":
            self._change(row, state="waiting")

    def hand_back(self, now_s: float) -> list[str]:
        """Let the cluster start what waits; the jobs that did."""
        waited = [row.id for row in self.look(now_s).values() if row.state == "waiting" and self.held]
        self.held = False
        return waited

    def end(self) -> None:
        """Nothing is left to do: whoever serves is told so as by Ctrl-C, if that was asked for and nobody is to come."""
        if self._ends and not self._coming:
            signal.raise_signal(signal.SIGTERM)

    def _change(self, row: MemoryRow, **changes: object) -> None:
        self._rows[row.id] = msgspec.structs.replace(row, **changes)

    def _free(self) -> list[int]:
        """Of each host, the GPUs that no job has, as a mask."""
        free = [(1 << int(gpus)) - 1 for gpus in self.topology.hosts.gpus]
        for row in self._rows.values():
            if row.state == "running" and row.placement is not None:
                for host, mask in zip(row.placement.hosts, row.placement.masks, strict=True):
                    free[host] &= ~mask
        return free

    def _room(self, job: Batch) -> Placement | None:
        """The first free GPUs; None if there are too few. Only the cluster's own scheduler goes by this."""
        gpus = [
            (host, gpu)
            for host, mask in enumerate(self._free())
            for gpu in range(mask.bit_length())
            if mask >> gpu & 1
        ]
        if len(gpus) < job.gpus:
            return None
        parts: dict[int, int] = {}
        for host, gpu in gpus[: job.gpus]:
            parts[host] = parts.get(host, 0) | 1 << gpu
        return Placement(tuple(parts), tuple(parts.values()))


# ---- the driver: what happened since the last look, and how decisions are carried out


class MemoryKey(msgspec.Struct, frozen=True):
    """By what a job is found again after a restart."""

    cluster: str

    def is_same(self, row: MemoryRow) -> bool:
        """Whether it is still the job of before."""
        return self.cluster == row.cluster


@dataclass
class MemoryTrackedJob(TrackedJob):
    """What the driver remembers of a job between two looks."""

    job: Batch
    row: MemoryRow

    @property
    def recovery_key(self) -> MemoryKey:
        """By what it is found again."""
        return MemoryKey(self.row.cluster)

    @property
    def submit_s(self) -> float:
        """When it was submitted."""
        return self.row.job.submit_s


class MemoryDiff(Diff):
    """The events of one look."""

    def job(self, known: MemoryTrackedJob, row: MemoryRow) -> bool:
        """One job; whether it is still there."""
        known.row, uuid = row, known.job.id
        events = self._freed if row.state == "ended" else self._started
        if row.state != "waiting" and not known.ran:
            events.append(Started(self._now, uuid, row.placement if row.placement != known.wanted else None))
            known.ran, known.wanted = True, row.placement
        if row.state == "ended":
            events.append(Finished(self._now, uuid))
        elif row.state == "waiting":
            known.held = known.why_left_alone(self._now)
            self._may_start(self._view.jobs[uuid], known.held)
        return row.state != "ended"


class MemoryDriver(PollingDriver[MemoryTrackedJob]):
    """One cluster.

    Args:
        machine: whose view the decisions are made on; read, never changed.
        acts: whether decisions are carried out; if not, the cluster starts its jobs itself, and is only watched.
        may_act: asked before each order: whether this process still leads.
        turned: called at each turn of the loop.
        recovered: jobs of the time before, by the journal.
    """

    supports = frozenset({Start, Stop, Move, Resize, WakeAt})

    def __init__(
        self, cluster: MemoryCluster, machine: StateMachine, *, acts: bool = True, clock: Clock | None = None,
        may_act: Callable[[], bool] = lambda: True, turned: Callable[[], None] = lambda: None,
        recovered: Sequence[RecoveredJob[MemoryKey]] = (),
    ) -> None:  # fmt: skip
        super().__init__("In-memory", LOOK_S, clock, turned)
        self._cluster, self._machine, self._view = cluster, machine, machine.view
        self._acts, self._may_act = acts, may_act
        self._recovered = {memory.engine_id: memory for memory in recovered}
        cluster.held = acts

    def _see(self, now: float) -> list[Event]:
        rows = self._cluster.look(now)
        self._gone.clear()
        changes = MemoryDiff(self._view, now)
        for known in list(self.tracked.values()):
            if known.refused and rows[known.row.id].state == "ended":
                self._vanished.append(Vanished(known.job.id, "finished"))
                self._forget(known)
            elif not known.refused and not changes.job(known, rows[known.row.id]):
                self._forget(known)
        new = [row for row in rows.values() if row.state != "ended" and row.id not in self._by_id]
        arrived = list(itertools.chain.from_iterable(self._enter(row, now) for row in new))
        if self._first:
            self._vanished += [
                Vanished(m.uuid, "it ended while nobody watched") for m in self._recovered.values()
            ]
            self._recovered.clear()
        events = changes.with_new(arrived)
        if not events and all(known.refused for known in self.tracked.values()):
            self._cluster.end()
        return events

    def _enter(self, row: MemoryRow, now: float) -> list[Event]:
        """A job that was not known; at the first look perhaps one of the time before."""
        memory = self._recovered.get(row.id)
        if memory is not None and memory.recovery_key.is_same(row):
            del self._recovered[row.id]
        else:
            memory = None
        job = msgspec.structs.replace(row.job, id=memory.uuid if memory else str(uuid4()))
        known = MemoryTrackedJob(job, row)
        self._know(known)
        known.refused = self._machine.admission(job)
        if known.refused:
            self._refuse(known)
            return []
        known.ran, known.wanted = row.state == "running", row.placement if row.state == "running" else None
        known.bound_s = now if known.ran else None
        is_new = memory is None and known.wanted is None and not self._first
        return entered(known, memory, now, row.since_s if known.ran else None, is_new=is_new)

    def _carry_out(self, decided: Sequence[Decision]) -> None:
        now = self._clock.now_s()
        for decision in decided:
            if (known := self.tracked.get(decision.job_id)) is None:
                continue
            if not isinstance(decision, Start) and known.bound_s is not None and self._may_act():
                self._cluster.stop(known.row.id)
            known.wanted, known.bound_s, known.ran = placement_of(decision), None, False
            if known.wanted is None:
                self._answers.append((known.job.id, True, ""))
        for known in list(self.tracked.values()):
            if known.wanted is not None and known.bound_s is None and self._acts and self._may_act():
                self._start(known, known.wanted, now)

    def _start(self, known: MemoryTrackedJob, placement: Placement, now: float) -> None:
        """It runs there; or it goes back to the queue, and is left alone for a while."""
        why = self._cluster.start(known.row.id, placement, now)
        self._answers.append((known.job.id, not why, why))
        if not why:
            known.bound_s = now
            return
        known.wanted = None
        known.leave_alone(now, 0.0, placement.hosts)
        self.add(given_back(known, self._view, why, why, now))

    def _lines(self, known: MemoryTrackedJob, decision: Decision) -> list[str]:
        placement, lines = placement_of(decision), []
        if isinstance(decision, Stop | Move | Resize):
            lines.append(f"stop {known.row.id}")
        if placement is not None:
            names = ",".join(self._view.topology.hosts.names[host] for host, _ in placement.ranks())
            lines.append(f"start {known.row.id} on {names}")
        return lines

    def hand_back(self) -> None:
        """Let the cluster start what waits."""
        self._cluster.hand_back(self._clock.now_s())


# ---- the engine as a value: what `hemiola serve --engine` and its like call

OPTIONS = {
    option.name: option
    for option in (
        EngineOption("jobs", "A file of jobs that `hemiola simulate` reads; three small ones unless given."),
        EngineOption("pace", "So many times as fast as the file says all happens.", float, 1.0),
        EngineOption("hosts", "How many hosts there are.", int, 4),
        EngineOption("gpus", "How many GPUs each has.", int, 8),
        EngineOption("ends", "1: whoever serves ends once all jobs have that can run.", int, 0),
    )
}


def _connect(to: EngineConnection) -> MemoryCluster:
    said = {name: to.option(option) for name, option in OPTIONS.items()}
    topology = read_topology(f"flat:hosts={said['hosts']},gpus_per_host={said['gpus']}")
    jobs = read_workload(said["jobs"]).jobs if said["jobs"] else JOBS
    now_s = time.time()
    return MemoryCluster(
        topology, [_hurried(job, now_s, said["pace"]) for job in jobs], ends=bool(said["ends"])
    )


def _hurried(job: Batch, now_s: float, pace: float) -> Batch:
    return msgspec.structs.replace(
        job, submit_s=now_s + job.submit_s / pace, duration_s=job.duration_s / pace
    )


def _driver(cluster: MemoryCluster, run: Session, profile: Callable[[str], Profile]) -> MemoryDriver:
    cluster.topology = run.machine.view.topology
    return MemoryDriver(
        cluster, run.machine, acts=run.acts, clock=run.clock, may_act=run.may_act, turned=run.turned,
        recovered=recovered(run.recovered, MemoryKey),
    )  # fmt: skip


def _doctor(cluster: MemoryCluster, what: Examination) -> Iterator[Check]:
    topology = what.topology or cluster.topology
    yield Check(
        "OK", "memory", f"{len(topology.hosts.names)} hosts with {topology.gpus} GPUs, in this process alone"
    )


def _answers(cluster: MemoryCluster) -> None:
    """It is in this very process."""


def _why_unknown(cluster: MemoryCluster, job: str, topology: Topology) -> tuple[str, str]:
    if job not in cluster.look(time.time()):
        return "", ""
    return "it is in the table, and its daemon has another one", "ask that daemon: hemiola jobs"


ENGINE = Engine(
    name="in-memory", connect=_connect, topology=lambda cluster: cluster.topology, version=lambda cluster: "in-memory 1",
    driver=_driver, doctor=_doctor, release=lambda cluster: (cluster.hand_back(time.time()), []),
    options=tuple(OPTIONS.values()), answers=_answers, why_unknown=_why_unknown,
)  # fmt: skip
