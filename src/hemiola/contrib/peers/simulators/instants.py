"""Tiresias's and Muri's way of passing time: decisions at arrivals, ends, and one timer; never between.

The next instant is the earlier of the next arrival and the next end. The timer counts only where
it comes strictly before both, and each instant sets it anew. Ends come before arrivals.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator

from hemiola.contrib.peers.simulators.replay import AnyTask, PeerReplay
from hemiola.core.events import Arrived, Event, Timer

__all__ = ["InstantReplay"]


class InstantReplay(PeerReplay[AnyTask]):
    """Passes time from instant to instant; ends when nothing runs and nothing arrives."""

    @abstractmethod
    def next_finish_s(self, now: float) -> float:
        """When the next running job ends if nothing is decided before; infinity for never."""

    @abstractmethod
    def due(self, now: float) -> list[AnyTask]:
        """The running jobs that end at exactly this time, in order of arrival."""

    @abstractmethod
    def settle(self, now: float) -> None:
        """Count the progress of all running jobs since the last instant."""

    def events(self) -> Iterator[list[Event]]:
        """One list per instant."""
        jobs, arrived, now = self.jobs, 0, self.now
        while not self.stop:
            finish_s = self.next_finish_s(now)
            arrival_s = jobs[arrived].submit_s if arrived < len(jobs) else math.inf
            next_s = min(finish_s, arrival_s)
            if next_s == math.inf:
                return
            batch: list[Event] = []
            if self.wake_s < next_s:
                next_s = self.wake_s
                batch.append(Timer(next_s, ""))
            self.ledger.pass_time(next_s - now, 0)
            now = self.now = next_s
            self.wake_s = math.inf
            if finish_s == now:
                batch += [self.finish(task, now) for task in self.due(now)]
            while arrived < len(jobs) and jobs[arrived].submit_s == now:
                self.arrive(jobs[arrived])
                batch.append(Arrived(now, jobs[arrived]))
                arrived += 1
            self.settle(now)
            self.events_seen += len(batch)
            yield batch
            self.note_queue()
