"""Rank 0 waits for a collective that rank 1 never joins: `waits.py RANK RANKS FILE`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

if __name__ == "__main__":
    rank, ranks, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("hemiola", init_method=f"file://{file}", rank=rank, world_size=ranks)
    dist.barrier()
    Path(f"{file}.{rank}").touch()
    if rank:
        time.sleep(120)
    try:
        dist.all_reduce(torch.ones(1_000_000))
    except Exception as problem:
        print(problem, flush=True)
