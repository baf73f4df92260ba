"""Ranks that gather onto the first of them, then reduce: each prints what has been recorded, by its numbers.

gathering.py RANK RANKS FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from hemiola.profiler.trace import record

if __name__ == "__main__":
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=ranks)
    with record(folder / "run.json") as recorder:
        value = torch.ones(3)
        dist.gather(value, [torch.zeros(3) for _ in range(ranks)] if rank == 0 else None)
        dist.all_reduce(value)
        assert recorder.draft is not None
        transfers = recorder.draft.transfers
        print(json.dumps([(one.collective, one.sequence, one.size_bytes) for one in transfers]))
    dist.barrier()
    dist.destroy_process_group()
