"""One sum at one rank: its parts, what late ranks send, and in which order that is added."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hemiola.comm.schedule_executor.flow import Ended, Join
from hemiola.comm.schedule_executor.layout import Rooms, ScratchMemory
from hemiola.comm.schedule_executor.runner import Put
from hemiola.comm.stragglers.coordinator import CatchUp, PartialGroup

__all__ = ["Mine", "Missed", "Sum", "SumStep"]

Missed = list[tuple[int, Tensor]]
"""What came too late to be added: from which element on, and what."""


@dataclass(frozen=True)
class Mine:
    """What this rank's script wants.

    Attributes:
        flat: gives, and gets the result.
        put: called with it then.
        ended: called after it, with what went wrong or None.
        keep: called with what came too late for this sum, where that is kept for the next one.
    """

    flat: Tensor
    put: Put
    ended: Ended
    keep: Callable[[Missed], None]


@dataclass
class SumStep:
    """Something under way, and the memory that it needs.

    Attributes:
        order: that it follows.
        tensor: of `Mine.flat`, or of the room.
        room: to be given back.
        parts: of what is brought, those whose results are not on their way yet.
        left: messages of it that have not ended.
        done: here.
    """

    order: PartialGroup | CatchUp
    tensor: Tensor
    room: ScratchMemory | None
    parts: list[PartialGroup] = field(default_factory=list)
    left: int = 0
    done: bool = False


@dataclass
class Sum:
    """For use from one thread.

    Attributes:
        rank, ranks: this one, of how many.
        dtype, join: of the data.
        carries: whether what comes too late is kept for the next sum. Late ranks have the parts' results then; otherwise
            they are brought them when they catch up.
        mine: None until the script gets here.
    """

    rank: int
    ranks: int
    dtype: torch.dtype
    join: Join
    carries: bool
    rooms: Rooms
    mine: Mine | None = None
    _parts: dict[PartialGroup, SumStep] = field(default_factory=dict)
    _caught: dict[CatchUp, SumStep] = field(default_factory=dict)
    _brought: dict[CatchUp, SumStep] = field(default_factory=dict)
    """Of ranks that catch up, the parts' results: what is brought to this one, or what it brings to them."""

    def begin(self, order: PartialGroup) -> SumStep:
        """Memory for a part."""
        part = self._parts[order] = self._step(order, order.first, order.last, self.rank in order.active)
        return part

    def over(self, step: SumStep) -> None:
        """It has been done. What was only relayed is not needed any more."""
        step.done = True
        if isinstance(step.order, PartialGroup) and not self.carries:
            self._give_back(step)

    def catch_up(self, order: CatchUp) -> SumStep:
        """Memory for what a late rank gives: it holds it, or will."""
        caught = self._caught[order] = self._step(order, 0, order.last, self.rank == order.rank)
        return caught

    def bring(self, order: CatchUp) -> tuple[int, SumStep] | None:
        """With whom, and memory for, the parts' results that a late rank is brought; None if this one has no share in it.

        The first rank that was never late brings them.
        """
        source = self.source
        if self.rank not in (source, order.rank):
            return None
        brought = self._brought[order] = self._step(order, 0, order.last, self.rank == source)
        brought.parts = [part for part in self._parts if part.first < order.last]
        brought.left = len(brought.parts)
        return (order.rank if self.rank == source else source), brought

    @property
    def source(self) -> int:
        """Who brings others the parts' results: it gave to all of them."""
        return min(next(iter(self._parts)).active)

    def to_bring(self) -> Iterator[tuple[CatchUp, SumStep, Tensor]]:
        """Parts' results that late ranks are to be brought from here and are there now: each once, in their order."""
        for order, step in self._brought.items():
            while order.rank != self.rank and step.parts and self._parts[step.parts[0]].done:
                part = step.parts.pop(0)
                yield order, step, step.tensor[part.first : part.last]

    def is_whole(self) -> bool:
        """Whether all that the script's result needs has been ordered."""
        if not self._parts:
            return False
        some = next(iter(self._parts)).given.elements
        if sum(part.last - part.first for part in self._parts) != some:
            return False
        missing = {rank for part in self._parts for rank in range(self.ranks) if rank not in part.active}
        return self.carries or {order.rank for order in self._caught} == missing

    def is_complete(self) -> bool:
        """Whether all of that is there."""
        steps = (*self._parts.values(), *self._caught.values(), *self._brought.values())
        return self.mine is not None and self.is_whole() and all(step.done for step in steps)

    def finish(self) -> None:
        """Hand it over."""
        assert self.mine is not None
        with torch.inference_mode():
            missed = self._carried() if self.carries else self._added()
            for step in (*self._parts.values(), *self._caught.values(), *self._brought.values()):
                self._give_back(step)
            if missed:
                self.mine.keep(missed)
            self.mine.put(self.mine.flat)

    def _give_back(self, step: SumStep) -> None:
        if step.room is not None:
            self.rooms.give_back(step.room)
            step.room = None

    def _step(self, order: PartialGroup | CatchUp, first: int, last: int, own: bool) -> SumStep:
        if own:
            assert self.mine is not None
            return SumStep(order, self.mine.flat[first:last], None)
        room = self.rooms.take(self.dtype, last - first)
        return SumStep(order, room.tensor, room)

    def _carried(self) -> Missed:
        """Take the results of parts that this rank gave nothing to."""
        assert self.mine is not None
        missed: Missed = []
        for part, step in self._parts.items():
            if step.room is not None:
                place = self.mine.flat[part.first : part.last]
                missed.append((part.first, place.clone()))
                place.copy_(step.tensor)
        return missed

    def _added(self) -> Missed:
        """Add what late ranks gave to the parts without them, at every rank in the order of their orders."""
        assert self.mine is not None
        own = next((step.tensor for order, step in self._brought.items() if order.rank == self.rank), None)
        for part in self._parts:
            place = self.mine.flat[part.first : part.last]
            here = place
            if self.rank not in part.active:
                assert own is not None
                here = own[part.first : part.last]
            for order, caught in self._caught.items():
                if order.rank not in part.active:
                    self.join(here, caught.tensor[part.first : part.last])
            if here is not place:
                place.copy_(here)
        return []
