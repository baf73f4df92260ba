"""One rank's part of a round: it sends to several others for a while, and notes what comes from several meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late

import numpy as np

from hemiola.core.errors import HemiolaError, TransportError
from hemiola.comm.transport import Endpoint, Handle

__all__ = ["Arrivals", "exchange"]

AT_ONCE = 4
"""Messages of one stream that are handed to the transport at a time. Each is followed by another one, or is a last."""


class Arrivals:
    """What came from one sender.

    Attributes:
        at_s: of each message, on this host's monotonic clock.
    """

    def __init__(self, size_bytes: int) -> None:
        """Of messages of this size."""
        self._size_bytes = size_bytes
        self.at_s: list[float] = []

    def rate(self, begin_s: float, since_s: float, until_s: float) -> float:
        """Bytes/s between two moments, of a stream that began before them. Messages come evenly."""
        times = [begin_s, *self.at_s]
        came = np.interp([since_s, until_s], times, np.arange(len(times))) * self._size_bytes
        return float(came[1] - came[0]) / (until_s - since_s)


def exchange(
    end: Endpoint, tag: int, to: Mapping[int, int], since: Mapping[int, int], begin: Callable[[], float],
    seconds: float, timeout_s: float,
) -> tuple[float, dict[int, Arrivals]]:  # fmt: skip
    """Send for so long, and take what comes: when it began, and what came by the rank that sent it.

    Args:
        to: bytes of each message, by the rank that it is for.
        since: bytes of each message, by the rank that sends it.
        begin: waits until all ranks await what comes; the moment at which that is known here.

    Raises:
        TransportError: a rank is lost, or something does not end in time.
    """
    found = {peer: Arrivals(size) for peer, size in since.items()}
    over = [_take(end, peer, tag, size, found[peer]) for peer, size in since.items() for _ in range(AT_ONCE)]
    begun_s = begin()
    for peer, size in to.items():
        over += [_send(end, peer, tag, size, begun_s + seconds) for _ in range(AT_ONCE)]
    try:
        for one in over:
            one.result(timeout_s)
    except Late:
        raise TransportError(f"a measurement did not end within {timeout_s:g} s", "wait longer") from None
    return begun_s, found


def _send(end: Endpoint, peer: int, tag: int, size: int, until_s: float) -> Future[None]:
    """Message after message until then, and one that says that it is the last."""
    data, last = bytes(size), b"\1" + bytes(size - 1)
    is_last = False

    def another() -> Handle | None:
        nonlocal is_last
        if is_last:
            return None
        is_last = time.monotonic() >= until_s
        return end.send(peer, tag, last if is_last else data)

    return _one_after_another(another)


def _take(end: Endpoint, peer: int, tag: int, size: int, into: Arrivals) -> Future[None]:
    """Message after message, to a last one."""
    data = bytearray(size)
    begun = False

    def another() -> Handle | None:
        nonlocal begun
        if begun:
            into.at_s.append(time.monotonic())
        begun = True
        return None if data[0] else end.receive(peer, tag, data)

    return _one_after_another(another)


def _one_after_another(another: Callable[[], Handle | None]) -> Future[None]:
    """Each when the one before it has ended; done when there is no other, or one of them has failed."""
    over: Future[None] = Future()

    def go_on(before: Handle | None) -> None:
        try:
            if before is not None and before.problem is not None:
                raise before.problem
            handle = another()
        except HemiolaError as problem:
            over.set_exception(problem)
            return
        if handle is None:
            over.set_result(None)
        else:
            handle.add_callback(go_on)

    go_on(None)
    return over
