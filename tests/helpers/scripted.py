"""An engine that does what a test has written down, and a service on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from replays import cluster, job

from hemiola.core.decisions import Decision
from hemiola.core.events import Arrived, Event
from hemiola.core.topology import Topology
from hemiola.live.journal import Journal
from hemiola.live.leadership import Leadership
from hemiola.live.live_driver import Identity, LiveDriver, Vanished
from hemiola.live.polling_driver import Clock
from hemiola.live.service import LiveService, Session, SessionSettings

TWO = cluster([4, 4])


class Scripted(LiveDriver):
    """An engine that says what it is given, and does nothing."""

    away = ""

    def __init__(self, *instants: list[Event], ends: bool = True) -> None:
        self.instants, self.ends = instants, ends
        self.told: list[Decision] = []
        self.stopped = threading.Event()

    def events(self) -> Iterator[list[Event]]:
        yield from self.instants
        if not self.ends:
            self.stopped.wait(30)

    def execute(self, decision: Decision) -> None:
        self.told.append(decision)

    def render(self, decision: Decision) -> str:
        return f"do {decision}"

    def identity(self, job_id: str) -> Identity | None:
        return Identity(engine_id=f"e-{job_id}", submit_s=1.0, user="ada")

    def vanished(self) -> list[Vanished]:
        return []

    def answers(self) -> list[tuple[str, bool, str]]:
        return []

    def advise(self, decision: Decision) -> None:
        self.told.append(decision)

    def hand_back(self) -> None:
        self.told.append("handed back")  # type: ignore[arg-type]

    def add(self, events: Sequence[Event]) -> None:
        raise AssertionError(events)

    def stop(self) -> None:
        self.stopped.set()


def serve(
    tmp_path: Path, settings: SessionSettings, *drivers: Scripted, before: Callable[[], object] = lambda: None,
    topology: Topology = TWO, runs: list[Session] | None = None,
) -> tuple[LiveService, list[Session]]:  # fmt: skip
    """A service that has one of these drivers in each run, and ends after the last; something is done before it runs."""
    runs = [] if runs is None else runs
    left = list(drivers)
    with Journal.open(tmp_path / "j.db") as journal:

        def make(run: Session) -> Scripted:
            runs.append(run)
            if len(left) == 1:
                service.stop()
            return left.pop(0)

        service = LiveService(settings, journal, topology, make)
        before()
        service.run()
        return service, runs


def arrivals(*names: str) -> list[Event]:
    now = Clock().now_s()
    return [Arrived(now, job(name, now, 2, 60.0)) for name in names]


def leading(
    journal: Journal, alive: Path | None = None, lost: Callable[[], None] = lambda: None
) -> Leadership:
    """It leads, for ten seconds unless it renews its lease."""
    epoch = journal.lead("me", time.time(), 10.0)
    assert epoch is not None
    return Leadership(journal, epoch, alive, lost)
