"""By when things have to end: one thread looks after all of a process.

PyTorch's futures have no timeout, and DDP, whose hooks wait for nothing else, would wait for ever for a rank that lives and
does not come. Time in which the process is stopped does not count: a suspended job goes on.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from hemiola.comm.process_group.collectives import Ended
from hemiola.comm.schedule_executor.runner import GRACE_S, stop_later
from hemiola.comm.transport import Endpoint
from hemiola.core.errors import HemiolaError

__all__ = ["Deadlines", "LossWatch"]


_LOOK_S = 1.0
"""It is looked so often at least: for what is beyond it, this process was stopped."""


class _Limited(Protocol):
    def expire(self) -> None:
        """It has not ended in time."""


class Deadlines:
    """Of as many things as there are. Who sets one, or drops it, hardly ever wakes the thread."""

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # threads are not forked

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._until_s: dict[_Limited, float] = {}
        self._look_s = math.inf
        """When the thread looks again."""
        self._looked_s = 0.0
        self._thread: threading.Thread | None = None

    def set(self, one: _Limited, after_s: float) -> None:
        """Have it expire after so long, unless it is dropped before."""
        with self._changed:
            now = time.monotonic()
            if not self._until_s:  # nobody had to look until now
                self._looked_s = now
            until_s = self._until_s[one] = now + after_s
            if until_s < self._look_s:
                self._look_s = until_s
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="hemiola-deadlines", daemon=True)
                self._thread.start()

    def drop(self, one: _Limited) -> None:
        """It has ended."""
        with self._changed:
            self._until_s.pop(one, None)

    def _work(self) -> None:
        while True:
            for one in self._expired():
                one.expire()

    def _expired(self) -> list[_Limited]:
        """Those whose time is over; waits until one's is, or may be."""
        with self._changed:
            now = time.monotonic()
            if (stopped_s := now - self._looked_s - _LOOK_S) > 0:
                self._until_s = {one: until_s + stopped_s for one, until_s in self._until_s.items()}
            self._looked_s = now
            expired = [one for one, until_s in self._until_s.items() if until_s <= now]
            for one in expired:
                del self._until_s[one]
            self._look_s = min(*self._until_s.values(), now + _LOOK_S) if self._until_s else math.inf
            if not expired:
                self._changed.wait(None if self._look_s == math.inf else self._look_s - now)
        return expired


# What goes on without a thread of its own: a lost rank ends it on every rank, also where nobody awaits
# that rank.


class LossWatch:
    """Over such collectives of one group: those under way end after a moment, those that are begun later at once."""

    def __init__(self, end: Endpoint) -> None:
        """Over a connected endpoint."""
        self._end = end
        self._under_way: dict[_Watched, Ended] = {}
        self._broken: HemiolaError | None = None
        end.watch(self._break)

    def begin(self, ended: Ended, begin: Callable[[Ended], None]) -> None:
        """Begin one.

        Args:
            ended: called once, with what went wrong or None.
            begin: begins it; it is given what to call at the end.
        """
        one = _Watched(self._under_way)
        self._under_way[one] = ended
        try:
            begin(one.stop)
        except BaseException:  # it was not begun
            self._under_way.pop(one, None)
            raise
        if self._broken is not None:  # only now: what it has sent may be all that another rank needs
            one.stop(self._broken)

    def _break(self, problem: HemiolaError) -> None:
        self._broken = self._broken or problem
        stop_later(self._end, self._under_way, problem, GRACE_S)


class _Watched:
    """One of them."""

    __slots__ = ("_under_way",)

    def __init__(self, under_way: dict[_Watched, Ended]) -> None:
        self._under_way = under_way

    def stop(self, problem: BaseException | None) -> None:
        """It ends, well or not, if it has not."""
        ended = self._under_way.pop(self, None)
        if ended is not None:
            ended(problem)
