"""What one rank does of a schedule, worked out once: its moves, and which of them start others.

All that a move waits for happens at the rank that waits: it sends when what it reads has landed there, and what
came lands when earlier moves at its place have. So a rank needs to know nothing of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from hemiola.core.collective.schedule import ChunkMove, ChunkPlace, CollectiveSchedule

__all__ = ["NOBODY", "RankMove", "Script", "script_of"]

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
