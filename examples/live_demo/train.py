"""The training job of the live demo: data-parallel on gloo, one process per node, gradients summed as DDP does.

    srun python train.py NAME ITERATIONS FOLDER

What a GPU would compute is a pause, which needs no processor; the gradients, their all-reduce and the network are
real. DDP itself is left out: importing it takes 1.2 s of processor time in each process. Rank 0 writes FOLDER/NAME.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from live_demo.stream import COMPUTE_S, LAYERS, WIDTH

BATCH = 4
RATE = 0.01
PORT = 29500


class Training:
    """A model of three square layers, whose gradients are summed over all ranks while the backward pass goes on."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
        self.model = nn.Sequential(*layers)
        self.batch = torch.randn(BATCH, WIDTH)
        self.sums: list[dist.Work] = []
        if dist.is_initialized():
            for parameter in self.model.parameters():
                parameter.register_post_accumulate_grad_hook(self.sum_up)

    def sum_up(self, parameter: torch.Tensor) -> None:
        self.sums.append(dist.all_reduce(parameter.grad, async_op=True))

    def iterate(self) -> tuple[float, float]:
        """One iteration: how long it took, and how long of that it waited for the network (s)."""
        began = time.monotonic()
        time.sleep(COMPUTE_S)
        self.model(self.batch).square().mean().backward()
        waits = time.monotonic()
        for work in self.sums:
            work.wait()
        summed = time.monotonic()
        self.sums.clear()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.sub_(parameter.grad, alpha=RATE / int(os.environ["SLURM_NTASKS"]))
                parameter.grad = None
        return time.monotonic() - began, summed - waits


def main(name: str, iterations: int, folder: Path) -> None:
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    if ranks > 1:
        where = f"tcp://{os.environ['MASTER_ADDR']}:{PORT}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks)
    training = Training()
    took = [training.iterate() for _ in range(iterations)]
    if rank == 0:
        clock = {
            "iteration_s": [round(whole, 6) for whole, _ in took],
            "communication_s": [round(waited, 6) for _, waited in took],
        }  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps(clock))
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
