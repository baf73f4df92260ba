"""What a live cluster looks like, from the journal alone: for `hemiola jobs`, `nodes`, `explain` and `top`.

Needs no daemon and writes nothing. Jobs are called by the engine's ids everywhere; UUIDs stay inside.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, assert_never

import msgspec

from hemiola.core.decisions import (
    Align,
    Decision,
    Lend,
    Move,
    Pace,
    Placement,
    Reallocate,
    Reclaim,
    Resize,
    Scale,
    Start,
    Stop,
    WakeAt,
    asks_engine,
    parts,
)  # fmt: skip
from hemiola.core.events import (
    Adopted,
    Arrived,
    Blocked,
    Event,
    Failed,
    Finished,
    Held,
    LinkFeedback,
    Load,
    Measured,
    NodeBack,
    NodeLost,
    Profiled,
    Released,
    ReplicaLost,
    ReplicaReady,
    Requeued,
    ResourcesOffered,
    ResourcesRequested,
    Started,
    Undone,
)
from hemiola.core.events import Timer as TimerEvent
from hemiola.core.job import Batch
from hemiola.core.topology import Topology
from hemiola.live.engines.registry import engine_of_run
from hemiola.live.job_store import NEVER
from hemiola.live.journal import Instant, Journal, JournaledJob, RunRecord, Status
from hemiola.live.leadership import LEASE_S, is_gone
from hemiola.live.live_driver import Topologies, fits
from hemiola.live.polling_driver import USUAL_S

__all__ = [
    "Daemon",
    "Following",
    "LiveCluster",
    "LiveHost",
    "LiveJob",
    "Made",
    "Names",
    "RunSoFar",
    "engine_ids",
    "estimate_from",
    "host_names",
    "read_cluster",
    "read_daemon",
]


# What one run of the journal tells beside its jobs: hosts that are away, timers, reasons, the last
# decisions.

RECENT = 50


class PendingTimer(msgspec.Struct, frozen=True):
    """A policy looks at a waiting job again, and why not before.

    Attributes:
        made_s, due_s: Unix time.
    """

    made_s: float
    due_s: float
    reason: str


class Made(msgspec.Struct, frozen=True):
    """A decision about a job, timers left out.

    Attributes:
        refused: why it was not carried out; "" if it was.
    """

    time_s: float
    decision: Decision
    refused: str


class RunSoFar(msgspec.Struct):
    """A run up to its last instant.

    Attributes:
        seen_s: time of its last instant; 0 before the first.
        instants: how many it has.
        blocked: by host, GPUs that are not ours to give.
        down: hosts that are away.
        timers: by job, the last that is about its present wait.
        held: by job, why it may not start.
        put_back: by job that went back to the queue, why; until it starts again.
        placed: by job, where it was last, with the reason: "" where the engine chose, None where it ran before this run.
        recent: the last decisions, oldest first.
    """

    seen_s: float = 0.0
    instants: int = 0
    blocked: dict[int, int] = {}
    down: set[int] = set()
    timers: dict[str, PendingTimer] = {}
    held: dict[str, str] = {}
    put_back: dict[str, str] = {}
    placed: dict[str, tuple[Placement, str | None]] = {}
    recent: deque[Made] = deque(maxlen=RECENT)

    def why_held(self, record: JournaledJob) -> str:
        """Why a job may not start; its note may be why it ran before."""
        never = record.note if record.note.startswith(NEVER) else ""
        return self.held.get(record.uuid) or never or "it is held"


class Following:
    """A run of the journal as it goes on: each reading takes up where the one before has ended."""

    def __init__(self) -> None:
        self._run, self._last, self._is_decided = -1, -1, True
        self._told = RunSoFar()

    def read(self, journal: Journal, run: int) -> RunSoFar:
        """The run up to its last instant; the same object each time while the run is the same.

        Raises:
            JournalError: the journal cannot be read.
        """
        if run != self._run:
            self._run, self._last, self._is_decided = run, -1, True
            self._told = RunSoFar(recent=deque(maxlen=RECENT))
        for instant in journal.instants(run, since=self._last):
            if instant.instant > self._last:
                self._happened(instant)
            elif self._is_decided:
                continue
            for decision, refused in instant.decisions or ():
                _decision(self._told, decision, refused)
            self._last, self._is_decided = instant.instant, instant.decisions is not None
        return self._told

    def _happened(self, instant: Instant) -> None:
        told = self._told
        told.instants += 1
        told.seen_s = max(told.seen_s, instant.events[0].time_s)
        for event in instant.events:
            _event(told, event)


def _event(run: RunSoFar, event: Event) -> None:
    match event:
        case Blocked():
            run.blocked[event.host] = event.gpus
        case NodeLost():
            run.down.add(event.host)
        case NodeBack():
            run.down.discard(event.host)
        case Held():
            run.held[event.job_id] = event.reason
        case Released():
            run.held.pop(event.job_id, None)
        case Requeued():
            run.put_back[event.job_id] = event.reason
            run.timers.pop(event.job_id, None)
        case Started():
            if event.placement is not None:
                run.placed[event.job_id] = event.placement, ""
                run.put_back.pop(event.job_id, None)
        case Undone():
            _undone(run, event)
        case Adopted():
            if event.placement is not None:
                run.placed[event.job.id] = event.placement, None
        case (
            Arrived() | Finished() | Failed() | Measured() | TimerEvent() | ResourcesOffered() | ResourcesRequested()
            | Profiled() | ReplicaReady() | ReplicaLost() | Load() | LinkFeedback()
        ):  # fmt: skip
            pass
        case _:
            assert_never(event)


def _undone(run: RunSoFar, event: Undone) -> None:
    run.timers.pop(event.job_id, None)
    run.put_back.pop(event.job_id, None)
    run.placed.pop(event.job_id, None)
    if event.placement is not None:
        run.placed[event.job_id] = event.placement, ""


def _decision(run: RunSoFar, decision: Decision, refused: str) -> None:
    if isinstance(decision, Reallocate):
        for change in parts(decision):
            _decision(run, change, refused)
        return
    if asks_engine(decision):
        run.recent.append(Made(run.seen_s, decision, refused))
    if refused:
        return
    job = decision.job_id
    match decision:
        case WakeAt():
            if job:
                run.timers[job] = PendingTimer(run.seen_s, decision.time_s, decision.reason)
        case Stop():
            run.timers.pop(job, None)
            run.put_back[job] = f"pre-empted: {decision.reason}"
        case Start() | Move() | Resize():
            run.timers.pop(job, None)
            run.placed[job] = decision.placement, decision.reason
            run.put_back.pop(job, None)
        case Pace() | Align() | Scale() | Lend() | Reclaim() | Reallocate():
            pass
        case _:
            assert_never(decision)


# A live cluster as people ask for it, as values. Jobs are called by the engine's ids.


class Daemon(msgspec.Struct, frozen=True, kw_only=True):
    """Whether anybody serves this journal.

    Attributes:
        state: "leads"; "silent": its lease is over, and it did not give it back; "stopped": it ended by itself;
            "never": no run was ever written.
        holder: its host and process; "" where nobody is known.
        heard_s: when it last said anything, Unix time; None for never.
        gone: its process is known to have ended.
        why: how its last run ended; "" while it goes on.
    """

    state: Literal["leads", "silent", "stopped", "never"]
    holder: str = ""
    epoch: int = 0
    heard_s: float | None = None
    gone: bool = False
    why: str = ""


class LiveJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as people ask for it.

    Attributes:
        id: the engine's.
        state: "waiting", "held" (may not start for now), "running", "ended".
        hosts: how many it wants; 0 for any.
        where: by name, the hosts where it runs, or ran last, and how many GPUs of each.
        run_s: for how long it has had GPUs, all its spans together.
        span_s: for how long it has run since it last started; 0 unless running.
        waited_s: for how long it has not.
        predicted_s, predicted_iteration_s: run time and iteration time that were predicted on its last placement, alone.
        iteration_s: as it reported it last.
        estimate_s, estimate_from: run time that policies go by, and whose word it is: "user", "limit" or "default".
        reason: why it waits, runs there, or how it ended.
        until_s: when its policy looks at it again, Unix time.
    """

    id: str
    uuid: str
    name: str
    user: str
    model: str
    state: Status
    gpus: int
    hosts: int
    where: tuple[tuple[str, int], ...]
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    run_s: float
    span_s: float
    waited_s: float
    predicted_s: float | None
    predicted_iteration_s: float | None
    iteration_s: float | None
    speed: float | None
    estimate_s: float
    estimate_from: Literal["user", "limit", "default"]
    preemptions: int
    reason: str
    until_s: float | None = None


class LiveHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host and who has its GPUs.

    Attributes:
        rack: its domain of the narrowest level; "" where there is none.
        state: "idle", "mixed", "full", "blocked" (nothing of it is ours), "draining" (once its jobs have left), "down".
        gpus, used, free, blocked: of a host that is down, none is free.
        jobs: GPUs by the job that has them.
        cells: for each GPU its job's id, "" if it is free, "#" if it is not ours.
    """

    name: str
    rack: str
    state: Literal["idle", "mixed", "full", "blocked", "draining", "down"]
    gpus: int
    used: int
    free: int
    blocked: int
    jobs: dict[str, int]
    cells: tuple[str, ...]


class LiveCluster(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    Attributes:
        now_s: when it was read.
        as_of_s: when what it says was so: now while a daemon leads, else when it was last heard.
        run: the last one; None if there was none.
        jobs: those that have not ended by submission, then those that were asked for beyond.
        decisions: the last ones, newest last, with jobs by the engine's ids.
    """

    now_s: float
    as_of_s: float
    daemon: Daemon
    run: RunRecord | None
    topology: Topology | None
    jobs: tuple[LiveJob, ...]
    hosts: tuple[LiveHost, ...]
    decisions: tuple[Made, ...]


_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
NO_LIMIT_S = 365 * 86400.0
"""The limit that Slurm shows of a job that has none, once it has started."""


