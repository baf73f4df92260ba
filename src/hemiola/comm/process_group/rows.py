"""Parts of tensors, one for each rank; a group of one rank has them already.

What has no such parts is refused before anything is sent: on the way it would fail at some ranks, or leave messages that a
later collective takes for its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hemiola.core.errors import InputError
from hemiola.comm.process_group import collectives as ways
from hemiola.comm.process_group.collectives import Channel

__all__ = [
    "check_each",
    "check_rows",
    "check_whole",
    "exchanged",
    "gathered",
    "put_back",
    "rows",
    "scattered",
]


def check_each(tensors: Sequence[Tensor], ranks: int) -> None:
    """Raises an InputError unless there is a tensor for each rank."""
    if len(tensors) != ranks:
        raise InputError(f"a list of {len(tensors)} tensors for {ranks} ranks", "give one for each rank")


def check_whole(whole: Tensor, part: Tensor, ranks: int) -> None:
    """Raises an InputError unless the tensor has as many elements as so many of the part."""
    if whole.numel() != ranks * part.numel():
        raise InputError(
            f"a tensor of {whole.numel()} elements for parts of {part.numel()} of {ranks} ranks",
            f"give one of {ranks * part.numel()} elements",
        )


def check_rows(tensor: Tensor, sizes: Sequence[int], ranks: int) -> None:
    """Raises an InputError unless the tensor's rows have parts of these sizes, or equal ones, for each rank."""
    count = len(tensor)
    if sizes and (len(sizes) != ranks or sum(sizes) != count):
        raise InputError(
            f"parts of {', '.join(map(str, sizes))} rows of a tensor of {count} for {ranks} ranks",
            "give a size for each rank, and all rows to somebody",
        )
    if not sizes and count % ranks:
        raise InputError(
            f"a tensor of {count} rows for {ranks} ranks",
            "give as many rows to each, or the sizes of the parts",
        )


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
