"""Writes down what happens and what is decided, before the engine is asked for anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

import msgspec

from hemiola.core.decisions import (
    Align,
    Decision,
    Lend,
    Move,
    Pace,
    Reallocate,
    Reclaim,
    Resize,
    Scale,
    Start,
    Stop,
    WakeAt,
    parts,
)  # fmt: skip
from hemiola.core.events import Event, Failed, Finished, Undone
from hemiola.live.job_store import JobStore
from hemiola.live.journal import IntentState, Journal
from hemiola.live.live_driver import DriverWrapper, LiveDriver
from hemiola.sched.job_state import ENDED
from hemiola.sched.view import ClusterView

__all__ = ["JournalingDriver", "ObserveDriver"]


class JournalingDriver(DriverWrapper):
    """Another driver, with a journal. The engine is asked for a decision once it has been written.

    Args:
        run: the journal's number of this run.
        intents: whether decisions are carried out.
    """

    def __init__(
        self, inner: LiveDriver, journal: Journal, run: int, store: JobStore, *, intents: bool
    ) -> None:
        super().__init__(inner)
        self._journal, self._run, self._store, self._intents = journal, run, store, intents
        self._decisions: list[tuple[Decision, str]] = []
        self._open: dict[str, int] = {}
        self.instants = 0

    def events(self) -> Iterator[list[Event]]:
        """The engine's, each instant written down before anybody sees it, and its decisions before the next."""
        for events in self._inner.events():
            self.instants += 1
            self._settle()
            self._journal.record_events(self._run, self.instants, events)
            self._drop(events)
            self._store.happened(events)
            yield events
            decisions, self._decisions = self._decisions, []
            made = self._journal.record_decisions(
                self._run,
                self.instants,
                decisions,
                self._store.due(),
                intents=self._intents,
                now_s=events[0].time_s,
            )
            for intent in made:
                if (before := self._open.pop(intent.job, None)) is not None:
                    self._journal.settle([(before, "dropped", "another decision followed")])
                self._open[intent.job] = intent.id
        self._settle()

    def _settle(self) -> None:
        """Write down what the engine has answered since."""
        outcomes: list[tuple[int, IntentState, str]] = [
            (intent, "done" if well else "failed", words)
            for job, well, words in self._inner.answers()
            if (intent := self._open.pop(job, None)) is not None
        ]
        if outcomes:
            self._journal.settle(outcomes)

    def _drop(self, events: list[Event]) -> None:
        """Of a job that has ended, the engine answers nothing more."""
        ended = [event.job_id for event in events if isinstance(event, Finished | Failed)]
        left = [self._open.pop(job) for job in ended if job in self._open]
        self._journal.settle([(intent, "dropped", "the job ended") for intent in left])

    def note(self, decision: Decision, refused: str) -> None:
        """For the loop: a decision, and again if it was refused."""
        if refused:
            self._decisions[-1] = decision, refused
        else:
            self._decisions.append((decision, ""))
        self._store.decided(decision, refused)


# Decides and leaves it at that: the engine's own scheduler goes on, and the view goes back to what is
# true.


class ObserveDriver(DriverWrapper):
    """A driver of which nothing but its eyes and timers are used.

    Args:
        inner: it must not act by itself.
        view: whose jobs the decisions are about.
        advises: whether decisions are written down at the engine.
    """

    def __init__(self, inner: LiveDriver, view: ClusterView, *, advises: bool = False) -> None:
        super().__init__(inner)
        self._view, self._advises = view, advises
        self._before: dict[str, Undone] = {}

    def events(self) -> Iterator[list[Event]]:
        """The engine's; after each instant with decisions, that they were not carried out."""
        for events in self._inner.events():
            yield events
            if self._before:
                undone, self._before = self._before, {}
                nowhere = [msgspec.structs.replace(event, placement=None) for event in undone.values()]
                yield [*nowhere, *(event for event in undone.values() if event.placement is not None)]

    def note(self, decision: Decision, refused: str) -> None:
        """Remember how its jobs stand, before the state machine carries the decision out."""
        for part in parts(decision):
            self._note(part, refused)

    def _note(self, decision: Decision, refused: str) -> None:
        job = self._view.jobs.get(decision.job_id)
        if (
            refused
            or not _changes_view(decision)
            or job is None
            or job.status == ENDED
            or job.id in self._before
        ):
            return
        self._before[job.id] = Undone(
            self._view.now, job.id, job.placement, job.since_s, job.done_at(self._view.now),
            job.served_s, job.queued_s, job.preemptions, job.migrations, job.speed,
            job.gpus * job.served_s + job.other_gpu_s if job.elastic else None, job.configuration,
        )  # fmt: skip

    def execute(self, decision: Decision) -> None:
        """Timers; and advice, if that is wanted."""
        match decision:
            case WakeAt():
                self._inner.execute(decision)
            case (
                Start() | Stop() | Move() | Resize() | Pace() | Align() | Scale() | Lend() | Reclaim() | Reallocate()
            ):  # fmt: skip
                for part in parts(decision) if self._advises else ():
                    self._inner.advise(part)
            case _:
                assert_never(decision)


def _changes_view(decision: Decision) -> bool:
    """Whether the state machine changes the books of its job for it."""
    match decision:
        case Start() | Stop() | Move() | Resize():
            return True
        case Pace() | Align() | Scale() | Lend() | Reclaim() | Reallocate() | WakeAt():
            return False
        case _:
            assert_never(decision)
