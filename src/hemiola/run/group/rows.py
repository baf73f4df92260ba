"""Parts of tensors, one for each rank; a group of one rank has them already."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hemiola.run.group import collectives as ways
from hemiola.run.group.collectives import Channel

__all__ = ["exchanged", "gathered", "put_back", "rows", "scattered"]


def put_back(result: Tensor, tensor: Tensor) -> None:
    """Into a tensor with gaps; one without has it already."""
    if result.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(result.view(tensor.shape))


def gathered(channel: Channel, parts: list[Tensor], own: Tensor) -> None:
    """Everybody's tensor into these."""
    if channel.ranks > 1:
        ways.all_gather(channel, parts, own)
    else:
        parts[0].copy_(own.view(parts[0].shape))


def scattered(channel: Channel, parts: list[Tensor], join: ways.Join) -> Tensor:
    """This rank's part of what everybody's parts join to."""
    return ways.reduce_scatter(channel, parts, join) if channel.ranks > 1 else parts[0]


def exchanged(channel: Channel, into: list[Tensor], given: list[Tensor]) -> None:
    """A part for every rank, and one of every rank."""
    if channel.ranks > 1:
        ways.all_to_all(channel, into, given)
    else:
        into[0].copy_(given[0])


def rows(tensor: Tensor, sizes: Sequence[int], ranks: int) -> list[Tensor]:
    """The parts of a tensor for every rank, by their sizes or equal ones."""
    return list(tensor.split(list(sizes)) if sizes else tensor.chunk(ranks))
