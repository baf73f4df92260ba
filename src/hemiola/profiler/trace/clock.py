"""One clock for all ranks: rank 0 answers what time it is, the others ask and reckon.

A question takes a round trip; rank 0's clock was read somewhere within it. So half the round trip
bounds the error, whatever the two directions took (Cristian, "Probabilistic clock synchronization",
Distributed Computing 3, 1989). Of many questions the one with the shortest round trip counts. Asked at the start, now and
then, and at the end; a drift that shows beyond the error is taken out as a straight line. Where nobody has answered for
long, the error grows by the drift that the answers do not rule out.
"""

from __future__ import annotations

import math
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from hemiola.profiler.trace.parts import TracePart
from hemiola.profiler.trace.values import ClockSample

__all__ = ["ClockClient", "ClockFit", "ClockServer", "bound_by_causality", "fit_clock"]


DRIFT_MAX = 1e-4
"""Two clocks of quartz, each off by some tens of parts in a million, drift apart by no more than this."""

_TOKEN_BYTES = 16
_TIMEOUT_S = 2.0
_PAUSE_S = 0.05
_EDGE_NS = 2_000_000_000
"""Samples within so much of the first or the last, but a third of all at most, count as the first or the last."""


class ClockServer:
    """Rank 0's side: a thread that answers every byte with its clock in 8 bytes, to those who know the token."""

    def __init__(self, now: Callable[[], int], *, only_this_host: bool) -> None:
        self._now = now
        self._socket = socket.create_server(("127.0.0.1" if only_this_host else "", 0), backlog=1024)
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._known: set[socket.socket] = set()
        self._open = True
        self.token = os.urandom(_TOKEN_BYTES)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="hemiola-clock", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._open = False
        self._thread.join(_TIMEOUT_S)

    def _serve(self) -> None:
        while self._open:
            for key, _ in self._selector.select(0.2):
                try:
                    self._answer(key.fileobj)  # type: ignore[arg-type]
                except OSError:
                    if key.fileobj is self._socket:  # who comes waits until there are handles again
                        time.sleep(_PAUSE_S)
                    else:
                        self._drop(key.fileobj)  # type: ignore[arg-type]
        for entry in list(self._selector.get_map().values()):
            self._drop(entry.fileobj)  # type: ignore[arg-type]

    def _answer(self, stream: socket.socket) -> None:
        if stream is self._socket:
            peer, _ = self._socket.accept()
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(peer, selectors.EVENT_READ)
        elif stream in self._known and len(stream.recv(1)) == 1:
            stream.send(self._now().to_bytes(8, "big", signed=True))
        elif stream not in self._known and stream.recv(_TOKEN_BYTES) == self.token:
            self._known.add(stream)
        else:
            self._drop(stream)

    def _drop(self, stream: socket.socket) -> None:
        self._known.discard(stream)
        self._selector.unregister(stream)
        stream.close()


class ClockClient:
    """Another rank's side: a connection that is kept, and asked a few questions in a row.

    Raises:
        OSError: if none of the hosts can be reached.
    """

    def __init__(self, hosts: Sequence[str], port: int, token: bytes, now: Callable[[], int]) -> None:
        self._now = now
        self._socket = _connect(hosts, port)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(token)

    def sample(self, questions: int = 16) -> ClockSample:
        """Rank 0's clock less this one's, by the question with the shortest round trip.

        Raises:
            OSError: if rank 0 is gone.
        """
        return min((self._ask() for _ in range(questions)), key=_error)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _ask(self) -> ClockSample:
        sent = self._now()
        self._socket.sendall(b"?")
        answer = self._socket.recv(8, socket.MSG_WAITALL)
        heard = self._now()
        if len(answer) < 8:
            raise ConnectionError("rank 0 has hung up")
        middle = (sent + heard) // 2
        return ClockSample(
            middle, int.from_bytes(answer, "big", signed=True) - middle, (heard - sent + 1) // 2 + 1
        )


def _connect(hosts: Sequence[str], port: int) -> socket.socket:
    problem: OSError = ConnectionError("no host to ask")
    for host in hosts:
        try:
            return socket.create_connection((host, port), timeout=_TIMEOUT_S)
        except OSError as error:
            problem = error
    raise problem


class ClockFit(NamedTuple):
    """Rank 0's clock at this rank's `at_ns`: ahead by `offset_ns`, and by `drift` more with each nanosecond."""

    at_ns: int
    offset_ns: float
    drift: float
    error_ns: float

    def apply(self, local_ns: int) -> float:
        """The time on rank 0's clock."""
        return local_ns + self.offset_ns + self.drift * (local_ns - self.at_ns)

    def then(self, following: ClockFit) -> ClockFit:
        """From this rank's clock, by the one that this fit leads to, to that which the other's leads to."""
        further_ns = following.offset_ns + following.drift * (self.at_ns + self.offset_ns - following.at_ns)
        drift = self.drift + following.drift * (1 + self.drift)
        error_ns = self.error_ns + following.error_ns
        return ClockFit(self.at_ns, self.offset_ns + further_ns, drift, error_ns)


