"""Memory in which several gradients lie one behind the other, to go on their way together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor

__all__ = ["Gathered"]

Owner = TypeVar("Owner")

_uses_of = getattr(torch._C, "_storage_Use_Count", None)
"""How many tensors lie in some memory; PyTorch's own, for CUDA graphs."""


class Gathered(Generic[Owner]):
    """A buffer in parts, each of which may be somebody's gradient for as long as they like.

    Gradients are tensors of storages of their own in the same memory: who moves bytes has hold of another one, and who
    saves a gradient saves no more than that.

    Attributes:
        flat: all of it.
        places: the parts, by whose they are.
        keeps: whether gradients can stay here: it is known whether somebody still has one.
    """

    keeps = _uses_of is not None

    def __init__(self, sizes: Mapping[Owner, list[int]], like: Tensor) -> None:
        """Of parts of so many elements, of this kind."""
        self._sizes, self._like = sizes, like
        self._make()

    def _make(self) -> None:
        counts = [count for own in self._sizes.values() for count in own]
        self.flat = torch.empty(sum(counts), dtype=self._like.dtype, device=self._like.device)
        parts = iter(self.flat.split(counts))
        self.places = {whose: [next(parts) for _ in own] for whose, own in self._sizes.items()}
        self._given = {whose: torch.from_dlpack(own[0]) for whose, own in self.places.items()}
        self._own = self._uses()

    def gradient(self, whose: Owner, shape: torch.Size) -> Tensor:
        """One of this shape in the first place of these. It is no view, for a view's `detach_` fails."""
        return self.flat.new_empty(0).set_(self._given[whose].untyped_storage(), 0, shape)

    def leave_to_others(self, known: int) -> None:
        """Before it is written to: go on in other memory if somebody has hold of gradients in this, beside so many known."""
        if self._uses() > self._own + known:
            self._make()

    def _uses(self) -> int:
        if _uses_of is None:
            return 0
        return sum(int(_uses_of(given.untyped_storage()._cdata)) for given in self._given.values())
