"""A training script as there are many, and the one line that accelerates it.

    hemiola run --nproc 2 examples/train.py                 # DistributedDataParallel
    hemiola run --nproc 2 examples/train.py --accelerate    # the same training, by a plan

Learns a made-up task: to tell ten noisy patterns apart, with the shape of an old network: convolutions
that compute, and large layers at the end that hold most of the parameters.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import hemiola


def network() -> nn.Module:
    """Convolutions, then layers that see everything: 4.6 million parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 8 * 8, 2048), nn.ReLU(), nn.Linear(2048, 192), nn.ReLU(), nn.Linear(192, 10),
    )  # fmt: skip


def batches(count: int, size: int, rank: int) -> list[tuple[Tensor, Tensor]]:
    """Patterns of 32 by 32 in noise, and which of the ten each is; each rank has its own."""
    patterns = torch.randn(10, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    source = torch.Generator().manual_seed(1 + rank)
    found = []
    for _ in range(count):
        labels = torch.randint(0, 10, (size,), generator=source)
        found.append((patterns[labels] + 1.5 * torch.randn(size, 1, 32, 32, generator=source), labels))
    return found


def main() -> None:
    """Train, and say how long it took and how well it learnt."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--accelerate", action="store_true", help="by a plan")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--losses", help="write rank 0's seconds and loss after every step there, as CSV")
    asked = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = network()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    if asked.accelerate:
        model, optimizer = hemiola.accelerate(model, optimizer)
    else:
        model = DistributedDataParallel(model)
    start, total, lines = time.perf_counter(), torch.zeros(2), []
    for number, (images, labels) in enumerate(batches(asked.steps, 96, dist.get_rank())):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        lines.append(f"{time.perf_counter() - start:.4f},{loss.item()!r}")
        if number >= asked.steps - 10:
            total += torch.tensor([loss.item(), 1.0])
    took_s = time.perf_counter() - start
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        if asked.losses:
            Path(asked.losses).write_text("\n".join(["seconds,loss", *lines, ""]))
        print(f"{asked.steps} steps in {took_s:.1f} s; loss of the last ten {total[0] / total[1]:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
