"""Stores for tests of input: objects in memory that count, wait and fail as they are told."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np

from hemiola.train.input.source import Arrived, ByteSource, StoreBusyError


class MemorySource(ByteSource):
    """An object in memory; `plan` maps the n-th read to seconds to wait or an error to raise."""

    def __init__(
        self, data: bytes, url: str = "memory", plan: dict[int, float | Exception] | None = None
    ) -> None:
        self.url, self.data, self.plan = url, data, dict(plan or {})
        self.reads: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    def size(self) -> int:
        return len(self.data)

    def version(self) -> str:
        return "1"

    def read(self, offset: int, into: memoryview, arrived: Arrived) -> None:
        with self._lock:
            number = len(self.reads)
            self.reads.append((offset, len(into)))
        match self.plan.get(number):
            case Exception() as error:
                raise error
            case float() as seconds:
                end_s = time.monotonic() + seconds
                while time.monotonic() < end_s:
                    time.sleep(0.005)
                    arrived(0)
        into[:] = self.data[offset : offset + len(into)]
        arrived(len(into))


def busy(retry_after_s: float = 0.0, *, denied: bool = False) -> StoreBusyError:
    return StoreBusyError("memory: 503", retry_after_s=retry_after_s, denied=denied)


def record_file(path: Path, records: int, record_bytes: int) -> Path:
    """Records that begin with their number (32 bits)."""
    rows = np.zeros((records, record_bytes // 4), dtype=np.uint32)
    rows[:, 0] = np.arange(records)
    path.write_bytes(rows.tobytes())
    return path