def fit_clock(samples: Sequence[ClockSample], times_ns: Iterable[int] = ()) -> ClockFit:
    """The offset and drift that the samples show, with an error that holds at the first and the last.

    Between the two it holds if the clocks drift evenly; where samples there show that they did not, it is so large that
    none contradicts it. While the two agree within their errors no drift is assumed: a line through two uncertain points
    would bend what it should put right.

    Args:
        samples: in the order of time.
        times_ns: on this rank's clock, for which the error is to hold as well. Before and after the samples it
            grows by the drift that these leave open, up to `DRIFT_MAX`.
    """
    edge_ns = min(_EDGE_NS, (samples[-1].local_ns - samples[0].local_ns) / 3)
    first = min((s for s in samples if s.local_ns - samples[0].local_ns <= edge_ns), key=_error)
    last = min((s for s in samples if samples[-1].local_ns - s.local_ns <= edge_ns), key=_error)
    apart_ns, risen_ns = last.local_ns - first.local_ns, last.offset_ns - first.offset_ns
    low = max(first.offset_ns - first.error_ns, last.offset_ns - last.error_ns)
    high = min(first.offset_ns + first.error_ns, last.offset_ns + last.error_ns)
    if low <= high:
        offset_ns, drift = (low + high) / 2, 0.0
        error_ns = max(abs(s.offset_ns - offset_ns) + s.error_ns for s in (first, last))
    else:
        offset_ns, drift = float(first.offset_ns), risen_ns / apart_ns
        error_ns = float(max(first.error_ns, last.error_ns))
    rest_ns = (
        abs(offset_ns + drift * (s.local_ns - first.local_ns) - s.offset_ns) - s.error_ns for s in samples
    )
    error_ns = max(error_ns, *rest_ns)
    left_ns = abs(risen_ns - drift * apart_ns) + first.error_ns + last.error_ns
    left = min(DRIFT_MAX + abs(drift), left_ns / apart_ns) if apart_ns else DRIFT_MAX
    beyond_ns = max((max(first.local_ns - time, time - last.local_ns, 0) for time in times_ns), default=0)
    return ClockFit(first.local_ns, offset_ns, drift, error_ns + left * beyond_ns)


def _error(sample: ClockSample) -> int:
    return sample.error_ns


# Bounds on a rank's clock from what cannot be: a collective that ended before somebody had joined it.

_NEED_EVERYBODY = frozenset({"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier"})

_Bounds = Sequence[tuple[int, int]]
"""Times on the other's clock, and what the offset was then at least, or at most."""


def bound_by_causality(here: TracePart, there: TracePart) -> ClockFit | None:
    """A line through the intervals in which the offset must lie at the first and the last collective of both.

    None if nothing bounds it, or if the bounds contradict each other.
    """
    ours, theirs = _collectives(here), _collectives(there)
    common = sorted(ours.keys() & theirs.keys(), key=theirs.__getitem__)
    if not common:
        return None
    lows = [(theirs[key][1], ours[key][0] - theirs[key][1]) for key in common]
    highs = [(theirs[key][0], ours[key][1] - theirs[key][0]) for key in common]
    first, last = (_sample(lows, highs, theirs[key][0]) for key in (common[0], common[-1]))
    return fit_clock([first, last], there.times_ns) if first is not None and last is not None else None


def _sample(lows: _Bounds, highs: _Bounds, at_ns: int) -> ClockSample | None:
    """The middle of the interval in which the offset was then, half its width the error; None if it is empty."""
    low = max(bound - DRIFT_MAX * abs(at_ns - time) for time, bound in lows)
    high = min(bound + DRIFT_MAX * abs(at_ns - time) for time, bound in highs)
    middle = round((low + high) / 2)
    return ClockSample(at_ns, middle, math.ceil(max(high - middle, middle - low))) if low <= high else None


def _collectives(part: TracePart) -> dict[tuple[str, int], tuple[int, int]]:
    """Enqueue and last byte of each, by group's name and sequence."""
    names = {number: group.name for number, group in part.groups.items()}
    return {
        (names[row[3]], row[0]): (row[5], row[7])
        for iteration in part.iterations
        for row in iteration.transfers
        if row[7] is not None and row[2] in _NEED_EVERYBODY and row[3] in names
    }
