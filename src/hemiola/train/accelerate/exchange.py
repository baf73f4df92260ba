"""All-reduces of many tensors at once over the transport, each with a priority of its own.

Nobody waits: a step's messages are handed to the transport, and what comes is added up on the transport's
thread, which then begins the next step. Messages are matched by their tag, so ranks may begin transfers in
any order, and a more urgent one overtakes and pauses what is on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from hemiola.comm.process_group.memory import view
from hemiola.comm.schedule_executor.layout import Rooms, ScratchMemory
from hemiola.comm.transport import Endpoint, Handle
from hemiola.core.errors import HemiolaError, InputError, InternalError
from hemiola.core.plan import FEW, SMALL_BYTES
from hemiola.train.accelerate.sparse_rows import (
    BitExchange,
    Fill,
    TableRowNames,
    TableRowTransfer,
    TransferInFlight,
    names_of,
)

__all__ = ["ElementRange", "GradientExchange", "MessageStep", "schedule", "share_buffers"]


# Rank 0's buffers for everybody (running means of batch normalisation), as DistributedDataParallel keeps
# them equal.

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


# All-reduces as steps of messages between pairs of ranks: who sends which elements to whom, and when.


@dataclass(frozen=True, slots=True)
class ElementRange:
    """Elements from `start` up to `stop`, to or from a peer."""

    peer: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class MessageStep:
    """What is sent and received at once; the next step begins once all of it has come.

    Attributes:
        sends, receives: the messages; empty parts are left out.
        joins: whether what comes is added to what is there, in the order of ranks; else it takes its place.
    """

    sends: tuple[ElementRange, ...]
    receives: tuple[ElementRange, ...]
    joins: bool


def schedule(algorithm: str, rank: int, ranks: int, count: int) -> tuple[MessageStep, ...]:
    """The steps of one rank.

    Args:
        algorithm: "ring", "halving-doubling" (on other than powers of two ranks, and for "": "direct"), "direct".
        count: elements.

    Raises:
        InputError: there is no such algorithm.
    """
    bounds = [i * count // ranks for i in range(ranks + 1)]
    if algorithm == "ring":
        found = _ring(rank, ranks, bounds)
    elif algorithm == "halving-doubling" and not ranks & (ranks - 1):
        found = _halving_doubling(rank, ranks, count)
    elif algorithm in ("", "direct", "halving-doubling"):
        found = _direct(rank, ranks, bounds)
    else:
        raise InputError(
            f"there is no all-reduce by {algorithm!r}", "use ring, halving-doubling, direct or nothing"
        )
    return tuple(
        MessageStep(
            tuple(part for part in step.sends if part.stop > part.start),
            tuple(part for part in step.receives if part.stop > part.start),
            step.joins,
        )
        for step in found
    )


def _ring(rank: int, ranks: int, bounds: list[int]) -> list[MessageStep]:
    left, right = (rank - 1) % ranks, (rank + 1) % ranks

    def step(sent: int, received: int, joins: bool) -> MessageStep:
        out, into = sent % ranks, received % ranks
        return MessageStep(
            (ElementRange(right, bounds[out], bounds[out + 1]),),
            (ElementRange(left, bounds[into], bounds[into + 1]),),
            joins,
        )

    turns = range(ranks - 1)
    return [step(rank - t, rank - t - 1, True) for t in turns] + [
        step(rank + 1 - t, rank - t, False) for t in turns
    ]


def _direct(rank: int, ranks: int, bounds: list[int]) -> list[MessageStep]:
    others = [(rank + turn) % ranks for turn in range(1, ranks)]
    theirs = tuple(ElementRange(peer, bounds[peer], bounds[peer + 1]) for peer in others)
    own = tuple(ElementRange(peer, bounds[rank], bounds[rank + 1]) for peer in others)
    return [MessageStep(theirs, own, True), MessageStep(own, theirs, False)]


def _halving_doubling(rank: int, ranks: int, count: int) -> list[MessageStep]:
    """Near ranks meet first, with the largest parts."""
    start, stop, bit = 0, count, 1
    halving: list[MessageStep] = []
    doubling: list[MessageStep] = []
    while bit < ranks:
        peer, middle = rank ^ bit, (start + stop) // 2
        low, high = (start, middle), (middle, stop)
        mine, other = (high, low) if rank & bit else (low, high)
        halving.append(MessageStep((ElementRange(peer, *other),), (ElementRange(peer, *mine),), True))
        doubling.insert(0, MessageStep((ElementRange(peer, *mine),), (ElementRange(peer, *other),), False))
        start, stop = mine
        bit <<= 1
    return halving + doubling


_TAGS, _LANE = 1 << 62, 12
"""Tags are above all others'; a transfer's number begins at bit 32, its lane's at this one, the step's at 0."""
_BEFORE, _AGAIN = 1, 1 << 19
"""Of rows: the step in which they are named before; the first lane of those that are named at the end alone."""
_KNOWN = 256
"""Schedules that are kept: of rows, another number is sent nearly every time."""


class GradientExchange:
    """One rank's all-reduces with the others."""

    skips = True
    is_seen = False

    def __init__(self, end: Endpoint, chunk_bytes: int) -> None:
        """Over a connected endpoint, in messages of about so many bytes."""
        self._end = end
        self._lane_bytes = chunk_bytes * end.ranks
        self.rooms = Rooms()
        self._rows: dict[int, Tensor] = {}

    def all_reduce(
        self,
        number: int,
        name: str,
        flat: Tensor,
        priority: int = 0,
        algorithm: str = "",
        factor: float = 1.0,
    ) -> TransferInFlight:
        """As `Carrier.all_reduce`; the number is below 2**20."""
        lanes = self._lanes(flat, algorithm)
        ticket = TransferInFlight(name, len(lanes))
        self._end.call(
            lambda: self._begin(ticket, lanes, flat, priority, algorithm, factor, self._tag(number))
        )
        return ticket

    def name_rows(self, number: int, named: Sequence[Tensor], priority: int = 0) -> list[TableRowNames]:
        """As `RowCarrier.name_rows`."""
        own = np.concatenate([table.numpy() for table in named])
        telling = BitExchange(self._end, own, priority, self._tag(number) + _BEFORE)
        self._end.call(telling.begin)
        return names_of(telling, map(len, named))

    def reduce_rows(
        self,
        number: int,
        name: str,
        table: Tensor,
        names: TableRowNames | None,
        priority: int = 0,
        algorithm: str = "",
        factor: float = 1.0,
        others: bool = False,
    ) -> TableRowTransfer:
        """As `RowCarrier.reduce_rows`."""
        tag, width = self._tag(number), table.shape[1]

        def begin(ticket: TableRowTransfer, flat: Tensor, fill: Fill | None, again: bool) -> None:
            lanes = self._lanes(flat, algorithm, width)
            ticket.goes_on(len(lanes))
            first = tag + ((_AGAIN if again else 1) << _LANE)
            self._begin(ticket, lanes, flat, priority, algorithm, factor, first, fill)

        def memory(rows: int, again: bool) -> Tensor:
            return table.new_empty(rows, width) if again else self._memory(number, table, rows)

        ticket = TableRowTransfer(name, table, names, others, begin, memory)
        self._end.call(ticket.begin)
        return ticket

    def end_rows(
        self, number: int, tickets: Sequence[TableRowTransfer], touched: Sequence[Tensor], present: Sequence[bool], priority: int = 0,
    ) -> None:  # fmt: skip
        """As `RowCarrier.end_rows`."""
        own = np.concatenate([*(table.numpy() for table in touched), np.array(present)])
        telling = BitExchange(self._end, own, priority, self._tag(number))
        names = names_of(telling, [*map(len, touched), *(1 for _ in present)])

        def end() -> None:
            telling.begin()
            for ticket, rows, presence in zip(tickets, names, names[len(tickets) :], strict=False):
                ticket.end_by(rows, presence)

        self._end.call(end)

    def _memory(self, number: int, table: Tensor, rows: int) -> Tensor:
        """For so many of a table's rows: the same every time, for fresh pages cost more than copying."""
        room, width = self._rows.get(number), table.shape[1]
        if room is None or len(room) < rows or room.dtype != table.dtype:
            room = self._rows[number] = table.new_empty(rows, width)
        return room[:rows]

    @staticmethod
    def _tag(number: int) -> int:
        """A transfer's first."""
        return _TAGS | number << 32

    def _small(self, flat: Tensor, algorithm: str) -> bool:
        """Whether everybody sends it to everybody."""
        return flat.nbytes <= SMALL_BYTES and self._end.ranks <= FEW and algorithm in ("", "direct")

    def _lanes(self, flat: Tensor, algorithm: str, width: int = 1) -> list[tuple[int, int]]:
        """The elements from and to that go their way by themselves; whole rows of so many elements."""
        total, most = flat.numel(), self._lane_bytes // flat.element_size()
        count = total if self._small(flat, algorithm) else max(1, most // width) * width
        starts = range(0, max(1, total), max(1, count))
        return [(start, min(start + count, total)) for start in starts]

    def _begin(
        self, ticket: TransferInFlight, lanes: list[tuple[int, int]], flat: Tensor, priority: int, algorithm: str, factor: float,
        tag: int, fill: Fill | None = None,
    ) -> None:  # fmt: skip
        """All lanes, on the transport's thread; each is filled before it goes."""
        try:
            self._begin_lanes(ticket, lanes, flat, priority, algorithm, factor, tag, fill)
        except Exception as problem:  # nobody would learn of it there
            ticket.end_lane(InternalError(f"a gradient could not be sent: {problem!r}", "please report it"))

    def _begin_lanes(
        self, ticket: TransferInFlight, lanes: list[tuple[int, int]], flat: Tensor, priority: int, algorithm: str, factor: float,
        tag: int, fill: Fill | None,
    ) -> None:  # fmt: skip
        size, small = flat.element_size(), self._small(flat, algorithm)
        rank, ranks = self._end.rank, self._end.ranks
        if small:
            if fill is not None:
                fill(0, flat.numel())
            flat.mul_(factor)
        given = flat.clone() if small else flat  # what is added to is not what is sent
        into, out = view(flat), view(given)
        for number, (start, stop) in enumerate(lanes):
            steps = _steps("everybody" if small else algorithm, rank, ranks, stop - start)
            span, part = slice(start * size, stop * size), flat[start:stop]
            if not small and fill is not None:
                fill(start, stop)
            if not small and factor != 1.0:
                part.mul_(factor)  # here, so that the first is on its way while the others are multiplied
            lane = _Lane(self, ticket, part, into[span], out[span], priority, steps, tag + (number << _LANE))
            lane.begin()

    def share(self, buffers: list[Tensor]) -> None:
        """As `Carrier.share`, before everything else that is under way."""
        share_buffers(self._end, buffers)

    # on the transport's thread alone

    @property
    def end(self) -> Endpoint:
        """This rank's end of the transport."""
        return self._end


@lru_cache(maxsize=_KNOWN)
def _steps(algorithm: str, rank: int, ranks: int, count: int) -> tuple[MessageStep, ...]:
    """As `schedule`, which does not know "everybody"."""
    everybody = algorithm == "everybody"
    return _everybody(rank, ranks, count) if everybody else schedule(algorithm, rank, ranks, count)


def _everybody(rank: int, ranks: int, count: int) -> tuple[MessageStep, ...]:
    """All of it from everybody to everybody."""
    all_of_it = tuple(ElementRange((rank + turn) % ranks, 0, count) for turn in range(1, ranks) if count)
    return (MessageStep(all_of_it, all_of_it, True),)


class _Lane:
    """A part of a tensor on its way through the steps of its algorithm. Lives on the transport's thread."""

    __slots__ = (
        "_came", "_exchange", "_flat", "_given", "_goes_on", "_into", "_left", "_number", "_priority", "_steps", "_tag",
        "_ticket",
    )  # fmt: skip

    def __init__(
        self, exchange: GradientExchange, ticket: TransferInFlight, flat: Tensor, into: memoryview, given: memoryview, priority: int,
        steps: tuple[MessageStep, ...], tag: int,
    ) -> None:  # fmt: skip
        self._exchange, self._ticket, self._flat, self._tag, self._priority = (
            exchange, ticket, flat, tag, priority,
        )  # fmt: skip
        self._steps, self._into, self._given = steps, into, given
        self._number = -1
        self._left = 0
        self._goes_on = False
        self._came: list[tuple[int, ScratchMemory]] = []

    def begin(self) -> None:
        """The first step, or the next one, and those behind it for which all has come.

        One after the other: for a late rank that may be all of them, each within the one before it.
        """
        if self._goes_on:  # the loop below does
            return
        self._goes_on = True
        try:
            while not self._left and self._number < len(self._steps):
                self._begin()
        except HemiolaError as problem:  # closed meanwhile
            self._fail(problem)
        finally:
            self._goes_on = False

    def _begin(self) -> None:
        self._number += 1
        if self._number == len(self._steps):
            self._ticket.end_lane(None)
            return
        exchange, end, size = self._exchange, self._exchange.end, self._flat.element_size()
        step, tag = self._steps[self._number], self._tag + self._number
        self._left, self._came = len(step.receives) + 1, []
        for part in step.sends:
            data = self._given[part.start * size : part.stop * size]
            self._ticket.sends.append(end.send(part.peer, tag, data, self._priority))
        for part in step.receives:
            if step.joins:
                room = exchange.rooms.take(self._flat.dtype, part.stop - part.start)
                self._came.append((part.peer, room))
                into = room.memory
            else:
                into = self._into[part.start * size : part.stop * size]
            end.receive(part.peer, tag, into).add_callback(self._got)
        self._one_less()

    def _got(self, handle: Handle) -> None:
        if handle.problem is None:
            self._one_less()
        else:
            self._fail(handle.problem)

    def _fail(self, problem: HemiolaError) -> None:
        if self._left >= 0:
            self._left = -1
            self._ticket.end_lane(problem)

    def _one_less(self) -> None:
        self._left -= 1
        if self._left:
            return
        step = self._steps[self._number]
        if step.joins and step.receives:
            part = step.receives[0]
            came = [(peer, room.tensor) for peer, room in self._came]
            _join(self._flat[part.start : part.stop], self._exchange.end.rank, came)
            for _, room in self._came:
                self._exchange.rooms.give_back(room)
        self.begin()


def _join(own: Tensor, rank: int, came: list[tuple[int, Tensor]]) -> None:
    """Add what came to one's own, in the order of ranks: the same bits whoever adds."""
    with torch.no_grad():
        if len(came) == 1:
            own.add_(came[0][1])
            return
        rows = [tensor for _, tensor in sorted([*came, (rank, own)], key=lambda entry: entry[0])]
        total = rows[0] if rows[0] is not own else own.clone()
        for row in rows[1:]:
            total.add_(row)
        own.copy_(total)