class Names:
    """The engine's ids in place of UUIDs.

    Args:
        known: those that need not be looked up, by UUID.
    """

    def __init__(self, journal: Journal, known: Mapping[str, str] = MappingProxyType({})) -> None:
        self._journal = journal
        self._ids = dict(known)

    def of(self, uuid: str) -> str:
        """The engine's id of a job; the UUID itself where the journal no longer has it."""
        if uuid not in self._ids:
            record = self._journal.job(uuid)
            self._ids[uuid] = record.engine_id if record is not None else uuid
        return self._ids[uuid]

    def told(self, text: str) -> str:
        """A reason for people: "job 17 goes first"."""
        return _UUID.sub(lambda found: f"job {self.of(found[0])}", text)


def engine_ids(records: Iterable[JournaledJob]) -> dict[str, str]:
    """By UUID."""
    return {record.uuid: record.engine_id for record in records}


def read_daemon(journal: Journal, now_s: float, runs: list[RunRecord] | None = None) -> Daemon:
    """Who serves the journal."""
    runs = journal.runs() if runs is None else runs
    leader, last = journal.leader(), runs[-1] if runs else None
    if leader is not None:
        state: Literal["leads", "silent"] = "leads" if now_s <= leader.until_s else "silent"
        return Daemon(
            state=state, holder=leader.holder, epoch=leader.epoch, heard_s=leader.until_s - LEASE_S,
            gone=is_gone(leader.holder),
        )  # fmt: skip
    if last is None:
        return Daemon(state="never")
    return Daemon(state="stopped", epoch=last.epoch, heard_s=last.ended_s, why=last.reason)


