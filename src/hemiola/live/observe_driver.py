"""Decides and leaves it at that: the engine's own scheduler goes on, and the view goes back to what is true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

import msgspec

from hemiola.live.live_driver import Around, LiveDriver
from hemiola.core.decisions import Decision, Move, Pace, Resize, Start, Stop, WakeAt
from hemiola.core.events import Event, Undone
from hemiola.sched.job_state import ENDED
from hemiola.sched.view import ClusterView

__all__ = ["Observing"]


class Observing(Around):
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
        """Remember how its job stands, before the state machine carries the decision out."""
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
            job.gpus * job.served_s + job.other_gpu_s if job.elastic else None,
        )  # fmt: skip

    def execute(self, decision: Decision) -> None:
        """Timers; and advice, if that is wanted."""
        match decision:
            case WakeAt():
                self._inner.execute(decision)
            case Start() | Stop() | Move() | Resize() | Pace():
                if self._advises:
                    self._inner.advise(decision)
            case _:
                assert_never(decision)


def _changes_view(decision: Decision) -> bool:
    """Whether the state machine changes the books of its job for it."""
    match decision:
        case Start() | Stop() | Move() | Resize():
            return True
        case Pace() | WakeAt():
            return False
        case _:
            assert_never(decision)
