"""How the executor's inside is compiled, and the arrays that it works on. Importing it imports Numba."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["Flags", "Floats", "Indices", "Ints", "Shorts", "compiled", "kept", "sources_of", "whole"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Shorts = NDArray[np.int32]
Indices = NDArray[np.uint32]
Flags = NDArray[np.bool_]
Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile as part of whatever calls it."""
    made: Function = numba.njit(error_model="numpy")(function)
    return made


def kept(function: Function) -> Function:
    """Compile on first call, with all that it calls; keep the result between processes where that can be written.

    Numba compiles anew when the function's own file has changed, or what its closure holds, but not
    when a file has changed whose functions it calls: a closure over their `sources_of` sees to that.
    """
    try:
        made: Function = numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # Numba finds no place for its cache
        made = compiled(function)
    return made


def sources_of(modules: Sequence[ModuleType]) -> int:
    """A number that is another as soon as one of these files is."""
    return zlib.crc32("".join(map(inspect.getsource, modules)).encode())


@compiled
def whole(number: int) -> int:
    """An integer of 64 bits: Numba compiles a function once for every width, and for literals, that it is given."""
    wide: int = np.int64(number)  # type: ignore[assignment]
    return wide
