"""Memory for what is to be added, used again and again: fresh pages cost more than the addition."""

from __future__ import annotations

import torch
from torch import Tensor

from hemiola.run.group.memory import view

__all__ = ["Room", "Rooms"]

Room = tuple[Tensor, memoryview]
"""Memory, twice."""


class Rooms:
    """For use from one thread."""

    def __init__(self) -> None:
        self._free: dict[tuple[torch.dtype, int], list[Room]] = {}

    def take(self, dtype: torch.dtype, count: int) -> Room:
        """For so many elements."""
        free = self._free.get((dtype, count))
        if free:
            return free.pop()
        tensor = torch.empty(count, dtype=dtype)
        return tensor, view(tensor)

    def give_back(self, room: Room) -> None:
        """For the next one."""
        self._free.setdefault((room[0].dtype, room[0].numel()), []).append(room)
