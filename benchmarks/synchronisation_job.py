"""One rank of a training job that `benchmarks/synchronisation.py` runs in a lab: `synchronisation_job.py JSON`.

Trains for a number of iterations with real gradients on one thread and prints, as JSON, when each iteration ended
and with what loss, seconds since all ranks began; in the end the loss on data that was never trained on.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from synchronisation_models import TASKS, Task
from torch.nn.parallel import DistributedDataParallel

from hemiola.train.parameter_server import synchronise


class Reduced:
    """DDP's side of what `synchronise` returns: the comparison's baseline."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.step, self.zero_grad = optimizer.step, optimizer.zero_grad

    def synchronise(self) -> None:
        """Nothing to do: ranks never differ."""

    def close(self) -> None:
        """Nothing either."""


def begin(task: Task, how: dict[str, Any]) -> tuple[torch.nn.Module, Any]:
    """The model and the optimizer, ready for this way of training."""
    if how["scheme"] == "ddp":
        wrapped = DistributedDataParallel(task.model, bucket_cap_mb=how["bucket_mib"])
        return wrapped, Reduced(task.optimizer)
    chosen = {key: how[key] for key in ("bound", "period", "coupled", "pipelined") if key in how}
    return synchronise(task.model, task.optimizer, how["scheme"], **chosen)


def main(how: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    task = TASKS[how["model"]]()
    model, optimizer = begin(task, how)
    made = torch.Generator().manual_seed(1000 * how["seed"] + rank)
    sleep_s = how["sleep_s"] if rank == dist.get_world_size() - 1 else 0.0
    dist.barrier()
    start, cpu = time.monotonic(), time.process_time()
    ends, losses = [], []
    for _ in range(how["iterations"]):
        optimizer.zero_grad()
        loss = task.loss(task.draw(made), model)
        loss.backward()
        time.sleep(sleep_s)
        optimizer.step()
        losses.append(float(loss.detach()))
        ends.append(time.monotonic() - start)
    cpu = time.process_time() - cpu
    optimizer.synchronise()
    whole_s = time.monotonic() - start
    with torch.no_grad():
        held_out = float(task.loss(task.held_out, task.model))
    found = {"ends_s": ends, "losses": losses, "whole_s": whole_s, "held_out": held_out, "cpu_s": cpu}
    print(json.dumps(found), flush=True)
    optimizer.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
