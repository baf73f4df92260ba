"""What all drivers share whose engine tells nothing by itself: they look at it again and again."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar, assert_never

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
    placement_of,
)
from hemiola.core.errors import EngineError
from hemiola.core.events import Adopted, Blocked, Event, Held, NodeBack, NodeLost, Released, Timer
from hemiola.core.job import Batch
from hemiola.live.live_driver import Identity, LiveDriver, Vanished
from hemiola.live.tracked_job import TrackedJob
from hemiola.sched.job_state import HELD, WAITING, JobState
from hemiola.sched.loop import why_not
from hemiola.sched.view import ClusterView

__all__ = ["APART_MOST_S", "MISSED", "USUAL_S", "Clock", "Diff", "PollingDriver", "Wake"]


# Unix time that never goes back and never jumps: the wall clock is looked at once, and counted on from
# there.

APART_MOST_S = 30.0
"""Who reads what was written by it goes by the wall clock: further from that, a new one is taken."""


class Clock:
    """Seconds since 1970 as they were when this began, and monotonic since."""

    def __init__(self) -> None:
        self._origin_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Now."""
        return self._origin_s + time.monotonic()

    def behind_s(self) -> float:
        """How far the wall clock is ahead of this one by now: it was set, or the host was suspended. Below 0: set back."""
        return time.time() - self.now_s()


LOOK_SHARE = 4.0
"""Looks are so many times as far apart as one takes: the engine has other things to do."""
BUSY_S = 10.0
"""So long after something has changed, looks are twice as frequent: jobs come and go in swarms."""
WOKEN_SHARE = 2.0
"""Where something new is known to be there, they may follow each other so much closer."""
WAKE_S = 0.004
"""job_submit.lua speaks before the job is there, by a millisecond or so."""
AWAY_S, AWAY_MOST_S = 1.0, 15.0
MISSED = 2
"""A job of which the engine shows nothing so many looks in a row, not even its end, is gone."""
USUAL_S = 86400.0
"""What a job is taken to run that says nothing."""


Its = TypeVar("Its", bound=TrackedJob)


