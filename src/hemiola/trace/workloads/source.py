"""A workload file as text: opened, unpacked and decoded, with every way that can fail named.

Knows nothing of any format. A file is plain or gzip (told by its first bytes, not its name) and
UTF-8, with or without a byte-order mark.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import msgspec

from hemiola.core.errors import DAMAGED, FormatError, InputError, RowError
from hemiola.trace.struct_json import as_text
from hemiola.trace.workloads.ledger import ReadLedger

__all__ = [
    "Source",
    "WorkloadFormat",
    "decode_entries",
    "decode_whole",
    "gavel_steps_per_s",
    "load",
    "numbered",
    "pollux_durations_s",
]


_PACKED = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstandard",
}
_WIDE = (b"\xff\xfe", b"\xfe\xff")
_HEAD_CHARACTERS = 65536
_HEAD_ROWS = 5


@dataclass(frozen=True)
class Source:
    """A file's text.

    Attributes:
        path: as given, for messages.
        text: all of it, without byte-order mark; a line that was not UTF-8 is empty in it.
        undecodable: by number, the lines that were not UTF-8, as far as they can be read (only when bad rows are
            skipped).
        forced: the reader was named by the caller rather than recognised.
    """

    path: str
    text: str
    undecodable: dict[int, str] = field(default_factory=dict)
    forced: bool = False

    @property
    def name(self) -> str:
        """The file's name without folder and endings."""
        return as_text(Path(self.path).name).removesuffix(".gz").rsplit(".", 1)[0]

    @cached_property
    def head(self) -> str:
        """The beginning of the text, cut at a line's end where it has one."""
        if len(self.text) <= _HEAD_CHARACTERS:
            return self.text
        head = self.text[:_HEAD_CHARACTERS]
        return head[: head.rfind("\n") + 1] or head

    @cached_property
    def columns(self) -> frozenset[str]:
        """The words of the first line, split at commas: a table's column names."""
        rows = self.first_rows(",")
        return frozenset(word.strip() for word in rows[0]) if rows else frozenset()

    def first_rows(self, delimiter: str) -> list[list[str]]:
        """Up to five rows from the top, blank lines left out; fewer where they cannot be split."""
        rows: list[list[str]] = []
        try:
            for row in csv.reader(io.StringIO(self.head, newline=""), delimiter=delimiter):
                if row:
                    rows.append(row)
                if len(rows) == _HEAD_ROWS:
                    break
        except csv.Error:
            pass
        return rows


def load(path: str | Path, *, skip_bad_rows: bool = False, forced: bool = False) -> Source:
    """Read `path`.

    Raises:
        InputError: the file is missing, no file, or a broken or truncated gzip.
        FormatError: it is empty or packed in a way that is not read here.
        RowError: a line is not UTF-8 (unless bad rows are skipped).
    """
    data = _unpack(str(path), _read(path))
    if not data.strip():
        raise FormatError(f"{path} is empty", "give a file with at least one job")
    text, undecodable = _decode(str(path), data, skip_bad_rows)
    return Source(str(path), text.removeprefix("\ufeff"), undecodable, forced)


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder", "name one file in it") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}", "check the path and its permissions") from None


def _unpack(path: str, data: bytes) -> bytes:
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except EOFError:
            raise InputError(f"{path} is a truncated gzip file", "copy or download it again") from None
        except (OSError, zlib.error) as error:
            raise InputError(f"{path} is a broken gzip file: {error}", "copy or download it again") from None
    if data[257:262] == b"ustar":
        raise FormatError(f"{path} is a tar archive", "unpack it and name one file in it")
    for magic, what in _PACKED.items():
        if data.startswith(magic):
            raise FormatError(f"{path} is packed ({what})", "unpack it, or pack it with gzip")
    if data.startswith(_WIDE):
        raise FormatError(f"{path} is UTF-16", "save it as UTF-8")
    return data


def _decode(path: str, data: bytes, skip_bad_rows: bool) -> tuple[str, dict[int, str]]:
    try:
        return data.decode("utf-8"), {}
    except UnicodeDecodeError as error:
        if not skip_bad_rows:
            line = data.count(b"\n", 0, error.start) + 1
            raise RowError(
                path,
                line,
                "(text)",
                data[error.start : error.start + 1],
                "is not UTF-8",
                "save the file as UTF-8",
            ) from None
    lines = data.split(b"\n")
    read = [_decode_line(line) for line in lines]
    bad = {i: lines[i - 1].decode(errors="replace") for i, text in enumerate(read, 1) if text is None}
    return "\n".join(text or "" for text in read), bad


def _decode_line(line: bytes) -> str | None:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return None


# What a format is: a value that recognises a file's content and reads it.


@dataclass(frozen=True)
class WorkloadFormat:
    """One workload format.

    Attributes:
        name: as in `FORMAT:FILE`.
        about: what it is, in half a line.
        match: how the content shows that it is this format, in words; "" where it is not.
        read: puts the file's jobs, in the file's own time, into the ledger.
        from_first: its times are counted from the first arrival; False keeps the file's origin.
    """

    name: str
    about: str
    match: Callable[[Source], str]
    read: Callable[[Source, ReadLedger], None]
    from_first: bool = True


# JSON arrays entry by entry, each with the line it begins on. Knows no format.

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


# Small tables of published facts that some formats need, shipped in `data/` with their sources.


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("hemiola.trace.workloads") / "data" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


@cache
def gavel_steps_per_s() -> dict[tuple[str, int], float]:
    """Steps per second on consolidated V100s, by Gavel's job type and number of GPUs."""
    return {(row["job_type"], int(row["gpus"])): float(row["steps_per_s"]) for row in _rows("gavel_v100.csv")}


@cache
def pollux_durations_s() -> dict[tuple[str, int, int], float]:
    """Run time in seconds on consolidated T4s, by application, number of GPUs and batch size."""
    return {
        (row["application"], int(row["num_replicas"]), int(row["batch_size"])): float(row["duration_s"])
        for row in _rows("pollux_durations.csv")
    }
