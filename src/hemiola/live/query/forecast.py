"""When a waiting job would start: the present state, played on in the simulator under the same policy.

An estimate. Nobody knows how long running jobs will run; they are taken to run as long as policies take them to.
Nobody submits anything any more, nothing fails, and speeds are those of the cost model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
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
    parts,
    placement_of,
)  # fmt: skip
from hemiola.core.errors import HemiolaError
from hemiola.core.events import Adopted, Blocked, Event, Finished, Held, NodeLost
from hemiola.core.events import Timer as TimerEvent
from hemiola.core.job import history_of
from hemiola.cost.contention import MaxMin
from hemiola.cost.iteration import IterationModel
from hemiola.live.journal import Journal, JournaledJob, RunRecord
from hemiola.live.query.cluster import Following, RunSoFar
from hemiola.live.tracked_job import done_by
from hemiola.sched.job_state import ENDED, HELD, RUNNING, JobState
from hemiola.sched.loop import DecisionGate, is_quiet, run_loop
from hemiola.sched.machine import StateMachine
from hemiola.sched.policies import policy_from_text
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import TIMER, SimulatedDriver, SimulatedEstimates
from hemiola.simulator.task import Task
from hemiola.trace.topologies.native import read_native

__all__ = ["Forecast", "ForecastLinkLoad", "Holder", "forecast", "predicted_loads"]

REPLAYED_MOST = 20_000
"""Of a run with more instants the policy's memory is not rebuilt: that would take seconds."""
LIMIT_S = 3.0
OVERRUN_SHARE = 0.1
How = Literal["ends", "is pre-empted", "moves", "is resized"]


