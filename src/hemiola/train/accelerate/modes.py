"""How PyTorch's functions are carried out on a thread, kept for what is to be carried out in the same way later.

An update that is made where its parameter is used must be the one that the script's step would have made: not cast because
that use is (`torch.autocast`), and nothing that cannot be trained with because somebody only looks (`torch.inference_mode`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

__all__ = ["Modes"]

_SAME = nullcontext()


class Modes:
    """Of one thread at one moment: whether operations are recorded, and what they cast to."""

    def __init__(self, device: str) -> None:
        """Those of now, as far as they matter to operations on this type of device."""
        self._device = device
        self.keep()

    def keep(self) -> None:
        """Those of now instead."""
        self._kept = self._now()

    def again(self) -> AbstractContextManager[None]:
        """Within, they are as they were kept. Where they are so anyway, it costs less than a microsecond."""
        return _SAME if self._now() == self._kept else self._as_kept()

    def _now(self) -> tuple[bool, bool, bool, torch.dtype]:
        device = self._device
        return (
            torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.is_autocast_enabled(device),
            torch.get_autocast_dtype(device),
        )  # fmt: skip

    @contextmanager
    def _as_kept(self) -> Iterator[None]:
        inference, recorded, *cast = self._kept
        _, _, *cast_now = self._now()
        with torch.inference_mode(inference), torch.set_grad_enabled(recorded):
            try:
                self._cast(*cast)
                yield
            finally:
                self._cast(*cast_now)

    def _cast(self, casts: bool, to: torch.dtype) -> None:
        """Not by `torch.autocast`, which forgets the script's cast parameters when it ends."""
        torch.set_autocast_enabled(self._device, casts)
        torch.set_autocast_dtype(self._device, to)
