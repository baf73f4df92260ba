"""What policies with rounds share: one timer for all of them, and a queue that is sorted anew.

Knows no policy. A round is only asked for while somebody waits and somebody runs: at other times
nobody could be exchanged, and a cluster that is idle must not wake itself up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hemiola.core.decisions import WakeAt
from hemiola.sched.job_state import JobState
from hemiola.sched.queues import Order, Queue
from hemiola.sched.view import ClusterView, Index

__all__ = ["Rounds", "RoundsEvery", "reorder"]


class Rounds(Index):
    """Rounds at multiples of a period; an index, so that each view has its own.

    Args:
        period_s: time from one round to the next.
    """

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self._asked_s = -math.inf
        self._held_s = -math.inf

    def enter(self, job: JobState, now: float) -> None:
        """Of no interest here."""

    def leave(self, job: JobState) -> None:
        """Of no interest here."""

    def refresh(self, job: JobState, now: float) -> None:
        """Of no interest here."""

    def is_due(self, now: float) -> bool:
        """Whether a round that was asked for is to be held now; true once for each."""
        if self._held_s < self._asked_s <= now:
            self._held_s = self._asked_s
            return True
        return False

    def ask(self, view: ClusterView, reason: str) -> Iterator[WakeAt]:
        """Ask for the next round if there may be something to exchange, and only once."""
        if not view.waiting or not view.running:
            return
        rounds = math.floor(view.now / self.period_s) + 1
        if rounds * self.period_s <= view.now:  # the quotient was rounded down
            rounds += 1
        next_s = rounds * self.period_s
        if next_s > self._asked_s:
            self._asked_s = next_s
            yield WakeAt(next_s, "", reason)


@dataclass(frozen=True)
class RoundsEvery:
    """Says which `Rounds` a policy needs: `view.index(RoundsEvery(60.0))`."""

    period_s: float

    def build(self, view: ClusterView) -> Rounds:
        """The first round is still to be asked for."""
        return Rounds(self.period_s)


def reorder(view: ClusterView, queue: Queue, order: Order) -> None:
    """Sort a queue's jobs by another order from now on."""
    jobs = [*view.waiting.values(), *view.running.values()]
    for job in jobs:
        queue.leave(job)
    queue.order = order
    for job in jobs:
        queue.enter(job, view.now)
    queue.unblock()
