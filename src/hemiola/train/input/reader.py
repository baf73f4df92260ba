"""Reads ranges of sources by as many requests at once as the tuner says, and sees to it that each comes once and whole.

Threads read (the interpreter's lock is free while they wait), the oldest range first. What fails is tried again, with
patience; what hangs while somebody waits for it is asked for a second time, once. How it goes is told to the tuner
window by window.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import random
import re
import statistics
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from hemiola.core.errors import StoreError
from hemiola.cost.io import StoreModel
from hemiola.plan.io.tuner import ReadLimits, ReadTuner, ReadWindow
from hemiola.train.input.source import ByteSource, StoreBusyError, hang_up

__all__ = ["PendingRange", "RangeReader", "ReadPatience", "ReaderCounts"]

LOOK_S = 0.1
END_S = 0.8
THREAD = "hemiola-read"
FIRST_GUESS = StoreModel(0.02, 50e6)
"""Of a store that nobody has probed: the first windows correct it."""


@dataclass(frozen=True)
class ReadPatience:
    """How long failing reads are tried again.

    Attributes:
        in_all_s: from the first failure on.
        first_s: before the second try; doubled for each further one, with chance, up to `most_s`.
        hedge_factor: a read is asked for a second time after so many times the usual (99 %) request ...
        hedge_least_s: ... and no sooner.
    """

    in_all_s: float = 120.0
    first_s: float = 0.1
    most_s: float = 5.0
    hedge_factor: float = 3.0
    hedge_least_s: float = 1.0


@dataclass
class ReaderCounts:
    """What a reader has done so far.

    Attributes:
        requests, failures, retries, hedges: how many.
        arrived_bytes: in all, also of reads that failed.
        waited_s: that callers waited for pieces.
    """

    requests: int = 0
    failures: int = 0
    retries: int = 0
    hedges: int = 0
    arrived_bytes: int = 0
    waited_s: float = 0.0


class _AbandonedError(Exception):
    """The read is no longer wanted."""


class PendingRange:
    """Bytes that are on their way: a range of a source.

    Attributes:
        source, offset, length: which.
    """

    def __init__(self, reader: RangeReader, source: ByteSource, offset: int, length: int) -> None:
        self.source, self.offset, self.length = source, offset, length
        self._reader = reader
        self._data = bytearray(length)
        self._left = 0
        self._done = threading.Event()
        self.error: BaseException | None = None
        self.cancelled = False
        self._reads: list[_Read] = []

    def ready(self) -> bool:
        """Whether all of it is there, or never will be."""
        return self._done.is_set()

    def cancel(self) -> None:
        """It is no longer wanted."""
        self.cancelled = True

    def wait(self) -> memoryview:
        """The bytes, as soon as they are there.

        Raises:
            StoreError: they do not come.
        """
        begun_s = time.monotonic()
        while not self._done.wait(LOOK_S):
            self._reader.look_after(self._reads)
        self._reader.counts.waited_s += time.monotonic() - begun_s
        self._reads = []  # they know this piece: its bytes would wait for the collector of circles
        if self.error is not None:
            raise self.error
        return memoryview(self._data).toreadonly()


@dataclass(eq=False)
class _Read:
    """One request's part of a piece."""

    piece: PendingRange
    offset: int
    length: int
    begun_s: float = 0.0
    first_failed_s: float = 0.0
    tries: int = 0
    not_before_s: float = 0.0
    done: bool = False
    hedged: bool = False
    refreshed: bool = False
    arrived: int = 0

    @property
    def into(self) -> memoryview:
        at = self.offset - self.piece.offset
        return memoryview(self.piece._data)[at : at + self.length]


@dataclass
class _Window:
    """What is counted until the window closes; starts when the last setting has settled."""

    begins_s: float
    bytes_: int = 0
    flights_s: float = 0.0
    wanted_s: float = 0.0
    requests: int = 0
    failures: int = 0
    first_bytes_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    asked_bytes: int = 0


