"""A schedule: which chunk of a collective goes from whom to whom, and where it is added, in which order.

Its moves stand in an order in which they could be made one after the other. What may go on at the same time
follows from the places that moves read and write (`Waits`): a move waits for earlier ones at its own two places,
and for nothing else. So no schedule can block itself, wherever messages are told apart by their move, and sums come
out in one order, to the bit. Files are `trace`'s business.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import msgspec

from hemiola.core.errors import ScheduleError
from hemiola.core.graph import in_order

__all__ = [
    "FEWEST_BYTES",
    "PIECE_BYTES",
    "SCHEDULE_SCHEMA",
    "Buffer",
    "ChunkMove",
    "ChunkPlace",
    "Collective",
    "CollectiveSchedule",
    "SendRate",
    "Waits",
    "check_result",
    "check_size",
]


SCHEDULE_SCHEMA = "hemiola.strategy/1"

Collective = Literal["all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "all-to-all"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
Buffer = Literal["input", "output", "scratch"]
FEWEST_BYTES = 64 << 10
"""Collectives of at most so much go the direct way: several hops would cost more than they save."""
PIECE_BYTES = 512 << 10
"""Of a chunk that its schedule leaves whole: so that what has come is added up while more comes."""


class ChunkPlace(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """Where a chunk lies.

    Attributes:
        rank: whose memory.
        buffer: "input", "output" or "scratch".
        index: of the chunk in it.
    """

    rank: int
    buffer: Buffer
    index: int

    def __str__(self) -> str:
        return f"{self.buffer} {self.index} of rank {self.rank}"

    def row(self, count: int) -> Iterator[ChunkPlace]:
        """This one and those behind it, so many."""
        return (ChunkPlace(self.rank, self.buffer, self.index + k) for k in range(count))


class ChunkMove(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Chunks that go from one place to another, over the network or on one rank.

    Attributes:
        source, target: where the first chunk lies, and where it goes.
        count: of chunks that lie one behind the other.
        adds: whether they are added to what lies there, or replace it.
        channel: moves between two ranks on different channels overtake each other.
    """

    source: ChunkPlace
    target: ChunkPlace
    count: int = 1
    adds: bool = False
    channel: int = 0

    @property
    def is_sent(self) -> bool:
        """Whether it goes over the network."""
        return self.source.rank != self.target.rank

    def sources(self) -> Iterator[ChunkPlace]:
        """Of every chunk."""
        return self.source.row(self.count)

    def targets(self) -> Iterator[ChunkPlace]:
        """Of every chunk."""
        return self.target.row(self.count)


class SendRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast one rank sends to another one at most.

    Attributes:
        source, target: the ranks.
        bytes_per_s: above 0.
    """

    source: int
    target: int
    bytes_per_s: float


@dataclass(frozen=True)
class Waits:
    """Which earlier moves, by number, one move waits for.

    A move is sent, and then lands: what it brings is added or put in its place. Several may be on their way to one
    place at once; they land in their order.

    Attributes:
        to_send: that have to have landed before: they wrote what it reads.
        to_land: that have to have landed before: they wrote where it writes.
        to_free: that have to have been sent before it lands: they read where it writes.
    """

    to_send: tuple[int, ...]
    to_land: tuple[int, ...]
    to_free: tuple[int, ...]

    @property
    def all(self) -> tuple[int, ...]:
        """Each once."""
        return tuple(sorted({*self.to_send, *self.to_land, *self.to_free}))


@dataclass(frozen=True)
class Traffic:
    """What a schedule sends.

    Attributes:
        hops: over the network one after the other, on the longest way.
        chunks_of: sent, by rank.
        chunks_between: sent, by source and target.
    """

    hops: int
    chunks_of: dict[int, int]
    chunks_between: dict[tuple[int, int], int]


class CollectiveSchedule(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One collective among so many ranks.

    In place, results lie where the inputs did: of an all-reduce, a reduce-scatter, a broadcast or a reduce in
    "input", of an all-gather in "output", each rank's own chunks from the beginning. Otherwise inputs lie in
    "input" and results in "output". Chunks are those of the whole: of a reduce-scatter and an all-gather, rank r
    owns the r-th of `ranks` equal parts; in an all-to-all, it sends the d-th part of its input to rank d.

    Attributes:
        name: what to call it.
        collective: what it computes.
        ranks: how many.
        chunks: into which the data is divided.
        moves: in an order in which they could be made one after the other.
        in_place: where inputs and results lie.
        root: of a broadcast or a reduce.
        weights: each chunk's share of the data, together 1; () for equal ones. Only in place and without scratch.
        chunk_bytes: so much of a chunk goes at a time, so that moves of one chunk overlap; 0 leaves it to who carries it out:
            Hemiola's process group sends `PIECE_BYTES`.
        ahead_bytes: of an all-reduce, so much of a chunk a rank may have sent to be added while its result has not
            come back: queues stay short where one link is much slower than others; 0 for any.
        paces: of pairs of ranks that are held back, so that shares of a link are not equal ones; others send as fast as
            it goes. They fit one network.
        source: what made it.
    """

    name: str
    collective: Collective
    ranks: int
    chunks: int
    moves: tuple[ChunkMove, ...]
    in_place: bool = True
    root: int = 0
    weights: tuple[float, ...] = ()
    chunk_bytes: int = 0
    ahead_bytes: int = 0
    paces: tuple[SendRate, ...] = ()
    source: str = ""

    def verify(self) -> CollectiveSchedule:
        """Return this schedule, having proved that every rank gets its result.

        Every rank's contribution is in every result that it belongs to exactly once, nothing else is, and nothing is
        read before it is there. Since moves stand in an order in which they can be made, none waits for ever.

        Raises:
            ScheduleError: naming the move, or the result, for which that is not so.
        """
        self._check_numbers()
        check_result(self)
        return self

    def check_ranks(self, ranks: int) -> None:
        """Refuse to be used by another number of ranks.

        Raises:
            ScheduleError: naming both.
        """
        if self.ranks != ranks:
            raise ScheduleError(
                f"the schedule {self.name!r} is for {self.ranks} ranks, here are {ranks}",
                "make one for these",
            )

    def _check_numbers(self) -> None:
        if self.ranks < 1 or self.chunks < 1 or self.chunk_bytes < 0:
            raise ScheduleError(
                f"{self.name!r} is for {self.ranks} ranks and {self.chunks} chunks of {self.chunk_bytes} bytes at a time",
                "give at least one of each, and 0 bytes for pieces of the usual size",
            )
        moved = sum(move.count for move in self.moves if move.count > 0)
        check_size(f"{self.name!r}", self.ranks, self.chunks, moved)
        if self.ahead_bytes < 0:
            raise ScheduleError(
                f"{self.name!r}: ranks run {self.ahead_bytes} bytes ahead", "give 0 for as far as they can"
            )
        self._check_paces()
        if self.collective not in COLLECTIVES:
            raise ScheduleError(
                f"{self.name!r}: there is no collective {self.collective!r}",
                f"use one of {', '.join(COLLECTIVES)}",
            )
        parted = self.collective in ("reduce-scatter", "all-gather", "all-to-all")
        if parted and self.chunks % self.ranks:
            raise ScheduleError(
                f"{self.name!r}: {self.chunks} chunks cannot be divided among {self.ranks} ranks",
                "give a multiple of the ranks",
            )
        if not 0 <= self.root < self.ranks:
            raise ScheduleError(
                f"{self.name!r}: the root {self.root} is no rank", f"give 0 to {self.ranks - 1}"
            )
        if self.collective == "all-to-all" and self.in_place:
            raise ScheduleError(f"{self.name!r}: an all-to-all in place would overwrite what is to be sent", "use in_place=False")  # fmt: skip
        if self.weights and (
            len(self.weights) != self.chunks
            or not all(w > 0 for w in self.weights)
            or abs(sum(self.weights) - 1) > 1e-6
        ):
            raise ScheduleError(
                f"{self.name!r}: {len(self.weights)} weights of {self.chunks} chunks, together {sum(self.weights):g}",
                "give one above 0 for each chunk, together 1, or none",
            )
        each = self.chunks // self.ranks
        if parted and any(
            abs(sum(self.weights[at : at + each]) * self.ranks - 1) > 1e-6
            for at in range(0, len(self.weights), each)
        ):
            raise ScheduleError(
                f"{self.name!r}: chunks of ranks with parts of different sizes, which of this collective are equal",
                "give the chunks of each rank weights that are together 1 / ranks, or none",
            )
        places = (place for move in self.moves for place in (move.source, move.target))
        if self.weights and (not self.in_place or any(place.buffer == "scratch" for place in places)):
            raise ScheduleError(
                f"{self.name!r} has chunks of different sizes, and is not in place or uses scratch memory",
                "give no weights: a place elsewhere has no size of its own",
            )

    def _check_paces(self) -> None:
        known = set()
        for pace in self.paces:
            pair = pace.source, pace.target
            if not all(0 <= rank < self.ranks for rank in pair) or pace.source == pace.target:
                raise ScheduleError(
                    f"{self.name!r}: a pace from rank {pace.source} to rank {pace.target}",
                    f"name two of the ranks 0 to {self.ranks - 1}",
                )
            if pair in known or not 0 < pace.bytes_per_s < math.inf:
                raise ScheduleError(
                    f"{self.name!r}: rank {pace.source} sends to rank {pace.target} at {pace.bytes_per_s:g} bytes/s"
                    f"{', said twice' if pair in known else ''}",
                    "give each pair one number above 0, or none to send as fast as it goes",
                )
            known.add(pair)

    @cached_property
    def waits(self) -> tuple[Waits, ...]:
        """What each move waits for."""
        wrote: dict[ChunkPlace, int] = {}
        read: dict[ChunkPlace, list[int]] = {}
        found = []
        for number, move in enumerate(self.moves):
            sources, targets = tuple(move.sources()), tuple(move.targets())
            there = {wrote[place] for place in sources if place in wrote}
            before = {wrote[place] for place in targets if place in wrote}
            used = {one for place in targets for one in read.get(place, ())}
            found.append(Waits(tuple(sorted(there)), tuple(sorted(before)), tuple(sorted(used))))
            for place in sources:
                read.setdefault(place, []).append(number)
            for place in targets:
                wrote[place], read[place] = number, []
        return tuple(found)

    @cached_property
    def origins(self) -> tuple[str, ...]:
        """Where moves stand in the file that they were read from, by number, for errors to name; () where nobody says.

        No part of the value: two schedules are equal wherever they were read from.
        """
        return ()

    def read_from(self, origins: Iterable[str]) -> CollectiveSchedule:
        """The same schedule, whose errors name a place in a file for each move."""
        found = msgspec.structs.replace(self)
        found.__dict__["origins"] = tuple(origins)
        return found

    @cached_property
    def keeps_places(self) -> bool:
        """Whether every chunk stays at its index of one buffer, so that chunks may differ in size."""
        buffers = {place.buffer for move in self.moves for place in (move.source, move.target)}
        stays = all(move.source.index == move.target.index for move in self.moves)
        return self.in_place and stays and len(buffers) <= 1

    def ordered(self) -> CollectiveSchedule:
        """The same moves in the one order that all schedules have which differ only by it."""
        keys = [(m.source, m.target, m.count, m.adds, m.channel) for m in self.moves]
        order = in_order([waits.all for waits in self.waits], keys.__getitem__)
        found = msgspec.structs.replace(self, moves=tuple(self.moves[number] for number in order))
        return found.read_from(self.origins[number] for number in order) if self.origins else found

    def traffic(self) -> Traffic:
        """What it sends, in chunks."""
        depth: dict[ChunkPlace, int] = {}
        of: Counter[int] = Counter()
        between: Counter[tuple[int, int]] = Counter()
        for move in self.moves:
            came = [depth.get(place, 0) + move.is_sent for place in move.sources()]
            for place, hops in zip(move.targets(), came, strict=True):
                depth[place] = max(hops, depth.get(place, 0)) if move.adds else hops
            if move.is_sent:
                of[move.source.rank] += move.count
                between[move.source.rank, move.target.rank] += move.count
        return Traffic(max(depth.values(), default=0), dict(of), dict(between))


