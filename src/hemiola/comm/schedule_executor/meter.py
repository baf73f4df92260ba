"""What comes to a rank while collectives are under way, as its kernel counts it. Lives on the transport's thread."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from hemiola.plan.collective.balance import Received
from hemiola.comm.transport import Endpoint

__all__ = ["Meter", "steadiest"]

EVERY_S = 1e-3
"""Looked no more often."""
HALF_S, OF_TIME = 8e-3, 1 / 16
"""The rate of a link is seen where as much comes for so long, and so much of the collective's time, and once more."""
HELD_UP_S = 0.5e-3
"""What is read within more than this tells no rate: this thread had to wait meanwhile."""


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
        self._look()
        return len(self._at_s) - 1

    def look(self) -> None:
        """Something has come, or gone."""
        if self._under_way and time.monotonic() - self._at_s[-1] >= EVERY_S:
            self._look(HELD_UP_S)

    def end(self, begun: int) -> Received:
        """A collective has ended: what came to this rank meanwhile."""
        self._look()
        self._under_way -= 1
        at_s, came = self._at_s[begun:], self._bytes[begun:]
        took_s = at_s[-1] - at_s[0]
        return Received(took_s, steadiest(at_s, came, max(HALF_S, OF_TIME * took_s)))

    def _look(self, within_s: float = math.inf) -> None:
        before_s = time.monotonic()
        came = self._end.received_bytes()
        after_s = time.monotonic()
        if after_s - before_s <= within_s:
            self._at_s.append((before_s + after_s) / 2)
            self._bytes.append(came)


def steadiest(at_s: Sequence[float], came: Sequence[float], half_s: float) -> float:
    """The highest rate that was kept up for twice so long: the lower one of two neighbouring stretches; 0 if there are none.

    What has waited somewhere comes faster than a link for a moment: the burst that a switch lets pass after a pause,
    what TCP held back until a lost packet came. It does not do so twice.

    Args:
        at_s, came: moments, and what had come by then, both growing.
        half_s: each stretch is the shortest that takes so long.
    """
    rates: list[tuple[int, float]] = []
    """Of the stretch that ends at each moment: where it began."""
    found, first = 0.0, 0
    for last, now in enumerate(at_s):
        while first < last and now - at_s[first + 1] >= half_s:
            first += 1
        rate = (came[last] - came[first]) / (now - at_s[first]) if now - at_s[first] >= half_s else 0.0
        rates.append((first, rate))
        found = max(found, min(rate, rates[first][1]))
    return found