class RangeReader:
    """Threads that read pieces.

    Args:
        store: what a probe found; a guess unless given.
        limits: memory, requests at once, sizes of reads.
        tuner: one made elsewhere, or None for one of its own; False to keep to `limits.in_flight` and
            `limits.read_most_bytes`.
        patience: with what fails.
        refresh: called once, when access is denied: to renew credentials.
        verify_md5: compare whole objects with their ETag where that looks like an MD5, as that of an object of S3 is
            which was put in one part and is not encrypted by KMS.

    Attributes:
        rate_bytes_per_s: what starts of requests keep to; may be changed at any time.
        flights_s: requests in flight, added up over time.
        hungry_s: how long there were reads that could not begin at once.
        counts: what was done.
    """

    def __init__(
        self,
        store: StoreModel | None = None,
        limits: ReadLimits | None = None,
        *,
        tuner: ReadTuner | bool | None = None,
        patience: ReadPatience | None = None,
        refresh: Callable[[], None] | None = None,
        verify_md5: bool = False,
    ) -> None:
        self.limits = limits or ReadLimits()
        self._static = tuner is False
        self.tuner = tuner if isinstance(tuner, ReadTuner) else ReadTuner(store or FIRST_GUESS, self.limits)
        self._patience = patience or ReadPatience()
        self._refresh = refresh
        self._verify_md5 = verify_md5
        self._chance = random.Random(os.getpid())  # not the one of the training
        self.rate_bytes_per_s = float("inf")
        _readers.add(self)
        self._begin()

    def _begin(self) -> None:
        """All that a forked process has to make anew."""
        self.counts = ReaderCounts()
        self._condition = threading.Condition()
        self._waiting: deque[_Read] = deque()
        self._active = self._threads = 0
        self._closed = False
        self._bucket_s = 0.0
        self._updated_s = time.monotonic()
        self._window = _Window(self._updated_s + 1e-3, cpu_s=time.process_time())
        self.flights_s = self.hungry_s = 0.0
        self._durations: deque[tuple[float, int]] = deque(maxlen=200)
        self.first_bytes_s: deque[float] = deque(maxlen=100)
        self.streams_bytes_per_s: deque[float] = deque(maxlen=100)

    @property
    def read_bytes(self) -> int:
        """Of one request, now."""
        return self.limits.read_most_bytes if self._static else self.tuner.setting.read_bytes

    @property
    def in_flight(self) -> int:
        """Requests at once, now."""
        return self.limits.in_flight if self._static else self.tuner.setting.in_flight

    @property
    def active(self) -> int:
        """Requests in flight this moment."""
        return self._active

    @property
    def backlog(self) -> int:
        """Reads that nobody has begun."""
        return len(self._waiting)

    def submit(self, source: ByteSource, offset: int, length: int) -> PendingRange:
        """Ask for a range; pieces are read in the order in which they are asked for."""
        return self.submit_all([(source, offset, length)])[0]

    def submit_all(self, ranges: Iterable[tuple[ByteSource, int, int]]) -> list[PendingRange]:
        """Ask for several ranges, in order."""
        pieces = []
        with self._condition:
            for source, offset, length in ranges:
                piece = PendingRange(self, source, offset, length)
                for at, part in _parts(offset, length, self.read_bytes):
                    piece._reads.append(_Read(piece, at, part))
                piece._left = len(piece._reads)
                if not piece._reads:
                    piece._done.set()
                self._waiting.extend(piece._reads)
                pieces.append(piece)
            self._account()
            self._staff()
            self._condition.notify_all()
        return pieces

    def close(self) -> None:
        """End all threads; reads in flight are broken off at their next byte."""
        with self._condition:
            self._closed = True
            self._waiting.clear()
            self._condition.notify_all()

    def look_after(self, reads: Iterable[_Read]) -> None:
        """Somebody waits for these: ask a second time for one that takes far longer than usual."""
        now_s = time.monotonic()
        late = [r for r in reads if not r.done and r.begun_s and not r.hedged]
        if not late:
            return
        usual_s = self._usual_s()
        for read in late:
            if usual_s and now_s - read.begun_s > max(
                self._patience.hedge_factor * usual_s, self._patience.hedge_least_s
            ):
                read.hedged = True
                with self._condition:
                    self.counts.hedges += 1
                    self._waiting.appendleft(read)
                    self._staff(extra=1)
                    self._condition.notify()

    def _usual_s(self) -> float:
        """What 99 of 100 requests take; 0 while too few are known."""
        known = sorted(duration for duration, _ in list(self._durations))
        return known[min(len(known) - 1, int(0.99 * len(known)))] if len(known) >= 8 else 0.0

    # ---- threads ----

    def _staff(self, extra: int = 0) -> None:
        while self._threads < min(self.in_flight, self._active + len(self._waiting)) + extra:
            self._threads += 1
            threading.Thread(target=self._work, name=THREAD, daemon=True).start()

    def _work(self) -> None:
        while (read := self._next()) is not None:
            begun_s = time.monotonic()
            try:
                self._carry_out(read, begun_s)
            except _AbandonedError:
                self._finish(read, None)
            except StoreBusyError as error:
                self._again(read, error)
            except Exception as error:  # the caller's to see, not this thread's
                self._finish(read, error)

    def _next(self) -> _Read | None:
        with self._condition:
            while True:
                if self._closed:
                    self._threads -= 1
                    return None
                now_s = time.monotonic()
                read, wait_s = self._due(now_s)
                if read is not None:
                    self._account()
                    self._active += 1
                    if self._active + len(self._waiting) > self._threads:
                        self._staff()
                    return read
                self._condition.wait(wait_s)

    def _due(self, now_s: float) -> tuple[_Read | None, float | None]:
        """The first read that may begin now; else how long to wait for one."""
        if not self._waiting or (self._active >= self.in_flight and not self._waiting[0].hedged):
            return None, None
        if self._bucket_s > now_s:
            return None, self._bucket_s - now_s
        soonest: float | None = None
        for index, read in enumerate(self._waiting):
            if read.not_before_s <= now_s:
                del self._waiting[index]
                self._spend(read.length, now_s)
                return read, None
            soonest = min(soonest or read.not_before_s, read.not_before_s)
            if index > 64:
                break
        return None, (soonest or now_s + LOOK_S) - now_s

    def _spend(self, size_bytes: int, now_s: float) -> None:
        """The token bucket over starts of requests: the next one when these bytes are paid for."""
        if self.rate_bytes_per_s < float("inf"):
            since_s = max(self._bucket_s, now_s - 0.05)
            self._bucket_s = since_s + size_bytes / self.rate_bytes_per_s

    def _carry_out(self, read: _Read, begun_s: float) -> None:
        if read.done or read.piece.cancelled:
            raise _AbandonedError
        read.begun_s = read.begun_s or begun_s
        first_s: list[float] = []

        def arrived(count: int) -> None:
            if not first_s:
                first_s.append(time.monotonic() - begun_s)
            if self._closed or read.done or read.piece.cancelled:
                raise _AbandonedError
            self._arrived(count)

        read.piece.source.read(read.offset, read.into, arrived)
        took_s = time.monotonic() - begun_s
        with self._condition:
            self._durations.append((took_s, read.length))
            first = first_s[0] if first_s else took_s
            self._window.first_bytes_s.append(first)
            self.first_bytes_s.append(first)
            if took_s > first:
                self.streams_bytes_per_s.append(read.length / (took_s - first))
        self._finish(read, None)

    def _arrived(self, count: int) -> None:
        with self._condition:
            self.counts.arrived_bytes += count
            self._window.bytes_ += count
            self._account()

    def _finish(self, read: _Read, error: BaseException | None) -> None:
        piece, last = read.piece, False
        with self._condition:
            self._account()
            self._active -= 1
            self.counts.requests += 1
            self._window.requests += 1
            self._window.asked_bytes += read.length
            if not read.done:
                read.done = True
                piece.error = piece.error or error
                piece._left -= 1
                last = piece._left == 0 or error is not None
            self._account()
            self._condition.notify()
        if last:
            if self._verify_md5 and piece.error is None:
                piece.error = _md5_error(piece)
            piece._done.set()

    def _again(self, read: _Read, error: StoreBusyError) -> None:
        """Try later, unless patience ends; denied access is tried once, after credentials were renewed."""
        now_s = time.monotonic()
        read.first_failed_s = read.first_failed_s or now_s
        read.tries += 1
        if error.denied and (read.refreshed or self._refresh is None):
            refused = StoreError(str(error.what), "access is denied: renew the credentials")
            return self._finish(read, refused)
        if error.denied and self._refresh is not None:
            read.refreshed = True
            self._refresh()
        if now_s - read.first_failed_s > self._patience.in_all_s:
            return self._finish(read, error)
        back_off_s = min(self._patience.most_s, self._patience.first_s * 2 ** min(read.tries - 1, 16))
        read.not_before_s = now_s + max(error.retry_after_s, back_off_s * self._chance.uniform(0.5, 1.0))
        read.begun_s = 0.0
        with self._condition:
            self._account()
            self._active -= 1
            self.counts.failures += 1
            self.counts.retries += 1
            self._window.requests += 1
            self._window.failures += 1
            self._window.asked_bytes += read.length
            self._waiting.appendleft(read)
            self._account()
            self._condition.notify()
        return None

    # ---- windows ----

    def _account(self) -> None:
        """Add up the time since the last change; close the window when it is over. Under the lock."""
        now_s = time.monotonic()
        window, since_s = self._window, max(self._updated_s, self._window.begins_s)
        self.flights_s += self._active * (now_s - self._updated_s)
        self.hungry_s += bool(self._waiting) * (now_s - self._updated_s)
        self._updated_s = now_s
        if now_s > since_s:
            window.flights_s += self._active * (now_s - since_s)
            full = self._active >= self.in_flight and self._bucket_s <= now_s
            window.wanted_s += (now_s - since_s) * full
        elif window.bytes_ or window.requests:  # still settling
            self._window = _Window(window.begins_s, cpu_s=time.process_time())
        if not self._static and now_s - window.begins_s >= self.tuner.setting.window_s:
            self._close_window(now_s)

    def _close_window(self, now_s: float) -> None:
        window, firsts = self._window, sorted(self._window.first_bytes_s)
        lasted_s = now_s - window.begins_s
        setting = self.tuner.observe(
            ReadWindow(
                at_s=now_s,
                duration_s=lasted_s,
                arrived_bytes=window.bytes_,
                in_flight=window.flights_s / lasted_s,
                wanted=window.wanted_s / lasted_s,
                requests=window.requests,
                failures=window.failures,
                first_byte_s=firsts[len(firsts) // 4] if firsts else 0.0,
                cpu=(time.process_time() - window.cpu_s) / lasted_s,
                read_bytes=window.asked_bytes / window.requests if window.requests else 0.0,
            )
        )
        self._window = _Window(now_s + setting.settle_s, cpu_s=time.process_time())
        self._staff()
        self._condition.notify_all()

    def usual_first_byte_s(self) -> float:
        """Median time to a first byte, lately."""
        return statistics.median(self.first_bytes_s) if self.first_bytes_s else 0.0

    def usual_stream_bytes_per_s(self) -> float:
        """Median rate of a body, lately."""
        return statistics.median(self.streams_bytes_per_s) if self.streams_bytes_per_s else 0.0


def _md5_error(piece: PendingRange) -> StoreError | None:
    """What is wrong with a whole object whose version is its MD5; None where nothing is, or nothing is known."""
    source, version = piece.source, piece.source.version().strip('"').lower()
    if piece.offset or piece.length != source.size() or not re.fullmatch("[0-9a-f]{32}", version):
        return None
    found = hashlib.md5(piece._data, usedforsecurity=False).hexdigest()
    if found == version:
        return None
    return StoreError(
        f"{source.url}: the bytes that arrived have the MD5 {found}, the store says {version}",
        "read it again; if it stays so, the object is damaged",
    )


def _parts(offset: int, length: int, read_bytes: int) -> list[tuple[int, int]]:
    """Equal reads of about this size that make up a range."""
    if length <= 0:
        return []
    count = max(1, round(length / read_bytes))
    cuts = [length * i // count for i in range(count + 1)]
    return [(offset + a, b - a) for a, b in pairwise(cuts)]


_readers: weakref.WeakSet[RangeReader] = weakref.WeakSet()


def _forked() -> None:
    """In a child: threads are gone and locks may be held, so that readers begin anew."""
    for reader in list(_readers):
        reader._begin()


os.register_at_fork(after_in_child=_forked)


def _end() -> None:
    """At the process's end: a thread that still reads then would hold a lock that the interpreter wants."""
    for reader in list(_readers):
        reader.close()
    hang_up()
    until_s = time.monotonic() + END_S
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join(max(0.0, until_s - time.monotonic()))
    if not any(thread.name == THREAD for thread in threading.enumerate()):
        hang_up(close=True)


atexit.register(_end)
