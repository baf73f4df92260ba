"""Pictures of the view: taken by the loop's own thread, where nothing moves, and only while somebody asks.

A picture is never changed. What is worked out from it is worked out by whoever asked.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence

import msgspec

from hemiola.core.decisions import Decision, Placement, Start, asks_engine
from hemiola.core.job import Batch, JobHistory, history_of
from hemiola.core.topology import Topology
from hemiola.cost.contention import MaxMin
from hemiola.cost.iteration import IterationModel
from hemiola.live.job_store import NEVER, STATUS
from hemiola.live.journal import JournaledJob
from hemiola.live.live_driver import Identity, LiveDriver
from hemiola.sched.job_state import ENDED, JobState
from hemiola.sched.view import ClusterView
from hemiola.trace.reports import HostReport

__all__ = [
    "KEEP",
    "THOUGHT_S",
    "DecisionNote",
    "JobSnapshot",
    "Loads",
    "Predictor",
    "Snapshot",
    "Snapshots",
    "seen_impossible",
    "seen_in_journal",
    "seen_live",
]


_log = logging.getLogger("hemiola.web")
EVERY_S, SHARE = 0.5, 20.0
"""Pictures are so far apart at least, and so many times as far as one takes: the loop has other things to do."""
FRESH_S, PATIENCE_S = 2.0, 1.0
KEEP = 2000
THOUGHT_S = (0.0001, 0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0)


class DecisionNote(msgspec.Struct, frozen=True):
    """A decision as it was made.

    Attributes:
        number: in its run, from 0; timers do not count.
        who: the job, as the engine had it then.
    """

    run: int
    number: int
    time_s: float
    decision: Decision
    refused: str
    who: Identity | None


class JobSnapshot(JobHistory, frozen=True, kw_only=True):
    """A job in a picture, wherever the picture comes from."""

    job: Batch
    engine_id: str
    user: str
    name: str
    state: str
    since_s: float
    placement: object
    binds_failed: int
    note: str
    submitted_s: float
    misread: str = ""
    first_started_s: float | None = None
    ended_s: float | None = None
    outcome: str = ""
    iteration_s: float | None = None
    shortage: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as it stood.

    Attributes:
        run: the journal's number of the run; None where there is none yet.
        taken_s: Unix time.
        jobs: those that have not ended, in order of arrival.
        masks: per host the free GPUs; None: not known, as it is the journal's picture.
        blocked: by host the GPUs that are not ours to give.
        away: why the engine cannot be asked.
        last: by job the last decision about it.
        counters: by host what its network cards were last said to carry.
        impossible: jobs that could never run here; not among `jobs` where these come from the view.
        leads: whether this instance decides.
        shortages: what jobs lack beside GPUs, in words, where it is that for which they wait.
    """

    run: int | None
    taken_s: float
    topology: Topology
    jobs: tuple[tuple[JobState, Identity | None], ...] | tuple[JournaledJob, ...]
    masks: tuple[int, ...] | None
    down: tuple[bool, ...]
    blocked: dict[int, int]
    away: str
    last: dict[str, DecisionNote]
    decided: int
    counters: dict[str, HostReport] = {}
    impossible: tuple[tuple[Batch, Identity | None], ...] = ()
    leads: bool = True
    shortages: dict[str, str] = {}


def _shortages(view: ClusterView) -> dict[str, str]:
    """Jobs of one shape lack the same."""
    spare, counts = view.inventory.spare, view.inventory.counts
    by_shape: dict[int, str] = {}
    found = {}
    for job in view.waiting.values():
        if job.claim is not None:
            if job.shape not in by_shape:
                by_shape[job.shape] = spare.shortage(job, counts)
            if by_shape[job.shape]:
                found[job.id] = by_shape[job.shape]
    return found


class NumberedSnapshot(msgspec.Struct, frozen=True):
    """A picture, with the number of the last change."""

    number: int
    picture: Snapshot


def seen_live(state: JobState, who: Identity | None, shortage: str = "") -> JobSnapshot:
    """A job of the view."""
    return JobSnapshot(
        job=state.job, engine_id=who.engine_id if who else "", user=who.user if who else state.job.user,
        name=who.name if who else "", state=STATUS[state.status], since_s=state.since_s, placement=state.placement,
        **history_of(state.history(state.settled_s)), binds_failed=who.binds_failed if who else 0, note=who.note if who else "", submitted_s=state.submit_s,
        misread=who.misread if who else "", iteration_s=who.iteration_s if who else None, shortage=shortage,
    )  # fmt: skip


