"""One sum at one rank: its parts, what late ranks send, and in which order that is added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hemiola.run.late.coordinator import CatchUp, Part
from hemiola.run.strategy.flow import Ended, Join
from hemiola.run.strategy.rooms import Room, Rooms
from hemiola.run.strategy.runner import Put

__all__ = ["Mine", "Missed", "Sum"]

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
class _Part:
    order: Part
    tensor: Tensor
    """Of `Mine.flat` where this rank gives, else a room's."""
    room: Room | None
    done: bool = False


@dataclass
class _CatchUp:
    order: CatchUp
    tensor: Tensor
    room: Room | None
    done: bool = False


@dataclass
class Sum:
    """For use from one thread.

    Attributes:
        rank, ranks: this one, of how many.
        dtype, join: of the data.
        carries: whether what comes too late is kept for the next sum.
        mine: None until the script gets here.
    """

    rank: int
    ranks: int
    dtype: torch.dtype
    join: Join
    carries: bool
    rooms: Rooms
    mine: Mine | None = None
    _parts: list[_Part] = field(default_factory=list)
    _catching: list[_CatchUp] = field(default_factory=list)
    _joined: int = 0
    _elements: int = 0

    def begin(self, order: Part) -> tuple[Tensor, Callable[[], None]]:
        """Memory for a part, and what to call when it is added up."""
        self._elements = order.given.elements
        room = None
        if self.rank in order.active:
            assert self.mine is not None
            tensor = self.mine.flat[order.first : order.last]
        else:
            room = self.rooms.take(self.dtype, order.last - order.first)
            tensor = room[0]
        part = _Part(order, tensor, room)
        self._parts.append(part)

        def over() -> None:
            part.done = True

        return tensor, over

    def catch_up(self, order: CatchUp) -> tuple[Tensor, Callable[[], None]]:
        """Memory that holds what a late rank gives, or will; and what to call when it has come."""
        room = None
        if order.rank == self.rank:
            assert self.mine is not None
            tensor = self.mine.flat[: order.last]
        else:
            room = self.rooms.take(self.dtype, order.last)
            tensor = room[0]
        catching = _CatchUp(order, tensor, room)
        self._catching.append(catching)

        def over() -> None:
            catching.done = True

        return tensor, over

    def is_complete(self) -> bool:
        """Whether the script can have its result; adds what can be added."""
        self._join()
        whole = sum(part.order.last - part.order.first for part in self._parts) == self._elements > 0
        if self.mine is None or not whole or not all(part.done for part in self._parts):
            return False
        missing = {
            rank for part in self._parts for rank in range(self.ranks) if rank not in part.order.active
        }
        return self.carries or {one.order.rank for one in self._catching[: self._joined]} == missing

    def finish(self) -> None:
        """Hand it over."""
        mine = self.mine
        assert mine is not None
        missed: Missed = []
        with torch.no_grad():
            for part in self._parts:
                if part.room is not None:
                    place = mine.flat[part.order.first : part.order.last]
                    if self.carries:
                        missed.append((part.order.first, place.clone()))
                    place.copy_(part.tensor)
                    self.rooms.give_back(part.room)
        if missed:
            mine.keep(missed)
        mine.put(mine.flat)

    def _join(self) -> None:
        """Add what late ranks sent, at every rank in the same order."""
        while self._joined < len(self._catching) and self._catching[self._joined].done:
            caught = self._catching[self._joined]
            parts = [part for part in self._parts if caught.order.rank not in part.order.active]
            if not all(part.done for part in parts):
                return
            with torch.no_grad():
                for part in parts:
                    self.join(part.tensor, caught.tensor[part.order.first : part.order.last])
            if caught.room is not None:
                self.rooms.give_back(caught.room)
            self._joined += 1
