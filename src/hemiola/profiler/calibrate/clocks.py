"""What one operation takes: processor time on a CPU, events on a GPU.

On a CPU with one thread, processor time leaves out what other processes take; wall time beside it
says whether they disturbed. With several threads only wall time means anything. On a GPU operations
are queued behind a delay, so that the device never waits for the host between them.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

__all__ = ["CpuClock", "OperationClock", "clock_for", "settled_allocator"]


_DISTURBED = 1.1  # wall time per processor time beyond which somebody else had the processor


class OperationClock(Protocol):
    """Times the operations of one round."""

    disturbed: bool

    def round(self) -> Any:
        """A context: the round."""

    def time(self, row: int, call: Callable[[], Any]) -> Any:
        """Run and time; the result."""

    def taken(self) -> list[tuple[int, float]]:
        """(row, seconds) of the last round."""


class CpuClock:
    """Processor time with one thread, wall time with several.

    Args:
        threads: with which operations run.

    Attributes:
        disturbed: whether other processes took much of the last round's time.
    """

    def __init__(self, threads: int) -> None:
        self.disturbed = False
        self._now = time.process_time if threads == 1 else time.perf_counter
        self._own_s = min(self._empty() for _ in range(200))
        self._taken: list[tuple[int, float]] = []

    def _empty(self) -> float:
        start = self._now()
        return self._now() - start

    @contextmanager
    def round(self) -> Iterator[None]:
        """Begin anew."""
        self._taken = []
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.disturbed = (time.perf_counter() - wall) > _DISTURBED * (time.process_time() - cpu)

    def time(self, row: int, call: Callable[[], Any]) -> Any:
        """Run and time; the result."""
        now = self._now
        start = now()
        result = call()
        self._taken.append((row, max(now() - start - self._own_s, 1e-9)))
        return result

    def taken(self) -> list[tuple[int, float]]:
        """(row, seconds) of the last round."""
        return self._taken


class CudaClock:
    """Events around every operation, on a stream of the current GPU that is kept busy meanwhile."""

    _BATCH = 64  # operations queued behind one delay
    _DELAY_CYCLES = 8_000_000  # some 4 ms: longer than the host needs to queue a batch

    def __init__(self) -> None:
        self.disturbed = False
        self._pairs: list[tuple[int, Any, Any]] = []
        self._own_s = 0.0
        with self.round():
            for row in range(32):
                self.time(row, lambda: None)
        self._own_s = min(seconds for _, seconds in self.taken())

    @contextmanager
    def round(self) -> Iterator[None]:
        """Begin anew; at the end wait for the device."""
        self._pairs = []
        yield
        torch.cuda.synchronize()

    def time(self, row: int, call: Callable[[], Any]) -> Any:
        """Queue between two events; the result."""
        if len(self._pairs) % self._BATCH == 0:
            torch.cuda.synchronize()
            torch.cuda._sleep(self._DELAY_CYCLES)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        result = call()
        end.record()
        self._pairs.append((row, start, end))
        return result

    def taken(self) -> list[tuple[int, float]]:
        """(row, seconds) of the last round."""
        return [
            (row, max(start.elapsed_time(end) * 1e-3 - self._own_s, 1e-9)) for row, start, end in self._pairs
        ]


def clock_for(device: str, threads: int) -> OperationClock:
    """The clock of a device."""
    return CudaClock() if device.startswith("cuda") else CpuClock(threads)


# Memory as a process has it that has trained for a while.

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # what glibc itself learns at most: larger blocks are always mapped anew
_DEFAULT_TRIM = 128 * 2**10


@contextmanager
def settled_allocator() -> Iterator[None]:
    """Keep freed memory meanwhile; elsewhere than on glibc nothing changes."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        yield
        return
    library.mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        library.mallopt(_TRIM_THRESHOLD, _DEFAULT_TRIM)
        library.malloc_trim(0)
