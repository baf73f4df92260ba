"""Iterations of DistributedDataParallel whose transfers begin when backward has ended.

What a rank computes on a processor takes longer while its transfers run on the same cores: under plain DDP a measured
iteration is what computing takes beside gloo. Measured with the transfers afterwards it is what computing takes, and
a prediction can add what its own transfers cost. Training is the same to the bit: buckets are scaled and summed
as DDP does it, only later.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

__all__ = ["defer_transfers"]


def defer_transfers(ddp: DistributedDataParallel, group: Any) -> None:
    """Have the model's buckets wait for the last of them; for good, as PyTorch has it with communication hooks."""
    waiting: list[tuple[Tensor, torch.futures.Future[Tensor]]] = []
    scale = 1.0 / dist.get_world_size(group)

    def hook(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        waiting.append((bucket.buffer(), future))
        if bucket.is_last():
            begun, waiting[:] = list(waiting), []
            for flat, own in begun:
                _average(flat, own, scale, group)
        return future

    ddp.register_comm_hook(None, hook)


def _average(flat: Tensor, future: torch.futures.Future[Tensor], scale: float, group: Any) -> None:
    """Begin it, and fill the future when it is done."""

    def done(reduced: torch.futures.Future[Any]) -> None:
        try:
            reduced.value()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(flat)

    work = dist.all_reduce(flat.mul_(scale), group=group, async_op=True)
    assert work is not None
    work.get_future().add_done_callback(done)