def read_cluster(
    journal: Journal, now_s: float, *, ended_since_s: float | None = None, following: Following | None = None
) -> LiveCluster:
    """The cluster as the journal has it.

    Args:
        now_s: Unix time.
        ended_since_s: jobs that have ended since then, too; None for none of them.
        following: what has read the run before, if anything has.

    Raises:
        JournalError: the journal cannot be read.
    """
    records = journal.open_jobs()  # before the runs: what runs has been placed by one that is there then
    if ended_since_s is not None:
        ended = journal.jobs(ended_since_s=ended_since_s)
        uuids = {record.uuid for record in ended}  # some may have ended since they were read as open
        records = [record for record in records if record.uuid not in uuids] + ended
    runs = journal.runs()
    run = runs[-1] if runs else None
    daemon = read_daemon(journal, now_s, runs)
    told = (following or Following()).read(journal, run.id) if run is not None else RunSoFar()
    as_of_s = now_s if daemon.state == "leads" else max(told.seen_s, daemon.heard_s or 0.0)
    topologies = Topologies(runs, journal.name)
    topology = topologies.at()
    names = Names(journal, engine_ids(records))
    observes = run is not None and run.opening.mode != "enforce"
    engine = engine_of_run(run.opening.engine if run is not None else "")
    has_limits = engine is not None and engine.has_time_limits
    hosts = list(_hosts(topology, told, records)) if topology is not None else []
    free = None if observes else sum(host.free for host in hosts)
    records.sort(key=lambda record: (record.status == "ended", record.submitted_s, _number(record.engine_id)))
    jobs = [
        _job(record, told, topologies.at(record.ended_s), names, as_of_s, free, has_limits)
        for record in records
    ]
    return LiveCluster(
        now_s=now_s, as_of_s=as_of_s, daemon=daemon, run=run, topology=topology, jobs=tuple(jobs), hosts=tuple(hosts),
        decisions=tuple(_named(made, names) for made in told.recent),
    )  # fmt: skip


def host_names(placement: Placement | None, topology: Topology | None) -> tuple[tuple[str, int], ...]:
    """Hosts by name, in rank order, and how many GPUs of each; those that the topology does not have are left out."""
    if placement is None or topology is None:
        return ()
    names = topology.hosts.names
    return tuple(
        (names[host], mask.bit_count())
        for host, mask in zip(placement.hosts, placement.masks, strict=True)
        if host < len(names)
    )


def estimate_from(job: Batch, *, has_limits: bool = True) -> Literal["user", "limit", "default"]:
    """Whose word a job's run time is.

    Args:
        has_limits: whether its engine has time limits; on one that has none, only users say anything.
    """
    if job.duration_s == job.estimate_s and not has_limits:
        return "user"
    if job.duration_s == job.estimate_s:
        return "limit" if job.duration_s < NO_LIMIT_S else "default"
    return "default" if job.estimate_s is None and job.duration_s == USUAL_S else "user"


def _number(engine_id: str) -> list[int]:
    """Element 10 of an array comes after element 9."""
    return [int(digits) for digits in re.findall(r"\d+", engine_id)]


def _job(
    record: JournaledJob,
    told: RunSoFar,
    topology: Topology | None,
    names: Names,
    as_of_s: float,
    free: int | None,
    has_limits: bool,
) -> LiveJob:
    """As `LiveJob`; `free` is how many GPUs are, or None where the engine decides; `has_limits` as for `estimate_from`."""
    since_s = max(0.0, as_of_s - record.since_s) if record.status != "ended" else 0.0
    runs = record.status == "running"
    last = told.placed.get(record.uuid)
    placement = record.placement or (last[0] if last is not None and record.status == "ended" else None)
    reason, until_s = _reason(record, told, as_of_s, free)
    return LiveJob(
        id=record.engine_id, uuid=record.uuid, name=record.name, user=record.user,
        model=record.job.profile.name if record.job.profile else record.job.model, state=record.status,
        gpus=record.placement.gpus if runs and record.placement else record.job.gpus, hosts=record.job.hosts, where=host_names(placement, topology),
        submitted_s=record.submitted_s, started_s=record.first_started_s, ended_s=record.ended_s,
        run_s=record.served_s + (since_s if runs else 0.0), span_s=since_s if runs else 0.0,
        waited_s=record.queued_s + record.withheld_s + (0.0 if runs else since_s), predicted_s=record.predicted_s, speed=record.speed,
        predicted_iteration_s=record.predicted_iteration_s, iteration_s=record.iteration_s,
        estimate_s=record.job.duration_s, estimate_from=estimate_from(record.job, has_limits=has_limits), preemptions=record.preemptions,
        reason=names.told(reason), until_s=until_s,
    )  # fmt: skip


