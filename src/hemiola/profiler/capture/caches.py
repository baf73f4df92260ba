"""What capturing leaves in the caches of the model's own functions (`functools.lru_cache`), taken out again."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

__all__ = ["forget_stand_ins"]

_NESTED = 4
"""How deep in lists, tuples and dicts a cached tensor is looked for."""

_CACHED = functools._lru_cache_wrapper


def forget_stand_ins(mode: FakeTensorMode) -> None:
    """Clear every cached function of the process that has kept a stand-in made under this mode.

    A later real call would otherwise get a tensor without values from it. Caches without stand-ins keep
    what they hold. Every cached function is looked at, since which of them a model calls is not known.
    """
    for found in gc.get_objects():
        if type(found) is not _CACHED or not found.cache_info().currsize:
            continue
        if any(tensor.fake_mode is mode for tensor in _stand_ins(gc.get_referents(found), _NESTED)):
            found.cache_clear()


def _stand_ins(values: Any, nested: int) -> Iterator[FakeTensor]:
    for value in values:
        if isinstance(value, FakeTensor):
            yield value
        elif nested and type(value) in (list, tuple, dict):
            yield from _stand_ins(value.values() if type(value) is dict else value, nested - 1)