def seen_impossible(job: Batch, who: Identity | None) -> JobSnapshot:
    """A job that could never run here, as the journal has it, too."""
    return JobSnapshot(
        job=job, engine_id=who.engine_id if who else "", user=who.user if who else job.user,
        name=who.name if who else "", state="held", since_s=job.submit_s, placement=None, binds_failed=0, note=f"{NEVER}: {who.note if who else 'no place is large enough'}",
        submitted_s=job.submit_s,
    )  # fmt: skip


def seen_in_journal(record: JournaledJob) -> JobSnapshot:
    """A job of the journal, which has it at the size that it was submitted for."""
    job, place = record.job, record.placement
    if record.status == "running" and place is not None and job.is_elastic:
        job = job.sized(place.gpus)
    return JobSnapshot(
        job=job, engine_id=record.engine_id, user=record.user, name=record.name, state=record.status,
        since_s=record.since_s, placement=place, **history_of(record), binds_failed=record.binds_failed, note=record.note,
        submitted_s=record.submitted_s, first_started_s=record.first_started_s, ended_s=record.ended_s,
        outcome=record.outcome, iteration_s=record.iteration_s,
    )  # fmt: skip


def _started(record: JournaledJob, run: int) -> DecisionNote | None:
    """Why a job runs there that a run before has started, as the decision that it was; it is none of this run's."""
    if record.status != "running" or record.placement is None or not record.note:
        return None
    return DecisionNote(run, -1, record.since_s, Start(record.uuid, record.placement, record.note), "", None)


