"""All-reduces whose shares follow what links take (`plan.collective.balance`), while a network changes.

Each rank notes what comes to it during a collective, and tells the first one, which tells all what it believes of
every rank's link when the next one begins. Nobody who calls waits for that word: a collective begins when it has come.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from torch import Tensor

from hemiola.comm.schedule_executor.flow import Ended, Join, Meter
from hemiola.comm.schedule_executor.runner import Put, Runner
from hemiola.comm.transport import Endpoint, Handle
from hemiola.core.collective.schedule import CollectiveSchedule
from hemiola.plan.collective.balance import TIGHT, Received, SeenRates, balanced, is_alone

__all__ = ["Balanced", "Turn"]

_WORD, _REPORT = (3 << 61) + 65, (3 << 61) + 66
"""Tags, beside those of the probe."""
_RECEIVED = struct.Struct("<2d")
STEADY_S, STEADIEST_S = 10.0, 160.0
"""After so long without a jump what fits is measured; twice as long each time that it soon begins again, up to this."""
OFTEN = 4
SAME = 0.03
"""All go by the same shares as long as no rate differs by more from what they were made for."""
LOOSE = 3.0
"""So much faster than is needed a rank sends to each other one, instead of `TIGHT`, where shares have changed and where one
link sets the pace alone: as much as shows that a link takes more. No more than that fills a queue, and what TCP sends
freely overflows it. Where it is not known which link has become slow, nobody is held back."""


class Turn(IntEnum):
    """What all ranks do before a collective."""

    NOTHING = 0
    MEASURE = 1
    BALANCE = 2


class Balanced:
    """One rank's side.

    Attributes:
        active: whether all-reduces go this way now; the same at every rank.
    """

    def __init__(
        self, end: Endpoint, runner: Runner, meter: Meter, measured: Callable[[], Sequence[float] | None]
    ) -> None:
        """Over a connected endpoint.

        Args:
            runner: which tells the meter.
            measured: at the first rank, bytes/s of every rank's link as last measured; None where shares alone do
                not help: a rank shares its link, or several an uplink, or there are too few or too many.
        """
        self._end, self._runner, self._meter, self._measured = end, runner, meter, measured
        self.active = False
        self._seen = SeenRates([])
        self._told: list[float] = []
        self._jumped_s = self._left_s = 0.0
        self._steady_s = STEADY_S

    def is_possible(self) -> bool:
        """Whether it is of use here; at the first rank."""
        return self._measured() is not None

    def enter(self) -> None:
        """From the next one on."""
        self.active, now = True, time.monotonic()
        if self._end.rank:
            return
        if now - self._left_s < OFTEN * self._steady_s:
            self._steady_s = min(2 * self._steady_s, STEADIEST_S)
        else:
            self._steady_s = STEADY_S
        rates = self._measured()
        assert rates is not None
        self._seen, self._told, self._jumped_s = SeenRates(rates), [], now

    def leave(self) -> None:
        """No more."""
        self.active, self._left_s = False, time.monotonic()

    def turn(self) -> Turn:
        """What is to be done next; at the first rank, while it goes on."""
        is_steady = time.monotonic() - self._jumped_s > self._steady_s
        return Turn.MEASURE if is_steady else Turn.NOTHING

    def start(self, given: Tensor, join: Join, put: Put, ended: Ended) -> None:
        """Begin an all-reduce, as `Runner.start`."""
        went: list[tuple[int, _Way]] = []

        def over(problem: BaseException | None) -> None:
            for begun, way in went:
                received = self._meter.end(begun)
                if problem is None:
                    self._tell(received, way)
            ended(problem)

        known = self._runner.reserve(given, join, put, over)

        def begin(told: Callable[[], bytes]) -> None:
            try:
                word = tuple(np.frombuffer(told()).tolist())
                way = _Way(word[:-1], given.nbytes, word[-1])
                schedule = _schedule(way)
            except Exception as problem:  # whoever waits for this one hears of it
                known(problem)
                return
            went.append((self._meter.begin(), way))
            known(schedule)

        if not self._end.rank:
            self._end.call(lambda: begin(self._word))
            return
        word = bytearray(8 * self._end.ranks + 8)

        def came(handle: Handle) -> None:
            self._end.call(lambda: known(handle.problem) if handle.problem else begin(lambda: bytes(word)))

        self._end.receive(0, _WORD, word).add_callback(came)

    # --- on the transport's thread

    def _word(self) -> bytes:
        """What the first rank tells all when one begins: the rates, and how much faster to send."""
        rates = self._seen.rates
        changed = not self._told or any(
            abs(now / then - 1) > SAME for now, then in zip(rates, self._told, strict=True)
        )
        if changed:
            self._told = list(rates)
        over = LOOSE if changed or is_alone(self._told) else TIGHT
        word = np.array([*self._told, math.inf if self._seen.unsure else over]).tobytes()
        for rank in range(1, self._end.ranks):
            self._end.send(rank, _WORD, word, priority=-1)
        return word

    def _tell(self, received: Received, way: _Way) -> None:
        """To the first rank, which brings together what all tell of this collective."""
        if self._end.rank:
            told = _RECEIVED.pack(received.seconds, received.highest_bytes_per_s)
            self._end.send(0, _REPORT, told, priority=-1)
            return
        found: list[Received | None] = [received, *[None] * (self._end.ranks - 1)]
        for rank in range(1, self._end.ranks):
            into = bytearray(_RECEIVED.size)
            self._end.receive(rank, _REPORT, into).add_callback(
                partial(self._told_by, rank, into, found, way)
            )

    def _told_by(
        self, rank: int, word: bytearray, found: list[Received | None], way: _Way, handle: Handle
    ) -> None:
        if handle.problem is not None:
            return
        found[rank] = Received(*_RECEIVED.unpack(word))
        all_told = [one for one in found if one is not None]
        if len(all_told) < len(found):
            return
        if self._seen.note(way.size_bytes, all_told, way.rates):
            self._jumped_s = time.monotonic()


class _Way(NamedTuple):
    """What `balanced` is given."""

    rates: tuple[float, ...]
    size_bytes: int
    over: float


@lru_cache(maxsize=64)
def _schedule(way: _Way) -> CollectiveSchedule:
    """The same at every rank, and the same object for the same shares."""
    return balanced(way.rates, way.size_bytes, over=way.over)
