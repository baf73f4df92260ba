"""Which processor cores a rank computes on, and with whom it shares them.

What a rank computes on a processor and what its transport does there take their time from the same cores. Predictions
know this once they are told how many cores a rank has for itself.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

__all__ = ["Cores", "Processors", "cores_of", "own_processors"]

_BUSY = 0.5
_COPIED_BYTES, _COPIES = 64 << 20, 5
"""More than caches hold."""
_PLENTY = 1 << 10


@dataclass(frozen=True)
class Processors:
    """What one rank runs on.

    Attributes:
        machine: the same for ranks on one machine, in whatever network namespace or container.
        cores: that it may run on, by number.
        threads: that one PyTorch operation uses.
        busy: processor seconds per second while it computes.
        copied_bytes_per_s: from one place in memory to another, while all ranks do so.
    """

    machine: str
    cores: frozenset[int]
    threads: int
    busy: float
    copied_bytes_per_s: float


@dataclass(frozen=True)
class Cores:
    """What a rank has for itself.

    Attributes:
        cores: for computing and for what its transport does.
        threads: that compute.
        copied_bytes_per_s: in memory.
    """

    cores: int = _PLENTY
    threads: int = 1
    copied_bytes_per_s: float = 4e9


def own_processors(busy: float) -> Processors:
    """This rank's."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    machine = boot.read_text().strip() if boot.exists() else socket.gethostname()
    return Processors(
        machine, frozenset(os.sched_getaffinity(0)), torch.get_num_threads(), busy, _copied_bytes_per_s()
    )


def _copied_bytes_per_s() -> float:
    source, target = (torch.zeros(_COPIED_BYTES, dtype=torch.uint8, device="cpu") for _ in range(2))
    taken = []
    for _ in range(_COPIES):
        start = time.perf_counter()
        target.copy_(source)
        taken.append(time.perf_counter() - start)
    return _COPIED_BYTES / median(taken)


def cores_of(found: Sequence[Processors]) -> Cores:
    """What each rank has, where every one has as much as the poorest; plenty, where ranks mostly sleep."""
    copied_bytes_per_s = min(one.copied_bytes_per_s for one in found)
    if min(one.busy for one in found) < _BUSY:
        return Cores(copied_bytes_per_s=copied_bytes_per_s)
    by_machine: dict[str, list[Processors]] = {}
    for one in found:
        by_machine.setdefault(one.machine, []).append(one)
    cores = min(
        len(frozenset.union(*(r.cores for r in ranks))) // len(ranks) for ranks in by_machine.values()
    )
    cores = max(1, cores)
    return Cores(cores, min(max(one.threads for one in found), cores), copied_bytes_per_s)
