"""A training job for the tests: DDP or FSDP2 on gloo, with what the tests need to go wrong.

train.py --model ddp --iterations 8 [--slow-rank 1] [--raise-at 4] [--kill-at 4] [--until FILE] [--digest FILE]
         [--signal-at-start]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WIDTH, LAYERS, SLEEP_S = 64, 4, 0.03
SKEW_S = 123.456


class Sleep(torch.autograd.Function):
    """Passes values on after a pause in the forward pass: computation that needs no processor."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, seconds: float) -> torch.Tensor:
        time.sleep(seconds)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class Model(nn.Module):
    def __init__(self, sleep_s: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.sleep_s = sleep_s

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = Sleep.apply(value, self.sleep_s)
        for layer in self.layers:
            value = layer(value).relu()
        return value


def wrapped(kind: str, sleep_s: float) -> nn.Module:
    torch.manual_seed(1)
    model = Model(sleep_s)
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=2 * WIDTH * WIDTH * 4 / 2**20)
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def train(arguments: argparse.Namespace) -> str:
    """Train; a digest of the parameters."""
    rank = dist.get_rank()
    model = wrapped(arguments.model, SLEEP_S if rank == arguments.slow_rank else 0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(2 + rank)
    loader = torch.utils.data.DataLoader(torch.randn(4096, WIDTH), batch_size=8)
    for number, batch in enumerate(loader):
        if number == arguments.iterations or (arguments.until and is_over(arguments.until, number, rank)):
            break
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if number == arguments.raise_at and rank == 0:
            raise ValueError("something of the script's own")
        if number == arguments.kill_at and rank == 1:
            time.sleep(1.0)
            os.kill(os.getpid(), signal.SIGKILL)
        if arguments.until:
            time.sleep(0.02)
    parameters = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in parameters)).hexdigest()


def is_over(until: str, number: int, rank: int) -> bool:
    """Whether all ranks end here: three iterations after rank 0 saw the file, for another one may be one ahead."""
    last = Path(f"{until}.last")
    if rank == 0 and Path(until).exists() and not last.exists():
        new = Path(f"{until}.new")
        new.write_text(str(number + 3))
        new.replace(last)
    return last.exists() and number >= int(last.read_text())


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="ddp")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--raise-at", type=int, default=-1)
    parser.add_argument("--kill-at", type=int, default=-1)
    parser.add_argument("--until", default="")
    parser.add_argument("--digest", default="")
    parser.add_argument("--signal-at-start", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    torch.set_num_threads(1)
    options = parsed()
    if options.signal_at_start and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGUSR2)
    dist.init_process_group("gloo")
    found = train(options)
    if options.digest and dist.get_rank() == 0:
        Path(options.digest).write_text(found)
    dist.barrier()
    dist.destroy_process_group()
