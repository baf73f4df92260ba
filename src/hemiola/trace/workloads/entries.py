"""JSON arrays entry by entry, each with the line it begins on. Knows no format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from hemiola.core.errors import DAMAGED, InputError, RowError
from hemiola.trace.workloads.ledger import ReadLedger

__all__ = ["decode_entries", "decode_whole", "numbered"]

T = TypeVar("T")
_WHERE = re.compile(r" - at `\$\.?(.*)`$")
_WHOLE = "(entry)"


def decode_whole(path: str, text: str, kind: type[T]) -> T:
    """All of `text` as a `kind`. Raises InputError where it is not JSON or of another shape."""
    try:
        return msgspec.json.decode(text, type=kind)
    except DAMAGED as error:
        raise InputError(
            f"{path} cannot be read as JSON: {error}", "check the file; it may be cut off"
        ) from None


def numbered(text: str, raws: Iterable[msgspec.Raw]) -> Iterator[tuple[int, msgspec.Raw]]:
    """Each entry with its line; entries stand in `text` in this order, and are slices of it."""
    data = text.encode()
    at, line = 0, 1
    for raw in raws:
        here = data.index(raw, at)
        line += data.count(b"\n", at, here)
        yield line, raw
        after = here + len(memoryview(raw))
        line += data.count(b"\n", here, after)
        at = after


def decode_entries(
    ledger: ReadLedger, entries: Iterable[tuple[int, msgspec.Raw]], kind: type[T]
) -> Iterator[tuple[int, T]]:
    """Each entry as a `kind`; one of another shape, or with values that cannot be, goes to `ledger.reject`."""
    decoder = msgspec.json.Decoder(kind)
    for line, raw in entries:
        try:
            yield line, decoder.decode(raw)
        except DAMAGED as error:
            ledger.reject(_entry_error(ledger.path, line, raw, str(error)))
        except InputError as error:
            ledger.reject(RowError(ledger.path, line, _WHOLE, _beginning(raw), error.what, error.remedy))


def _entry_error(path: str, line: int, raw: msgspec.Raw, message: str) -> RowError:
    found = _WHERE.search(message)
    problem = "has the wrong shape: " + (message[: found.start()] if found else message)
    column = found[1] if found else _WHOLE
    return RowError(path, line, column, _beginning(raw), problem, "give the documented fields")


def _beginning(raw: msgspec.Raw) -> str:
    return bytes(memoryview(raw)[:60]).decode("utf-8", "replace")
