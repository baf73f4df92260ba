"""What the processor and the memory of this machine give at best."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hemiola.profiler.calibrate.clocks import OperationClock

__all__ = [
    "cores",
    "device_name",
    "fabric_bytes_per_s",
    "memory_bytes",
    "memory_bytes_per_s",
    "peak_flop_per_s",
]

_BEST_OF = 7
_LIMIT_S = 1.0


def peak_flop_per_s(device: str, clock: OperationClock) -> dict[str, float]:
    """FLOP/s of a large square matrix product, by dtype."""
    cuda = device.startswith("cuda")
    size = 8192 if cuda else 1024  # large enough to fill the device
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    peaks = {str(dtype).removeprefix("torch."): _product(size, dtype, device, clock) for dtype in dtypes}
    if cuda:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        peaks["tf32"] = _product(size, torch.float32, device, clock)
        torch.backends.cuda.matmul.allow_tf32 = before
    return peaks


def _product(size: int, dtype: torch.dtype, device: str, clock: OperationClock) -> float:
    size = size // 2 if dtype == torch.float64 else size
    left, right = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / _best(lambda: left @ right, clock)


def memory_bytes_per_s(device: str, clock: OperationClock) -> float:
    """Bytes/s of a = b + s * c on arrays far larger than the usual cache (McCalpin's triad)."""
    count = 2**28 if device.startswith("cuda") else 2**24
    first, second, into = (torch.rand(count, device=device) for _ in range(3))
    return 3 * 4 * count / _best(lambda: torch.add(first, second, alpha=0.5, out=into), clock)


def fabric_bytes_per_s(device: str, clock: OperationClock) -> float:
    """Bytes/s of a copy to the next GPU of this host that can be reached directly; 0 where there is none."""
    if not device.startswith("cuda"):
        return 0.0
    own = torch.device(device).index or 0
    others = [
        n for n in range(torch.cuda.device_count()) if n != own and torch.cuda.can_device_access_peer(own, n)
    ]
    if not others:
        return 0.0
    sent = torch.empty(2**28, dtype=torch.uint8, device=device)
    got = torch.empty_like(sent, device=f"cuda:{others[0]}")
    return float(sent.nbytes) / _best(lambda: got.copy_(sent, non_blocking=True), clock)


def _best(call: Callable[[], Any], clock: OperationClock) -> float:
    """The shortest of some runs after one that does not count; of fewer where one takes long."""
    end = time.monotonic() + _LIMIT_S
    with torch.no_grad(), clock.round():
        for run in range(_BEST_OF + 1):
            clock.time(run, call)
            if run and time.monotonic() > end:
                break
    return min(seconds for run, seconds in clock.taken() if run)


def memory_bytes(device: str) -> float:
    """Of the device; of the host for a CPU."""
    if device.startswith("cuda"):
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_name(device: str) -> str:
    """The device as its maker calls it."""
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "cpu"
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else "cpu"
