"""What traces call collectives and number types, in Hemiola's words. Knows names, not files."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

__all__ = [
    "MEETINGS",
    "Meeting",
    "collective_of",
    "is_nccl_kernel",
    "offset_between",
    "on_one_clock",
    "size_of_type",
    "tensors_bytes",
]


_LETTERS = re.compile(r"[^a-z]+")

# The longest names first: "reduce" is part of others.
_COLLECTIVES = (
    ("reducescatter", "reduce-scatter"),
    ("allreduce", "all-reduce"),
    ("allgather", "all-gather"),
    ("alltoall", "all-to-all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("reduce", "reduce"),
    ("sendrecv", "send-recv"),
    ("send", "send"),
    ("recv", "recv"),
)

_TYPE_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "int": 4, "long": 8, "long int": 8, "short": 2,
    "short int": 2, "char": 1, "signed char": 1, "unsigned char": 1, "byte": 1, "bool": 1,
    "complexfloat": 8, "complexdouble": 16, "complex<float>": 8, "complex<double>": 16, "complexhalf": 4,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "uint16": 2, "uint32": 4, "uint64": 8,
}  # fmt: skip


def collective_of(name: str) -> str:
    """The collective that a name such as "_allgather_base" or "ncclDevKernel_AllReduce_Sum_f32" tells; "" for none.

    >>> collective_of("gloo:all_reduce")
    'all-reduce'
    """
    letters = _LETTERS.sub("", name.lower())
    return next((said for part, said in _COLLECTIVES if part in letters), "")


def is_nccl_kernel(name: str) -> bool:
    """Whether a GPU kernel of that name is a collective of NCCL or RCCL."""
    return name.startswith(("ncclKernel", "ncclDevKernel", "rcclKernel", "mscclKernel"))


def size_of_type(name: str) -> float:
    """Bytes of one number of a type that PyTorch names ("Float", "c10::BFloat16"); NaN if it is unknown.

    >>> size_of_type("c10::BFloat16")
    2.0
    """
    return float(_TYPE_BYTES.get(name.lower().replace("c10::", ""), math.nan))


def tensors_bytes(dims: Any, types: Any) -> float:
    """Bytes of the tensors that an operation's "Input Dims" and "Input type" describe; NaN if they do not."""
    if not isinstance(dims, list) or not isinstance(types, list) or not dims or len(dims) != len(types):
        return math.nan
    return math.fsum(
        _elements(shape) * size_of_type(str(kind)) for shape, kind in zip(dims, types, strict=True)
    )


def _elements(shape: Iterable[Any]) -> float:
    if not isinstance(shape, list) or not all(isinstance(length, int) and length >= 0 for length in shape):
        return math.nan
    return float(math.prod(shape))


# How far apart the clocks of hosts were, from the collectives in which their ranks met. Knows no file.

MEETINGS = frozenset({"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier"})
"""Collectives that no rank can leave before all have come."""

Meeting = Mapping[Hashable, tuple[float, float]]
"""Begin and end of each collective by a key that all ranks give it, in seconds of one clock."""


def on_one_clock(ranks: Iterable[Meeting]) -> Meeting:
    """When the last of these ranks began each collective, and when the first of them ended it."""
    found: dict[Hashable, tuple[float, float]] = {}
    for meeting in ranks:
        for key, (begin, end) in meeting.items():
            last, first = found.get(key, (begin, end))
            found[key] = max(begin, last), min(end, first)
    return found


def offset_between(reference: Meeting, other: Meeting) -> tuple[float, float]:
    """What to add to the other clock's seconds, and by how much that can be wrong; (0, inf) if nothing is known."""
    both = [(*reference[key], *other[key]) for key in reference.keys() & other.keys()]
    if not both:
        return 0.0, math.inf
    begin, end, other_begin, other_end = np.array(both).T
    low, high = float((begin - other_end).max()), float((end - other_begin).min())
    if low > high:
        return 0.0, math.inf
    offset = min(max(float(np.median(end - other_end)), low), high)
    return offset, max(high - offset, offset - low)
