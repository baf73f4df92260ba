"""Where chunks and their pieces lie in a rank's memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
import torch
from torch import Tensor

from hemiola.comm.process_group.memory import view
from hemiola.core.collective.schedule import PIECE_BYTES, ChunkMove, ChunkPlace, CollectiveSchedule

__all__ = [
    "NOBODY",
    "ChunkLayout",
    "Memory",
    "RankMove",
    "Rooms",
    "ScratchMemory",
    "Script",
    "layout_of",
    "script_of",
]

LEAST_BYTES_PER_S = 1e6
"""No connection is held back more than this: small messages go over it."""


@dataclass(frozen=True)
class ChunkLayout:
    """How so many elements are divided, the same at every rank.

    Attributes:
        script: this rank's moves.
        starts: the first element of each chunk, and the end.
        pieces: of every chunk; empty ones are sent too.
        ahead_bytes: as `CollectiveSchedule.ahead_bytes`.
        paces: as fast this rank sends at most, in bytes/s, by rank; to others as fast as it goes.
    """

    script: Script
    starts: tuple[int, ...]
    pieces: int
    ahead_bytes: int = 0
    paces: Mapping[int, float] = field(default_factory=dict)

    def span(self, place: ChunkPlace, count: int, piece: int) -> tuple[int, int]:
        """The first element of a piece of so many chunks, and the one behind its last."""
        first, last = self.starts[place.index], self.starts[place.index + count]
        size, pieces = last - first, self.pieces
        return first + size * piece // pieces, first + size * (piece + 1) // pieces


def layout_of(schedule: CollectiveSchedule, rank: int, elements: int, element_bytes: int) -> ChunkLayout:
    """Divide a tensor.

    Args:
        elements: of the whole data; a multiple of the chunks, unless chunks keep their places (`CollectiveSchedule.keeps_places`).
    """
    count = schedule.chunks
    if schedule.weights:
        inner = list(itertools.accumulate(schedule.weights))[:-1]
        starts = [0, *(round(elements * min(end, 1.0)) for end in inner), elements]
    else:
        starts = [elements * chunk // count for chunk in range(count + 1)]
    largest = max(b - a for a, b in itertools.pairwise(starts)) * element_bytes
    pieces = max(1, math.ceil(largest / (schedule.chunk_bytes or PIECE_BYTES)))
    script = script_of(schedule, rank, pieces > 1)
    size = elements // count
    beyond = (elements + size * (k + 1) for k in range(script.scratch - count))
    paces = {
        pace.target: max(pace.bytes_per_s, LEAST_BYTES_PER_S)
        for pace in schedule.paces
        if pace.source == rank
    }
    return ChunkLayout(script, (*starts, *beyond), pieces, schedule.ahead_bytes, paces)


class Memory:
    """A rank's buffers, twice: as tensors to add to, and as bytes to send.

    Attributes:
        layout: what lies where.
        dtype: of all.
    """

    def __init__(self, layout: ChunkLayout, buffers: dict[str, Tensor]) -> None:
        """Buffers are flat; scratch memory is made here."""
        self.layout = layout
        some = next(iter(buffers.values()))
        if layout.script.scratch:
            buffers = {**buffers, "scratch": some.new_empty(layout.starts[layout.script.scratch])}
        self.dtype = some.dtype
        self._tensors = buffers
        self._bytes = {name: view(tensor) for name, tensor in buffers.items()}
        self._size = some.element_size()

    def tensor(self, place: ChunkPlace, count: int, piece: int) -> Tensor:
        """To compute with."""
        first, last = self.layout.span(place, count, piece)
        return self._tensors[place.buffer][first:last]

    def bytes(self, place: ChunkPlace, count: int, piece: int) -> memoryview:
        """To send, or to receive into."""
        first, last = self.layout.span(place, count, piece)
        return self._bytes[place.buffer][first * self._size : last * self._size]


# Memory for what is to be added, used again and again: fresh pages cost more than the addition.

_FEWEST = 256
"""Elements of the smallest room. Others have a power of two of them: there are few sizes, whatever is asked for."""
_Whole = tuple[Tensor, memoryview]


class ScratchMemory(NamedTuple):
    """Memory, twice, and the whole of which it is the beginning."""

    tensor: Tensor
    memory: memoryview
    whole: _Whole


class Rooms:
    """For use from one thread."""

    def __init__(self) -> None:
        self._free: dict[tuple[torch.dtype, int], list[_Whole]] = {}

    def take(self, dtype: torch.dtype, count: int) -> ScratchMemory:
        """For so many elements."""
        size = max(_FEWEST, 1 << (count - 1).bit_length())
        free = self._free.get((dtype, size))
        if free:
            whole = free.pop()
        else:
            with torch.inference_mode(False):  # who uses it next may be in another mode
                tensor = torch.empty(size, dtype=dtype, device="cpu")
            whole = tensor, view(tensor)
        return ScratchMemory(whole[0][:count], whole[1][: count * dtype.itemsize], whole)

    def give_back(self, room: ScratchMemory) -> None:
        """For the next one."""
        tensor, _ = room.whole
        self._free.setdefault((tensor.dtype, tensor.numel()), []).append(room.whole)


# What one rank does of a schedule, worked out once: its moves, and which of them start others.
#
# All that a move waits for happens at the rank that waits: it sends when what it reads has landed there, and what
# came lands when earlier moves at its place have. So a rank needs to know nothing of the others.

NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class RankMove:
    """A move as this rank sees it.

    Attributes:
        tag: the same at the rank at its other end, and different for each move.
        to: the rank that it is sent to; -1 if it is not sent from here.
        since: the rank that it comes from; -1 if it does not come here. Of a move within this rank, both are -1.
        move: where from, and where to.
        send_waits, land_waits: how many other steps have to have landed before it is sent; how many have to have
            landed, or been sent, before it lands.
        sent_frees: steps that may land once this one is sent.
        landed_sends, landed_frees: steps that may be sent, and that may land, once this one has landed.
    """

    tag: int
    to: int
    since: int
    move: ChunkMove
    send_waits: int
    land_waits: int
    sent_frees: tuple[int, ...]
    landed_sends: tuple[int, ...]
    landed_frees: tuple[int, ...]


@dataclass(frozen=True)
class Script:
    """One rank's part.

    Attributes:
        steps: in the order of the schedule.
        scratch: chunks of scratch memory that this rank needs.
    """

    steps: tuple[RankMove, ...]
    scratch: int


def script_of(schedule: CollectiveSchedule, rank: int, single: bool) -> Script:
    """This rank's part of a schedule.

    Args:
        single: one step for each chunk, even of those that move together: in pieces, they do not lie together.
    """
    if single and any(move.count > 1 for move in schedule.moves):
        schedule = _one_by_one(schedule)
    here = [n for n, move in enumerate(schedule.moves) if rank in (move.source.rank, move.target.rank)]
    place_of = {number: place for place, number in enumerate(here)}
    waits_of: dict[int, tuple[int, int]] = {}
    frees: dict[int, list[int]] = {n: [] for n in here}
    sends: dict[int, list[int]] = {n: [] for n in here}
    lands: dict[int, list[int]] = {n: [] for n in here}
    for number in here:
        move, waits = schedule.moves[number], schedule.waits[number]
        to_send = waits.to_send if move.source.rank == rank else ()
        to_land, to_free = (waits.to_land, waits.to_free) if move.target.rank == rank else ((), ())
        for starts, before in ((sends, to_send), (lands, to_land), (frees, to_free)):
            for one in before:
                starts[one].append(place_of[number])
        waits_of[number] = len(to_send), len(to_land) + len(to_free)
    steps = []
    for number in here:
        move = schedule.moves[number]
        out, into = move.source.rank == rank, move.target.rank == rank
        steps.append(
            RankMove(
                number,
                move.target.rank if out and not into else NOBODY,
                move.source.rank if into and not out else NOBODY,
                move,
                *waits_of[number],
                tuple(frees[number]),
                tuple(sends[number]),
                tuple(lands[number]),
            )
        )
    places = (place for n in here for place in _ends(schedule.moves[n], rank) if place.buffer == "scratch")
    return Script(tuple(steps), max((place.index + 1 for place in places), default=0))


def _ends(move: ChunkMove, rank: int) -> list[ChunkPlace]:
    """The last chunk of each end of it that lies here."""
    ends = ([*move.sources()][-1], [*move.targets()][-1])
    return [place for place in ends if place.rank == rank]


def _one_by_one(schedule: CollectiveSchedule) -> CollectiveSchedule:
    """Every chunk by a move of its own."""
    moves = tuple(
        msgspec.structs.replace(move, source=source, target=target, count=1)
        for move in schedule.moves
        for source, target in zip(move.sources(), move.targets(), strict=True)
    )
    return msgspec.structs.replace(schedule, moves=moves)