class Wake:
    """A file that somebody writes when the engine has something new, as job_submit.lua does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._written_ns()

    def rings(self) -> bool:
        """Whether it was written since this was asked last."""
        before, self._seen = self._seen, self._written_ns()
        return self._seen not in (before, 0)

    def _written_ns(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0  # not yet, or not any more


class PollingDriver(LiveDriver, Generic[Its]):
    """A loop of looks, timers and orders.

    Args:
        engine: its name, for the log.
        look_s: looks are so far apart at least; half of that while much happens.
        turned: called at each turn of the loop.
        wake: says that it is worth while to look now.

    Attributes:
        known: jobs, by our id; `_by_id` has them by the engine's.
        away: why the engine cannot be asked at the moment; "" if it can.
    """

    def __init__(
        self, engine: str, look_s: float, clock: Clock | None, turned: Callable[[], None], wake: Wake | None = None
    ) -> None:  # fmt: skip
        self._engine, self._look_s, self._clock, self._turned = engine, look_s, clock or Clock(), turned
        self._wake = wake
        self._log = logging.getLogger(f"hemiola.{engine.lower()}")
        self.tracked: dict[str, Its] = {}
        self._by_id: dict[str, Its] = {}
        self._gone: dict[str, Its] = {}
        self.away = ""
        self._away_s = self._next_look_s = self._woken_look_s = self._changed_s = 0.0
        self._first = True
        self._decided: list[Decision] = []
        self._timers: list[tuple[float, str]] = []
        self._soon: list[Event] = []
        self._stop = threading.Event()
        self._answers: list[tuple[str, bool, str]] = []
        self._vanished: list[Vanished] = []
        self._refused: list[tuple[Batch, str]] = []

    # ---- what an engine does in its own way

    @abstractmethod
    def _see(self, now: float) -> list[Event]:
        """Look, and compare with what is known.

        Raises:
            EngineError: the engine is away; nothing has been compared.
        """

    @abstractmethod
    def _carry_out(self, decided: Sequence[Decision]) -> None:
        """Give the engine its orders."""

    def _lines(self, known: Its, decision: Decision) -> list[str]:
        """The requests that a decision about this job makes, for people to read; none for what asks the engine nothing."""
        return [str(decision)] if type(decision) in self.supports and asks_engine(decision) else []

    def _advise(self, known: Its, placement: Placement, decision: Decision) -> None:
        """Write down at the engine's job where it should run; into the log, where an engine has no place for it."""
        self._log.info("advice: %s", "; ".join(self._lines(known, decision)))

    def _close(self) -> None:
        """Nothing more is asked."""

    # ---- events

    def stop(self) -> None:
        """End the events after the present instant; any thread may ask for it."""
        self._stop.set()

    def add(self, events: Sequence[Event]) -> None:
        """With what the next turn brings."""
        self._soon += events

    def events(self) -> Iterator[list[Event]]:
        """One list per instant at which something happened; the first has all that is there."""
        try:
            while not self._stop.is_set():
                self._turned()
                decided, self._decided = self._decided, []
                self._carry_out(decided)
                events = self._wait()
                untold = self._refused or self._vanished
                if events or untold or (self._first and not self.away):
                    self._first = self._first and bool(self.away)
                    yield events or [Timer(self._clock.now_s(), "")]
            if self._decided:  # at the last instant, and written down
                self._carry_out(self._decided)
        finally:
            self._close()

    def _wait(self) -> list[Event]:
        """Until the next look or timer is due, and then what it brings."""
        due_s = min(self._next_look_s, self._timers[0][0] if self._timers else float("inf"))
        if not self._soon and self._sleep(due_s):
            return []
        events, self._soon = self._soon, []
        now = self._clock.now_s()
        if now >= self._next_look_s:
            events += self._look(now)
        while self._timers and self._timers[0][0] <= now:
            events.append(Timer(now, heapq.heappop(self._timers)[1]))
        return events

    def _sleep(self, until_s: float) -> bool:
        """Until then or until it is woken; whether the end was asked for."""
        while (left_s := until_s - self._clock.now_s()) > 0 and not self._stop.is_set():
            if self._wake is None:
                return self._stop.wait(left_s)
            if self._wake.rings() and not self.away:
                self._next_look_s = min(self._next_look_s, self._woken_look_s)
                until_s = min(until_s, self._next_look_s)
            self._stop.wait(min(left_s, WAKE_S))
        return self._stop.is_set()

    def _look(self, began_s: float) -> list[Event]:
        try:
            events = self._see(began_s)
        except EngineError as problem:
            self._away_s = min(AWAY_MOST_S, max(AWAY_S, 2 * self._away_s))
            self._next_look_s = self._clock.now_s() + self._away_s
            if self.away != problem.what:
                self._log.warning("%s cannot be asked: %s", self._engine, problem.what)
            self.away = problem.what
            return []
        if self.away:
            self._log.warning("%s answers again", self._engine)
        self.away, self._away_s = "", 0.0
        now = self._clock.now_s()
        if events:
            self._changed_s = now
        look_s = self._look_s / 2 if now - self._changed_s < BUSY_S else self._look_s
        self._next_look_s = began_s + max(look_s, LOOK_SHARE * (now - began_s))
        self._woken_look_s = began_s + WOKEN_SHARE * (now - began_s)
        return events

    def _look_soon(self, within_s: float) -> None:
        self._next_look_s = min(self._next_look_s, self._clock.now_s() + within_s)

    # ---- jobs

    def _know(self, known: Its) -> None:
        """A job has come."""
        self.tracked[known.job.id] = self._by_id[known.row.id] = known

    def _forget(self, known: Its) -> None:
        """It is no longer there; at the present instant it can still be asked for."""
        self._gone[known.job.id] = self.tracked.pop(known.job.id)
        self._by_id.pop(known.row.id, None)

    def _refuse(self, known: Its) -> None:
        """It can never run here."""
        self._log.warning("job %s can never run here: %s", known.row.id, known.refused)
        self._refused.append((known.job, known.refused))

    # ---- decisions and what became of them

    def render(self, decision: Decision) -> str:
        """The requests that the engine would be asked for, one per line."""
        if why := self._why_unsaid(decision):
            return why
        if isinstance(decision, Reallocate):
            return "\n".join(self.render(change) for change in decision.changes)
        known = self.tracked.get(decision.job_id)
        return "\n".join(self._lines(known, decision) if known is not None else [])

    def advise(self, decision: Decision) -> None:
        """Each advice once."""
        known, placement = self.tracked.get(decision.job_id), placement_of(decision)
        if known is not None and placement is not None and known.advised != placement:
            known.advised = placement
            self._advise(known, placement, decision)

    def execute(self, decision: Decision) -> None:
        """Take note of an accepted decision; it is carried out before the next instant."""
        match decision:
            case WakeAt():
                heapq.heappush(self._timers, (decision.time_s, decision.job_id))
            case Reallocate():
                for change in decision.changes:
                    self.execute(change)
            case Start() | Stop() | Move() | Resize() | Pace() | Align() | Scale() | Lend() | Reclaim():
                if why := self._why_unsaid(decision):  # the loop had to refuse it
                    self._answers.append((decision.job_id, False, why))
                else:
                    self._decided.append(decision)
            case _:
                assert_never(decision)

    def _why_unsaid(self, decision: Decision) -> str:
        """Why the engine is not asked for such a decision; "" if it is, or need not be."""
        return why_not(decision, self.supports)

    def impossible(self) -> list[Batch]:
        """Jobs that could never run here, and are there."""
        return [known.job for known in self.tracked.values() if known.refused]

    def identity(self, job_id: str) -> Identity | None:
        """Of a job by our id; also of one that ended at the present instant."""
        known = self.tracked.get(job_id) or self._gone.get(job_id)
        if known is None:
            return None
        return Identity(
            engine_id=known.row.id, submit_s=known.submit_s, user=known.job.user, name=known.name, note=known.why_not,
            misread=known.note, memory=msgspec.json.encode(known.recovery_key).decode(), binds_failed=known.failures,
            runs=known.ran,
        )  # fmt: skip

    def refused(self) -> list[tuple[Batch, str]]:
        """Jobs that could never run here, and why."""
        refused, self._refused = self._refused, []
        return refused

    def vanished(self) -> list[Vanished]:
        """Jobs that ended while nobody looked."""
        vanished, self._vanished = self._vanished, []
        return vanished

    def answers(self) -> list[tuple[str, bool, str]]:
        """What became of decisions."""
        answers = self._answers.copy()
        self._answers.clear()  # others add to this very list
        return answers