# Proves that a schedule computes its collective, by making its moves with sets of contributions instead
# of data.

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
        ScheduleError: it is larger; names the numbers.
    """
    if ranks * chunks > PLACES_MAX or ranks * ranks * chunks > _BITS_MAX or moved > PLACES_MAX:
        counted = f"{ranks} ranks, {chunks} chunks" + (f", {moved} chunks moved" if moved else "")
        raise ScheduleError(
            f"{what}: {counted}: too many to prove it right",
            f"give at most {PLACES_MAX} chunks of all ranks together, fewer beyond {_BITS_MAX // PLACES_MAX} ranks",
        )


def check_result(
    schedule: CollectiveSchedule, givers: Collection[int] | None = None, takers: Collection[int] | None = None
) -> None:
    """Make the moves.

    Args:
        givers: of an all-reduce, the ranks whose contributions are to be in its result; None for all.
        takers: of an all-reduce, the ranks that are to have the result; None for all.

    Raises:
        ScheduleError: one of them reads nothing or adds what must not be added, or a result is not what it should be.
    """
    active = (1 << schedule.ranks) - 1 if givers is None else sum(1 << rank for rank in set(givers))
    held = {where: what for where, what in _inputs(schedule).items() if what[1] & active}
    sizes = _sizes(schedule)
    for number, move in enumerate(schedule.moves):
        _make(schedule, number, move, held, sizes)
    for where, (chunk, everybody) in _results(schedule):
        if takers is not None and where[0] not in takers:
            continue
        found, wanted = held.get(where), (chunk, everybody & active)
        if found != wanted:
            rank, buffer, index = where
            raise ScheduleError(
                f"{schedule.name!r}: after all moves {buffer} {index} of rank {rank} holds {_words(found)} "
                f"instead of {_words(wanted)}",
                "look for a move that is missing, or goes elsewhere",
            )


def _make(
    schedule: CollectiveSchedule, number: int, move: ChunkMove, held: dict[Where, Held], sizes: dict[str, int]
) -> None:
    for place in (move.source, move.target):
        if not (0 <= place.rank < schedule.ranks and place.index >= 0):
            raise _wrong(
                schedule, number, move, f"{place} does not exist", "name ranks from 0 and indices from 0"
            )
    if not 1 <= move.count <= _MOST or move.source == move.target:
        raise _wrong(
            schedule,
            number,
            move,
            f"it moves {move.count} chunks to another place",
            "move 1 or more chunks elsewhere",
        )
    sources = [_where(place) for place in move.sources()]
    targets = [_where(place) for place in move.targets()]
    if set(sources) & set(targets):
        raise _wrong(schedule, number, move, "it overlaps itself", "move one chunk after the other")
    for rank, buffer, index in (sources[-1], targets[-1]):
        if buffer != "scratch" and index >= sizes.get(buffer, 0):
            there = ", ".join(f"{name} 0 to {size - 1}" for name, size in sizes.items())
            raise _wrong(
                schedule, number, move, f"{buffer} {index} of rank {rank} does not exist", f"name {there}, or scratch"
            )  # fmt: skip
    if schedule.weights and move.source.index != move.target.index:
        raise _wrong(
            schedule,
            number,
            move,
            "a chunk that has a weight goes to the place of another one",
            "keep its index, or give no weights",
        )
    for source, target in zip(sources, targets, strict=True):
        what = held.get(source)
        if what is None:
            raise _wrong(
                schedule, number, move, f"nothing lies in {source[1]} {source[2]} yet", "move it there before"
            )
        if move.adds:
            own = held.get(target)
            if own is None:
                raise _wrong(
                    schedule,
                    number,
                    move,
                    f"nothing lies in {target[1]} {target[2]} to add it to",
                    "replace instead",
                )
            if own[0] != what[0]:
                raise _wrong(
                    schedule,
                    number,
                    move,
                    f"it adds chunk {what[0]} to chunk {own[0]}",
                    "add a chunk to itself",
                )
            if own[1] & what[1]:
                raise _wrong(
                    schedule,
                    number,
                    move,
                    f"it adds the contribution of {_ranks(own[1] & what[1])} twice",
                    "send what is not there yet",
                )
            what = (own[0], own[1] | what[1])
        held[target] = what


def _where(place: ChunkPlace) -> Where:
    return place.rank, place.buffer, place.index


def _sizes(schedule: CollectiveSchedule) -> dict[str, int]:
    """How many chunks each buffer of a rank has, beside scratch memory."""
    kind, chunks, own = schedule.collective, schedule.chunks, schedule.chunks // schedule.ranks
    if schedule.in_place:
        return {"output" if kind == "all-gather" else "input": chunks}
    return {
        "input": own if kind == "all-gather" else chunks,
        "output": own if kind == "reduce-scatter" else chunks,
    }


def _inputs(schedule: CollectiveSchedule) -> dict[Where, Held]:
    """What lies where at the beginning."""
    ranks, chunks, kind = schedule.ranks, schedule.chunks, schedule.collective
    own = chunks // ranks
    held: dict[Where, Held] = {}
    for rank in range(ranks):
        if kind == "all-gather":
            for k in range(own):
                chunk = rank * own + k
                held[(rank, "output", chunk) if schedule.in_place else (rank, "input", k)] = (
                    chunk,
                    1 << rank,
                )
        elif kind == "broadcast":
            if rank == schedule.root:
                held |= {(rank, "input", c): (c, 1 << rank) for c in range(chunks)}
        elif kind == "all-to-all":
            held |= {(rank, "input", c): (rank * chunks + c, 1 << rank) for c in range(chunks)}
        else:
            held |= {(rank, "input", c): (c, 1 << rank) for c in range(chunks)}
    return held


def _results(schedule: CollectiveSchedule) -> Iterator[tuple[Where, Held]]:
    """What has to lie where at the end."""
    ranks, chunks, kind = schedule.ranks, schedule.chunks, schedule.collective
    own, everybody = chunks // ranks, (1 << ranks) - 1
    buffer = "input" if schedule.in_place else "output"
    for rank in range(ranks):
        if kind == "all-reduce" or (kind == "reduce" and rank == schedule.root):
            yield from (((rank, buffer, c), (c, everybody)) for c in range(chunks))
        elif kind == "reduce-scatter":
            for k in range(own):
                chunk = rank * own + k
                yield (rank, buffer, chunk if schedule.in_place else k), (chunk, everybody)
        elif kind == "all-gather":
            yield from (((rank, "output", c), (c, 1 << c // own)) for c in range(chunks))
        elif kind == "broadcast":
            yield from (((rank, buffer, c), (c, 1 << schedule.root)) for c in range(chunks))
        elif kind == "all-to-all":
            for source in range(ranks):
                for k in range(own):
                    yield (rank, "output", source * own + k), (source * chunks + rank * own + k, 1 << source)


def _wrong(
    schedule: CollectiveSchedule, number: int, move: ChunkMove, problem: str, remedy: str
) -> ScheduleError:
    where = f"; {schedule.origins[number]}" if schedule.origins else ""
    what = f"{schedule.name!r}: move {number} ({move.source} to {move.target}{where})"
    return ScheduleError(f"{what}: {problem}", remedy)


def _words(held: Held | None) -> str:
    return "nothing" if held is None else f"chunk {held[0]} of {_ranks(held[1])}"


def _ranks(bits: int) -> str:
    found = [str(rank) for rank in range(bits.bit_length()) if bits >> rank & 1]
    return f"rank {found[0]}" if len(found) == 1 else f"ranks {', '.join(found)}"
