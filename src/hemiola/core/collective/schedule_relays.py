"""A strategy among whom only some give: the others relay, and get the result all the same."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from hemiola.core.errors import ScheduleError
from hemiola.core.collective.schedule import Buffer, ChunkMove, ChunkPlace, CollectiveSchedule
from hemiola.core.strategy_check import check_result
from hemiola.core.collective.schedule_shapes import star_of_each

__all__ = ["relayed", "stars"]


def relayed(strategy: CollectiveSchedule, active: Collection[int], takers: Collection[int] | None = None) -> CollectiveSchedule:
    """An all-reduce of what the active ranks give, along the same ways.

    What is empty is not sent, and what comes first to an empty place is put there instead of being added. So a rank
    that gives nothing passes on what comes, and adds only where two things meet (AdapCC, `csrc/control.cu`: hasSend,
    hasRecv, hasKernel). What no taker needs is not sent either. It is proved that every active rank contributes
    once, nobody else does, and all takers have the result.

    Args:
        active: ranks that give.
        takers: ranks that are to have the result; None for all.

    Raises:
        ScheduleError: it is no all-reduce, or nobody is active.
    """
    if strategy.collective != "all-reduce":
        raise ScheduleError(f"{strategy.name!r} is a {strategy.collective}", "only all-reduces are relayed")
    givers = sorted({rank for rank in active if 0 <= rank < strategy.ranks})
    wanted = range(strategy.ranks) if takers is None else sorted(set(takers))
    if not givers:
        raise ScheduleError(f"{strategy.name!r}: nobody is active", "name at least one rank")
    if len(givers) == len(wanted) == strategy.ranks:
        return strategy
    full = {ChunkPlace(rank, "input", chunk) for rank in givers for chunk in range(strategy.chunks)}
    made = [one for move in strategy.moves for one in _made(move, full)]
    buffer: Buffer = "input" if strategy.in_place else "output"
    needed = {ChunkPlace(rank, buffer, chunk) for rank in wanted for chunk in range(strategy.chunks)}
    moves = tuple(reversed([move for move in reversed(made) if _is_needed(move, needed)]))
    found = msgspec.structs.replace(strategy, name=f"{strategy.name} of {len(givers)} ranks", moves=moves)
    check_result(found, givers, wanted)
    return found


def stars(ranks: int, active: Collection[int], takers: Collection[int] | None = None) -> CollectiveSchedule:
    """An all-reduce of what the active ranks give, among equal hosts, for which the others' links are used too.

    Every rank is the middle of one star. Stars around active ranks have them send to each other, and one of them to
    the takers; stars around the others have every active rank send once, and the middle to all takers. Both kinds
    have such shares of the data that active ranks and others send alike.

    Args:
        active, takers: as for `relayed`.
    """
    givers = set(active)
    others = [rank for rank in range(ranks) if rank not in givers]
    wanted = set(range(ranks)) if takers is None else set(takers)
    mine = (len(givers) - 1 + len(wanted | givers) - 1) / len(givers)
    theirs = sum(len(wanted - {other}) for other in others) / max(1, len(others)) ** 2
    share = min(1.0, mine / (theirs + mine - 1)) if others and mine else 0.0
    weights = [share / len(others) if rank in others else (1 - share) / len(givers) for rank in range(ranks)]
    whole = star_of_each(weights)
    return relayed(msgspec.structs.replace(whole, name="stars"), givers, takers)


def _is_needed(move: ChunkMove, needed: set[ChunkPlace]) -> bool:
    """Whether a move is, if these places are needed after it; which are needed before it follows."""
    if needed.isdisjoint(move.targets()):
        return False
    if not move.adds:
        needed.difference_update(move.targets())
    needed.update(move.sources())
    return True


def _made(move: ChunkMove, full: set[ChunkPlace]) -> Iterator[ChunkMove]:
    """What is left of a move: one for each row of chunks to which the same happens. Keeps book of full places."""
    first, kind = 0, ""
    kinds = []
    for source, target in zip(move.sources(), move.targets(), strict=True):
        kinds.append("" if source not in full else "adds" if move.adds and target in full else "puts")
        if source in full:
            full.add(target)
        elif not move.adds:
            full.discard(target)  # nothing is put there
    for at, this in enumerate([*kinds, None]):
        if at and this != kind:
            if kind:
                yield _part(move, first, at - first, kind == "adds")
            first = at
        kind = this or ""


def _part(move: ChunkMove, first: int, count: int, adds: bool) -> ChunkMove:
    source, target = (
        msgspec.structs.replace(place, index=place.index + first) for place in (move.source, move.target)
    )
    return msgspec.structs.replace(move, source=source, target=target, count=count, adds=adds)
