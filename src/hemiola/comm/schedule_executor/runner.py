"""A group's collectives by schedules: several at once, begun in the order in which they were called."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from hemiola.comm.schedule_executor.flow import CollectiveFlow, Ended, Join, nothing
from hemiola.comm.schedule_executor.layout import ChunkLayout, Memory, Rooms, layout_of
from hemiola.comm.transport import Endpoint
from hemiola.core.collective.schedule import CollectiveSchedule
from hemiola.core.errors import HemiolaError, TransportError

__all__ = ["GRACE_S", "InFlightCount", "Put", "Runner", "stop_later"]


# How many things are under way, for who waits until none is.


class InFlightCount:
    """A count that threads share."""

    def __init__(self, what: str) -> None:
        """Of these, in the plural, for people."""
        self._what = what
        self._count = 0
        self._changed = threading.Condition()

    def begin(self) -> None:
        """One more."""
        with self._changed:
            self._count += 1

    def end(self) -> None:
        """One less."""
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait_idle(self, timeout_s: float) -> None:
        """Until none is.

        Raises:
            TransportError: some still are after so long.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._count, timeout_s):
                raise TransportError(
                    f"{self._what} were not complete within {timeout_s:g} s",
                    "do all ranks call the same ones?",
                )


# What is under way when a rank is lost: given a moment, and then ended.

GRACE_S = 2.0
"""What is under way may end well after a rank is lost: it may have done its part of a script's last collective."""


class _Stoppable(Protocol):
    def stop(self, problem: HemiolaError) -> None:
        """End it, if it has not."""


def stop_later(end: Endpoint, doomed: Iterable[_Stoppable], problem: HemiolaError, after_s: float) -> None:
    """End these with this problem after so long, on the transport's thread."""
    left = list(doomed)

    def stop() -> None:
        for one in left:
            one.stop(problem)

    timer = threading.Timer(after_s, lambda: end.call(stop))
    timer.daemon = True
    timer.start()


Put = Callable[[Tensor], object]

_TAGS = 1 << 61
"""Above those of other collectives, and of messages that scripts send."""
_MOVES = 1 << 24
"""Tags of one collective."""
AT_ONCE = 8
"""Collectives under way: of those begun, none is so many behind the last one. Tags are used again after as many."""
_KNOWN = 64
"""Divisions of data that are kept."""


@dataclass(eq=False)
class _Entry:
    """A collective that has been called.

    Attributes:
        memory: None until its schedule is known.
        problem: why that will not be.
    """

    number: int
    join: Join
    ended: Ended
    priority: int
    memory: Memory | None = None
    problem: BaseException | None = None


