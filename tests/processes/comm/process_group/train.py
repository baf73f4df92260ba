"""A rank that trains with a backend and prints a digest of its parameters: `train.py RANK RANKS FILE BACKEND KIND`.

Rank 1 is late by TRAIN_LATE_S in every third step.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

STEPS = 12


def main(rank: int, ranks: int, file: str, backend: str, kind: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=ranks)
    assert dist.get_backend() == backend
    torch.manual_seed(0)
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(4)], nn.Linear(128, 3)
    )
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.1)
    else:
        for layer in list(model):
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + rank)
    for step in range(STEPS):
        if rank == 1 and step % 3 == 1:
            time.sleep(float(os.environ.get("TRAIN_LATE_S", "0")))
        optimizer.zero_grad()
        model(torch.randn(16, 128)).square().mean().backward()
        optimizer.step()
    parameters = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in parameters)).hexdigest(), flush=True)
    dist.barrier()
    if backend == "gloo":  # its destructor may wait, with the GIL, for a thread that waits for the GIL
        os._exit(0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
