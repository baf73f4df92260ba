"""Rank 0 waits for a collective that rank 1 never joins: `waits.py RANK RANKS FILE`.

Rank 1 has forked a child, whose number is in its file.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

if __name__ == "__main__":
    rank, ranks, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("hemiola", init_method=f"file://{file}", rank=rank, world_size=ranks)
    dist.barrier()
    if rank:
        child = os.fork()
        if not child:
            os.close(1)  # who reads what its parent says is not to wait for it
            os.close(2)
            time.sleep(120)
            os._exit(0)
        there = Path(f"{file}.there")
        there.write_text(str(child), encoding="utf-8")
        there.rename(f"{file}.{rank}")
        time.sleep(120)
    try:
        dist.all_reduce(torch.ones(1_000_000))
    except Exception as problem:
        print(problem, flush=True)
