"""Rounds in which pairs of ranks send to each other, timed where data arrives.

Everybody waits for everybody between rounds, so that none overruns another. What counts is what arrives while all
flows of a round are under way: from the moment on at which each has brought two of its messages, for queues and
buffers take the first faster than the link does, until the first of them has ended.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
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
WARM = 2
"""Of them, so many come before it counts."""
ROUND_S = 60e-3
_FIRST_BYTES, _LEAST_BYTES, _MOST_BYTES = 4 << 10, 4 << 10, 4 << 20
PINGS = 20
SHARED = 0.3
"""A round counts if all its flows were under way for this share of its longest."""
FORGOTTEN = 0.9
"""Of what a rank was once seen to send or take, so much is believed after a round in which it was not."""
_ENOUGH = 0.10
"""Intervals so narrow, relative to their rates, end the measurement."""

Floats = NDArray[np.float64]


@dataclass
class Measurement:
    """What was measured, at the first of the ranks; others have nothing.

    Attributes:
        ranks: that took part.
        rounds: flows between them, by their place among `ranks`.
        loose: flows of rounds that do not count, each as if by itself.
        known: groups behind uplinks that were found before; None to look for them.
        latency_s: of a small message between two of them, the least of several; shape (ranks, ranks), 0 within.
        seconds: that it took.
        sent_bytes: by all together.
    """

    ranks: tuple[int, ...]
    rounds: list[list[Flow]] = field(default_factory=list)
    loose: list[list[Flow]] = field(default_factory=list)
    known: tuple[tuple[int, ...], ...] | None = None
    latency_s: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    seconds: float = 0.0
    sent_bytes: int = 0

    def fit(self) -> FittedNetwork:
        """The network that explains it; by loose flows too where a rank has no other."""
        return fit_network(len(self.ranks), self._telling, self.known)

    def is_narrow(self) -> bool:
        """Whether the intervals of all hosts' rates are."""
        fitted = fit_network(len(self.ranks), self._telling, ())  # uplinks change nothing about them
        return all(fitted.rate(host).spread < _ENOUGH for host in range(len(self.ranks)))

    @property
    def _telling(self) -> list[list[Flow]]:
        seen = {flow.source for flows in self.rounds for flow in flows}
        return [*self.rounds, *(self.loose if len(seen) < len(self.ranks) else [])]


