"""Memory for what is to be added, used again and again: fresh pages cost more than the addition."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hemiola.comm.process_group.memory import view

__all__ = ["ScratchMemory", "Rooms"]

_FEWEST = 256
"""Elements of the smallest room. Others have a power of two of them: there are few sizes, whatever is asked for."""
_Whole = tuple[Tensor, memoryview]


class ScratchMemory(NamedTuple):
    """Memory, twice, and the whole of which it is the beginning."""

    tensor: Tensor
    memory: memoryview
    whole: _Whole


class Rooms:
    """For use from one thread."""

    def __init__(self) -> None:
        self._free: dict[tuple[torch.dtype, int], list[_Whole]] = {}

    def take(self, dtype: torch.dtype, count: int) -> ScratchMemory:
        """For so many elements."""
        size = max(_FEWEST, 1 << (count - 1).bit_length())
        free = self._free.get((dtype, size))
        if free:
            whole = free.pop()
        else:
            with torch.inference_mode(False):  # who uses it next may be in another mode
                tensor = torch.empty(size, dtype=dtype, device="cpu")
            whole = tensor, view(tensor)
        return ScratchMemory(whole[0][:count], whole[1][: count * dtype.itemsize], whole)

    def give_back(self, room: ScratchMemory) -> None:
        """For the next one."""
        tensor, _ = room.whole
        self._free.setdefault((tensor.dtype, tensor.numel()), []).append(room.whole)
