"""What comes to a rank while collectives are under way, as its kernel counts it. Lives on the transport's thread."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hemiola.plan.collectives.balance import Received
from hemiola.run.transport import Endpoint

__all__ = ["Meter", "highest"]

EVERY_S = 1e-3
"""Looked no more often."""
WINDOW_S, OF_TIME, OF_BYTES = 12e-3, 1 / 8, 1 / 4
"""The highest rate is that of a stretch of so long at least, of so much of the collective's time, and of its bytes."""


class Meter:
    """Of one rank. Every `begin` has one `end`."""

    def __init__(self, end: Endpoint) -> None:
        """Over a connected endpoint."""
        self._end = end
        self._under_way = 0
        self._at_s: list[float] = []
        self._bytes: list[int] = []

    def begin(self) -> int:
        """A collective begins; to be given to `end`."""
        if not self._under_way:
            self._at_s.clear()
            self._bytes.clear()
        self._under_way += 1
        self._look(time.monotonic())
        return len(self._at_s) - 1

    def look(self) -> None:
        """Something has come, or gone."""
        now = time.monotonic()
        if self._under_way and now - self._at_s[-1] >= EVERY_S:
            self._look(now)

    def end(self, begun: int, size_bytes: float) -> Received:
        """A collective of so many bytes has ended: what came to this rank meanwhile."""
        self._look(time.monotonic())
        self._under_way -= 1
        at_s, came = self._at_s[begun:], self._bytes[begun:]
        took_s = at_s[-1] - at_s[0]
        window_s = max(WINDOW_S, OF_TIME * took_s)
        return Received(took_s, came[-1] - came[0], highest(at_s, came, window_s, OF_BYTES * size_bytes))

    def _look(self, now: float) -> None:
        self._at_s.append(now)
        self._bytes.append(self._end.received_bytes())


def highest(at_s: Sequence[float], came: Sequence[float], window_s: float, size_bytes: float) -> float:
    """The highest rate of any stretch of at least so long and so many bytes; 0 if there is none.

    Args:
        at_s, came: moments, and what had come by then, both growing.
    """
    found, first = 0.0, 0
    for last in range(len(at_s)):

        def is_enough(since: int, last: int = last) -> bool:
            return at_s[last] - at_s[since] >= window_s and came[last] - came[since] >= size_bytes

        while first < last and is_enough(first + 1):
            first += 1
        if first < last and is_enough(first):
            found = max(found, (came[last] - came[first]) / (at_s[last] - at_s[first]))
    return found
