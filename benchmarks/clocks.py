"""How the benchmarks measure: CPU time beside wall time, medians and their spread, and on what machine.

CPU time of the process is the figure that counts, because wall time on a shared machine is mostly
other people's.
"""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
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


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, least and most: "1.20 (1.15-1.31)"."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def verdict(value: float, limit: float) -> str:
    """Whether a target is met."""
    return "met" if value <= limit else f"missed ({value / limit:.2f}x)"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, numbers to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def machine() -> str:
    """Processor, cores, system and Python, in one line."""
    return (
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"{platform.python_implementation()} {platform.python_version()}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
