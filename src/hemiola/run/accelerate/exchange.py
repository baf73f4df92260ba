"""All-reduces of many tensors at once over the transport, each with a priority of its own.

Nobody waits: a step's messages are handed to the transport, and what comes is added up on the transport's
thread, which then begins the next step. Messages are matched by their tag, so ranks may begin transfers in
any order, and a more urgent one overtakes and pauses what is on its way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from hemiola.core.errors import HemiolaError, TransportError
from hemiola.core.plan import ROWS_MOST
from hemiola.run.accelerate.buffers import share_buffers
from hemiola.run.accelerate.schedule import Part, Step, schedule
from hemiola.run.group.memory import view
from hemiola.run.strategy.rooms import Room, Rooms
from hemiola.run.transport import Endpoint, Handle
from hemiola.run.transport.messages import Outgoing

__all__ = ["Exchange", "RowTicket", "Ticket"]

_TAGS, _LANE = 1 << 62, 12
"""Tags are above all others'; a transfer's number begins at bit 32, its lane's at this one, the step's at 0."""
_SMALL_BYTES = 16 << 10
_FEW = 8
"""Ranks up to which everybody sends a small tensor to everybody: one step instead of two."""


class Ticket:
    """A transfer under way.

    Attributes:
        done: whether it is reduced, or has failed.
        problem: why it failed.
        begun_s: when, by the monotonic clock.
    """

    def __init__(self, what: str, lanes: int) -> None:
        self._what = what
        self.begun_s = time.monotonic()
        self._ended_s = 0.0
        self._left = lanes
        self._guard = threading.Lock()
        self._gate = threading.Lock()
        self._gate.acquire()
        self.sends: list[Outgoing] = []
        self.done = False
        self.problem: HemiolaError | None = None

    def wait(self, timeout_s: float) -> None:
        """Until it is reduced.

        Raises:
            TransportError: it failed, or is not reduced in time.
        """
        if not self._gate.acquire(timeout=timeout_s):
            raise TransportError(
                f"{self._what} was not reduced within {timeout_s:g} s",
                "do all ranks run the same number of iterations?",
            )
        self._gate.release()
        if self.problem is not None:
            raise self.problem

    def soon(self, timeout_s: float) -> bool:
        """Whether it has ended, after at most so long."""
        if self._gate.acquire(timeout=timeout_s):
            self._gate.release()
        return self.done

    def wait_sent(self) -> None:
        """Until this rank's memory may be written again."""
        self._gate.acquire()
        self._gate.release()
        for handle in self.sends:
            handle.wait()

    def sent_soon(self, until_s: float) -> None:
        """Until all is sent or failed, or this moment of the monotonic clock."""
        for handle in list(self.sends):
            with suppress(TransportError):
                handle.wait(max(0.0, until_s - time.monotonic()))

    @property
    def sent(self) -> bool:
        """Whether this rank's memory may be written again."""
        return self.done and all(handle.done for handle in self.sends)

    @property
    def moved_s(self) -> tuple[float, float]:
        """When its first chunk went and its last one came, by the monotonic clock."""
        started = [handle.started_s for handle in self.sends if handle.started_s]
        return min(started, default=self.begun_s), self._ended_s

    def end_lane(self, problem: HemiolaError | None) -> None:
        """For the exchange: one of its parts has ended."""
        with self._guard:
            self._left -= 1
            self.problem = self.problem or problem
            if self.done or (self._left and not self.problem):
                return
            self.done = True
            self._ended_s = time.monotonic()
        self._gate.release()


class RowTicket(Ticket):
    """Of a table's rows: `tickets.RowTicket`."""

    def __init__(self, what: str) -> None:
        super().__init__(what, 1)
        self.rows: Tensor | None = None
        self.values: Tensor | None = None
        self.present = False

    def goes_on(self, lanes: int) -> None:
        """For the exchange: which rows is known, and they go in so many parts."""
        with self._guard:
            self._left = lanes


