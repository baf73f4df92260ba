"""One rank of benchmarks/collectives.py: all-reduces by gloo and by Hemiola, by turns, in the same processes."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

GROUPS = {"gloo": ("gloo", ""), "usual": ("hemiola", "usual"), "fitted": ("hemiola", "auto")}
"""Backend, and HEMIOLA_STRATEGY."""


PATIENCE = timedelta(seconds=120)


def main() -> None:
    """As the argument says, in JSON: sizes_bytes, rounds (or until_s, if above 0), groups, seconds."""
    how = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    import hemiola.run.group  # noqa: F401  registers the backend

    dist.init_process_group("gloo", timeout=PATIENCE)
    groups, opening_s = {}, {}
    for name in how["groups"]:
        backend, strategy = GROUPS[name]
        os.environ["HEMIOLA_STRATEGY"] = how.get("strategy") or strategy
        dist.barrier()
        start = time.perf_counter()
        groups[name] = dist.new_group(backend=backend, timeout=PATIENCE)
        opening_s[name] = time.perf_counter() - start
    took = {
        str(size): measured(groups, size, how["rounds"], how["seconds"], how["until_s"])
        for size in how["sizes_bytes"]
    }
    if dist.get_rank() == 0:
        fitted = getattr(groups.get("fitted"), "_fitted", None)
        chosen = sorted(fitted.used.get("all-reduce", ())) if fitted is not None else []
        print(json.dumps({"took_s": took, "opening_s": opening_s, "chosen": chosen}))
    dist.barrier()
    dist.destroy_process_group()


def measured(
    groups: dict[str, Any], size_bytes: int, rounds: int, seconds: float, until_s: float
) -> dict[str, list[float]]:
    """Of the slowest rank, each; several in a row where one is shorter than `seconds`."""
    flat = torch.ones(max(1, size_bytes // 4))
    counts = {}
    for name, group in groups.items():
        once = timed(flat, group, 2)
        counts[name] = max(1, min(200, int(seconds / once)))
    check(groups, size_bytes)
    found: dict[str, list[float]] = {name: [] for name in groups}
    start = time.perf_counter()
    over = torch.zeros(1)
    for number in itertools.count(1):
        over[0] = float(time.perf_counter() - start > until_s if until_s else number > rounds)
        dist.broadcast(over, 0)
        if over:
            break
        for name, group in groups.items():
            flat.fill_(1.0)
            found[name].append(timed(flat, group, counts[name]))
    return found


def timed(flat: torch.Tensor, group: Any, count: int) -> float:
    """Seconds of one, the mean of so many."""
    took = torch.zeros(1)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(flat, group=group)
    took[0] = (time.perf_counter() - start) / count
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def check(groups: dict[str, Any], size_bytes: int) -> None:
    """All compute the same sums."""
    for name, group in groups.items():
        flat = torch.arange(max(1, size_bytes // 4), dtype=torch.float32) % 1000 + dist.get_rank()
        wanted = torch.arange(max(1, size_bytes // 4), dtype=torch.float32) % 1000 * dist.get_world_size()
        dist.all_reduce(flat, group=group)
        if not torch.equal(flat, wanted + sum(range(dist.get_world_size()))):
            raise SystemExit(f"{name} computes something else at {size_bytes} bytes")


if __name__ == "__main__":
    main()
