"""A JSON object of any size, member by member, and its long lists element by element.

Memory is bounded by the largest element and the largest other member, not by the file: a trace of a
gigabyte is one list of small objects. Knows JSON and damage, not what the members mean.
"""

from __future__ import annotations

import codecs
import gzip
import json
import math
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import msgspec

from hemiola.core.errors import InputError

__all__ = ["JsonStream", "decoding", "looks_like_json", "opened", "read_all"]


# Trace files opened, unpacked and decoded, or refused in words. Knows no format.

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


_BLOCK = 1 << 20
_LARGEST = 64 << 20
"""Characters of one element or key; what is longer is damage (an unclosed quote, say)."""

_SPACE = " \t\r\n"


class JsonStream:
    """Reads `{"key": value, "list": [element, ...], ...}`, or a bare list, whose key is then "".

    Args:
        path: the file; unpacked if it is gzip.
        lists: the keys whose lists are given element by element.
        salvage: end where the file is damaged, and say so in `damage`, in place of raising.

    Attributes:
        damage: what is wrong with the file and where; "" if nothing is, as far as was read.
        elements: how many elements of lists were given.
    """

    def __init__(self, path: Path, lists: Collection[str], *, salvage: bool = False) -> None:
        self.damage = ""
        self.elements = 0
        self._path = path
        self._lists = frozenset(lists)
        self._salvage = salvage

    @contextmanager
    def members(self) -> Iterator[Iterator[tuple[str, Any]]]:
        """Each member's key and value; for a streamed list its key and element, once per element.

        The file is closed with the block, wherever its reader stops.

        Raises:
            InputError: naming the byte where the file is cut off or damaged, and what could be read.
        """
        with opened(self._path) as stream:
            yield self._members(_Text(stream))

    def _members(self, text: _Text) -> Iterator[tuple[str, Any]]:
        try:
            yield from self._top(text)
        except (ValueError, RecursionError, MemoryError) as error:
            reason = text.broken or str(error) or type(error).__name__
            self.damage = (
                f"cut off or damaged at byte {text.position()}, after {self.elements} elements: {reason}"
            )
        if self.damage and not self._salvage:
            raise InputError(
                f"{str(self._path)!r} is {self.damage}",
                f"copy it again, or read with salvage for the {self.elements} elements before the damage"
                if self.elements
                else "copy it again; nothing before the damage can be used",
            )

    def _top(self, text: _Text) -> Iterator[tuple[str, Any]]:
        if text.peek() == "[":
            yield from self._elements(text, "")
        else:
            text.take("{")
            while text.peek() != "}":
                key = text.value(_LARGEST)
                if not isinstance(key, str):
                    raise ValueError(f"a key is {key!r}")
                text.take(":")
                if key in self._lists and text.peek() == "[":
                    yield from self._elements(text, key)
                else:
                    yield key, text.value()
                if text.peek() != "}":
                    text.take(",")
            text.take("}")
        if text.peek():
            raise ValueError("something follows the end")

    def _elements(self, text: _Text, key: str) -> Iterator[tuple[str, Any]]:
        text.take("[")
        while text.peek() != "]":
            value = text.value(_LARGEST)
            self.elements += 1
            yield key, value
            if text.peek() != "]":
                text.take(",")
        text.take("]")


class _Text:
    """The part of the file that is being read, as text."""

    def __init__(self, stream: BufferedReader) -> None:
        self.broken = ""
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._parse = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._before_bytes = 0
        self._ended = False

    def position(self) -> int:
        """Bytes of the (unpacked) file before the next character."""
        return self._before_bytes + _size(self._text[: self._at])

    def peek(self) -> str:
        """The next character that is no space; "" at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if self._ended:
                return ""
            self._more()

    def take(self, expected: str) -> None:
        """Step over the next character, which has to be this one."""
        found = self.peek()
        if found != expected:
            raise ValueError(
                f"{expected!r} expected, {found!r} found" if found else "the file ends too early"
            )
        self._at += 1

    def value(self, largest: float = math.inf) -> Any:
        """The next value, whole, of so many characters at most."""
        if not self.peek():
            raise ValueError("the file ends too early")
        while True:
            try:
                value, end = self._parse(self._text, self._at)
                if end < len(self._text) or self._ended:
                    escaped = self._text.find("\\u", self._at, end) >= 0
                    self._at = end
                    return _written(value) if escaped else value
            except json.JSONDecodeError as error:
                if self._ended or len(self._text) - self._at > largest:
                    raise ValueError(error.msg) from error
            # twice as much: what is long is parsed anew a few times only
            self._more(len(self._text) - self._at)

    def _more(self, least_bytes: int = 0) -> None:
        """Read on: a block, or so much if that is more."""
        blocks, left_bytes = [], max(least_bytes, _BLOCK)
        try:
            while left_bytes > 0 and not self._ended:
                block = self._stream.read1(left_bytes)  # what stands before damage is not lost with it
                blocks.append(block)
                left_bytes -= len(block)
                self._ended = not block
        except (EOFError, zlib.error, OSError) as error:
            self.broken, self._ended = f"{error}", True
        self._before_bytes += _size(self._text[: self._at])
        self._text = self._text[self._at :] + self._decoder.decode(b"".join(blocks), final=self._ended)
        self._at = 0


def _written(value: Any) -> Any:
    """The value with text that can be written again: an escape may stand for half a character."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_written(entry) for entry in value]
    if isinstance(value, dict):
        return {_written(key): _written(entry) for key, entry in value.items()}
    return value


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
