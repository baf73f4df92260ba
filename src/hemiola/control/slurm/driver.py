"""Slurm as a driver of the loop: what happened since the last look, and how decisions are carried out.

Hemiola binds a held job to nodes and releases it; Slurm starts it there and nowhere else. Everything is derived
anew from what Slurm shows: a request that was lost is found missing at the next look, and made again.
"""

from __future__ import annotations

import heapq
import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from hemiola.control.clock import Clock
from hemiola.control.live.engine import Identity, LiveDriver
from hemiola.control.slurm import orders
from hemiola.control.slurm.changes import Changes, outcome_of, placement_of, why_held
from hemiola.control.slurm.client import UNKNOWN, Slurm
from hemiola.control.slurm.handback import hand_back
from hemiola.control.slurm.jobs import is_user_held, job_of, words_of
from hemiola.control.slurm.known import Known
from hemiola.control.slurm.looks import ENDED, HOLDS, Look, Watcher
from hemiola.control.slurm.memory import Remembered
from hemiola.control.slurm.rows import JOB_FORMAT, JobRow, job_rows
from hemiola.core.decisions import Decision, Move, Start, Stop, WakeAt
from hemiola.core.errors import EngineError, InternalError
from hemiola.core.events import Adopted, Arrived, Event, Held, Requeued, Timer
from hemiola.core.hostlist import expand
from hemiola.core.job import Profile
from hemiola.sched.job_state import RUNNING
from hemiola.sched.machine import StateMachine

__all__ = ["SlurmDriver"]

_log = logging.getLogger("hemiola.slurm")
LOOK_S, LOOK_SHARE = 0.1, 5.0
"""Looks are so far apart, and so many times as far as one takes: Slurm has other things to do."""
AWAY_S, AWAY_MOST_S = 1.0, 15.0
MISSED = 2
"""A job of which Slurm shows nothing so many looks in a row, not even its end, is gone."""
USUAL_S = 86400.0
THROTTLED_S = 5.0
HOLDS_S = 1.0


