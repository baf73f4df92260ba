"""Rounds in which pairs of ranks send to each other, timed where data arrives.

Everybody waits for everybody between rounds, so that none overruns another. Rates are those of the receiver from
the second quarter of a round on: queues and buffers take the first part faster than the link does.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hemiola.cost.network_fit import FittedNetwork, Flow, fit_network
from hemiola.cost.probe_rounds import Pairs, probe_rounds
from hemiola.run.transport import Endpoint, Handle

__all__ = ["Measurement", "Prober"]

_TAGS = 3 << 61
"""Above all others'."""
_DATA, _PING, _UP, _DOWN = range(4)
PIECES = 16
"""Messages of one flow in one round."""
ROUND_S = 60e-3
_FIRST_BYTES, _LEAST_BYTES, _MOST_BYTES = 4 << 10, 4 << 10, 4 << 20
PINGS = 20
_ENOUGH = 0.10
"""Intervals so narrow, relative to their rates, end the measurement."""

Floats = NDArray[np.float64]


@dataclass
class Measurement:
    """What was measured, at the first of the ranks; others have nothing.

    Attributes:
        ranks: that took part.
        rounds: flows between them, by their place among `ranks`.
        latency_s: of a small message between two of them, the least of several; shape (ranks, ranks), 0 within.
        seconds: that it took.
        sent_bytes: by all together.
    """

    ranks: tuple[int, ...]
    rounds: list[list[Flow]] = field(default_factory=list)
    latency_s: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    seconds: float = 0.0
    sent_bytes: int = 0

    def fit(self) -> FittedNetwork:
        """The network that explains it."""
        return fit_network(len(self.ranks), self.rounds)