class Exchange:
    """One rank's all-reduces with the others."""

    skips = True
    is_seen = False

    def __init__(self, end: Endpoint, chunk_bytes: int) -> None:
        """Over a connected endpoint, in messages of about so many bytes."""
        self._end = end
        self._lane_bytes = chunk_bytes * end.ranks
        self.rooms = Rooms()
        self._known: dict[tuple[str, int], tuple[Step, ...]] = {}
        self._rows: dict[int, Tensor] = {}

    def all_reduce(
        self,
        number: int,
        name: str,
        flat: Tensor,
        priority: int = 0,
        algorithm: str = "",
        factor: float = 1.0,
    ) -> Ticket:
        """As `Carrier.all_reduce`; the number is below 2**20."""
        lanes = self._lanes(flat, algorithm)
        ticket = Ticket(name, len(lanes))
        self._end.call(
            lambda: self._begin(ticket, lanes, flat, priority, algorithm, factor, self._tag(number))
        )
        return ticket

    def reduce_rows(
        self,
        number: int,
        name: str,
        table: Tensor,
        touched: Tensor,
        present: bool,
        others: bool = False,
        priority: int = 0,
        algorithm: str = "",
        factor: float = 1.0,
    ) -> RowTicket:
        """As `RowCarrier.reduce_rows`: ranks tell each other a bit for each row, then reduce those that it says."""
        ticket = RowTicket(name)
        tag, width = self._tag(number), table.shape[1]

        def go_on(named: np.ndarray) -> None:
            ticket.present = bool(named[-1])
            rows = torch.from_numpy(np.flatnonzero(named[:-1] == (not others)))
            if len(rows) > ROWS_MOST * len(table) and not others:
                flat, fill = table.view(-1), None
            else:
                ticket.rows, ticket.values = rows, self._memory(number, table, len(rows))
                flat, values = ticket.values.view(-1), ticket.values

                def fill(start: int, stop: int) -> None:
                    own = slice(start // width, stop // width)
                    torch.index_select(table, 0, rows[own], out=values[own])

            if not flat.numel():
                ticket.end_lane(None)
                return
            lanes = self._lanes(flat, algorithm, width)
            ticket.goes_on(len(lanes))
            self._begin(ticket, lanes, flat, priority, algorithm, factor, tag + (1 << _LANE), fill)

        told = np.append(touched.numpy(), present)
        self._end.call(lambda: _Naming(self._end, ticket, told, priority, tag, go_on).begin())
        return ticket

    def _memory(self, number: int, table: Tensor, rows: int) -> Tensor:
        """For so many of a table's rows: the same every time, for fresh pages cost more than copying."""
        room, width = self._rows.get(number), table.shape[1]
        if room is None or len(room) < rows or room.dtype != table.dtype:
            room = self._rows[number] = torch.empty(rows, width, dtype=table.dtype)
        return room[:rows]

    @staticmethod
    def _tag(number: int) -> int:
        """A transfer's first."""
        return _TAGS | number << 32

    def _small(self, flat: Tensor, algorithm: str) -> bool:
        """Whether everybody sends it to everybody."""
        return flat.nbytes <= _SMALL_BYTES and self._end.ranks <= _FEW and algorithm in ("", "direct")

    def _lanes(self, flat: Tensor, algorithm: str, width: int = 1) -> list[tuple[int, int]]:
        """The elements from and to that go their way by themselves; whole rows of so many elements."""
        total, most = flat.numel(), self._lane_bytes // flat.element_size()
        count = total if self._small(flat, algorithm) else max(1, most // width) * width
        starts = range(0, max(1, total), max(1, count))
        return [(start, min(start + count, total)) for start in starts]

    def _begin(
        self, ticket: Ticket, lanes: list[tuple[int, int]], flat: Tensor, priority: int, algorithm: str, factor: float,
        tag: int, fill: Callable[[int, int], None] | None = None,
    ) -> None:  # fmt: skip
        """All lanes, on the transport's thread; each is filled before it goes."""
        size, small = flat.element_size(), self._small(flat, algorithm)
        if small:
            if fill is not None:
                fill(0, flat.numel())
            flat.mul_(factor)
        given = flat.clone() if small else flat  # what is added to is not what is sent
        into, out = view(flat), view(given)
        for number, (start, stop) in enumerate(lanes):
            steps = self._steps("everybody" if small else algorithm, stop - start)
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

    def _steps(self, algorithm: str, count: int) -> tuple[Step, ...]:
        found = self._known.get((algorithm, count))
        if found is None:
            rank, ranks = self._end.rank, self._end.ranks
            everybody = algorithm == "everybody"
            found = _everybody(rank, ranks, count) if everybody else schedule(algorithm, rank, ranks, count)
            self._known[algorithm, count] = found
        return found

    # on the transport's thread alone

    @property
    def end(self) -> Endpoint:
        """This rank's end of the transport."""
        return self._end


def _everybody(rank: int, ranks: int, count: int) -> tuple[Step, ...]:
    """All of it from everybody to everybody."""
    all_of_it = tuple(Part((rank + turn) % ranks, 0, count) for turn in range(1, ranks) if count)
    return (Step(all_of_it, all_of_it, True),)


class _Naming:
    """Ranks tell each other which rows of a table they have touched. Lives on the transport's thread."""

    def __init__(
        self, end: Endpoint, ticket: RowTicket, told: np.ndarray, priority: int, tag: int,
        go_on: Callable[[np.ndarray], None],
    ) -> None:  # fmt: skip
        self._end, self._ticket, self._priority, self._tag, self._go_on = end, ticket, priority, tag, go_on
        self._own, self._count = np.packbits(told), len(told)
        self._came = [np.empty_like(self._own) for _ in range(end.ranks - 1)]
        self._left = len(self._came)

    def begin(self) -> None:
        """Tell the others, and listen."""
        try:
            for turn, room in enumerate(self._came, start=1):
                peer = (self._end.rank + turn) % self._end.ranks
                self._ticket.sends.append(self._end.send(peer, self._tag, self._own.data, self._priority))
                self._end.receive(peer, self._tag, room.data).add_callback(self._got)
        except HemiolaError as problem:  # closed meanwhile
            self._ticket.end_lane(problem)

    def _got(self, handle: Handle) -> None:
        if handle.problem is not None:
            self._ticket.end_lane(handle.problem)
            return
        self._left -= 1
        if not self._left:
            named = np.bitwise_or.reduce([self._own, *self._came])
            self._go_on(np.unpackbits(named, count=self._count))


class _Lane:
    """A part of a tensor on its way through the steps of its algorithm. Lives on the transport's thread."""

    __slots__ = (
        "_came", "_exchange", "_flat", "_given", "_into", "_left", "_number", "_priority", "_steps", "_tag", "_ticket",
    )  # fmt: skip

    def __init__(
        self, exchange: Exchange, ticket: Ticket, flat: Tensor, into: memoryview, given: memoryview, priority: int,
        steps: tuple[Step, ...], tag: int,
    ) -> None:  # fmt: skip
        self._exchange, self._ticket, self._flat, self._tag, self._priority = (
            exchange, ticket, flat, tag, priority,
        )  # fmt: skip
        self._steps, self._into, self._given = steps, into, given
        self._number = -1
        self._left = 0
        self._came: list[tuple[int, Room]] = []

    def begin(self) -> None:
        """The first step, or the next one."""
        try:
            self._begin()
        except HemiolaError as problem:  # closed meanwhile
            self._fail(problem)

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
