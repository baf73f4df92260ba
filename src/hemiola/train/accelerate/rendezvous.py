"""How the ranks of a process group find each other for messages of their own."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from hemiola.train.accelerate.settings import AccelerationSettings
from hemiola.comm.process_group.opening import transport_options
from hemiola.comm.transport import Endpoint

__all__ = ["from_first", "gathered", "meet"]

_SILENCE_S = 30.0
"""A rank of whom nothing is heard for so long is given up; its transport says something every few seconds."""


def meet(group: Any, settings: AccelerationSettings) -> Endpoint:
    """Connect all ranks of a group; called by all. The secret is made by rank 0 and told within the group."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    options = transport_options(
        _SILENCE_S,
        settings.interface,
        settings.rate_bytes_per_s,
        store=dist.distributed_c10d._get_default_store(),
    )
    end = Endpoint(rank, ranks, from_first(os.urandom(32), group), options)
    try:
        end.connect(gathered(end.address, group))
    except BaseException:
        end.close(0.0)  # or it goes on saying that this rank lives
        raise
    return end


def gathered(value: Any, group: Any) -> list[Any]:
    """Everybody's, by rank."""
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group=group)
    return found


def from_first(value: Any, group: Any) -> Any:
    """Rank 0's, everywhere."""
    box = [value]
    dist.broadcast_object_list(box, dist.get_global_rank(group or dist.group.WORLD, 0), group=group)
    return box[0]
