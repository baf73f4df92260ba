"""Rows of a table, cell by cell: every value is checked where it is read.

Knows columns, lines and plain quantities; what they mean is each format's business.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from hemiola.core.errors import FormatError, RowError
from hemiola.trace.workloads.clock import Timestamps
from hemiola.trace.workloads.ledger import JobDraft, ReadLedger
from hemiola.trace.workloads.source import Source

__all__ = ["MAX_GPUS", "MAX_SECONDS", "Cells", "read_rows", "table"]

MAX_SECONDS = 1e10
"""Over 300 years: a longer time is a wrong unit."""
MAX_GPUS = 1_000_000
_SHOWN_CHARACTERS = 60


class _Reader(Protocol):
    """What `csv.reader` returns."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


class Cells:
    """One row at a time: `line`, on which it begins, and `values` change, the columns stay."""

    __slots__ = ("clock", "index", "line", "path", "values")

    def __init__(self, path: str, columns: Iterable[str], clock: Timestamps) -> None:
        self.path = path
        self.index = {column: i for i, column in enumerate(columns)}
        self.values: list[str] = []
        self.line = 0
        self.clock = clock

    def bad(self, column: str, problem: str, remedy: str = "") -> RowError:
        """The error that names this row's value in `column`."""
        return RowError(self.path, self.line, column, self.text(column), problem, remedy)

    def text(self, column: str) -> str:
        """The cell as it stands; "" where the table has no such column."""
        i = self.index.get(column, -1)
        return self.values[i] if i >= 0 else ""

    def number(self, column: str) -> float:
        """A finite number."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise self.bad(column, "is not a number", "give a plain number such as 12 or 0.5") from None
        if not math.isfinite(value) or "_" in text:
            raise self.bad(column, "is not a finite number", "give a plain number such as 12 or 0.5")
        return value

    def seconds(self, column: str, per_second: float = 1.0) -> float:
        """A time of 0 or more, in seconds; the column counts so many units to the second."""
        value = self.number(column) / per_second
        if value < 0:
            raise self.bad(column, "is negative", "give a time of 0 or more")
        if value > MAX_SECONDS:
            raise self.bad(column, "is more than 300 years", "check the unit of the column")
        return value

    def maybe_seconds(self, column: str) -> float | None:
        """A time of 0 or more, or None where the cell is empty or there is no such column."""
        return self.seconds(column) if self.text(column) else None

    def whole(self, column: str, of: str = "GPUs") -> int:
        """A whole number from 0 up, such as GPUs: 8 or 8.0."""
        value = self.number(column)
        if value != int(value) or value > MAX_GPUS:
            raise self.bad(column, f"is not a number of {of}", f"give a whole number, at most {MAX_GPUS}")
        if value < 0:
            raise self.bad(column, "is negative", f"give the number of {of}")
        return int(value)

    def maybe_whole(self, column: str, of: str = "GPUs") -> int:
        """A whole number from 0 up; 0 where the cell is empty or there is no such column."""
        return self.whole(column, of) if self.text(column) else 0

    def yes(self, column: str) -> bool:
        """Whether the cell says yes; no where it is empty or there is no such column."""
        text = self.text(column)
        if text not in ("yes", "no", ""):
            raise self.bad(column, "is neither yes nor no", "write yes, or leave it empty")
        return text == "yes"

    def gpus(self, column: str) -> int:
        """A whole number of GPUs, at least one."""
        value = self.whole(column)
        if value < 1:
            raise self.bad(column, "is no GPU at all", "give at least 1, or leave the row out")
        return value

    def moment(self, column: str) -> float:
        """Seconds since 1970 from a date and time such as 2017-10-09 07:01:55."""
        try:
            return self.clock.seconds(self.text(column))
        except ValueError as error:
            raise self.bad(
                column, str(error), "write 2017-10-09 07:01:55, all with or all without zone"
            ) from None


def table(
    source: Source,
    ledger: ReadLedger,
    *,
    columns: tuple[str, ...] = (),
    delimiter: str = ",",
    quoted: bool = True,
    trailing: bool = False,
    torn: list[str] | None = None,
) -> Iterator[Cells]:
    """The rows of a delimited table; blank lines do not count.

    A quote that is never closed swallows the lines after it. So after a row that cannot be, reading goes on behind
    its first line, and those lines are rows again.

    Args:
        source: the file.
        ledger: where a row of the wrong length goes.
        columns: the names, for a table without header; otherwise its first row gives them.
        delimiter: one character.
        quoted: a cell may stand in double quotes.
        trailing: the header may end in one delimiter too many, and then each row may.
        torn: takes the first line of each row that cannot be, for formats in which several rows make one job or
            rows are numbered.
    """
    lines = io.StringIO(source.text, newline="").readlines()
    torn = [] if torn is None else torn
    first = _reader(lines, 0, delimiter, quoted)
    names, trailing = (columns, False) if columns else _header(source, first, trailing)
    cells, width, at = Cells(source.path, names, ledger.clock), len(names), first.line_num
    while at < len(lines):
        reader, before = _reader(lines, at, delimiter, quoted), at
        try:
            for row in reader:
                start, at = at, before + reader.line_num
                if not row:
                    if at in source.undecodable:
                        torn.append(source.undecodable[at])
                    continue
                cells.values, cells.line = row, start + 1
                if len(row) == width or (trailing and len(row) == width + 1 and not row[-1]):
                    yield cells
                    continue
                ledger.reject(_width_error(cells, names, at - start))
                torn.append(lines[start])
                if at > start + 1:
                    at = start + 1
                    break
        except csv.Error as error:
            place = (source.path, at + 1, names[0])
            ledger.reject(RowError(*place, str(error), "is not a row", "check quotes and line ends"))
            torn.append(lines[at])
            at += 1


def _reader(lines: list[str], start: int, delimiter: str, quoted: bool) -> _Reader:
    rest = map(lines.__getitem__, range(start, len(lines)))
    if quoted:
        return csv.reader(rest, delimiter=delimiter, strict=True)
    return csv.reader(rest, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)


def read_rows(
    rows: Iterable[Cells], ledger: ReadLedger, make: Callable[[Cells], JobDraft | str], id_column: str
) -> None:
    """Make a job of each row; for a sound row that is no GPU job, `make` returns the reason."""
    for cells in rows:
        try:
            draft = make(cells)
        except RowError as error:
            ledger.reject(error)
            continue
        if isinstance(draft, str):
            ledger.leave_out(draft)
        else:
            ledger.add(draft, cells.line, id_column)


def _header(source: Source, reader: Iterator[list[str]], trailing: bool) -> tuple[tuple[str, ...], bool]:
    """The columns' names, and whether a delimiter stands behind the last, where it may."""
    try:
        names = next((tuple(word.strip() for word in row) for row in reader if row), ())
    except csv.Error as error:
        raise FormatError(f"{source.path}: its header cannot be read: {error}", "check its quotes") from None
    trailing = trailing and names[-1:] == ("",)
    if trailing:
        names = names[:-1]
    twice = {name for name in names if names.count(name) > 1}
    if twice or not names:
        raise FormatError(
            f"{source.path}: its header names {', '.join(sorted(map(repr, twice))) or 'nothing'} more than once",
            "give every column a name of its own",
        )
    return names, trailing


def _width_error(cells: Cells, names: tuple[str, ...], lines: int) -> RowError:
    row, remedy = cells.values, f"give {len(names)} columns"
    if lines > 1:
        remedy += f"; a quote may be open, for the row takes {lines} lines"
    if len(row) < len(names):
        shown = row[-1][:_SHOWN_CHARACTERS]
        return RowError(cells.path, cells.line, names[len(row)], shown, "ends the row too early", remedy)
    remedy += "; one may hold the delimiter itself"
    shown = row[len(names)][:_SHOWN_CHARACTERS]
    return RowError(cells.path, cells.line, names[-1], shown, "is a column too many", remedy)
