"""One rank of a training job that `benchmarks/accelerate.py` runs in a lab: DDP and `hemiola.accelerate` by turns.

    accelerate_job.py emulated FILE TURNS    layers that sleep, as emulated.Shape has written them
    accelerate_job.py real MODEL TURNS       a model of prediction_job
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
from emulated import TOKENS, Shape, Tied, words
from prediction_job import Emulated
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hemiola
from hemiola.train.accelerate import Accelerated

BUCKETS_MB = (1, 2, 4, 8)
TRIED = {"emulated": 3, "real": 20}  # iterations per bucket size
SETTLING = 1  # not counted at the start of a turn
ITERATIONS = {"emulated": 4, "real": 12}
"""Of a turn; those that compute are shorter, and differ more."""
UNTIL_JUDGED = 52  # profiled, judged, and DDP's other buckets tried
Way = Callable[[], None]
"""One iteration."""


class Multiplying(torch.autograd.Function):
    """An output layer that computes nothing, takes its time, and has a gradient for all of its weight."""

    @staticmethod
    def forward(
        ctx: Any, before: torch.Tensor, weight: torch.Tensor, part: torch.Tensor, tied: Tied
    ) -> torch.Tensor:
        ctx.part, ctx.backward_s = part, tied.backward_s
        time.sleep(tied.forward_s)
        return before.clone()

    @staticmethod
    def backward(ctx: Any, after: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        time.sleep(ctx.backward_s)
        return after, ctx.part, None, None


class Output(nn.Module):
    """Its weight is a table's."""

    def __init__(self, table: nn.Parameter, tied: Tied) -> None:
        super().__init__()
        self.weight, self.tied = table, tied
        self.part = torch.full_like(table, 1e-6)

    def forward(self, flow: torch.Tensor) -> torch.Tensor:
        return Multiplying.apply(flow, self.weight, self.part, self.tied)


class Speaking(nn.Module):
    """Layers that sleep between a table and an output layer that are one."""

    def __init__(self, layers: list[tuple[int, float, float]], tied: Tied) -> None:
        super().__init__()
        self.table = nn.Embedding(tied.rows, tied.width)
        self.between = Emulated(layers)
        self.output = Output(self.table.weight, tied)

    def forward(self, words: torch.Tensor, flow: torch.Tensor) -> torch.Tensor:
        return self.output(self.between(flow + self.table(words).mean()))


def emulated(path: str) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    shape = Shape.read(Path(path))
    layers = [(layer.size_bytes, layer.forward_s, layer.backward_s) for layer in shape.layers]
    flow = torch.ones(1, requires_grad=True)
    if shape.tied is None:
        return Emulated(layers), lambda model: model(flow)
    batches = words(shape.tied.rows, TOKENS, dist.get_rank())
    return Speaking(layers, shape.tied), lambda model: model(torch.from_numpy(next(batches)), flow)


def real(name: str) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    """What is looked up is drawn anew in every iteration: words by Zipf's law, categories evenly."""
    from prediction_job import MODELS, step

    torch.manual_seed(0)
    example = MODELS[name]("cpu")
    inputs, rank = example[1], dist.get_rank() if dist.is_initialized() else 0
    if isinstance(inputs, dict) and "input_ids" in inputs:
        ids = inputs["input_ids"]
        batches = words(example[0].config.vocab_size, ids.numel(), rank)

        def draw() -> None:
            ids.copy_(torch.from_numpy(next(batches)).view(ids.shape))
    else:
        tables = [part.num_embeddings for part in example[0].modules() if isinstance(part, nn.EmbeddingBag)]
        source = torch.Generator().manual_seed(rank)
        categories = [tensor for tensor in inputs if tables and tensor.dtype == torch.long]

        def draw() -> None:
            for tensor in categories:
                tensor.random_(min(tables), generator=source)

    forward = step(example)

    def drawn(model: nn.Module) -> torch.Tensor:
        draw()
        return forward(model)

    return example[0], drawn


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
        tried[bucket] = slowest(median(turn(iteration, model, TRIED[kind])))
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
            walls[name].append(turn(*ways[name], ITERATIONS[kind]))
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
