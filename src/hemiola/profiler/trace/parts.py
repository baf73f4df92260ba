"""A rank's part of a recording, on disk: lines of JSON, appended, so that a killed rank leaves what it had.

A part is two files that take turns: when one holds `keep` whole iterations or `limit_bytes`, the other is
begun anew. So a part keeps the last iterations, at least `keep` of them, and never grows beyond bounds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path

import msgspec

from hemiola.core.errors import DAMAGED, InputError
from hemiola.profiler.trace.values import (
    PART_SCHEMA,
    ClockSample,
    End,
    Iteration,
    LateTransfers,
    Line,
    PartFacts,
    PartHead,
    RankGroup,
    TransferRow,
)

__all__ = ["NoPart", "PartWriter", "TracePart", "ended_parts", "heads", "part_files", "read_parts"]

_LIMIT_BYTES = 256 * 2**20
_END_TAG = b'\n["end"'
_END_BYTES = 8192
"""More than an end takes: `keeper` cuts what it says off after 1,000 characters, of up to six bytes each."""
_TOGETHER_NS = 600 * 10**9

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Line)


class PartWriter:
    """Appends lines; each `write` reaches the operating system, so that a killed process loses none of it."""

    def __init__(
        self,
        stem: Path,
        keep: int,
        limit_bytes: int = _LIMIT_BYTES,
        preamble: dict[object, bytes] | None = None,
    ) -> None:
        self._paths = (stem.with_name(stem.name + ".a.jsonl"), stem.with_name(stem.name + ".b.jsonl"))
        self._keep = keep
        self._limit_bytes = limit_bytes
        self._turn = 0
        self._held = 0
        self._previous = 0
        self.preamble = dict(preamble or {})
        """What heads each file: the lines that say what the iterations' numbers mean."""
        self.forgotten_iterations = 0
        self._stream = _begin(self._paths[0])
        self._append(b"".join(self.preamble.values()))
        self.began_ns = os.fstat(self._stream.fileno()).st_mtime_ns
        """By the clock of the files, which is one for all ranks."""

    def write(self, line: Line) -> None:
        """Append the line; begin the other file first if this one is full."""
        content = _encode(line) + b"\n"
        if isinstance(line, Iteration):
            full = line.complete and self._held >= self._keep
            if self._held and (full or self._stream.tell() > self._limit_bytes):
                self._change_over()
            self._held += line.complete
        elif (key := _key_in_preamble(line)) is not None:
            self.preamble[key] = content
        self._append(content)

    def _append(self, content: bytes) -> None:
        """Whole or not at all, as where the disk is full: what follows half a line cannot be read."""
        begin, left = self._stream.tell(), memoryview(content)
        try:
            while left:
                left = left[self._stream.write(left) :]
        except OSError:
            self._stream.truncate(begin)
            self._stream.seek(begin)
            raise

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _change_over(self) -> None:
        self._stream.close()
        self._turn = 1 - self._turn
        self.forgotten_iterations += self._previous
        self._previous, self._held = self._held, 0
        self._stream = self._paths[self._turn].open("wb", buffering=0)
        self._append(b"".join(self.preamble.values()))


def _begin(path: Path) -> FileIO:
    """The file, in a folder that is made for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return path.open("wb", buffering=0)
    except FileNotFoundError:  # with an earlier recording's parts the folder has just been removed
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb", buffering=0)


class NoPart(PartWriter):
    """Keeps nothing: of a job that only tells the scheduler of its iterations."""

    def __init__(self) -> None:
        self.preamble = {}
        self.forgotten_iterations = 0
        self.began_ns = 0

    def write(self, line: Line) -> None:
        """Forget the line."""

    def close(self) -> None:
        """Do nothing."""


def _key_in_preamble(line: Line) -> object:
    """Under which key the line is repeated at the head of every file; None if it is not."""
    if isinstance(line, RankGroup):
        return ("group", line.number)
    if isinstance(line, PartFacts):
        return ("facts", tuple(line.values))
    if isinstance(line, ClockSample):  # the last: how the clock drifted before says nothing of what is kept
        return "clock"
    return "head" if isinstance(line, PartHead) else None


class TracePart(msgspec.Struct):
    """What one rank left, read back."""

    head: PartHead
    groups: dict[int, RankGroup]
    clocks: list[ClockSample]
    iterations: list[Iteration]
    facts: dict[str, object]
    end: End | None
    under_way: list[TransferRow] = []

    @property
    def times_ns(self) -> list[int]:
        """When its iterations began and ended and what is under way was handed over, on the rank's own clock."""
        iterations = [time for one in self.iterations for time in (one.start, one.end)]
        return iterations + [row[5] for row in self.under_way]


