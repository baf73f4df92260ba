"""What ranks print, on its way to the terminal and into files: whole lines, each with its rank. Knows no processes."""

from __future__ import annotations

import tempfile
from collections import defaultdict, deque
from pathlib import Path
from typing import BinaryIO

from hemiola.core.errors import InputError

__all__ = ["Output"]

LAST_LINES = 20
LINE_MAX_BYTES = 1 << 20
"""What is longer without an end counts as a line: it is not kept for ever."""


class Output:
    """Sinks for all ranks: rank 0's lines stand as they are, others' with `[rank3]` before them.

    A single rank's bytes pass as they come, so that it behaves as if started by hand.

    Args:
        single: whether there is one rank.
        out, err: where standard output and error go.
        coloured: whether `err` and `out` show colours.
        logs: a folder for a file per rank, with the lines of both streams as they came. One that cannot be written
            later on ends no training: it is said, and the file stays as it is.
        shown: ranks that are shown; None for all.

    Raises:
        InputError: nothing can be written into the folder.
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
        self._given_up: set[int] = set()  # ranks whose file cannot be written
        self._rest: dict[tuple[int, str], bytearray] = defaultdict(bytearray)
        self._last: dict[int, deque[str]] = defaultdict(lambda: deque(maxlen=LAST_LINES))
        if logs is not None:
            _try_out(logs)

    def take(self, rank: int, stream: str, data: bytes) -> None:
        """What a rank has printed on "out" or "err"."""
        lines = self._completed(rank, stream, data)
        self._keep(rank, stream, lines)
        self._show(rank, stream, [data] if self._single else lines)

    def end(self, rank: int) -> None:
        """The rank has ended: an unfinished line is one now."""
        for stream in ("out", "err"):
            rest = self._rest.pop((rank, stream), None)
            if rest:
                line = bytes(rest + b"\n")
                self._keep(rank, stream, [line])
                if not self._single:
                    self._show(rank, stream, [line])

    def warn(self, words: str) -> None:
        """Say something beside what ranks print."""
        self._sinks["err"].write(f"hemiola run: warning: {words}\n".encode(errors="replace"))
        self._sinks["err"].flush()

    def last_words(self, rank: int) -> tuple[str, ...]:
        """The last lines of its standard error."""
        return tuple(self._last[rank])

    def close(self) -> None:
        """Show what is left, and close the files."""
        for rank in {rank for rank, _ in self._rest}:
            self.end(rank)
        for file in self._files.values():
            try:
                file.close()
            except OSError as error:  # a network's file system may say so only now
                self.warn(f"cannot write {file.name}: {error.strerror}")

    def _completed(self, rank: int, stream: str, data: bytes) -> list[bytes]:
        """Lines that are whole now, each to its end or to where a progress bar goes back; only what is new is searched."""
        rest = self._rest[rank, stream]
        begin = max(0, len(rest) - 1)  # a "\r" at the very end may yet be followed by "\n"
        rest += data
        end = max(rest.rfind(b"\n", begin), rest.rfind(b"\r", begin, len(rest) - 1)) + 1
        lines = bytes(rest[:end]).splitlines(keepends=True)
        del rest[:end]
        if len(rest) > LINE_MAX_BYTES:
            lines.append(bytes(rest + b"\n"))
            rest.clear()
        return lines

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
        if self._logs is not None and rank not in self._given_up:
            self._write(self._logs / f"rank{rank}.log", rank, b"".join(lines))
        if stream == "err":
            texts = (line.decode(errors="replace").rstrip() for line in lines)
            self._last[rank].extend(text for text in texts if text)

    def _write(self, path: Path, rank: int, data: bytes) -> None:
        try:
            if rank not in self._files:
                self._files[rank] = path.open("wb", buffering=0)
            while data:
                data = data[self._files[rank].write(data) :]
        except OSError as error:
            self._given_up.add(rank)
            self.warn(f"cannot write {path}: {error.strerror}; nothing more is written there")


def _try_out(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"cannot write into {folder}: {error.strerror}", "name another folder for --logs"
        ) from error
