"""What ranks print, on its way to the terminal and into files: whole lines, each with its rank. Knows no processes."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from pathlib import Path
from typing import BinaryIO

from hemiola.core.errors import InputError

__all__ = ["Output"]

LAST_LINES = 20
_LINE = re.compile(rb"[^\r\n]*(?:\r?\n|\r(?=[^\n]))")
"""Up to a line's end, or to where a progress bar goes back; a "\\r" at the very end may yet be followed by "\\n"."""


class Output:
    """Sinks for all ranks: rank 0's lines stand as they are, others' with `[rank3]` before them.

    A single rank's bytes pass as they come, so that it behaves as if started by hand.

    Args:
        single: whether there is one rank.
        out, err: where standard output and error go.
        coloured: whether `err` and `out` show colours.
        logs: a folder for a file per rank, with the lines of both streams as they came.
        shown: ranks that are shown; None for all.
    """

    def __init__(
        self,
        single: bool,
        out: BinaryIO,
        err: BinaryIO,
        *,
        coloured: bool = False,
        logs: Path | None = None,
        shown: frozenset[int] | None = None,
    ) -> None:
        self._single = single
        self._sinks = {"out": out, "err": err}
        self._coloured = coloured
        self._logs = logs
        self._shown = shown
        self._files: dict[int, BinaryIO] = {}
        self._rest: dict[tuple[int, str], bytes] = defaultdict(bytes)
        self._last: dict[int, deque[str]] = defaultdict(lambda: deque(maxlen=LAST_LINES))

    def take(self, rank: int, stream: str, data: bytes) -> None:
        """What a rank has printed on "out" or "err"."""
        rest = self._rest[rank, stream] + data
        lines = _LINE.findall(rest)
        self._rest[rank, stream] = rest[sum(map(len, lines)) :]
        self._keep(rank, stream, lines)
        self._show(rank, stream, [data] if self._single else lines)

    def end(self, rank: int) -> None:
        """The rank has ended: an unfinished line is one now."""
        for stream in ("out", "err"):
            rest = self._rest.pop((rank, stream), b"")
            if rest:
                self._keep(rank, stream, [rest + b"\n"])
                if not self._single:
                    self._show(rank, stream, [rest + b"\n"])

    def last_words(self, rank: int) -> tuple[str, ...]:
        """The last lines of its standard error."""
        return tuple(self._last[rank])

    def close(self) -> None:
        """Show what is left, and close the files."""
        for rank in {rank for rank, _ in self._rest}:
            self.end(rank)
        for file in self._files.values():
            file.close()

    def _show(self, rank: int, stream: str, lines: list[bytes]) -> None:
        if not lines or (self._shown is not None and rank not in self._shown):
            return
        prefix = b"" if rank == 0 or self._single else f"[rank{rank}] ".encode()
        if prefix and self._coloured:
            prefix = b"\x1b[36m" + prefix[:-1] + b"\x1b[0m "
        sink = self._sinks[stream]
        sink.write(b"".join(prefix + line for line in lines))
        sink.flush()

    def _keep(self, rank: int, stream: str, lines: list[bytes]) -> None:
        if self._logs is not None:
            self._file(self._logs, rank).write(b"".join(lines))
        if stream == "err":
            texts = (line.decode(errors="replace").rstrip() for line in lines)
            self._last[rank].extend(text for text in texts if text)

    def _file(self, folder: Path, rank: int) -> BinaryIO:
        if rank not in self._files:
            path = folder / f"rank{rank}.log"
            try:
                folder.mkdir(exist_ok=True)
                self._files[rank] = path.open("wb", buffering=0)
            except OSError as error:
                raise InputError(
                    f"cannot write {path}: {error.strerror}", "name another folder for --logs"
                ) from error
        return self._files[rank]
