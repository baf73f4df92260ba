"""Memory behind tensors: who wrote and read which bytes last, and from when to when it lived.

Tensors that are views of each other share a storage, so data flow is followed through storages and
byte ranges, not through tensors. A strided range counts as all bytes between its first and its last.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Access", "Storage", "Storages", "peak_bytes"]


@dataclass(eq=False)
class Storage:
    """One stretch of memory.

    Attributes:
        size_bytes: its length.
        born, died: rows of the operations that made it and before which it was freed; `born` is -1
            for memory that was there before, `died` is -1 for memory that is there at the end.
        counted: whether it belongs to the activations.
        parameter: the parameter that it holds, or holds the gradient or optimizer state of; -1 if none.
        history: (row, first byte, end byte, whether written) of accesses not overwritten since.
    """

    size_bytes: int
    born: int = -1
    died: int = -1
    counted: bool = False
    parameter: int = -1
    history: list[tuple[int, int, int, bool]] = field(default_factory=list)

    def waits_for(self, first: int, end: int, writes: bool) -> set[int]:
        """Rows whose work must be done before these bytes are read (or written)."""
        return {
            row for row, low, high, wrote in self.history if (wrote or writes) and low < end and first < high
        }

    def accessed(self, row: int, first: int, end: int, writes: bool) -> None:
        """Remember an access; a write hides what it covers."""
        if writes:
            self.history = [entry for entry in self.history if not (first <= entry[1] and entry[2] <= end)]
        self.history.append((row, first, end, writes))


class Access(NamedTuple):
    """What a tensor covers of its storage.

    Attributes:
        storage: the memory.
        first, end: bytes from, to.
        touched_bytes: of distinct elements (an expanded dimension counts once).
    """

    storage: Storage
    first: int
    end: int
    touched_bytes: int


class Storages:
    """The memory that has been seen, and when each part of it was freed.

    Args:
        now: the number of operations so far.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self.all: list[Storage] = []
        self._now = now
        self._living: dict[int, Storage] = {}
        self._watches: dict[int, weakref.ref[Any]] = {}

    def of(self, tensor: Any, born: int = -1, counted: bool = False) -> Storage:
        """The storage of a strided tensor; `born` and `counted` matter where it is new."""
        memory = tensor.untyped_storage()
        address = memory._cdata
        known = self._living.get(address)
        if known is not None:
            return known
        storage = Storage(memory.nbytes(), born, counted=counted)
        self.all.append(storage)
        self._living[address] = storage
        self._watches[address] = weakref.ref(memory, lambda _: self._freed(address))
        return storage

    def access(self, tensor: Any, born: int = -1, counted: bool = False) -> Access:
        """What a strided tensor covers of its storage."""
        item = tensor.itemsize
        shape, strides = tensor.shape, tensor.stride()
        first = tensor.storage_offset() * item
        if 0 in shape:
            return Access(self.of(tensor, born, counted), first, first, 0)
        span = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
        touched = math.prod(size for size, stride in zip(shape, strides, strict=True) if stride)
        return Access(self.of(tensor, born, counted), first, first + span * item, touched * item)

    def _freed(self, address: int) -> None:
        self._living.pop(address).died = self._now()
        del self._watches[address]


def peak_bytes(storages: list[Storage], operations: int) -> float:
    """The most bytes of counted storages alive during one operation."""
    change = np.zeros(operations + 1)
    for storage in storages:
        if storage.counted:
            change[max(storage.born, 0)] += storage.size_bytes
            if storage.died >= 0:
                change[storage.died] -= storage.size_bytes
    return float(np.cumsum(change).max(initial=0.0))
