"""Unix time that never goes back and never jumps: the wall clock is looked at once, and counted on from there."""

from __future__ import annotations

import time

__all__ = ["APART_MOST_S", "Clock"]

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
