"""One rank of a training job that `benchmarks/prediction.py` runs in a lab: DDP on gloo, one thread.

Rank 0 reads how many iterations to run from standard input, a number per line, and answers each with a
line of JSON: the wall time of every iteration and the processor time of rank 0.

    prediction_job.py real MODEL          a model of prediction_models
    prediction_job.py emulated FILE       layers that sleep, from a JSON file of [bytes, forward_s, backward_s]
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

BUCKET_MB = 25


class Sleeper(torch.autograd.Function):
    """A layer that computes nothing and takes its time, as a GPU would from its host's point of view."""

    @staticmethod
    def forward(ctx: Any, before: Tensor, weight: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.weight, ctx.backward_s = weight, backward_s
        time.sleep(forward_s)
        return before.clone()

    @staticmethod
    def backward(ctx: Any, after: Tensor) -> tuple[Tensor, Tensor, None, None]:
        time.sleep(ctx.backward_s)
        return after, torch.empty_like(ctx.weight), None, None


class Emulated(nn.Module):
    """Layers one after the other."""

    def __init__(self, layers: list[tuple[int, float, float]]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(max(1, size // 4)) for size, _, _ in layers)
        self.seconds = [(forward_s, backward_s) for _, forward_s, backward_s in layers]

    def forward(self, flow: Tensor) -> Tensor:
        for weight, (forward_s, backward_s) in zip(self.weights, self.seconds, strict=True):
            flow = Sleeper.apply(flow, weight, forward_s, backward_s)
        return flow.sum()


def emulated(path: str) -> Callable[[], None]:
    layers = [tuple(layer) for layer in json.loads(Path(path).read_text())]
    model = DistributedDataParallel(Emulated(layers), bucket_cap_mb=None)
    flow = torch.ones(1, requires_grad=True)

    def iteration() -> None:
        model.zero_grad(set_to_none=False)
        model(flow).backward()

    return iteration


def real(name: str) -> Callable[[], None]:
    from prediction_models import MODELS, step

    torch.manual_seed(0)
    example = MODELS[name]("cpu")
    model = example[0]
    wrapped = DistributedDataParallel(model) if dist.get_world_size() > 1 else model
    forward = step(example)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def iteration() -> None:
        optimizer.zero_grad()
        forward(wrapped).backward()
        optimizer.step()

    return iteration


def serve(iteration: Callable[[], None]) -> None:
    """Run as many iterations as rank 0 is told to, until its standard input ends."""
    count = torch.zeros(1, dtype=torch.long)
    while True:
        if dist.get_rank() == 0:
            count[0] = int(sys.stdin.readline() or -1)
        dist.broadcast(count, 0)
        if count < 0:
            return
        walls, cpu = [], time.process_time()
        for _ in range(int(count)):
            start = time.perf_counter()
            iteration()
            walls.append(time.perf_counter() - start)
        if dist.get_rank() == 0:
            cpu_s = (time.process_time() - cpu) / int(count)
            print(json.dumps({"walls_s": walls, "cpu_s": cpu_s}), flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    kind, what = sys.argv[1:3]
    serve(emulated(what) if kind == "emulated" else real(what))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