class Snapshots:
    """A `Watcher` of the loop that gives pictures to any thread."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._wanted = False
        self._picture: Snapshot | None = None
        self._next_s = 0.0
        self._run, self._number = -1, 0
        self._seen = False
        self._driver: LiveDriver | None = None
        self._notes: deque[DecisionNote] = deque(maxlen=KEEP)
        self._last: dict[str, DecisionNote] = {}
        self._pending: tuple[float, Decision, str] | None = None
        self.turned_s: float | None = None
        self.counts: Counter[tuple[str, bool]] = Counter()
        self.pictures = 0
        self.thoughts: list[int] = [0] * (len(THOUGHT_S) + 1)
        """How many instants the policy took so long for, by `THOUGHT_S`; the last: longer."""
        self.thought_s = 0.0

    # ---- the loop's side

    def turned(
        self, view: ClusterView, driver: LiveDriver, run: int, *, seen: bool = True, recovered: Sequence[JournaledJob] = (),
    ) -> None:  # fmt: skip
        """The loop has come around; a picture, if one is wanted and it is time, and there is something to see."""
        self._settle()
        self._driver = driver
        if run == self._run:  # its first turn is only its beginning, and it may break there
            self.turned_s = time.time()
        else:
            self._run, self._number = run, 0
            self._last = {job.uuid: note for job in recovered if (note := _started(job, run)) is not None}
            self._next_s = 0.0
        began_s = time.monotonic()
        self._seen = seen
        if not seen:
            self._go_on_without(run, driver.away)
            return
        if not self._wanted or began_s < self._next_s:
            return
        try:
            picture = self._take(view, driver, run)
        except Exception:  # the loop must not fail because of who looks on
            _log.exception("no picture could be taken of the view")
            self._next_s = began_s + 60.0
            return
        self._next_s = began_s + max(EVERY_S, SHARE * (time.monotonic() - began_s))
        with self._lock:
            self._picture, self._wanted = picture, False
            self.pictures += 1
            self._lock.notify_all()

    def _go_on_without(self, run: int, away: str) -> None:
        """A view that the engine has told nothing yet is no picture of a cluster: the one before stays."""
        with self._lock:
            if self._picture is not None and (self._picture.run, self._picture.away) != (run, away):
                self._picture = msgspec.structs.replace(self._picture, run=run, away=away)

    def decided(self, now_s: float, decision: Decision, refused: str) -> None:
        """A decision, and again if it was refused."""
        if refused:
            self._pending = None
        self._settle()
        self._pending = now_s, decision, refused

    def thought(self, seconds: float) -> None:
        """So long the policy has computed at this instant."""
        with self._lock:
            self.thoughts[bisect_left(THOUGHT_S, seconds)] += 1
            self.thought_s += seconds

    def _settle(self) -> None:
        """Note the last decision: by now it is known whether it was refused."""
        if self._pending is None:
            return
        (now_s, decision, refused), self._pending = self._pending, None
        kind = type(decision).__name__.lower() if asks_engine(decision) else "timer"
        with self._lock:
            self.counts[kind, bool(refused)] += 1
            if not asks_engine(decision):
                return
            who = self._who(decision.job_id)
            note = DecisionNote(self._run, self._number, now_s, decision, refused, who)
            self._number += 1
            self._notes.append(note)
            self._last[decision.job_id] = note

    def _who(self, job: str) -> Identity | None:
        try:
            return self._driver.identity(job) if self._driver is not None else None
        except Exception:  # as above
            _log.exception("the engine's name of job %s is not known", job)
            return None

    def _take(self, view: ClusterView, driver: LiveDriver, run: int) -> Snapshot:
        inventory = view.inventory
        open_jobs = [state for state in view.jobs.values() if state.status != ENDED]
        self._last = {state.id: note for state in open_jobs if (note := self._last.get(state.id)) is not None}
        return Snapshot(
            run=run, taken_s=time.time(), topology=view.topology,
            jobs=tuple((copy.copy(state), driver.identity(state.id)) for state in open_jobs),
            masks=tuple(inventory.masks), down=tuple(inventory.down), blocked=dict(inventory.blocked),
            away=driver.away, last=dict(self._last), decided=self._number, counters=dict(driver.counters()),
            impossible=tuple((job, driver.identity(job.id)) for job in driver.impossible()),
            shortages=_shortages(view),
        )  # fmt: skip

    # ---- everybody else's

    def look(self, patience_s: float = PATIENCE_S) -> Snapshot | None:
        """The newest picture; waited for only if it is old and the loop turns. Another one is asked for."""
        with self._lock:
            self._wanted = True
            before, now_s = self._picture, time.time()
            turns = self.turned_s is not None and now_s - self.turned_s < FRESH_S
            if self._seen and (before is None or (turns and now_s - before.taken_s > FRESH_S)):
                self._lock.wait_for(lambda: self._picture is not before, patience_s)
            return self._picture

    def notes(self) -> tuple[DecisionNote, ...]:
        """The last decisions, oldest first."""
        with self._lock:
            return tuple(self._notes)


# What the running jobs send over each link, as the cost model predicts it; and how fast they run beside
# each other.


class Speed(msgspec.Struct, frozen=True):
    """How fast a job runs: seconds per iteration, and over those of its best placement alone."""

    iteration_s: float
    slowdown: float


class Loads(msgspec.Struct, frozen=True):
    """Predictions for one picture.

    Attributes:
        sent: by link, each job's (index in the sequence, bytes/s).
        speeds: by index in the sequence, where the profile is known.
        unknown: jobs over several hosts without a profile.
    """

    sent: dict[int, list[tuple[int, float]]]
    speeds: dict[int, Speed]
    unknown: int


class Predictor:
    """The cost model of one topology, for any thread."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._model = IterationModel(topology)
        self._lock = threading.Lock()  # the model remembers what it worked out

    @property
    def names(self) -> list[str]:
        """Of the links."""
        return self._model.link_names

    @property
    def capacities_bytes_per_s(self) -> list[float]:
        """Of the links, each direction."""
        return [float(rate) for rate in self._model.capacities_bytes_per_s]

    def predict(self, running: Sequence[JobSnapshot]) -> Loads:
        """Loads and speeds while these run together."""
        with self._lock:
            return self._predict(running)

    def _predict(self, running: Sequence[JobSnapshot]) -> Loads:
        model, network = self._model, MaxMin().network(self._model.capacities_bytes_per_s)
        speeds: dict[int, Speed] = {}
        crossing, unknown = {}, 0
        for index, seen in enumerate(running):
            job, place = seen.job, seen.placement
            if not isinstance(place, Placement) or job.profile is None:
                unknown += isinstance(place, Placement) and len(place.hosts) > 1
                continue
            if len(place.hosts) == 1:
                iteration_s, _ = model.on_host(job, place.hosts[0], place.masks[0])
                speeds[index] = self._speed(seen, iteration_s)
                continue
            found = model.crossing(job, place)
            hidden_s = found.need.hidden_s - found.latency_s
            slot = network.add(
                compute_s=found.need.compute_s + max(0.0, -hidden_s), hidden_s=max(0.0, hidden_s),
                traffic_bytes=found.need.traffic_bytes, links=found.links, factors=found.factors,
            )  # fmt: skip
            crossing[slot] = index, found
        sent: dict[int, list[tuple[int, float]]] = {}
        for slot, iteration_s, _ in network.settle():
            index, found = crossing[slot]
            iteration_s = max(iteration_s, found.local_s)
            speeds[index] = self._speed(running[index], iteration_s)
            iteration_s = running[index].iteration_s or iteration_s
            if found.need.traffic_bytes:
                for link, factor in zip(found.links, found.factors or [1.0] * len(found.links), strict=True):
                    sent.setdefault(link, []).append((index, factor * found.need.traffic_bytes / iteration_s))
        return Loads(sent, speeds, unknown)

    def _speed(self, seen: JobSnapshot, iteration_s: float) -> Speed:
        return Speed(iteration_s, iteration_s / self._model.alone(seen.job).best_s)