class Prober:
    """One rank's side; all ranks that take part do the same at the same time, and nothing else meanwhile."""

    def __init__(self, end: Endpoint, ranks: Sequence[int], timeout_s: float) -> None:
        """Over a connected endpoint, among these ranks: one of each host."""
        self._end, self._ranks, self._timeout_s = end, tuple(ranks), timeout_s
        self._place = self._ranks.index(end.rank)
        self._count = len(self._ranks)
        self._able = np.zeros(self._count)
        """What each can send or take, as far as is known."""
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
        matchings = [pairs for pairs in probe_rounds(self._count, 0, mixes=1) if _is_matching(pairs)]
        latency_s = np.zeros((self._count, self._count))
        for pairs in matchings:
            self._ping(pairs, latency_s)
        tables = self._gathered(latency_s)
        self._found.latency_s = latency_s if self._place else tables.sum(0)
        for seconds in (0.0, round_s / 3):
            for pairs in matchings:
                self._round(pairs, seconds, keep=False)
        for number in itertools.count(1):
            for pairs in probe_rounds(self._count, number):
                self._round(pairs, round_s, keep=True)
            enough = number >= passes_most or time.monotonic() - start > seconds_most
            enough = enough or (not self._place and self._found.is_narrow())
            if self._told(np.array([float(enough)]))[0]:
                break
        self._found.seconds = time.monotonic() - start
        return self._found

    def measure_again(self, before: Measurement, round_s: float) -> Measurement:
        """Measure rates alone, once: latencies and who shares an uplink are taken from before.

        Raises:
            TransportError: as `measure`.
        """
        start = time.monotonic()
        self._found.latency_s = before.latency_s
        if not self._place:
            fitted = before.fit()
            self._found.known = before.known
            if before.known is None:
                self._found.known = tuple(group.hosts for group in fitted.groups)
            self._able = np.array([fitted.rate(host).bytes_per_s for host in range(self._count)])
        for pairs in probe_rounds(self._count, 0, mixes=1):
            self._round(pairs, round_s / 2, keep=False)
            self._round(pairs, round_s, keep=True)
        self._found.seconds = time.monotonic() - start
        return self._found

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
        self._all_here()

    def _round(self, pairs: Pairs, seconds: float, keep: bool) -> None:
        """One round; what is found is added where the first rank is."""
        self._able = self._told(self._able)
        sizes = {pair: self._size(pair, pairs, seconds) for pair in pairs}
        times: dict[int, list[float]] = {a: [] for a, b in pairs if b == self._place}
        waits: list[Handle] = []
        for a, found in times.items():
            for _ in range(PIECES):
                into = bytearray(sizes[a, self._place])
                handle = self._end.receive(self._ranks[a], _TAGS + _DATA, into)
                handle.add_callback(partial(_note, found))
                waits.append(handle)
        start = self._all_here()
        for a, b in pairs:
            if a == self._place:
                data = bytes(sizes[a, b])
                waits += [self._end.send(self._ranks[b], _TAGS + _DATA, data) for _ in range(PIECES)]
        for handle in waits:
            handle.wait(self._timeout_s)
        curves = np.zeros((self._count, PIECES))
        for a, found in times.items():
            curves[a] = np.array(found) - start
        arrived = self._gathered(curves)
        if self._place:
            return
        flows, counts = _rates(pairs, sizes, arrived)
        for way in ("source", "target"):
            total = np.zeros(self._count)
            for flow in flows:
                total[getattr(flow, way)] += flow.bytes_per_s
            self._able = np.maximum(self._able * FORGOTTEN, total)
        if keep and counts:
            self._found.rounds.append(flows)
        elif keep:
            self._found.loose += [[flow] for flow in flows]
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

    # --- everybody with the first one

    def _all_here(self) -> float:
        """Once everybody is here: the moment at which this rank learns it."""
        self._gathered(np.zeros(1))
        self._told(np.zeros(1))
        return time.monotonic()

    def _gathered(self, own: Floats) -> Floats:
        """Everybody's numbers at the first rank, once all are here; elsewhere nothing of use."""
        if self._place:
            self._end.send(self._ranks[0], _TAGS + _UP, own.tobytes()).wait(self._timeout_s)
            return own
        rows = np.zeros((self._count, *own.shape))
        rows[0] = own
        for handle in [self._asked(rank, _UP, rows[k]) for k, rank in enumerate(self._ranks) if k]:
            handle.wait(self._timeout_s)
        return rows

    def _told(self, numbers: Floats) -> Floats:
        """The first rank's numbers."""
        if self._place:
            found = np.zeros(numbers.shape)
            self._asked(self._ranks[0], _DOWN, found).wait(self._timeout_s)
            return found
        data = numbers.tobytes()
        for handle in [self._end.send(rank, _TAGS + _DOWN, data) for rank in self._ranks[1:]]:
            handle.wait(self._timeout_s)
        return numbers

    def _asked(self, rank: int, what: int, into: Floats) -> Handle:
        return self._end.receive(rank, _TAGS + what, into.reshape(-1).view(np.uint8).data)


def _rates(pairs: Pairs, sizes: Mapping[tuple[int, int], int], arrived: Floats) -> tuple[list[Flow], bool]:
    """What each flow brought while all were under way; where that was too short a time, by itself.

    Args:
        arrived: when each message came, since the round began; shape (receivers, senders, PIECES).

    Returns:
        Of every flow, and True; of one for each sender and receiver, and False, if they were not under way together.
    """
    curves = {(a, b): arrived[b, a] for a, b in pairs}
    begin = max(float(times[WARM - 1]) for times in curves.values())
    end = min(float(times[-1]) for times in curves.values())
    lengths = {pair: float(times[-1] - times[WARM - 1]) for pair, times in curves.items()}
    if end - begin < SHARED * max(lengths.values()):
        return _apart(sizes, lengths), False
    flows = []
    for (a, b), times in curves.items():
        came = np.interp([begin, end], times, np.arange(1, PIECES + 1)) * sizes[a, b]
        flows.append(Flow(a, b, float(came[1] - came[0]) / (end - begin)))
    return flows, True


def _apart(sizes: Mapping[tuple[int, int], int], lengths: Mapping[tuple[int, int], float]) -> list[Flow]:
    """Each flow by itself, one of each sender and of each receiver: good enough to choose the next sizes by."""
    flows: list[Flow] = []
    for (a, b), length in lengths.items():
        if all(flow.source != a and flow.target != b for flow in flows):
            flows.append(Flow(a, b, sizes[a, b] * (PIECES - WARM) / max(length, 1e-6)))
    return flows


def _is_matching(pairs: Pairs) -> bool:
    """Whether nobody sends to two."""
    senders = [a for a, _ in pairs]
    return len(set(senders)) == len(senders)


def _note(times: list[float], handle: Handle) -> None:
    """Something has come, well or not."""
    times.append(time.monotonic())
