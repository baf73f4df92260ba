"""Writes down what happens and what is decided, before the engine is asked for anything."""

from __future__ import annotations

from collections.abc import Iterator

from hemiola.live.journal import IntentState, Journal
from hemiola.live.job_store import Book
from hemiola.live.live_driver import Around, LiveDriver
from hemiola.core.decisions import Decision
from hemiola.core.events import Event, Failed, Finished

__all__ = ["Journaled"]


class Journaled(Around):
    """Another driver, with a journal. The engine is asked for a decision once it has been written.

    Args:
        run: the journal's number of this run.
        intents: whether decisions are carried out.
    """

    def __init__(self, inner: LiveDriver, journal: Journal, run: int, book: Book, *, intents: bool) -> None:
        super().__init__(inner)
        self._journal, self._run, self._book, self._intents = journal, run, book, intents
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
            self._book.happened(events)
            yield events
            decisions, self._decisions = self._decisions, []
            made = self._journal.record_decisions(
                self._run,
                self.instants,
                decisions,
                self._book.due(),
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
        self._book.decided(decision, refused)