class SlurmDriver(LiveDriver):
    """One partition of a Slurm.

    Args:
        machine: whose view the decisions are made on; read, never changed.
        partition: the one that Hemiola manages.
        may_act: asked before each order: whether this process still leads.
        turned: called at each turn of the loop.
        acts: whether decisions are carried out; if not, Slurm's own scheduler goes on, and is only watched.
        remembered: jobs of the time before, by the journal.
        profile: of a model by its name.
        usual_s: how long a job is taken to run that says nothing.

    Attributes:
        known: jobs, by our id.
        away: why Slurm cannot be asked at the moment; "" if it can.
    """

    def __init__(
        self, slurm: Slurm, machine: StateMachine, partition: str, *, acts: bool = True, clock: Clock | None = None, may_act: Callable[[], bool] = lambda: True,
        turned: Callable[[], None] = lambda: None,
        remembered: Sequence[Remembered] = (), profile: Callable[[str], Profile], usual_s: float = USUAL_S,
    ) -> None:  # fmt: skip
        self._slurm, self._machine, self._view = slurm, machine, machine.view
        self._partition = partition
        self._topology = machine.view.topology
        self._watcher = Watcher(slurm, self._topology, partition)
        self._acts, self._clock, self._may_act, self._turned = acts, clock or Clock(), may_act, turned
        self._profile, self._usual_s = profile, usual_s
        self._remembered = {memory.engine_id: memory for memory in remembered}
        self.known: dict[str, Known] = {}
        self._by_id: dict[str, Known] = {}
        self._passed: set[tuple[str, int]] = set()
        self.away = ""
        self._away_s = 0.0
        self._vanished: list[tuple[str, str]] = []
        self._answers: list[tuple[str, bool, str]] = []
        self._blocked: dict[int, int] = {}
        self._words_s = 0.0
        self._decided: list[Decision] = []
        self._timers: list[tuple[float, str]] = []
        self._soon: list[Event] = []
        self._gone: dict[str, Known] = {}
        self._next_look_s = 0.0
        self._first = True
        self._stop = threading.Event()
        self._most_gpus = max(map(int, self._topology.hosts.gpus))

    def stop(self) -> None:
        """End the events after the present instant; any thread may ask for it."""
        self._stop.set()

    def add(self, events: Sequence[Event]) -> None:
        """With what the next turn brings."""
        self._soon += events

    # ---- events

    def events(self) -> Iterator[list[Event]]:
        """One list per instant at which something happened; the first has all that is there."""
        while not self._stop.is_set():
            self._turned()
            self._carry_out()
            events = self._wait()
            if events or (self._first and not self.away):
                self._first = self._first and bool(self.away)
                yield events or [Timer(self._clock.now_s(), "")]

    def _wait(self) -> list[Event]:
        """Until the next look or timer is due, and then what it brings."""
        due_s = min(self._next_look_s, self._timers[0][0] if self._timers else float("inf"))
        if not self._soon and self._stop.wait(max(0.0, due_s - self._clock.now_s())):
            return []
        events, self._soon = self._soon, []
        now = self._clock.now_s()
        if now >= self._next_look_s:
            events += self._look()
        while self._timers and self._timers[0][0] <= now:
            events.append(Timer(now, heapq.heappop(self._timers)[1]))
        return events

    def _look(self) -> list[Event]:
        began_s = self._clock.now_s()
        try:
            look = self._watcher.look(began_s)
        except EngineError as problem:
            self._away_s = min(AWAY_MOST_S, max(AWAY_S, 2 * self._away_s))
            self._next_look_s = self._clock.now_s() + self._away_s
            if self.away != problem.what:
                _log.warning("Slurm cannot be asked: %s", problem.what)
            self.away = problem.what
            return []
        try:
            events = self._compare(look, began_s)
        except EngineError as problem:  # what was compared already would be forgotten
            raise InternalError(f"Slurm went away in the middle of a look: {problem.what}") from problem
        if self.away:
            _log.warning("Slurm answers again")
        self.away, self._away_s = "", 0.0
        took_s = self._clock.now_s() - began_s
        self._next_look_s = began_s + max(LOOK_S, LOOK_SHARE * took_s)
        return events

    def _compare(self, look: Look, now: float) -> list[Event]:
        """A look against what is known."""
        self._gone.clear()
        self._see_holds(now)
        changes = Changes(self._view, self._watcher, now)
        new: list[JobRow] = []
        changes.nodes(look, self._blocked)
        for row in look.jobs.values():
            known = self._by_id.get(row.id)
            if known is not None and not known.is_same(row):
                changes.gone([known], {})
                self._forget(known)
                known = None
            if known is None:
                new.append(row)
            elif known.refused:
                known.row, known.missed = row, 0
            elif not changes.job(known, row):
                self._forget(known)
        self._missing(look, changes)
        arrived = self._enter([row for row in new if (row.id, row.submit_s) not in self._passed], now)
        self._blocked = look.blocked
        if self._acts:
            self._hold(changes.loose)
            self._park(changes)
            for known, why in changes.failed:
                self._bind_failed(known, why, now)
            for known in changes.throttled:
                self._throttle(known, now)
        return changes.with_new(arrived)

    def _see_holds(self, now: float) -> None:
        """Whether users have lifted their own holds."""
        held = {known.row.id: known for known in self.known.values() if known.user_held}
        if held and now - self._words_s > HOLDS_S:
            self._words_s = now
            for job_id, words in words_of(self._slurm, list(held)).items():
                if job_id in held:
                    held[job_id].user_held = is_user_held(words)

    def _missing(self, look: Look, changes: Changes) -> None:
        """Jobs that are no longer listed: they have ended, or are lost."""
        missing = [known for known in self.known.values() if known.row.id not in look.jobs]
        rows = self._ends([known.row.id for known in missing])
        for known in missing:
            known.missed += 1
            row = rows.get(known.row.id)
            if known.missed < MISSED and not (row is not None and row.state in ENDED and known.is_same(row)):
                continue
            if not known.refused:
                changes.gone([known], rows)
            self._forget(known)

    def _ends(self, ids: list[str]) -> dict[str, JobRow]:
        """What Slurm still knows of jobs that it no longer lists: for some minutes, how they ended."""
        if not ids:
            return {}
        try:
            text = self._slurm.ask("squeue", "-h", "-r", "-t", "all", "-j", ",".join(ids), "-O", JOB_FORMAT)
        except EngineError as problem:
            if UNKNOWN in problem.what:
                return {}  # none of them is known any more
            raise
        return {row.id: row for row in job_rows(text)}

    def _forget(self, known: Known) -> None:
        self._gone[known.job.id] = self.known.pop(known.job.id)
        self._by_id.pop(known.row.id, None)

    # ---- new jobs

    def _enter(self, rows: list[JobRow], now: float) -> list[Event]:
        """Jobs that were not known to this run; at the first look those of the time before."""
        events: list[Event] = []
        words = words_of(self._slurm, [row.id for row in rows]) if rows else {}
        taken: Counter[int] = Counter()
        for row in rows:
            if row.state in HOLDS:
                taken.update(self._watcher.parts(row))
        for row in sorted(rows, key=_line):
            memory = self._remembered.pop(row.id, None)
            if memory is not None and not memory.clues.is_same(row):
                self._part([memory])
                memory = None
            events += self._enter_one(row, words.get(row.id, ("", "")), memory, now, taken)
        if self._first and self._remembered:
            self._part(list(self._remembered.values()))
            self._remembered = {}
        return events

    def _part(self, memories: list[Remembered]) -> None:
        """Jobs of the time before that are no longer there."""
        rows = self._ends([memory.engine_id for memory in memories])
        for memory in memories:
            row, outcome = rows.get(memory.engine_id), "it ended while nobody watched"
            if row is not None and memory.clues.is_same(row) and row.state in ENDED:
                outcome = outcome_of(row) or "finished"
            self._vanished.append((memory.uuid, outcome))

    def _enter_one(
        self, row: JobRow, words: tuple[str, str], memory: Remembered | None, now: float, taken: Counter[int]
    ) -> list[Event]:
        ours = memory.uuid if memory else str(uuid.uuid4())
        job, note = job_of(row, ours, words, self._most_gpus, self._usual_s, self._profile)
        if not job.gpus:
            return self._pass(row)
        known = Known(
            job,
            row,
            name=words[1],
            note=note,
            submits={row.submit_s, *(memory.clues.submits if memory else ())},
        )
        self.known[ours] = self._by_id[row.id] = known
        known.user_held = is_user_held(words)
        known.refused = self._machine.admission(
            job.gpus, job.gpu_type, job.required, job.preferred, job.hosts
        )
        if known.refused:
            _log.warning("job %s can never run here: %s", row.id, known.refused)
            return []
        if memory is None and row.state == "PENDING" and not self._first:
            events: list[Event] = [Arrived(now, job)]
        else:
            # policies ask for timers as they start a job: of one that is there already they are told here
            events = [self._adopted(known, memory, now, taken), Timer(now, ours)]
        if known.wanted is None and (why := why_held(known, row, now)):
            known.held = why
            events.append(Held(now, ours, why))
        return events

    def _adopted(self, known: Known, memory: Remembered | None, now: float, taken: Counter[int]) -> Adopted:
        """A job that was there before us, with what it had.

        One that is bound has its nodes as if it ran there, unless others have them (`taken`: GPUs by host): a
        controller that was killed may have taken up again what had ended.
        """
        row, job = known.row, known.job
        known.bound_restarts = row.restarts
        if row.state in HOLDS:
            known.wanted, known.ran, known.bound_s = placement_of(self._watcher.parts(row)), True, now
        elif (
            self._acts and row.priority and row.bound_to and memory is not None and row.reason != "BeginTime"
        ):
            index, names = self._watcher.hosts, expand(row.bound_to)
            hosts = [index[name] for name in names if name in index]
            each = job.gpus // max(1, len(names))
            if len(hosts) == len(names) and all(
                taken[host] + each <= int(self._topology.hosts.gpus[host]) for host in hosts
            ):
                taken.update(dict.fromkeys(hosts, each))
                known.wanted, known.bound_s = placement_of(dict.fromkeys(hosts, each)), now
        had = memory.history(now, running=known.wanted is not None) if memory else {}
        since_s = had.pop("since_s", now if known.wanted else float(row.submit_s))
        return Adopted(now, job, known.wanted, since_s, **had)  # type: ignore[arg-type]

    def _pass(self, row: JobRow) -> list[Event]:
        """It wants no GPU: Slurm may have it."""
        if self._acts and row.state == "PENDING" and row.reason == "JobHeldUser":
            self._tell([orders.release([row.id])])
        self._passed.add((row.id, row.submit_s))
        return []

    def identity(self, job_id: str) -> Identity | None:
        """Of a job by our id; also of one that ended at the present instant."""
        known = self.known.get(job_id) or self._gone.get(job_id)
        if known is None:
            return None
        return Identity(
            engine_id=known.row.id, submit_s=float(known.row.submit_s), user=known.job.user, name=known.name,
            memory=msgspec.json.encode(known.clues).decode(), note=known.refused or known.held or known.note,
            binds_failed=known.binds_failed,
        )  # fmt: skip

    def vanished(self) -> list[tuple[str, str]]:
        """Jobs that ended while nobody looked, and how."""
        vanished, self._vanished = self._vanished, []
        return vanished

    def answers(self) -> list[tuple[str, bool, str]]:
        """What became of decisions."""
        answers, self._answers = self._answers, []
        return answers

    def advise(self, decision: Decision) -> None:
        """Into the job's AdminComment; each advice once."""
        known = self.known.get(getattr(decision, "job_id", ""))
        if known is not None and isinstance(decision, Start | Move) and known.advised != decision.placement:
            known.advised = decision.placement
            self._tell([orders.advise(known, decision.placement, self._topology)])

    def hand_back(self) -> None:
        """Release what is held, and name no nodes."""
        try:
            released, held = hand_back(self._slurm, self._partition)
        except EngineError as problem:
            _log.error("held jobs could not be handed back: %s; try: hemiola release", problem.what)
            return
        _log.warning("%d jobs were handed back to Slurm, %d are still held", len(released), len(held))

    # ---- decisions

    def execute(self, decision: Decision) -> None:
        """Take note of an accepted decision; it is carried out before the next instant."""
        if isinstance(decision, WakeAt):
            heapq.heappush(self._timers, (decision.time_s, decision.job_id))
        else:
            self._decided.append(decision)

    def render(self, decision: Decision) -> str:
        """The orders that Slurm would be given, one per line."""
        known = self.known.get(getattr(decision, "job_id", ""))
        if known is None or isinstance(decision, WakeAt):
            return ""
        if isinstance(decision, Stop):
            return f"scontrol {orders.put_back(known.row.id)}"
        if isinstance(decision, Start | Move):
            lines = [orders.bind(known, decision.placement, self._topology), orders.release([known.row.id])]
            if isinstance(decision, Move):
                lines.insert(0, orders.put_back(known.row.id))
            return "\n".join(f"scontrol {line}" for line in lines)
        return f"(Slurm has no request for {type(decision).__name__})"

    def _carry_out(self) -> None:
        """Stop what is to be stopped, and bind what is to run and can be."""
        stops: list[str] = []
        now = self._clock.now_s()
        for decision in self._decided:
            known = self.known.get(getattr(decision, "job_id", ""))
            if known is None:
                continue
            if isinstance(decision, Stop | Move):
                stops += self._stopping(known, now)
            known.wanted = decision.placement if isinstance(decision, Start | Move) else None
            known.bound_s, known.ran = None, False
            if isinstance(decision, Stop):
                self._answers.append((known.job.id, True, ""))
        self._decided.clear()
        self._tell(stops)
        self._bind(
            [k for k in self.known.values() if k.wanted and k.bound_s is None and k.row.state == "PENDING"]
        )

    def _stopping(self, known: Known, now: float) -> list[str]:
        if known.ran:
            known.stopped_s = now
            return [orders.put_back(known.row.id)]
        return [orders.hold([known.row.id])] if known.bound_s is not None else []

    def _unheld(self, waiting: list[Known]) -> list[Known]:
        """Those that their users have not come to hold meanwhile."""
        try:
            words = words_of(self._slurm, [known.row.id for known in waiting])
        except EngineError:
            return []  # the next turn tries again
        for known in waiting:
            known.user_held = is_user_held(words.get(known.row.id, ("", "")))
            if known.user_held:
                self._take_back(known, "its user holds it")
        return [known for known in waiting if not known.user_held]

    def _bind(self, waiting: list[Known]) -> None:
        """Name the nodes, look whether they were taken down, and release those for which they were."""
        waiting = self._unheld(waiting)
        if not waiting:
            return
        complaints = self._tell(
            [orders.bind(known, known.wanted, self._topology) for known in waiting if known.wanted]
        )
        if complaints is None:
            return
        try:
            ids = ",".join(known.row.id for known in waiting)
            rows = {
                r.id: r for r in job_rows(self._slurm.ask("squeue", "-h", "-r", "-j", ids, "-O", JOB_FORMAT))
            }
        except EngineError as problem:
            _log.warning("bound jobs could not be looked at, and are bound again: %s", problem.what)
            return
        now, good = self._clock.now_s(), []
        for known in waiting:
            row = rows.get(known.row.id)
            if row is None or not known.is_same(row) or row.state != "PENDING":
                continue  # the next look tells
            known.row = row
            if self._is_bound(known, row):
                good.append(known)
            else:
                said = next(
                    (line.strip() for line in complaints.splitlines() if known.row.id in line),
                    "it says nothing",
                )
                self._bind_failed(known, f"Slurm does not take these nodes: {said}", now)
        if good and self._tell([orders.release([known.row.id for known in good])]) is not None:
            for known in good:
                known.bound_s, known.bound_restarts = now, known.row.restarts
                self._answers.append((known.job.id, True, ""))
        self._next_look_s = min(self._next_look_s, now + LOOK_S)

    def _is_bound(self, known: Known, row: JobRow) -> bool:
        assert known.wanted is not None
        return set(expand(row.bound_to)) == {self._topology.hosts.names[host] for host in known.wanted.hosts}

    def _bind_failed(self, known: Known, why: str, now: float) -> None:
        """It goes back to the queue, and is left alone for a while."""
        known.binds_failed += 1
        pause_s = known.back_off_s(0.0 if known.bound_s is None else now - known.bound_s)
        known.not_before_s = now + pause_s
        _log.warning("job %s: %s; it is left alone for %.0f s", known.row.id, why, pause_s)
        if known.bound_s is not None:
            self._tell([orders.hold([known.row.id])])
        known.wanted, known.bound_s, known.ran = None, None, False
        self._answers.append((known.job.id, False, why))
        state = self._view.jobs.get(known.job.id)
        if state is not None and state.status == RUNNING:
            known.held = why
            self._soon += [Requeued(now, known.job.id, why), Held(now, known.job.id, why)]

    def _park(self, changes: Changes) -> None:
        """Dependencies are Slurm's to look after, and it does not for held jobs."""
        now, told = self._clock.now_s(), []
        for known in changes.parked:
            known.begin_s = float(known.row.eligible_s or 0)
            told += orders.park(known.row.id)
        for known in changes.unparked:
            told += orders.unpark(known.row.id, known.begin_s - now)
        self._tell(told)

    def _throttle(self, known: Known, now: float) -> None:
        """Its array is at its limit (`--array=1-9%2`): it waits without holding GPUs, and is tried again."""
        known.not_before_s = now + THROTTLED_S
        self._tell([orders.hold([known.row.id])])
        self._take_back(known, "of its array no more may run at once")

    def _take_back(self, known: Known, why: str) -> None:
        """It waits again, held, and nobody is to blame."""
        now = self._clock.now_s()
        known.wanted, known.bound_s, known.ran = None, None, False
        known.held = why
        self._answers.append((known.job.id, False, why))
        self._soon += [Requeued(now, known.job.id, why), Held(now, known.job.id, why)]

    def _hold(self, loose: list[Known]) -> None:
        """Jobs that are not ours to start yet must not be started by Slurm."""
        if loose:
            self._tell([orders.hold([known.row.id for known in loose])])

    def _tell(self, told: list[str]) -> str | None:
        """What Slurm complained of; None where it could not be told."""
        if not self._may_act():
            return None
        try:
            return self._slurm.tell(told)
        except EngineError as problem:
            _log.warning("Slurm could not be told: %s", problem.what)
            return None


def _line(row: JobRow) -> tuple[int, int, int]:
    """Jobs as they stood in line: submission times are whole seconds, ids tell the rest."""
    element = row.id.partition("_")[2]
    return row.submit_s, int(row.array), int(element) if element.isdigit() else 0