class Prober:
    """One rank's side; all ranks that take part do the same at the same time, and nothing else meanwhile."""

    def __init__(self, end: Endpoint, ranks: Sequence[int], timeout_s: float) -> None:
        """Over a connected endpoint, among these ranks: one of each host."""
        self._end, self._ranks, self._timeout_s = end, tuple(ranks), timeout_s
        self._place = self._ranks.index(end.rank)
        self._count = len(self._ranks)
        self._able = np.zeros(self._count)
        """What each can send, as far as is known."""
        self._found = Measurement(self._ranks)

    def measure(
        self, seconds_most: float = 8.0, passes_most: int = 3, round_s: float = ROUND_S
    ) -> Measurement:
        """Measure all links.

        Args:
            seconds_most: no pass begins after so long.
            passes_most: of all rounds; fewer, where the intervals are narrow.
            round_s: that a round is to take.

        Raises:
            TransportError: a rank is lost, or does not take part in time.
        """
        start = time.monotonic()
        if self._count < 2:
            return self._found
        first = [pairs for pairs in probe_rounds(self._count, 0) if _is_matching(pairs)]
        half = first[: len(first) // 2]
        latency_s = np.zeros((self._count, self._count))
        for pairs in half:
            self._ping(pairs, latency_s)
        self._found.latency_s = self._gathered(latency_s).reshape(self._count, self._count)
        for seconds in (0.0, round_s / 3):
            for pairs in half:
                self._round(pairs, seconds, keep=False)
        for number in itertools.count(1):
            for pairs in probe_rounds(self._count, number):
                self._round(pairs, round_s, keep=True)
            enough = number >= passes_most or time.monotonic() - start > seconds_most or self._is_known()
            if self._told(float(enough)):
                break
        self._found.seconds = time.monotonic() - start
        return self._found

    def _is_known(self) -> bool:
        """Whether intervals are narrow; for the first rank."""
        if self._place:
            return False
        fitted = self._found.fit()
        return all(fitted.rate(host).spread < _ENOUGH for host in range(self._count))

    def _ping(self, pairs: Pairs, latency_s: Floats) -> None:
        """Small messages there and back again, in pairs."""
        data, into = bytearray(64), bytearray(64)
        for a, b in pairs[::2]:
            if self._place not in (a, b):
                continue
            peer = self._ranks[b if self._place == a else a]
            took = []
            for _ in range(PINGS):
                start = time.perf_counter()
                coming = self._end.receive(peer, _TAGS + _PING, into)
                if self._place == a:
                    self._end.send(peer, _TAGS + _PING, data)
                coming.wait(self._timeout_s)
                if self._place == b:
                    self._end.send(peer, _TAGS + _PING, data)
                took.append(time.perf_counter() - start)
            if self._place == a:
                latency_s[a, b] = latency_s[b, a] = min(took) / 2
        self._told(0.0)

    def _round(self, pairs: Pairs, seconds: float, keep: bool) -> None:
        """One round; what is found is added where the first rank is."""
        sizes = {pair: self._size(pair, pairs, seconds) for pair in pairs}
        came: dict[int, list[float]] = {}
        waits: list[Handle] = []
        for a, b in pairs:
            size = sizes[a, b]
            if b == self._place:
                times = came[a] = []
                for _ in range(PIECES):
                    handle = self._end.receive(self._ranks[a], _TAGS + _DATA, bytearray(size))
                    handle.add_callback(partial(_note, times))
                    waits.append(handle)
        self._told(0.0)  # all await what comes
        for a, b in pairs:
            if a == self._place:
                data = bytes(sizes[a, b])
                waits += [self._end.send(self._ranks[b], _TAGS + _DATA, data) for _ in range(PIECES)]
        for handle in waits:
            handle.wait(self._timeout_s)
        rates = np.zeros(self._count)
        for a, times in came.items():
            begun = PIECES // 4
            took_s = max(times[-1] - times[begun - 1], 1e-6)
            rates[a] = sizes[a, self._place] * (PIECES - begun) / took_s
        table = self._gathered(rates).reshape(self._count, self._count)
        self._able = np.maximum(self._able * 0.9, np.maximum(table.sum(0), table.sum(1)))
        if keep and not self._place:
            self._found.rounds.append([Flow(a, b, float(table[b, a])) for a, b in pairs])
            self._found.sent_bytes += PIECES * sum(sizes.values())

    def _size(self, pair: tuple[int, int], pairs: Pairs, seconds: float) -> int:
        """Bytes of each of its messages, so that the round takes so long."""
        if not seconds:
            return _FIRST_BYTES
        a, b = pair
        share = min(
            self._able[a] / sum(one == a for one, _ in pairs),
            self._able[b] / sum(other == b for _, other in pairs),
        )
        return int(min(max(share * seconds / PIECES, _LEAST_BYTES), _MOST_BYTES))

    # --- everybody with everybody, by the first one

    def _gathered(self, own: Floats) -> Floats:
        """Everybody's numbers, one rank's behind the other's; of tables, their sum."""
        flat = own.reshape(-1)
        table = own.ndim == 2
        size = flat.size if table else flat.size * self._count
        whole = np.zeros(size)
        if self._place:
            self._send(self._ranks[0], _UP, flat)
            self._receive(self._ranks[0], _DOWN, whole)
            return whole
        rows = np.zeros((self._count, flat.size))
        rows[0] = flat
        for handle in [self._asked(rank, _UP, rows[k]) for k, rank in enumerate(self._ranks) if k]:
            handle.wait(self._timeout_s)
        whole[:] = rows.sum(0) if table else rows.reshape(-1)
        for rank in self._ranks[1:]:
            self._send(rank, _DOWN, whole)
        return whole

    def _told(self, value: float) -> float:
        """The first rank's number, once everybody is here."""
        return float(self._gathered(np.array([value]))[0])

    def _send(self, rank: int, what: int, numbers: Floats) -> None:
        self._end.send(rank, _TAGS + what, numbers.tobytes()).wait(self._timeout_s)

    def _receive(self, rank: int, what: int, into: Floats) -> None:
        self._asked(rank, what, into).wait(self._timeout_s)

    def _asked(self, rank: int, what: int, into: Floats) -> Handle:
        return self._end.receive(rank, _TAGS + what, into.view(np.uint8).data)


def _is_matching(pairs: Pairs) -> bool:
    """Whether nobody sends to two."""
    senders = [a for a, _ in pairs]
    return len(set(senders)) == len(senders)


def _note(times: list[float], handle: Handle) -> None:
    """Something has come, well or not."""
    times.append(time.monotonic())
