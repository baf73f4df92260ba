"""Signatures: what an operation was called with, in plain values.

What JSON has no word for is text: a dtype, layout or memory format as PyTorch writes it
("torch.float32", "torch.contiguous_format"), any device as "device".
"""

from __future__ import annotations

from typing import Any

from hemiola.core.graph import Signature

__all__ = ["Signatures"]


class Signatures:
    """Signatures, each once, in the order in which they were first met."""

    def __init__(self) -> None:
        self.all: list[Signature] = []
        self._index: dict[Any, int] = {}

    def index_of(self, operation: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> int:
        """The place of this call's signature in `all`."""
        plain = [_plain(argument) for argument in arguments]
        named = {name: _plain(value) for name, value in keywords.items()}
        key = (operation, _key(plain), _key(named))
        if key not in self._index:
            self._index[key] = len(self.all)
            self.all.append(Signature(operation, tuple(plain), named))
        return self._index[key]


def _plain(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        strided = value.layout is torch.strided
        return {
            "shape": list(value.shape),
            "dtype": dtype_name(value.dtype),
            "stride": list(value.stride()) if strided else None,
        }
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return "device" if isinstance(value, torch.device) else str(value)


def _key(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(map(_key, value))
    return type(value), repr(value) if isinstance(value, float) else value


def dtype_name(dtype: Any) -> str:
    """A dtype without its prefix: "float32"."""
    return str(dtype).removeprefix("torch.")
