"""Rank 0's buffers for everybody (running means of batch normalisation), as DistributedDataParallel keeps them equal."""

from __future__ import annotations

import torch
from torch import Tensor

from hemiola.run.group.memory import view
from hemiola.run.transport import Endpoint

__all__ = ["share_buffers"]

_TAG = (1 << 62) - 1
_FIRST = -1
"""More urgent than any gradient."""


def share_buffers(end: Endpoint, buffers: list[Tensor]) -> None:
    """Called by all ranks before a forward; all but rank 0 wait for rank 0's."""
    if not buffers:
        return
    if end.rank == 0:
        data = torch.cat([buffer.detach().contiguous().view(-1).view(torch.uint8) for buffer in buffers])
        for peer in range(1, end.ranks):
            end.send(peer, _TAG, view(data), priority=_FIRST)
        return
    sizes = [buffer.numel() * buffer.element_size() for buffer in buffers]
    data = torch.empty(sum(sizes), dtype=torch.uint8)
    end.receive(0, _TAG, view(data)).wait()
    with torch.no_grad():
        for buffer, part in zip(buffers, data.split(sizes), strict=True):
            if part.numel():
                aligned = torch.empty_like(buffer, memory_format=torch.contiguous_format)
                aligned.view(-1).view(torch.uint8).copy_(part)
                buffer.copy_(aligned)
