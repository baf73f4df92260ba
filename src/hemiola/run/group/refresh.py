"""When a group measures its network again: after a while, and when collectives have become slower.

All ranks have to do it between the same two collectives. The first one decides, and says so one turn ahead, so that
nobody waits for its word.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median

from hemiola.run.transport import Endpoint, Handle

__all__ = ["Refresh"]

_TAG = (3 << 61) + 64
"""Beside those of the probe."""
EVERY, EVERY_BYTES = 8, 2 << 20
"""Collectives, or bytes of them, from one turn to the next: a turn costs one small message to each rank."""
SHARE = 0.01
"""Of the time, measuring takes no more than this where nothing has changed."""
CHANGED = 1.2
"""So many times as long as after the last measurement, or as short, and it is measured again at once."""
QUIET_S = 2.0
"""Not before, so that what comes and goes does not have everybody measure all the time."""
_FEWEST = 2
"""Collectives in a row that have to say so."""


class Refresh:
    """One rank's side."""

    def __init__(self, end: Endpoint, timeout_s: float, renew: Callable[[], object]) -> None:
        """Over a connected endpoint.

        Args:
            renew: measures, with all other ranks.
        """
        self._end, self._timeout_s, self._renew = end, timeout_s, renew
        self._count = self._bytes = 0
        self._decided = False
        self._coming: Handle | None = None
        self._word = bytearray(1)
        self._took: dict[tuple[str, int], deque[float]] = {}
        self._usual_s: dict[tuple[str, int], float] = {}
        self._measured_s = time.monotonic()
        self._cost_s = 0.0

    def due(self, size_bytes: int) -> bool:
        """Whether to measure before the next collective, of this size; asked by all ranks before each one.

        Raises:
            TransportError: the first rank is gone.
        """
        self._count += 1
        self._bytes += size_bytes
        if self._count < EVERY and self._bytes < EVERY_BYTES:
            return False
        self._count = self._bytes = 0
        if self._end.rank == 0:
            now, self._decided = self._decided, not self._decided and self._wanted()
            word = bytes([self._decided])
            for rank in range(1, self._end.ranks):
                self._end.send(rank, _TAG, word, priority=-1)
            return now
        now = False
        if self._coming is not None:
            self._coming.wait(self._timeout_s)
            now = bool(self._word[0])
        self._coming = self._end.receive(0, _TAG, self._word)
        return now

    def measure(self) -> None:
        """Now. How long it takes counts."""
        begun_s = time.monotonic()
        self._renew()
        self._measured_s = time.monotonic()
        self._cost_s = self._measured_s - begun_s
        self._took.clear()
        self._usual_s.clear()

    def took(self, kind: str, size_bytes: int, seconds: float) -> None:
        """A collective took so long, at the first rank."""
        key = kind, size_bytes
        recent = self._took.setdefault(key, deque(maxlen=_FEWEST))
        recent.append(seconds)
        if len(recent) == _FEWEST:
            self._usual_s.setdefault(key, median(recent))

    def _wanted(self) -> bool:
        since_s = time.monotonic() - self._measured_s
        if since_s < QUIET_S:
            return False
        changed = any(
            min(recent) > CHANGED * self._usual_s[key] or max(recent) * CHANGED < self._usual_s[key]
            for key, recent in list(self._took.items())
            if len(recent) == _FEWEST
        )
        return changed or since_s * SHARE > self._cost_s
