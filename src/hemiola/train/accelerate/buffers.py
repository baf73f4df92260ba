"""Rank 0's buffers for everybody (running means of batch normalisation), as DistributedDataParallel keeps them equal."""

from __future__ import annotations

import torch
from torch import Tensor

from hemiola.comm.process_group.memory import view
from hemiola.comm.transport import Endpoint

__all__ = ["share_buffers"]

_TAG = (1 << 62) - 1
_FIRST = -1
"""More urgent than any gradient."""


def share_buffers(end: Endpoint, buffers: list[Tensor]) -> None:
    """Called by all ranks before a forward; all but rank 0 wait for rank 0's."""
    kinds = _by_type(buffers)
    if not kinds:
        return
    if end.rank == 0:
        flats = [torch.cat([buffer.detach().reshape(-1) for buffer in own]) for own in kinds]
        data = torch.cat([flat.view(torch.uint8) for flat in flats])
        for peer in range(1, end.ranks):
            end.send(peer, _TAG, view(data), priority=_FIRST)
        return
    sizes = [sum(buffer.nbytes for buffer in own) for own in kinds]
    data = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu")
    end.receive(0, _TAG, view(data)).wait()
    with torch.no_grad():
        for own, part in zip(kinds, data.split(sizes), strict=True):
            flats = part.view(own[0].dtype).split([buffer.numel() for buffer in own])
            came = [flat.view(buffer.shape) for flat, buffer in zip(flats, own, strict=True)]
            torch._foreach_copy_(own, came)  # one call for many


def _by_type(buffers: list[Tensor]) -> list[list[Tensor]]:
    """Those that hold something, the widest types first: so each type's lie at addresses that it can have."""
    found: dict[torch.dtype, list[Tensor]] = {}
    for buffer in buffers:
        if buffer.numel():
            found.setdefault(buffer.dtype, []).append(buffer)
    return sorted(found.values(), key=lambda own: -own[0].element_size())