def part_files(folder: Path, since_ns: int = 0) -> list[Path]:
    """The files of the parts in a folder, without those of recordings that processes have begun meanwhile.

    A rank does not wait for the parts to be put together: its next recording may go into the same folder. Of a
    process that has written to a part since this recording began, what comes after that part is left out.

    Args:
        since_ns: when it began (`PartWriter.began_ns`); 0 if all have ended.
    """
    files: list[Path] = []
    ahead: set[str] = set()
    for stem, paths in _stems(folder.glob("rank*.jsonl")).items():
        process = "-".join(stem.split("-")[:2])  # what follows is the number of its recording
        if process not in ahead:
            files += paths
            if since_ns and max(path.stat().st_mtime_ns for path in paths) >= since_ns:
                ahead.add(process)
    return files


def _stems(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """The files of each part, a process's parts in their order."""
    stems: dict[str, list[Path]] = {}
    for path in sorted(paths, key=lambda path: (len(path.name), path.name)):
        stems.setdefault(path.name.rsplit(".", 2)[0], []).append(path)
    return stems


def read_parts(folder: Path, since_ns: int = 0) -> list[TracePart]:
    """The parts of the latest run in a folder, one per rank in the order of ranks; of a rank that began again, the latest.

    Ranks have the numbers that they began with. A line that was cut off by a crash is left out, as is all after a damaged
    one.

    Args:
        since_ns: leaves out what is of a later recording; see `part_files`.

    Raises:
        InputError: if the folder holds no part.
    """
    stems = _stems(part_files(folder, since_ns))
    parts = [part for paths in stems.values() if (part := _read_part(paths)) is not None]
    if not parts:
        raise InputError(
            f"no rank left anything in {folder}",
            "record a script that trains: nothing is written before the first collective or optimizer step",
        )
    parts.sort(key=lambda part: part.head.unix_ns)
    newest = parts[-1].head
    attempts = {part.head.host: part.head.attempt for part in parts}  # each host's latest
    latest = {part.head.rank: part for part in parts if _belongs(part.head, newest, attempts[part.head.host])}
    return [latest[rank] for rank in sorted(latest)]


def ended_parts(folder: Path, since_ns: int) -> int:
    """How many parts in a folder have their end, by a look at the last lines.

    Those of a later recording do not count (`part_files`), nor those of an earlier run, which had their end before.
    """
    paths = [path for path in part_files(folder, since_ns) if path.stat().st_mtime_ns >= since_ns]
    return sum(_END_TAG in _tail(path) for path in paths)


def heads(folder: Path, since_ns: int) -> list[PartHead]:
    """With what the files of the parts in a folder begin, but those of an earlier run."""
    paths = [path for path in part_files(folder, since_ns) if path.stat().st_mtime_ns >= since_ns]
    firsts = [next(_lines(path), None) for path in paths]
    return [first for first in firsts if isinstance(first, PartHead)]


def _tail(path: Path) -> bytes:
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _END_BYTES))
        return stream.read()


def _read_part(paths: list[Path]) -> TracePart | None:
    head: PartHead | None = None
    end: End | None = None
    part = TracePart(PartHead(rank=0, world_size=1, host="", device="", pid=0, mode="", monotonic_ns=0, unix_ns=0),
                {}, [], [], {}, None)  # fmt: skip
    files = sorted((list(_lines(path)) for path in paths), key=_latest)
    for line in (line for file in files for line in file):
        if isinstance(line, PartHead):
            head = line
        elif isinstance(line, RankGroup):
            part.groups[line.number] = line
        elif isinstance(line, ClockSample):
            part.clocks.append(line)
        elif isinstance(line, Iteration):
            part.iterations.append(line)
        elif isinstance(line, LateTransfers):
            part.under_way = line.transfers
        elif isinstance(line, PartFacts):
            part.facts |= line.values
        else:
            end = line
    if head is None:
        return None
    if head.number >= 0:
        head = msgspec.structs.replace(head, rank=head.number)
    part.iterations.sort(key=lambda iteration: iteration.start)
    part.clocks = sorted({sample.local_ns: sample for sample in part.clocks}.values(), key=_local)
    return msgspec.structs.replace(part, head=head, end=end)


def _belongs(head: PartHead, newest: PartHead, attempt: str) -> bool:
    """Whether two parts come from one run: they say so, or began together, in the latest attempt of its host, if one fell
    before it knew.

    Hosts count their attempts apart: one may begin anew for another's sake.
    """
    if head.run and newest.run:
        return head.run == newest.run
    return head.attempt == attempt and newest.unix_ns - head.unix_ns < _TOGETHER_NS


def _latest(lines: list[Line]) -> int:
    """When the last iteration of a file began: of two that take turns, the later one has the last word."""
    return max((line.start for line in lines if isinstance(line, Iteration)), default=-(2**63))


def _local(sample: ClockSample) -> int:
    return sample.local_ns


def _lines(path: Path) -> Iterator[Line]:
    with path.open("rb") as stream:
        for content in stream:
            try:
                line = _decoder.decode(content)
            except DAMAGED:
                return
            if isinstance(line, PartHead) and line.schema != PART_SCHEMA:
                raise InputError(
                    f"{path} has the schema {line.schema!r}, not {PART_SCHEMA!r}",
                    "merge it with the version of Hemiola that recorded it",
                )
            yield line
