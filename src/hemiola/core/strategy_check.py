"""Proves that a strategy computes its collective, by making its moves with sets of contributions instead of data."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from hemiola.core.errors import ScheduleError

if TYPE_CHECKING:
    from hemiola.core.collective.schedule import ChunkMove, ChunkPlace, CollectiveSchedule

__all__ = ["check_result", "check_size"]

Held = tuple[int, int]
"""Which chunk, and whose contributions to it, as bits."""
Where = tuple[int, str, int]
_MOST = 1 << 20
PLACES_MAX = 1 << 22
"""Chunks of all ranks together, and chunks that all moves together move: a proof holds a few hundred bytes for each."""
_BITS_MAX = 1 << 33
"""Contributions of every rank to every chunk of every rank, a bit each."""


def check_size(what: str, ranks: int, chunks: int, moved: int = 0) -> None:
    """Refuse what would take gigabytes to prove, before anything is made of it.

    Args:
        what: to name in the error.
        moved: chunks, by all moves together.

    Raises:
        StrategyError: it is larger; names the numbers.
    """
    if ranks * chunks > PLACES_MAX or ranks * ranks * chunks > _BITS_MAX or moved > PLACES_MAX:
        counted = f"{ranks} ranks, {chunks} chunks" + (f", {moved} chunks moved" if moved else "")
        raise ScheduleError(
            f"{what}: {counted}: too many to prove it right",
            f"give at most {PLACES_MAX} chunks of all ranks together, fewer beyond {_BITS_MAX // PLACES_MAX} ranks",
        )


def check_result(
    strategy: CollectiveSchedule, givers: Collection[int] | None = None, takers: Collection[int] | None = None
) -> None:
    """Make the moves.

    Args:
        givers: of an all-reduce, the ranks whose contributions are to be in its result; None for all.
        takers: of an all-reduce, the ranks that are to have the result; None for all.

    Raises:
        StrategyError: one of them reads nothing or adds what must not be added, or a result is not what it should be.
    """
    active = (1 << strategy.ranks) - 1 if givers is None else sum(1 << rank for rank in set(givers))
    held = {where: what for where, what in _inputs(strategy).items() if what[1] & active}
    sizes = _sizes(strategy)
    for number, move in enumerate(strategy.moves):
        _make(strategy, number, move, held, sizes)
    for where, (chunk, everybody) in _results(strategy):
        if takers is not None and where[0] not in takers:
            continue
        found, wanted = held.get(where), (chunk, everybody & active)
        if found != wanted:
            rank, buffer, index = where
            raise ScheduleError(
                f"{strategy.name!r}: after all moves {buffer} {index} of rank {rank} holds {_words(found)} "
                f"instead of {_words(wanted)}",
                "look for a move that is missing, or goes elsewhere",
            )


def _make(
    strategy: CollectiveSchedule, number: int, move: ChunkMove, held: dict[Where, Held], sizes: dict[str, int]
) -> None:
    for place in (move.source, move.target):
        if not (0 <= place.rank < strategy.ranks and place.index >= 0):
            raise _wrong(
                strategy, number, move, f"{place} does not exist", "name ranks from 0 and indices from 0"
            )
    if not 1 <= move.count <= _MOST or move.source == move.target:
        raise _wrong(
            strategy,
            number,
            move,
            f"it moves {move.count} chunks to another place",
            "move 1 or more chunks elsewhere",
        )
    sources = [_where(place) for place in move.sources()]
    targets = [_where(place) for place in move.targets()]
    if set(sources) & set(targets):
        raise _wrong(strategy, number, move, "it overlaps itself", "move one chunk after the other")
    for rank, buffer, index in (sources[-1], targets[-1]):
        if buffer != "scratch" and index >= sizes.get(buffer, 0):
            there = ", ".join(f"{name} 0 to {size - 1}" for name, size in sizes.items())
            raise _wrong(
                strategy, number, move, f"{buffer} {index} of rank {rank} does not exist", f"name {there}, or scratch"
            )  # fmt: skip
    if strategy.weights and move.source.index != move.target.index:
        raise _wrong(
            strategy,
            number,
            move,
            "a chunk that has a weight goes to the place of another one",
            "keep its index, or give no weights",
        )
    for source, target in zip(sources, targets, strict=True):
        what = held.get(source)
        if what is None:
            raise _wrong(
                strategy, number, move, f"nothing lies in {source[1]} {source[2]} yet", "move it there before"
            )
        if move.adds:
            own = held.get(target)
            if own is None:
                raise _wrong(
                    strategy,
                    number,
                    move,
                    f"nothing lies in {target[1]} {target[2]} to add it to",
                    "replace instead",
                )
            if own[0] != what[0]:
                raise _wrong(
                    strategy,
                    number,
                    move,
                    f"it adds chunk {what[0]} to chunk {own[0]}",
                    "add a chunk to itself",
                )
            if own[1] & what[1]:
                raise _wrong(
                    strategy,
                    number,
                    move,
                    f"it adds the contribution of {_ranks(own[1] & what[1])} twice",
                    "send what is not there yet",
                )
            what = (own[0], own[1] | what[1])
        held[target] = what


def _where(place: ChunkPlace) -> Where:
    return place.rank, place.buffer, place.index


def _sizes(strategy: CollectiveSchedule) -> dict[str, int]:
    """How many chunks each buffer of a rank has, beside scratch memory."""
    kind, chunks, own = strategy.collective, strategy.chunks, strategy.chunks // strategy.ranks
    if strategy.in_place:
        return {"output" if kind == "all-gather" else "input": chunks}
    return {
        "input": own if kind == "all-gather" else chunks,
        "output": own if kind == "reduce-scatter" else chunks,
    }


def _inputs(strategy: CollectiveSchedule) -> dict[Where, Held]:
    """What lies where at the beginning."""
    ranks, chunks, kind = strategy.ranks, strategy.chunks, strategy.collective
    own = chunks // ranks
    held: dict[Where, Held] = {}
    for rank in range(ranks):
        if kind == "all-gather":
            for k in range(own):
                chunk = rank * own + k
                held[(rank, "output", chunk) if strategy.in_place else (rank, "input", k)] = (
                    chunk,
                    1 << rank,
                )
        elif kind == "broadcast":
            if rank == strategy.root:
                held |= {(rank, "input", c): (c, 1 << rank) for c in range(chunks)}
        elif kind == "all-to-all":
            held |= {(rank, "input", c): (rank * chunks + c, 1 << rank) for c in range(chunks)}
        else:
            held |= {(rank, "input", c): (c, 1 << rank) for c in range(chunks)}
    return held


def _results(strategy: CollectiveSchedule) -> Iterator[tuple[Where, Held]]:
    """What has to lie where at the end."""
    ranks, chunks, kind = strategy.ranks, strategy.chunks, strategy.collective
    own, everybody = chunks // ranks, (1 << ranks) - 1
    buffer = "input" if strategy.in_place else "output"
    for rank in range(ranks):
        if kind == "all-reduce" or (kind == "reduce" and rank == strategy.root):
            yield from (((rank, buffer, c), (c, everybody)) for c in range(chunks))
        elif kind == "reduce-scatter":
            for k in range(own):
                chunk = rank * own + k
                yield (rank, buffer, chunk if strategy.in_place else k), (chunk, everybody)
        elif kind == "all-gather":
            yield from (((rank, "output", c), (c, 1 << c // own)) for c in range(chunks))
        elif kind == "broadcast":
            yield from (((rank, buffer, c), (c, 1 << strategy.root)) for c in range(chunks))
        elif kind == "all-to-all":
            for source in range(ranks):
                for k in range(own):
                    yield (rank, "output", source * own + k), (source * chunks + rank * own + k, 1 << source)


def _wrong(strategy: CollectiveSchedule, number: int, move: ChunkMove, problem: str, remedy: str) -> ScheduleError:
    where = f"; {strategy.origins[number]}" if strategy.origins else ""
    what = f"{strategy.name!r}: move {number} ({move.source} to {move.target}{where})"
    return ScheduleError(f"{what}: {problem}", remedy)


def _words(held: Held | None) -> str:
    return "nothing" if held is None else f"chunk {held[0]} of {_ranks(held[1])}"


def _ranks(bits: int) -> str:
    found = [str(rank) for rank in range(bits.bit_length()) if bits >> rank & 1]
    return f"rank {found[0]}" if len(found) == 1 else f"ranks {', '.join(found)}"