def _reason(
    record: JournaledJob, told: RunSoFar, as_of_s: float, free: int | None
) -> tuple[str, float | None]:
    """Why, and when its policy looks at it again."""
    uuid = record.uuid
    if record.status == "ended":
        return record.outcome, None
    if record.status == "running":
        why = told.placed[uuid][1] if uuid in told.placed else None
        return (record.note if why is None else why) or "the engine chose", None
    if record.status == "held":
        return told.why_held(record), None
    if free is None:
        return "the engine decides: Hemiola changes nothing in this mode", None
    before = told.put_back.get(uuid, "")
    timer = told.timers.get(uuid)
    until_s = timer.due_s if timer is not None and timer.due_s > as_of_s else None
    if free < record.job.gpus:
        wanted = "1 GPU" if record.job.gpus == 1 else f"{record.job.gpus} GPUs"
        why = f"needs {wanted}, {free} {'is' if free == 1 else 'are'} free"
    elif timer is not None and until_s is not None:
        why = timer.reason
    else:
        why = f"{free} GPU{'s are' if free != 1 else ' is'} free, but not as it needs them"
    return (f"{why}; {before}" if before else why), until_s


def _hosts(topology: Topology, told: RunSoFar, records: Iterable[JournaledJob]) -> Iterable[LiveHost]:
    cells: list[list[str]] = [[""] * int(count) for count in topology.hosts.gpus]
    for record in records:
        if record.status == "running" and record.placement is not None and fits(record.placement, topology):
            for host, gpu in record.placement.ranks():
                cells[host][gpu] = record.engine_id
    level = topology.levels[0] if topology.levels else None
    for host, name in enumerate(topology.hosts.names):
        rack = level.domains[int(level.domain_of_host[host])] if level is not None else ""
        yield _host(name, rack, cells[host], told.blocked.get(host, 0), host in told.down)


def _host(name: str, rack: str, cells: list[str], blocked: int, down: bool) -> LiveHost:
    """Of the GPUs that are blocked, those of the highest numbers that nobody has."""
    idle = [gpu for gpu, job in enumerate(cells) if not job]
    for gpu in idle[len(idle) - min(blocked, len(idle)) :]:
        cells[gpu] = "#"
    jobs: dict[str, int] = {}
    for job in cells:
        if job not in ("", "#"):
            jobs[job] = jobs.get(job, 0) + 1
    used, closed = sum(jobs.values()), cells.count("#")
    free = 0 if down else len(cells) - used - closed
    state: Literal["idle", "mixed", "full", "blocked", "draining", "down"]
    if down:
        state = "down"
    elif cells and blocked >= len(cells):
        state = "draining" if used else "blocked"
    else:
        state = "idle" if not used and not closed else "mixed" if free else "full"
    return LiveHost(
        name=name, rack=rack, state=state, gpus=len(cells), used=used, free=free, blocked=closed, jobs=jobs,
        cells=tuple(cells),
    )  # fmt: skip


def _named(made: Made, names: Names) -> Made:
    decision = msgspec.structs.replace(
        made.decision, job_id=names.of(made.decision.job_id), reason=names.told(made.decision.reason)
    )
    return Made(made.time_s, decision, names.told(made.refused))