class Runner:
    """One rank's side.

    Attributes:
        end: of the transport.
    """

    def __init__(self, end: Endpoint, tags: int = _TAGS, moved: Callable[[], None] = nothing) -> None:
        """Over a connected endpoint; its messages have these tags and those behind them.

        Args:
            moved: called, on the transport's thread, when one of them has gone or has come.
        """
        self.end = self._end = end
        self._tags, self._moved = tags, moved
        self._rooms = Rooms()
        self._guard = threading.Lock()
        self._count = 0
        self._begun = InFlightCount("collectives")
        self._waiting: deque[_Entry] = deque()
        self._under_way: dict[int, CollectiveFlow] = {}
        self._broken: HemiolaError | None = None
        self._stopped: HemiolaError | None = None
        self._beginning = False
        self._layouts: OrderedDict[tuple[int, int, int], tuple[CollectiveSchedule, ChunkLayout]] = (
            OrderedDict()
        )
        end.watch(self._break)

    def start(
        self,
        schedule: CollectiveSchedule,
        given: Tensor,
        join: Join,
        put: Put,
        ended: Ended,
        priority: int = 0,
    ) -> None:
        """Begin a collective; all ranks begin the same ones in the same order.

        Args:
            schedule: proved right (`CollectiveSchedule.verify`), for so many ranks.
            given: flat: what this rank gives; of an all-gather, its part. Changed, where the schedule is in place.
            join: adds its second argument to its first, in place.
            put: called with the result, flat: of a reduce-scatter, this rank's part. It may be `given` itself. What
                an all-gather has is in as many rows as ranks.
            ended: called after it, with what went wrong or None. Both are called on the transport's thread.
            priority: of its messages, over those of others that are under way.

        Raises:
            ScheduleError: it is for another number of ranks.
        """
        schedule.check_ranks(self._end.ranks)
        memory, over = self._prepared(schedule, given, put, ended)
        with self._guard:
            entry = self._next(join, over, priority)
            entry.memory = memory
            self._end.call(lambda: self._add(entry))

    def reserve(
        self, given: Tensor, join: Join, put: Put, ended: Ended, priority: int = 0
    ) -> Callable[[CollectiveSchedule | BaseException], None]:
        """Begin one whose schedule is not known yet; later ones begin after it.

        Args:
            given, join, put, ended, priority: as for `start`.

        Returns:
            To be called, on the transport's thread, with the schedule, or with what went wrong.
        """
        with self._guard:
            entry = self._next(join, ended, priority)
            self._end.call(lambda: self._add(entry))

        def known(schedule: CollectiveSchedule | BaseException) -> None:
            try:
                if isinstance(schedule, BaseException):
                    raise schedule
                entry.memory, entry.ended = self._prepared(schedule, given, put, ended)
            except Exception as problem:
                entry.problem = problem
            self._begin()

        return known

    def _next(self, join: Join, ended: Ended, priority: int) -> _Entry:
        number, self._count = self._count, self._count + 1
        self._begun.begin()
        return _Entry(number, join, ended, priority)

    def _prepared(
        self, schedule: CollectiveSchedule, given: Tensor, put: Put, ended: Ended
    ) -> tuple[Memory, Ended]:
        """What a schedule works on, and what is done at its end."""
        end = self._end
        buffers, result = _buffers(schedule, end.rank, given)
        whole = buffers.get("output" if schedule.collective == "all-gather" else "input", given)
        wanted = given.numel() // end.ranks if schedule.collective == "reduce-scatter" else given.numel()

        def over(problem: BaseException | None) -> None:
            if problem is None:
                try:
                    with torch.inference_mode():
                        put(_cut(schedule, result, wanted))
                except Exception as raised:
                    problem = raised
            ended(problem)

        return Memory(self._layout(schedule, whole.numel(), whole.element_size()), buffers), over

    def let_go(self) -> None:
        """Something else is to be sent: as fast as it goes, until the next one begins."""
        self._end.call(lambda: self._end.pace({}))

    def wait_idle(self, timeout_s: float) -> None:
        """Until all that was begun here has ended.

        Raises:
            TransportError: it has not in time.
        """
        self._begun.wait_idle(timeout_s)

    def _layout(self, schedule: CollectiveSchedule, elements: int, element_bytes: int) -> ChunkLayout:
        key = (id(schedule), elements, element_bytes)
        with self._guard:
            known = self._layouts.get(key)
            if known is None:
                known = schedule, layout_of(schedule, self._end.rank, elements, element_bytes)
                self._layouts[key] = known  # with the schedule, so that no other gets its id
                if len(self._layouts) > _KNOWN:
                    self._layouts.popitem(last=False)
        return known[1]

    # on the transport's thread alone

    def _add(self, entry: _Entry) -> None:
        self._waiting.append(entry)
        self._begin()

    def _begin(self) -> None:
        if self._beginning:  # one that ends as it begins comes here, and the loop below goes on
            return
        self._beginning = True
        try:
            self._begin_all()
        finally:
            self._beginning = False

    def _begin_all(self) -> None:
        while self._waiting and self._waiting[0].number < min(self._under_way, default=1 << 62) + AT_ONCE:
            entry = self._waiting[0]
            if entry.memory is None and entry.problem is None:
                if self._stopped is None:
                    return
                entry.problem = self._stopped
            self._waiting.popleft()
            number, over = entry.number, partial(self._over, entry.number, entry.ended)
            if entry.memory is None:
                assert entry.problem is not None
                entry.ended(entry.problem)
                self._begun.end()
                continue
            self._end.pace(entry.memory.layout.paces)
            tag = self._tags + number % AT_ONCE * _MOVES
            try:
                flow = CollectiveFlow(
                    self._end, self._rooms, entry.memory, entry.join, tag, over, entry.priority, self._moved
                )
            except Exception as problem:
                entry.ended(problem)
                self._begun.end()
                continue
            self._under_way[number] = flow
            if self._broken is None:
                flow.begin()
            else:
                flow.stop(self._broken)

    def _over(self, number: int, ended: Ended, problem: BaseException | None) -> None:
        del self._under_way[number]
        ended(problem)
        self._begun.end()
        self._begin()

    def _break(self, problem: HemiolaError) -> None:
        """A rank is lost, and with it every collective: some ranks talk to it, others wait for these."""
        self._broken = self._broken or problem
        stop_later(self._end, [*self._under_way.values(), self], problem, GRACE_S)

    def stop(self, problem: HemiolaError) -> None:
        """End what waits for its schedule: who would tell it may have ended with this too."""
        self._stopped = self._stopped or problem
        self._begin()


def _buffers(schedule: CollectiveSchedule, rank: int, given: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A rank's buffers by name, and where its result will lie."""
    kind, ranks, in_place = schedule.collective, schedule.ranks, schedule.in_place
    parted = kind in ("reduce-scatter", "all-to-all")
    own = _filled(schedule, given, ranks if parted else 1)
    if kind == "all-gather":
        whole = own.new_empty(own.numel() * ranks)
        if in_place:
            whole.view(ranks, -1)[rank].copy_(own)
            return {"output": whole}, whole
        return {"input": own, "output": whole}, whole
    if kind == "reduce-scatter":
        if in_place:
            return {"input": own}, own.view(ranks, -1)[rank]
        part = own.new_empty(own.numel() // ranks)
        return {"input": own, "output": part}, part
    if in_place:
        return {"input": own}, own
    whole = torch.empty_like(own)
    return {"input": own, "output": whole}, whole


def _cut(schedule: CollectiveSchedule, result: Tensor, wanted: int) -> Tensor:
    """The result without what filled it up.

    Args:
        wanted: elements, in every row.
    """
    rows = schedule.ranks if schedule.collective in ("all-gather", "all-to-all") else 1
    wide = wanted // schedule.ranks if schedule.collective == "all-to-all" else wanted
    table = result.view(rows, -1)[:, :wide]
    return table if rows > 1 else table.reshape(-1)


def _filled(schedule: CollectiveSchedule, given: Tensor, parts: int) -> Tensor:
    """The tensor, filled up in every part to whole chunks where chunks move among places."""
    chunks = (
        schedule.chunks // schedule.ranks if schedule.collective == "all-gather" else schedule.chunks // parts
    )
    wide = given.numel() // parts
    if wide % chunks == 0 or schedule.keeps_places:
        return given
    filled = given.new_zeros(parts, -(-wide // chunks) * chunks)
    filled[:, :wide] = given.view(parts, wide)
    return filled.view(-1)