# What has changed between two looks at an engine, as events in an order that a state machine can take.


class Diff:
    """The events of one look.

    Args:
        view: as it was told before.
    """

    def __init__(self, view: ClusterView, now_s: float) -> None:
        self._view, self._now = view, now_s
        self._freed: list[Event] = []
        self._hosts: list[Event] = []
        self._started: list[Event] = []
        self._others: list[Event] = []

    def with_new(self, arrived: list[Event]) -> list[Event]:
        """All of them, with those of new jobs: what became free comes first, what is taken after it."""
        running = [event for event in arrived if isinstance(event, Adopted) and event.placement is not None]
        given = [e for e in self._hosts if isinstance(e, Blocked) and not self._takes(e)]
        rest = [e for e in self._hosts if e not in given]
        waiting = [event for event in arrived if event not in running]
        return [*self._freed, *given, *running, *self._started, *rest, *self._others, *waiting]

    def _takes(self, event: Blocked) -> bool:
        return event.gpus > self._view.inventory.blocked.get(event.host, 0).bit_count()

    def hosts(
        self, is_down: Callable[[int], bool], blocked: Mapping[int, int], told: Mapping[int, int]
    ) -> set[int]:
        """Hosts that came and went, and what of them is not ours.

        Args:
            blocked: by host, GPUs that are not ours to give; `told`: as it was told before.

        Returns:
            The hosts that went.
        """
        lost = set()
        for host, was_down in enumerate(self._view.inventory.down):
            down = is_down(host)
            if was_down and not down:
                self._hosts.append(NodeBack(self._now, host))
            elif down and not was_down:
                self._hosts.append(NodeLost(self._now, host))
                lost.add(host)
        for host in sorted(blocked.keys() | told.keys()):
            gpus = blocked.get(host, 0)
            if gpus != told.get(host, 0):
                self._hosts.append(Blocked(self._now, host, gpus))
        return lost

    def _may_start(self, state: JobState, why_not: str) -> None:
        """Whether policies may start a job now; "" if they may."""
        if why_not and state.status == WAITING:
            self._others.append(Held(self._now, state.id, why_not))
        elif not why_not and state.status == HELD:
            self._others.append(Released(self._now, state.id))
