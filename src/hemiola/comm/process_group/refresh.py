"""When a group measures its network again: after a while, and when collectives have become slower or faster.

Where shares alone follow every change (`Balanced`), they do so from a change on, and it is measured once all has been
steady for long. All ranks have to do it between the same two collectives. The first one decides, and says so one turn
ahead, so that its word is there where a rank is not further ahead than that: it waits for it then. To measure, all wait for
each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hemiola.comm.process_group.balanced import Balanced, Turn
from hemiola.comm.transport import Endpoint, Handle

__all__ = ["Refresh"]

_TAG = (3 << 61) + 64
"""Beside those of the probe."""
EVERY, EVERY_BYTES = 8, 2 << 20
"""Collectives, or bytes of them, from one turn to the next: a turn costs one small message to each rank."""
SHARE = 0.01
"""Of the time, measuring takes no more than this where nothing has changed."""
CHANGED, SURELY = 1.3, 1.6
"""So many times as long as after the last measurement, or as short, twice or once, and it is measured again at once."""
FIRST, SETTLED_S = 4, 1.0
"""The least of the first ones after it, but for the very first, is what they usually take; of fewer where they take
long. TCP has to find its rates again after the bursts of measuring: at 400 Mbit/s, 2 MiB took 69 to 105 ms then."""
QUIET_S = 0.5
"""Not before. Twice as long each time that it is due again within `OFTEN` times as long, up to what `SHARE` allows:
what comes and goes, as a rank that is late now and then, does not have everybody measure all the time."""
OFTEN = 4
_FIRST_S = 0.2
"""What measuring again takes, as long as it has not been done; the first time is more thorough."""


class Refresh:
    """One rank's side."""

    def __init__(
        self,
        end: Endpoint,
        timeout_s: float,
        renew: Callable[[float], object],
        balanced: Balanced | None = None,
        follows: bool = False,
    ) -> None:
        """Over a connected endpoint.

        Args:
            renew: measures, with all other ranks, and is told how much slower links may have become.
            balanced: what follows changes by itself, if anything does.
            follows: whether it does from the beginning.
        """
        self._end, self._timeout_s, self._renew, self._balanced = end, timeout_s, renew, balanced
        self._follows = follows
        self._count = self._bytes = 0
        self._decided = Turn.NOTHING
        self._coming: Handle | None = None
        self._word = bytearray(1)
        self._first: dict[tuple[str, int], list[float]] = {}
        """Of each kind and size, those after the last measurement, until it is known what is usual."""
        self._took: dict[tuple[str, int], tuple[float, ...]] = {}
        """The last two of each kind and size."""
        self._usual_s: dict[tuple[str, int], float] = {}
        self._measured_s = 0.0
        self._cost_s = _FIRST_S
        self._quiet_s = QUIET_S

    def due(self, size_bytes: int) -> Turn:
        """What to do before the next collective, of this size; asked by all ranks before each one.

        Raises:
            TransportError: the first rank is gone.
        """
        self._count += 1
        self._bytes += size_bytes
        if self._count < EVERY and self._bytes < EVERY_BYTES:
            return Turn.NOTHING
        self._count = self._bytes = 0
        if self._end.rank == 0:
            now, self._decided = self._decided, Turn.NOTHING if self._decided else self._wanted()
            word = bytes([self._decided])
            for rank in range(1, self._end.ranks):
                self._end.send(rank, _TAG, word, priority=-1)
            return now
        now = Turn.NOTHING
        if self._coming is not None:
            self._coming.wait(self._timeout_s)
            now = Turn(self._word[0])
        self._coming = self._end.receive(0, _TAG, self._word)
        return now

    def measure(self) -> None:
        """Now. How long it takes counts."""
        begun_s = time.monotonic()
        waited_s = begun_s - self._measured_s
        most_s = max(QUIET_S, self._cost_s / SHARE)
        self._quiet_s = min(2 * self._quiet_s, most_s) if waited_s < OFTEN * self._quiet_s else QUIET_S
        self._renew(max([1.0, *(recent[-1] / usual_s for recent, usual_s in self._known())]))
        if self._measured_s:
            self._cost_s = time.monotonic() - begun_s
        self.learn()

    def learn(self) -> None:
        """What collectives usually take is to be learnt anew."""
        self._measured_s = time.monotonic()
        self._first.clear()
        self._took.clear()
        self._usual_s.clear()

    def took(self, kind: str, size_bytes: int, seconds: float) -> None:
        """A collective took so long, at the first rank."""
        key = kind, size_bytes
        if key in self._usual_s:
            self._took[key] = (*self._took.get(key, ())[-1:], seconds)
            return
        first = self._first.setdefault(key, [])
        first.append(seconds)
        if len(first) == FIRST or (len(first) > 1 and time.monotonic() - self._measured_s > SETTLED_S):
            self._usual_s[key] = min(first[1:])

    def _wanted(self) -> Turn:
        balanced = self._balanced
        if balanced is not None and balanced.active:
            return balanced.turn()
        can_follow = balanced is not None and balanced.is_possible()
        if can_follow and self._follows:
            return Turn.BALANCE
        since_s = time.monotonic() - self._measured_s
        if since_s < self._quiet_s:
            return Turn.NOTHING
        changed = any(
            recent[-1] > SURELY * usual_s
            or (len(recent) == 2 and (min(recent) > CHANGED * usual_s or max(recent) * CHANGED < usual_s))
            for recent, usual_s in self._known()
        )
        if changed and can_follow and all(kind == "all-reduce" for kind, _ in list(self._took)):
            return Turn.BALANCE
        return Turn.MEASURE if changed or since_s * SHARE > self._cost_s else Turn.NOTHING

    def _known(self) -> list[tuple[tuple[float, ...], float]]:
        """What was noted of every kind and size, and how long it usually takes."""
        return [
            (recent, usual_s)
            for key, recent in list(self._took.items())
            if (usual_s := self._usual_s.get(key)) is not None
        ]
