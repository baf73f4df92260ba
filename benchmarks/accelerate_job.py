"""One rank of a training job that `benchmarks/accelerate.py` runs in a lab: DDP and `hemiola.accelerate` by turns.

    accelerate_job.py emulated FILE TURNS    layers that sleep, from a JSON file of [bytes, forward_s, backward_s]
    accelerate_job.py real MODEL TURNS       a model of prediction_models
    accelerate_job.py alone MODEL 0          the same by itself: prints the seconds of its iteration

Every way has a model of its own, which lives through all turns: DDP with 25 MB buckets, DDP with the bucket size
that is fastest here (found first), and accelerated. Rank 0 prints one line of JSON at the end: the wall times of
every way's iterations by turn, the bucket that was best, and what acceleration said of itself.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from prediction_job import Emulated
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hemiola
from hemiola.run.accelerate import Accelerated

BUCKETS_MB = (1, 2, 4, 8)
TRIED, SETTLING = 3, 1  # iterations per bucket size; not counted at the start of a turn
ITERATIONS = 4
UNTIL_JUDGED = 27
Way = Callable[[], None]
"""One iteration."""


def emulated(path: str) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    flow = torch.ones(1, requires_grad=True)
    return Emulated([tuple(layer) for layer in json.loads(Path(path).read_text())]), lambda model: model(flow)


def real(name: str) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    from prediction_models import MODELS, step

    torch.manual_seed(0)
    example = MODELS[name]("cpu")
    return example[0], step(example)


def way(
    make: Any, what: str, wrap: Callable[[nn.Module, Any], tuple[nn.Module, Any]]
) -> tuple[Way, nn.Module]:
    module, forward = make(what)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    model, optimizer = wrap(module, optimizer)

    def iteration() -> None:
        optimizer.zero_grad()
        forward(model).backward()
        optimizer.step()

    return iteration, model


def ddp(bucket_mb: float) -> Callable[[nn.Module, Any], tuple[nn.Module, Any]]:
    return lambda module, optimizer: (DistributedDataParallel(module, bucket_cap_mb=bucket_mb), optimizer)


def accelerated(module: nn.Module, optimizer: Any) -> tuple[nn.Module, Any]:
    return hemiola.accelerate(module, optimizer, quiet=True, revert=True)


def turn(iteration: Way, model: nn.Module, count: int) -> list[float]:
    """Wall times of iterations in the middle of training: each waits for what the one before left under way."""
    dist.barrier()
    walls = []
    for _ in range(SETTLING + count):
        start = time.perf_counter()
        iteration()
        walls.append(time.perf_counter() - start)
    if isinstance(model, Accelerated):
        model.flush()
    return walls[SETTLING:]


def alone(name: str) -> float:
    iteration, _ = way(real, name, lambda module, optimizer: (module, optimizer))
    walls = []
    for _ in range(SETTLING + 10):
        start = time.perf_counter()
        iteration()
        walls.append(time.perf_counter() - start)
    return median(walls[SETTLING:])


def slowest(seconds: float) -> float:
    """Of all ranks."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, seconds)
    return float(max(found))


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kind, what, turns = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if kind == "alone":
        print(alone(what))
        return
    make = emulated if kind == "emulated" else real
    report = Path(tempfile.mkdtemp()) / "report.json"
    os.environ["HEMIOLA_RUN_REPORT"] = str(report)
    dist.init_process_group("gloo")
    tried = {}
    for bucket in (*BUCKETS_MB, 25):
        iteration, model = way(make, what, ddp(bucket))
        tried[bucket] = slowest(median(turn(iteration, model, TRIED)))
    best = min(tried, key=lambda bucket: tried[bucket])
    ways = {
        "ddp": way(make, what, ddp(25)),
        "best": way(make, what, ddp(best)),
        "accelerated": way(make, what, accelerated),
    }
    for _ in range(UNTIL_JUDGED):
        ways["accelerated"][0]()
    walls: dict[str, list[list[float]]] = {name: [] for name in ways}
    for number in range(turns):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            walls[name].append(turn(*ways[name], ITERATIONS))
    ways["accelerated"][1].flush()
    dist.barrier()
    if dist.get_rank() == 0:
        print(
            json.dumps({"walls_s": walls, "bucket_mb": best, "said": json.loads(report.read_text())}),
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
