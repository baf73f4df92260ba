"""A strategy among whom only some give: the others relay, and get the result all the same."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from hemiola.core.errors import StrategyError
from hemiola.core.strategy import Move, Place, Strategy
from hemiola.core.strategy_check import check_result

__all__ = ["relayed"]


def relayed(strategy: Strategy, active: Collection[int]) -> Strategy:
    """An all-reduce of what the active ranks give, along the same ways.

    What is empty is not sent, and what comes first to an empty place is put there instead of being added. So a rank
    that gives nothing passes on what comes, and adds only where two things meet (AdapCC, `csrc/control.cu`: hasSend,
    hasRecv, hasKernel). It is proved that every active rank contributes once, nobody else does, and all ranks have
    the result.

    Raises:
        StrategyError: it is no all-reduce, or nobody is active.
    """
    if strategy.collective != "all-reduce":
        raise StrategyError(f"{strategy.name!r} is a {strategy.collective}", "only all-reduces are relayed")
    givers = sorted({rank for rank in active if 0 <= rank < strategy.ranks})
    if not givers:
        raise StrategyError(f"{strategy.name!r}: nobody is active", "name at least one rank")
    if len(givers) == strategy.ranks:
        return strategy
    full = {Place(rank, "input", chunk) for rank in givers for chunk in range(strategy.chunks)}
    moves = tuple(made for move in strategy.moves for made in _made(move, full))
    found = msgspec.structs.replace(strategy, name=f"{strategy.name} of {len(givers)} ranks", moves=moves)
    check_result(found, givers)
    return found


def _made(move: Move, full: set[Place]) -> Iterator[Move]:
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


def _part(move: Move, first: int, count: int, adds: bool) -> Move:
    source, target = (
        msgspec.structs.replace(place, index=place.index + first) for place in (move.source, move.target)
    )
    return msgspec.structs.replace(move, source=source, target=target, count=count, adds=adds)
