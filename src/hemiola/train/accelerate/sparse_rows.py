"""Reducing some rows of a table, where ranks first have to tell each other which.

A bit per row says it. Where ranks can tell before their gradients are there (what was looked up), that is what goes, at once,
when they are; which rows a gradient really has is told beside it, and what was not named before follows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hemiola.comm.transport import Endpoint, Handle
from hemiola.comm.transport.messages import Gate, Outgoing
from hemiola.core.errors import HemiolaError, TransportError
from hemiola.core.plan import ROWS_MOST

__all__ = ["BitExchange", "Fill", "TableRowNames", "TableRowTransfer", "TransferInFlight", "names_of"]


# A transfer of the exchange while it is under way.


class TransferInFlight:
    """A transfer under way.

    Attributes:
        problem: why it failed.
        stood_s: how long the engine has stood still for it.
    """

    def __init__(self, what: str, lanes: int) -> None:
        self._what = what
        self._begun_s = time.monotonic()
        self._ended_s = 0.0
        self._left = lanes
        self._guard = threading.Lock()
        self._gate = Gate()
        self.sends: list[Outgoing] = []
        self.stood_s = 0.0
        self.problem: HemiolaError | None = None

    @property
    def done(self) -> bool:
        """Whether it is reduced, or has failed."""
        return self._gate.is_open

    def wait(self, timeout_s: float) -> None:
        """Until it is reduced, or was stood still for so long in all.

        Raises:
            TransportError: it failed, or is not reduced in time.
        """
        if not self._gate.wait(timeout_s - self.stood_s):
            raise TransportError(
                f"{self._what} was not reduced within {timeout_s:g} s",
                "do all ranks run the same number of iterations?",
            )
        if self.problem is not None:
            raise self.problem

    def soon(self, timeout_s: float) -> bool:
        """Whether it has ended, after at most so long."""
        return self._gate.wait(timeout_s)

    def wait_sent(self) -> None:
        """Until this rank's memory may be written again."""
        self._gate.wait()
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
        return min(started, default=self._begun_s), self._ended_s

    def end_lane(self, problem: HemiolaError | None) -> None:
        """For the exchange: one of its parts has ended."""
        with self._guard:
            self._left -= 1
            self.problem = self.problem or problem
            if self.done or (self._left and not self.problem):
                return
            self._ended_s = time.monotonic()
            self._gate.open()


Bools = npt.NDArray[np.bool_]
Fill = Callable[[int, int], None]
"""Brings elements from and to into the memory that is reduced, before they go."""


class BitExchange:
    """Ranks tell each other bits, and each has what any of them has told. Lives on the transport's thread.

    Attributes:
        told: (count,) of booleans, once all have told.
        sends: this rank's messages.
    """

    def __init__(self, end: Endpoint, own: Bools, priority: int, tag: int) -> None:
        """This rank's, (count,)."""
        self._end, self._priority, self._tag = end, priority, tag
        self._own, self._count = np.packbits(own), len(own)
        self._came = [np.empty_like(self._own) for _ in range(end.ranks - 1)]
        self._left = len(self._came)
        self._waiting: list[Callable[[HemiolaError | None], None]] = []
        self._problem: HemiolaError | None = None
        self.sends: list[Outgoing] = []
        self.told: Bools = np.zeros(0, dtype=np.bool_)

    def begin(self) -> None:
        """Tell the others, and listen."""
        try:
            for turn, room in enumerate(self._came, start=1):
                peer = (self._end.rank + turn) % self._end.ranks
                self.sends.append(self._end.send(peer, self._tag, self._own.data, self._priority))
                self._end.receive(peer, self._tag, room.data).add_callback(self._got)
        except HemiolaError as problem:  # closed meanwhile
            self._ends(problem)

    def then(self, do: Callable[[HemiolaError | None], None]) -> None:
        """Have this called once all have told, or it is known why one cannot; after what was asked for before."""
        if self._left and self._problem is None:
            self._waiting.append(do)
        else:
            do(self._problem)

    def _got(self, handle: Handle) -> None:
        if self._problem is not None:
            return
        if handle.problem is not None:
            self._ends(handle.problem)
            return
        self._left -= 1
        if not self._left:
            found = np.bitwise_or.reduce([self._own, *self._came])
            self.told = np.unpackbits(found, count=self._count).view(np.bool_)
            self._ends(None)

    def _ends(self, problem: HemiolaError | None) -> None:
        self._problem = problem
        waiting, self._waiting = self._waiting, []
        for do in waiting:
            do(problem)


