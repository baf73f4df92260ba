"""Trace files opened, unpacked and decoded, or refused in words. Knows no format.

Damage of any kind (a file cut off, a flipped bit, nonsense where a number should be) leaves here as
an `InputError` that names the file, never as the error of a library.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import cast

import msgspec

from hemiola.core.errors import InputError

__all__ = ["DAMAGE", "decoding", "looks_like_json", "opened", "read_all"]

DAMAGE = (
    ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, AttributeError, MemoryError,
    msgspec.MsgspecError,
)  # fmt: skip
"""What libraries raise when bytes are not what they should be."""

_GZIP = b"\x1f\x8b"
_MARK = b"\xef\xbb\xbf"


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """The file's content as a stream, unpacked if it begins like gzip, whatever its name.

    Raises:
        InputError: if it cannot be read, or its compression is damaged.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            yield cast(BufferedReader, gzip.GzipFile(fileobj=raw)) if packed else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{str(path)!r} is damaged: {error}", "its compression ends early or is broken; copy it again"
        ) from error
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror or error}", "check the path") from error


def looks_like_json(path: Path) -> bool:
    """Whether the file begins as a JSON object or list does; a protobuf can begin with a brace too.

    Raises:
        InputError: as `opened`.
    """
    with opened(path) as stream:
        begin = b"".join(stream.read(4096).split()).removeprefix(_MARK)
    return begin[:1] == b"[" or (begin[:1] == b"{" and begin[1:2] in (b'"', b"}", b""))


def read_all(path: Path) -> bytes:
    """All of the file's content, unpacked, without the mark of UTF-8 that some editors put first.

    Raises:
        InputError: as `opened`.
    """
    with opened(path) as stream:
        return stream.read().removeprefix(_MARK)


@contextmanager
def decoding(where: str, what: str) -> Iterator[None]:
    """Turn whatever a damaged `what` makes a library raise into an `InputError` that names `where`.

    Raises:
        InputError: in place of it; errors of Hemiola pass as they are, with the file's name before them.
    """
    try:
        yield
    except InputError as error:
        if where in error.what:
            raise
        raise InputError(f"{where!r}: {error.what}", error.remedy) from error
    except DAMAGE as error:
        reason = str(error) or type(error).__name__
        raise InputError(f"{where!r} is no whole {what}: {reason}", "make or copy the file again") from error
