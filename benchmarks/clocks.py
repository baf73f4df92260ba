"""How the benchmarks measure: CPU time beside wall time, and the floor that multiples are taken to.

CPU time of the process is the figure that counts, because wall time on a shared machine is mostly
other people's.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple, TypeVar

import floor

Result = TypeVar("Result")


class Took(NamedTuple):
    """CPU and wall time of one call."""

    cpu_s: float
    wall_s: float


def timed(call: Callable[[], Result]) -> tuple[Result, Took]:
    """Call, with a clean heap before it."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, Took(time.process_time() - cpu, time.perf_counter() - wall)


def floor_s(rows: list[tuple[float, int, float]], hosts: int, gpus_per_host: int, times: int = 3) -> float:
    """CPU time of the floor on these jobs: the median of a few replays, none disturbed by the collector."""
    took = []
    gc.disable()
    for _ in range(times):
        since = time.process_time()
        floor.replay(rows, hosts, gpus_per_host)
        took.append(time.process_time() - since)
    gc.enable()
    return median(took)
