"""A command that can be ended with all that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from hemiola.core.errors import InputError

__all__ = ["Command"]

POLL_S = 0.1


class Command:
    """A command in a process group of its own, which ends with this process whatever becomes of it."""

    def __init__(self, words: list[str], environ: dict[str, str]) -> None:
        try:
            self._process = subprocess.Popen(words, env=environ, process_group=0)
        except OSError as problem:
            raise InputError(
                f"{words[0]!r} cannot be run: {problem.strerror}", "give the whole path of the program"
            ) from None
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read line || kill -9 -"$1"', "sh", str(self._process.pid)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def status(self, within_s: float) -> int | None:
        """How it ended, if it does within this time, as shells count."""
        try:
            status = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None
        return 128 - status if status < 0 else status

    def end(self, grace_s: float) -> int:
        """Ask it to end with all that it has started, of which a shell waits for nothing; make what is late."""
        end_s = time.monotonic() + grace_s
        self._signal(signal.SIGTERM)
        status = self.status(grace_s)
        while self._lives() and time.monotonic() < end_s:
            time.sleep(POLL_S)
        self._signal(signal.SIGKILL)
        return self.status(60.0) or 0 if status is None else status

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _lives(self) -> bool:
        """Whether one of its group has not ended. For the kernel those are there, too, that nobody reaps, as in many
        containers nobody does."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, group, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
                if int(group) == self._process.pid and state != "Z":
                    return True
        return False

    def close(self) -> None:
        """It has ended: nobody need see to that any more."""
        assert self._guard.stdin is not None
        try:
            self._guard.stdin.write(b"ended\n")
            self._guard.stdin.close()
        except OSError:
            pass
        self._guard.wait()
