"""One collective by a schedule, on its way. Lives on the transport's thread, and waits for nothing.

Pieces are independent of each other. A piece is sent when what it reads has landed; what comes is added in the
order of the schedule, so that sums are the same to the bit whoever comes first.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from hemiola.comm.schedule_executor.layout import NOBODY, Memory, Rooms, ScratchMemory
from hemiola.comm.transport import Endpoint, Handle
from hemiola.plan.collective.balance import Received

__all__ = ["CollectiveFlow", "Ended", "Join", "Meter", "nothing", "steadiest"]


Join = Callable[[Tensor, Tensor], object]
Ended = Callable[[BaseException | None], None]


def nothing() -> None:
    """Nobody wants to know."""


UNDER_WAY = 4
"""Pieces of one move that are handed to the transport at a time: more would go before what is ready meanwhile."""
AWAITED_BYTES = 8 << 20
"""Of each move that adds, so much memory is there for what is to come; at least two pieces."""


class CollectiveFlow:
    """One rank's part of one collective."""

    def __init__(
        self,
        end: Endpoint,
        rooms: Rooms,
        memory: Memory,
        join: Join,
        tag: int,
        ended: Ended,
        priority: int = 0,
        moved: Callable[[], None] = nothing,
    ) -> None:
        """Nothing happens before `begin`.

        Args:
            join: adds what came, its second argument, to its first.
            tag: its messages have this one and those behind it, as many as the schedule has moves. A later flow of
                the same tag may begin when this one has ended, not before.
            ended: called once, with what went wrong or None. The memory may be written again then.
            priority: of its messages.
            moved: called when a message has gone, or has come.
        """
        self._moved = moved
        self._end, self._rooms, self._memory, self._join = end, rooms, memory, join
        self._tag, self._ended, self._priority = tag, ended, priority
        self._steps = memory.layout.script.steps
        self._pieces = pieces = memory.layout.pieces
        self._send_waits = [[step.send_waits for step in self._steps] for _ in range(pieces)]
        self._land_waits = [[step.land_waits for step in self._steps] for _ in range(pieces)]
        self._sent = [0] * len(self._steps)
        """Of each step, pieces handed to the transport: in their order, for the peer awaits them so."""
        self._under_way = [0] * len(self._steps)
        self._asked = [0] * len(self._steps)
        self._landed = [0] * len(self._steps)
        self._came: dict[tuple[int, int], ScratchMemory] = {}
        """What has come and cannot be added yet, by step and piece."""
        self._left = pieces * len(self._steps)
        self._over = False
        self._actions: deque[Callable[[], None]] = deque()
        largest = max((self._bytes(number) for number in range(len(self._steps))), default=0)
        self._awaited = max(2, AWAITED_BYTES // max(1, largest))
        self._backs, self._forths, self._ahead = self._limits(memory.layout.ahead_bytes)
        """Of a step whose pieces wait for results: the one that brings them, and the other way round."""

    def _limits(self, ahead_bytes: int) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
        """Which step brings back the sum of what a step sends to be added, the same the other way round, and so many pieces ahead."""
        if not ahead_bytes:
            return {}, {}, {}
        sends = {s.move.source.index: n for n, s in enumerate(self._steps) if s.to != NOBODY and s.move.adds}
        backs = {
            sends[step.move.target.index]: number
            for number, step in enumerate(self._steps)
            if step.since != NOBODY and not step.move.adds and step.move.target.index in sends
        }
        forths = {back: forth for forth, back in backs.items()}
        return backs, forths, {n: max(2, ahead_bytes // max(1, self._bytes(n))) for n in backs}

    def _bytes(self, number: int) -> int:
        """Of a step's first piece, where it lies here: what comes from another rank may lie there in memory that is not here."""
        move, comes = self._steps[number].move, self._steps[number].since != NOBODY
        return self._memory.bytes(move.target if comes else move.source, move.count, 0).nbytes

    def begin(self) -> None:
        """Send what can be sent, and await what is to come."""
        self._do(self._begin)

    def stop(self, problem: BaseException) -> None:
        """End it, if it has not."""
        if not self._over:
            self._fail(problem)

    def _do(self, action: Callable[[], None]) -> None:
        """Do it, and all that it brings about, one after the other.

        What a late rank asks for may have come long ago: each message would be handled within the one before it.
        """
        self._actions.append(action)
        if len(self._actions) > 1:
            return
        while self._actions and not self._over:
            try:
                self._actions[0]()
            except Exception as problem:  # closed meanwhile, or the tensors cannot be joined
                self._fail(problem)
            self._actions.popleft()
        if not self._left and not self._over:
            self._over = True
            self._ended(None)

    def _begin(self) -> None:
        ready = [
            number
            for number, step in enumerate(self._steps)
            if step.to == step.since == NOBODY and not step.send_waits and not step.land_waits
        ]
        for number, step in enumerate(self._steps):
            if step.since != NOBODY:
                self._ask(number)
        for number in ready:
            for piece in range(self._pieces):
                self._move(number, piece)
        for number, step in enumerate(self._steps):
            if step.to != NOBODY:
                self._send(number)

    def _send(self, number: int) -> None:
        """Hand over what is ready of a step."""
        step = self._steps[number]
        while self._under_way[number] < UNDER_WAY and self._sent[number] < self._pieces:
            piece = self._sent[number]
            if self._send_waits[piece][number]:
                return
            back = self._backs.get(number)
            if back is not None and piece >= self._landed[back] + self._ahead[number]:
                return
            self._sent[number] += 1
            self._under_way[number] += 1
            data = self._memory.bytes(step.move.source, step.move.count, piece)
            handle = self._end.send(step.to, self._tag + step.tag, data, self._priority)
            handle.add_callback(partial(self._was_sent, number, piece))

    def _was_sent(self, number: int, piece: int, handle: Handle) -> None:
        self._do(partial(self._sent_on, number, piece, handle))

    def _sent_on(self, number: int, piece: int, handle: Handle) -> None:
        _check(handle)
        self._moved()
        self._under_way[number] -= 1
        self._left -= 1
        for other in self._steps[number].sent_frees:
            self._free(other, piece)
        self._send(number)

    def _ask(self, number: int) -> None:
        """Await further pieces: in their place as soon as that may be written; what is to be added, in a room."""
        step = self._steps[number]
        place, count = step.move.target, step.move.count
        while self._asked[number] < self._pieces:
            piece, room = self._asked[number], None
            if step.move.adds:
                if piece >= self._landed[number] + self._awaited:
                    return
                first, last = self._memory.layout.span(place, count, piece)
                room = self._rooms.take(self._memory.dtype, last - first)
            elif self._land_waits[piece][number]:
                return
            self._asked[number] += 1
            into = room.memory if room else self._memory.bytes(place, count, piece)
            handle = self._end.receive(step.since, self._tag + step.tag, into)
            handle.add_callback(partial(self._has_come, number, piece, room))

    def _has_come(self, number: int, piece: int, room: ScratchMemory | None, handle: Handle) -> None:
        self._do(partial(self._take, number, piece, room, handle))

    def _take(self, number: int, piece: int, room: ScratchMemory | None, handle: Handle) -> None:
        _check(handle)
        self._moved()
        if room is not None:
            self._came[number, piece] = room
        if not self._land_waits[piece][number]:
            self._land(number, piece)

    def _land(self, number: int, piece: int) -> None:
        """What has come is part of the data from now on."""
        step = self._steps[number]
        self._landed[number] += 1
        self._left -= 1
        if step.move.adds:
            room = self._came.pop((number, piece))
            with torch.inference_mode():
                self._join(self._memory.tensor(step.move.target, step.move.count, piece), room.tensor)
            self._rooms.give_back(room)
            self._ask(number)
        if number in self._forths:
            self._send(self._forths[number])
        self._go_on_after(number, piece)

    def _move(self, number: int, piece: int) -> None:
        """Within this rank."""
        move = self._steps[number].move
        source = self._memory.tensor(move.source, move.count, piece)
        target = self._memory.tensor(move.target, move.count, piece)
        with torch.inference_mode():
            self._join(target, source) if move.adds else target.copy_(source)
        self._left -= 1
        for other in self._steps[number].sent_frees:
            self._free(other, piece)
        self._go_on_after(number, piece)

    def _go_on_after(self, number: int, piece: int) -> None:
        """Begin what waited for this step to land."""
        waits = self._send_waits[piece]
        for other in self._steps[number].landed_sends:
            waits[other] -= 1
            if waits[other]:
                continue
            if self._steps[other].to != NOBODY:
                self._send(other)
            elif not self._land_waits[piece][other]:
                self._move(other, piece)
        for other in self._steps[number].landed_frees:
            self._free(other, piece)

    def _free(self, number: int, piece: int) -> None:
        """One thing less before a step may land."""
        waits = self._land_waits[piece]
        waits[number] -= 1
        if waits[number]:
            return
        step = self._steps[number]
        if step.since == NOBODY:
            if not self._send_waits[piece][number]:
                self._move(number, piece)
        elif not step.move.adds:
            self._ask(number)
        elif (number, piece) in self._came:
            self._land(number, piece)

    def _fail(self, problem: BaseException) -> None:
        """Nobody would learn of what is raised on the transport's thread: others would wait for ever."""
        self._over = True
        self._ended(problem)


def _check(handle: Handle) -> None:
    """Go on only if this message went well."""
    if handle.problem is not None:
        raise handle.problem


# What comes to a rank while collectives are under way, as its kernel counts it. Lives on the transport's
# thread.

EVERY_S = 1e-3
"""Looked no more often."""
HALF_S, OF_TIME = 8e-3, 1 / 16
"""The rate of a link is seen where as much comes for so long, and so much of the collective's time, and once more."""
HELD_UP_S = 0.5e-3
"""What is read within more than this tells no rate: this thread had to wait meanwhile."""


class Meter:
    """Of one rank. Every `begin` has one `end`."""

    def __init__(self, end: Endpoint) -> None:
        """Over a connected endpoint."""
        self._end = end
        self._under_way = 0
        self._at_s: list[float] = []
        self._bytes: list[int] = []

    def begin(self) -> int:
        """A collective begins; to be given to `end`."""
        if not self._under_way:
            self._at_s.clear()
            self._bytes.clear()
        self._under_way += 1
        self._look()
        return len(self._at_s) - 1

    def look(self) -> None:
        """Something has come, or gone."""
        if self._under_way and time.monotonic() - self._at_s[-1] >= EVERY_S:
            self._look(HELD_UP_S)

    def end(self, begun: int) -> Received:
        """A collective has ended: what came to this rank meanwhile."""
        self._look()
        self._under_way -= 1
        at_s, came = self._at_s[begun:], self._bytes[begun:]
        took_s = at_s[-1] - at_s[0]
        return Received(took_s, steadiest(at_s, came, max(HALF_S, OF_TIME * took_s)))

    def _look(self, within_s: float = math.inf) -> None:
        before_s = time.monotonic()
        came = self._end.received_bytes()
        after_s = time.monotonic()
        if after_s - before_s <= within_s:
            self._at_s.append((before_s + after_s) / 2)
            self._bytes.append(came)


def steadiest(at_s: Sequence[float], came: Sequence[float], half_s: float) -> float:
    """The highest rate that was kept up for twice so long: the lower one of two neighbouring stretches; 0 if there are none.

    What has waited somewhere comes faster than a link for a moment: the burst that a switch lets pass after a pause,
    what TCP held back until a lost packet came. It does not do so twice.

    Args:
        at_s, came: moments, and what had come by then, both growing.
        half_s: each stretch is the shortest that takes so long.
    """
    rates: list[tuple[int, float]] = []
    """Of the stretch that ends at each moment: where it began."""
    found, first = 0.0, 0
    for last, now in enumerate(at_s):
        while first < last and now - at_s[first + 1] >= half_s:
            first += 1
        rate = (came[last] - came[first]) / (now - at_s[first]) if now - at_s[first] >= half_s else 0.0
        rates.append((first, rate))
        found = max(found, min(rate, rates[first][1]))
    return found
