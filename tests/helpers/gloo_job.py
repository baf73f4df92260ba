"""A real training job on gloo, traced by PyTorch: run by the tests as `gloo_job.py FOLDER RANK WORLD`."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

STEPS = 3


def main(folder: str, rank: int, world: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    job = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02, broadcast_buffers=False)
    optimizer = torch.optim.SGD(job.parameters(), lr=0.1)
    observer = ExecutionTraceObserver()
    observer.register_callback(f"{folder}/execution.{rank}.json")
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=1, warmup=1, active=STEPS),
        execution_trace_observer=observer,
        on_trace_ready=lambda found: found.export_chrome_trace(f"{folder}/kineto.{rank}.json"),
    ) as profiler:
        for _ in range(2 + STEPS):
            optimizer.zero_grad()
            job(torch.randn(16, 64)).sum().backward()
            optimizer.step()
            dist.all_gather([torch.zeros(5) for _ in range(world)], torch.ones(5))
            dist.barrier()
            profiler.step()
    dist.destroy_process_group()
    os._exit(
        0
    )  # all is written; at a usual exit PyTorch's profiler now and then aborts (a thread of its own still runs)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
