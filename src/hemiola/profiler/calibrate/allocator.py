"""Memory as a process has it that has trained for a while.

glibc gives large blocks back to the system when they are freed, until it has learnt not to; each time
they are taken anew the system fills them with zeros, page by page, which can take longer than the
operation. A training process has learnt after a few iterations, a replay would not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["settled_allocator"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # what glibc itself learns at most: larger blocks are always mapped anew
_DEFAULT_TRIM = 128 * 2**10


@contextmanager
def settled_allocator() -> Iterator[None]:
    """Keep freed memory meanwhile; elsewhere than on glibc nothing changes."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        yield
        return
    library.mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        library.mallopt(_TRIM_THRESHOLD, _DEFAULT_TRIM)
        library.malloc_trim(0)