@dataclass(frozen=True)
class TableRowNames:
    """Of what ranks tell each other, the bits that stand for one table's rows.

    Attributes:
        telling: all of it.
    """

    telling: BitExchange
    start: int
    stop: int

    @property
    def union(self) -> Bools:
        """(rows,) what any rank has named, once all have told."""
        return self.telling.told[self.start : self.stop]


def names_of(telling: BitExchange, rows: Iterable[int]) -> list[TableRowNames]:
    """Of tables of so many rows, one behind the other."""
    ends = list(accumulate(rows, initial=0))
    return [TableRowNames(telling, start, stop) for start, stop in pairwise(ends)]


class TableRowTransfer(TransferInFlight):
    """Of a table's rows: `handles.RowTransfer`. What begins with an underscore lives on the transport's thread."""

    def __init__(
        self, what: str, table: Tensor, names: TableRowNames | None, others: bool,
        reduce: Callable[[TableRowTransfer, Tensor, Fill | None, bool], None], memory: Callable[[int, bool], Tensor],
    ) -> None:  # fmt: skip
        """Of this table, (rows, width).

        Args:
            names: which rows, as far as ranks know before; `end_by` tells the rest.
            others: all but these instead, and nothing is told at the end.
            reduce: begins to add up such elements of everybody, and calls `goes_on`; whether it is for the second time.
            memory: (rows, width) for so many rows; whether for the second time.
        """
        super().__init__(what, 1)
        self._table, self._names, self._others, self._reduce, self._memory = (
            table, names, others, reduce, memory,
        )  # fmt: skip
        self.parts: list[tuple[Tensor, Tensor]] = []
        self.whole = False
        self.present = False

    def goes_on(self, lanes: int) -> None:
        """For the exchange: there are so many parts more."""
        with self._guard:
            self._left += lanes

    def begin(self) -> None:
        """On the transport's thread: what was named before."""
        if self._names is not None:
            self.sends += self._names.telling.sends
            self._names.telling.then(self._named_before)

    def end_by(self, names: TableRowNames, presence: TableRowNames) -> None:
        """On the transport's thread: these are the rows of all, and in one bit whether anybody has a gradient."""
        self.sends += names.telling.sends
        names.telling.then(lambda problem: self._named(names, presence, problem))

    def _named_before(self, problem: HemiolaError | None) -> None:
        if problem is not None:
            self.end_lane(problem)
            return
        assert self._names is not None
        union = self._names.union
        self._begin_with(~union if self._others else union, False)
        if self._others:
            self.end_lane(None)

    def _named(self, names: TableRowNames, presence: TableRowNames, problem: HemiolaError | None) -> None:
        if problem is not None:
            self.end_lane(problem)
            return
        self.present = bool(presence.union.any())
        before = self._names
        if before is None:
            self._end_with(names.union, False)
            return

        def end(problem: HemiolaError | None) -> None:
            if problem is None:  # else it has ended by it
                self._end_with(names.union & ~before.union, True)

        before.telling.then(end)  # which may be told last

    def _end_with(self, rows: Bools, again: bool) -> None:
        self._begin_with(rows, again)
        self.end_lane(None)

    def _begin_with(self, named: Bools, again: bool) -> None:
        rows = torch.from_numpy(np.flatnonzero(named))
        if not len(rows) or self.whole:
            return
        table = self._table
        if len(rows) > ROWS_MOST * len(table) and not (again or self._others):
            self.whole = True
            self._reduce(self, table.view(-1), None, again)
            return
        values, width = self._memory(len(rows), again), table.shape[1]
        self.parts.append((rows, values))

        def fill(start: int, stop: int) -> None:
            own = slice(start // width, stop // width)
            torch.index_select(table, 0, rows[own], out=values[own])

        self._reduce(self, values.view(-1), fill, again)
