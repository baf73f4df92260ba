"""One rank of benchmarks/collectives.py: all-reduces by gloo and by Hemiola, by turns, in the same processes."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

GROUPS = {
    "gloo": ("gloo", "", ""), "usual": ("hemiola", "usual", ""), "fitted": ("hemiola", "auto", ""), "follow": ("hemiola", "follow", ""),
    "relay": ("hemiola", "usual", "relay"), "carry-over": ("hemiola", "usual", "carry-over"),
}  # fmt: skip
"""Backend, HEMIOLA_STRATEGY and HEMIOLA_STRAGGLERS."""


ITERATIONS = 3
"""Of a model, in a row."""
PATIENCE = timedelta(seconds=120)


def main() -> None:
    """As the argument says, in JSON: sizes_bytes, rounds, groups, seconds, late_s, compute_s, model, steps, step_s."""
    how = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    import hemiola.comm.process_group  # noqa: F401  registers the backend

    dist.init_process_group("gloo", timeout=PATIENCE)
    groups, opening_s = {}, {}
    for name in how["groups"]:
        backend, schedule, os.environ["HEMIOLA_STRAGGLERS"] = GROUPS[name]
        os.environ["HEMIOLA_STRATEGY"] = how.get("strategy") or schedule
        dist.barrier()
        start = time.perf_counter()
        groups[name] = dist.new_group(backend=backend, timeout=PATIENCE)
        opening_s[name] = time.perf_counter() - start
    took = trained(groups, how["rounds"], how["model"]) if how["model"] else {}
    for size in how["sizes_bytes"]:
        if how["late_s"]:
            took[str(size)] = steps(groups, size, how["rounds"], how["late_s"], how["compute_s"])
        elif how["steps"]:
            took[str(size)] = drifting(groups, size, how["rounds"], how["steps"], how["step_s"])
        else:
            took[str(size)] = measured(groups, size, how["rounds"], how["seconds"])
    if dist.get_rank() == 0:
        fitted = getattr(groups.get("fitted"), "_fitted", None)
        chosen = sorted(fitted.used.get("all-reduce", ())) if fitted is not None else []
        print(json.dumps({"took_s": took, "opening_s": opening_s, "chosen": chosen}))
    dist.barrier()
    dist.destroy_process_group()


def measured(groups: dict[str, Any], size_bytes: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Of the slowest rank, each; several in a row where one is shorter than `seconds`, as many by every group."""
    flat = torch.ones(max(1, size_bytes // 4))
    check(groups, size_bytes)  # the first ones choose schedules, and TCP finds its rates
    once = min(timed(flat, group, 2) for group in groups.values())
    count = max(1, min(200, int(seconds / once)))
    found: dict[str, list[float]] = {name: [] for name in groups}
    for _ in range(rounds):
        for name, group in groups.items():
            flat.fill_(1.0)
            found[name].append(timed(flat, group, count))
    return found


def drifting(
    groups: dict[str, Any], size_bytes: int, rounds: int, steps: int, step_s: float
) -> dict[str, list[float]]:
    """One group after the other, each for so many steps, and says so when one begins; the mean of every step."""
    flat = torch.ones(size_bytes // 4)
    check(groups, size_bytes)
    found: dict[str, list[float]] = {name: [] for name in groups}
    for _ in range(rounds):
        for name, group in groups.items():
            took: list[list[float]] = [[] for _ in range(steps)]
            dist.barrier()
            if dist.get_rank() == 0:
                print("begins", flush=True)
            start = time.perf_counter()
            step = torch.zeros(1, dtype=torch.int64)
            while True:
                step[0] = int((time.perf_counter() - start) / step_s)
                dist.broadcast(step, 0)
                if step >= steps:
                    break
                took[int(step)].append(timed(flat.fill_(1.0), group, 1))
            found[name] += [sum(times) / len(times) for times in took]
    return found


def trained(groups: dict[str, Any], rounds: int, name: str) -> dict[str, dict[str, list[float]]]:
    """Iterations of a model with DDP, by turns; by the bytes of its gradients."""
    from prediction_job import MODELS, step

    jobs = {}
    for group_name, group in groups.items():
        torch.manual_seed(0)
        example = MODELS[name]("cpu")
        model = torch.nn.parallel.DistributedDataParallel(example[0], process_group=group)
        jobs[group_name] = model, step(example), torch.optim.SGD(model.parameters(), lr=1e-4)
    size = sum(p.nbytes for p in model.parameters())
    found: dict[str, list[float]] = {group_name: [] for group_name in groups}
    for number in range(-2, rounds):
        for group_name, (model, forward, optimizer) in jobs.items():
            took = torch.zeros(1)
            dist.barrier()
            start = time.perf_counter()
            for _ in range(ITERATIONS):
                optimizer.zero_grad()
                forward(model).backward()
                optimizer.step()
            took[0] = (time.perf_counter() - start) / ITERATIONS
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if number >= 0:
                found[group_name].append(float(took))
    return {str(size): found}


def steps(
    groups: dict[str, Any], size_bytes: int, rounds: int, late_s: list[float], compute_s: float
) -> dict[str, list[float]]:
    """Of a step, the mean over a round: everybody computes, one rank is late by the next of these, all add up."""
    flat = torch.ones(size_bytes // 4)
    check(groups, size_bytes)
    each = len(late_s) // rounds
    found: dict[str, list[float]] = {name: [] for name in groups}
    for number in range(rounds):
        for name, group in groups.items():
            took = torch.zeros(1)
            dist.barrier()
            start = time.perf_counter()
            for step in range(number * each, number * each + each):
                late = random.Random(step).randrange(dist.get_world_size()) == dist.get_rank()
                time.sleep(compute_s + late_s[step] * late)
                flat.fill_(1.0)
                dist.all_reduce(flat, group=group)
            took[0] = (time.perf_counter() - start) / each
            dist.all_reduce(took, dist.ReduceOp.MAX)
            found[name].append(float(took))
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
