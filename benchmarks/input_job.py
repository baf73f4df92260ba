"""A synchronous job whose ranks have 16 and 4 connections: URL, seconds. `hemiola run --nproc 2 [--share-input]` starts it.

Each iteration reads 4 MB at each rank, computes for 0.1 s (asleep) and sums a tensor. Rank 0 prints the mean
iteration over the last half.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

import hemiola
from hemiola.cost.io import StoreModel
from hemiola.plan.io.tuner import ReadLimits
from hemiola.train.input import RangeReader, StoredSamples


def main() -> None:
    url, seconds = sys.argv[1], float(sys.argv[2])
    dist.init_process_group("gloo")
    limits = ReadLimits(in_flight=(16, 4)[dist.get_rank()], read_least_bytes=1 << 18, read_most_bytes=1 << 18)
    reader = RangeReader(StoreModel(0.005, 1e8), limits, tuner=False)
    data = StoredSamples.of_records([url], 1 << 18, lambda parts: len(parts[0]))
    loader = hemiola.prefetch(data, batch_size=15, drop_last=True, shuffle=True, reader=reader, memory="32MB",
                              generator=torch.Generator().manual_seed(dist.get_rank()))  # fmt: skip
    ends, begun_s = [], time.monotonic()
    over = torch.zeros(1)
    while not over:
        for _ in loader:
            time.sleep(0.1)
            over[0] = float(dist.get_rank() == 0 and time.monotonic() - begun_s > seconds)
            dist.all_reduce(over)
            ends.append(time.monotonic())
            if over:
                break
    if dist.get_rank() == 0:
        half = [end for end in ends if end > begun_s + seconds / 2]
        print(f"iteration {(half[-1] - half[0]) / (len(half) - 1):.3f} s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