class Holder(msgspec.Struct, frozen=True):
    """Who has GPUs that another job waits for.

    Attributes:
        job: the engine's id, or a UUID as `forecast` gives it.
        until_s: Unix time.
        how: "ends", "is pre-empted", "moves" or "is resized".
        overrun: whether it has run longer than estimated already.
    """

    job: str
    until_s: float
    how: How
    overrun: bool = False


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What is expected of one waiting job.

    Attributes:
        start_s: Unix time; None where it never starts, or that took too long to find out.
        placement: where.
        reason: the policy's, then.
        holders: who has those GPUs now, when each would leave them, and how.
        first: jobs that would start before it, by UUID, in this order.
        remembers: whether the policy's own memory (how long jobs held out so far) was rebuilt, too.
        not_before_s: it does not start before then, where finding out took too long.
        why_not: why there is no time.
    """

    start_s: float | None = None
    placement: Placement | None = None
    reason: str = ""
    holders: tuple[Holder, ...] = ()
    first: tuple[str, ...] = ()
    remembers: bool = False
    not_before_s: float | None = None
    why_not: str = ""


def forecast(
    journal: Journal, run: RunRecord, records: Sequence[JournaledJob], uuid: str, now_s: float
) -> Forecast:
    """Play on until this job starts.

    Args:
        run: the last one.
        records: all jobs that have not ended.
        now_s: from when on.
    """
    try:
        model = IterationModel(read_native(run.opening.topology, journal.name), fitted=run.opening.fitted)
        told = Following().read(journal, run.id)
        records = _possible(run, model, records)
        found = None if told.instants > REPLAYED_MOST else _replayed(journal, run, model, records)
        machine, timers = found or (_adopted(run, told, model, records, now_s), None)
        machine.apply(TimerEvent(now_s, ""))
        driver = _Onward(machine.view, model, run, uuid)
        driver.begin(timers)
        run_loop(driver, machine, policy_from_text(run.opening.policy))
    except HemiolaError as problem:
        return Forecast(why_not=problem.what)
    return driver.found(remembers=found is not None)


class ForecastLinkLoad(msgspec.Struct, frozen=True):
    """What the running jobs are predicted to send over a link.

    Attributes:
        link: "n3 nic", "rack r1 uplink".
        bytes_per_s, capacity_bytes_per_s: each way.
        jobs: who sends, UUIDs.
    """

    link: str
    bytes_per_s: float
    capacity_bytes_per_s: float
    jobs: tuple[str, ...]


def predicted_loads(
    journal: Journal,
    run: RunRecord,
    records: Sequence[JournaledJob],
    now_s: float,
    following: Following | None = None,
) -> list[ForecastLinkLoad]:
    """Links that carry anything, the fullest first; of jobs whose model is known, at equal shares of each link.

    Args:
        following: what has read the run before, if anything has.
    """
    model = IterationModel(read_native(run.opening.topology, journal.name), fitted=run.opening.fitted)
    running = [record for record in records if record.status == "running"]
    told = (following or Following()).read(journal, run.id)
    driver = _Onward(_adopted(run, told, model, running, now_s).view, model, run, "")
    driver.begin([])
    rates: dict[int, float] = {}
    senders: dict[int, list[str]] = {}
    for uuid, link, bytes_per_s in driver.sent():
        rates[link] = rates.get(link, 0.0) + bytes_per_s
        senders.setdefault(link, []).append(uuid)
    names, capacities = model.link_names, model.capacities_bytes_per_s
    loads = [
        ForecastLinkLoad(names[link], rate, float(capacities[link]), tuple(senders[link]))
        for link, rate in rates.items()
    ]
    return sorted(loads, key=lambda load: (-load.bytes_per_s / load.capacity_bytes_per_s, load.link))


def _machine(run: RunRecord, model: IterationModel, now_s: float) -> StateMachine:
    return StateMachine(ClusterView(model.topology, SimulatedEstimates(model, run.opening.costs), now=now_s))


def _possible(run: RunRecord, model: IterationModel, records: Sequence[JournaledJob]) -> list[JournaledJob]:
    """Without jobs that can never run there: the view has never had them."""
    machine = _machine(run, model, run.began_s)
    return [record for record in records if not machine.admission(record.job)]


def _replayed(
    journal: Journal, run: RunRecord, model: IterationModel, records: Sequence[JournaledJob]
) -> tuple[StateMachine, list[WakeAt]] | None:
    """The machine as the daemon has it, and the timers that are due; None if it cannot be had."""
    machine, policy = _machine(run, model, run.began_s), policy_from_text(run.opening.policy)
    gate = DecisionGate(machine, run.opening.supported)
    timers: list[WakeAt] = []
    for instant in journal.instants(run.id):
        machine.apply(*instant.events)
        if instant.decisions is None or is_quiet(instant.events):
            continue
        decided = gate.decide(policy)
        if decided != instant.decisions:
            return None  # decided by another version, or cut off by its time limit
        timers += [decision for decision, refused in decided if isinstance(decision, WakeAt) and not refused]
    jobs = machine.view.jobs
    if any(record.uuid not in jobs for record in records):
        return None
    return machine, [timer for timer in timers if timer.time_s > machine.view.now]


def _adopted(
    run: RunRecord, told: RunSoFar, model: IterationModel, records: Sequence[JournaledJob], now_s: float
) -> StateMachine:
    """A machine that begins with what is there, as a daemon that starts now would."""
    machine = _machine(run, model, now_s)
    running = [record for record in records if record.status == "running"]
    others = [record for record in records if record.status != "running"]
    events: list[Event] = [_adoption(record, now_s) for record in running]
    events += [Blocked(now_s, host, gpus) for host, gpus in told.blocked.items() if gpus]
    events += [NodeLost(now_s, host) for host in sorted(told.down)]
    events += [_adoption(record, now_s) for record in others]
    events += [Held(now_s, record.uuid, "") for record in others if record.status == "held"]
    machine.apply(*events)
    return machine


def _adoption(record: JournaledJob, now_s: float) -> Adopted:
    placement = record.placement if record.status == "running" else None
    return Adopted(
        now_s, record.job, placement, record.since_s, record.service_gpu_s,
        **history_of(record) | {"done_s": done_by(record, now_s)},
    )  # fmt: skip


class _Onward(SimulatedDriver):
    """The simulated cluster, begun in the middle.

    Args:
        wanted: the job whose start ends it.
    """

    def __init__(self, view: ClusterView, model: IterationModel, run: RunRecord, wanted: str) -> None:
        super().__init__(
            view, (), model, MaxMin().sharing(), costs=run.opening.costs, record=False,
            supports=run.opening.supported,
        )  # fmt: skip
        self._wanted = wanted
        self._until = time.monotonic() + LIMIT_S
        self._changes: dict[str, list[tuple[float, How, Placement | None]]] = {}
        self._holders: list[tuple[str, Placement]] = []
        self._overrun: set[str] = set()
        self._first: dict[str, None] = {}
        self._start: tuple[float, Placement, str] | None = None
        self._late = False
        self._opening: list[TimerEvent] = []

    def begin(self, timers: list[WakeAt] | None) -> None:
        """Take over every job as the view has it; where no timers are known, policies set theirs anew."""
        now, states = self.view.now, [s for s in self.view.jobs.values() if s.status != ENDED]
        self.ended = -len(states)  # so many are to end before there is nothing to wait for
        for state in states:
            self.tasks[state.id] = self._task(state, now)
        for state in [s for s in states if s.status == RUNNING]:
            assert state.placement is not None
            self._holders.append((state.id, state.placement))
            self._begin(self.tasks[state.id], state.placement)
        for state in states:
            self.tasks[state.id].ran = state.held_s(now) > 0
        self._opening = [TimerEvent(now, "" if timers is not None else state.id) for state in states]
        for timer in timers or ():
            self._push(max(now, timer.time_s), TIMER, timer.job_id, 0)

    def _task(self, state: JobState, now: float) -> Task:
        left_s = state.remaining_s(now)
        if not left_s:
            self._overrun.add(state.id)
            left_s = OVERRUN_SHARE * state.work_s
        return Task(
            state.job.sized(state.asked_gpus), state.index, left_s, [0.0] * self._tiers, state.job.duration_s
        )

    def sent(self) -> Iterator[tuple[str, int, float]]:
        """(job, link, bytes per second) of all that crosses hosts now."""
        self._settle(self.view.now)
        for task in self._crossing.values():
            crossing = task.crossing
            if crossing is not None and crossing.need.traffic_bytes:
                factors = crossing.factors or (1.0,) * len(crossing.links)
                for link, factor in zip(crossing.links, factors, strict=True):
                    yield task.job.id, link, factor * crossing.need.traffic_bytes / task.iteration_s

    def events(self) -> Iterator[list[Event]]:
        """First what is there, then what follows."""
        if self.view.jobs[self._wanted].status == HELD:
            return
        yield [*self._opening]
        for events in super().events():
            for event in events:
                if isinstance(event, Finished):
                    self._changes.setdefault(event.job_id, []).append((event.time_s, "ends", None))
            if time.monotonic() > self._until:
                self._late = True
                return
            yield events

    def execute(self, decision: Decision) -> None:
        """Carry it out; the start that was waited for ends it all."""
        for part in parts(decision):
            if isinstance(part, Start) and part.job_id == self._wanted:
                self._start = self.view.now, part.placement, part.reason
                self.stop = True
                return
        if not self.stop:
            for part in parts(decision):
                self._note_change(part)
            super().execute(decision)

    def _note_change(self, decision: Decision) -> None:
        match decision:
            case Start():
                self._first[decision.job_id] = None
            case Stop():
                self._changes_place(decision, "is pre-empted")
            case Move():
                self._changes_place(decision, "moves")
            case Resize():
                self._changes_place(decision, "is resized")
            case Pace() | Align() | Scale() | Lend() | Reclaim() | Reallocate() | WakeAt():
                pass
            case _:
                assert_never(decision)

    def _changes_place(self, decision: Decision, how: How) -> None:
        change = self.view.now, how, placement_of(decision)
        self._changes.setdefault(decision.job_id, []).append(change)

    def found(self, *, remembers: bool) -> Forecast:
        """What came out."""
        if self._start is None:
            why = f"{LIMIT_S:g} s of simulation did not reach its start" if self._late else ""
            if self.view.jobs[self._wanted].status == HELD:
                why = "it is held, and nobody knows for how long"
            return Forecast(
                remembers=remembers,
                not_before_s=self.now if self._late else None,
                why_not=why
                or "it does not start, whatever ends: nothing that will be free is as it needs it",
            )
        start_s, placement, reason = self._start
        wanted = set(placement.ranks())
        holders = [
            Holder(job, *self._leaves(job, its, start_s), job in self._overrun)
            for job, held in self._holders
            if (its := wanted.intersection(held.ranks()))
        ]
        return Forecast(
            start_s=start_s, placement=placement, reason=reason, holders=tuple(holders), remembers=remembers,
            first=tuple(self._first),
        )  # fmt: skip

    def _leaves(self, job: str, gpus: set[tuple[int, int]], start_s: float) -> tuple[float, How]:
        """When it has none of these GPUs any more, and how that came."""
        for time_s, how, place in self._changes.get(job, ()):
            if place is None or gpus.isdisjoint(place.ranks()):
                return time_s, how
        return start_s, "ends"
