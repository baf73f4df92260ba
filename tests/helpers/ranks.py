"""Starts the ranks of a job as real processes: `script.py RANK RANKS ...`."""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import repository
from forks import NUMBER
from patience import patience
from shared_servers import alone, shared_folder

__all__ = ["SOURCE", "Rank", "run", "start"]

SOURCE = str(repository.SOURCE)
_ENVIRONMENT = {
    "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore",
}  # fmt: skip
_started: list[subprocess.Popen[bytes]] = []
"""It outlives this process where another worker still needs it: nobody waits for it."""


class Rank:
    """As `subprocess.Popen` has it, of a process that is forked from one that has PyTorch already."""

    def __init__(self, script: Path, *words: str, **environment: str) -> None:
        self._printed = [os.memfd_create(name) for name in ("output", "errors")]
        self._read_bytes = 0
        self._said: list[str] = []
        self._status, told = os.pipe()
        told_of = [[str(script), *words], os.environ | _ENVIRONMENT | environment, str(Path.cwd())]
        socket.send_fds(_forks(), [json.dumps(told_of).encode()], [*self._printed, told])
        os.close(told)
        self.pid = self._heard()
        self.returncode: int | None = None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it has printed, and its errors, once it has ended."""
        self.wait(timeout)
        for handle in self._printed[len(self._said) :]:
            self._said.append(os.pread(handle, os.fstat(handle).st_size, 0).decode())
            os.close(handle)
        return self._said[0], self._said[1]

    def readline(self) -> str:
        """What it prints next; "" once it has ended and there is no more."""
        while True:
            ended = self._has_ended(0.01)
            line, end, _ = os.pread(self._printed[0], 1 << 20, self._read_bytes).partition(b"\n")
            if end or ended:
                self._read_bytes += len(line + end)
                return (line + end).decode()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status; it is killed after the timeout, in seconds."""
        if not self._has_ended(timeout):
            self.kill()
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if not self._has_ended(0.0):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, timeout: float | None) -> bool:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = self._heard()
            os.close(self._status)
        return self.returncode is not None

    def _heard(self) -> int:
        return int(NUMBER.unpack(os.read(self._status, NUMBER.size))[0])


def start(script: Path, rank: int, ranks: int, *more: str) -> Rank:
    """One of them, on loopback."""
    return Rank(script, str(rank), str(ranks), *more)


def run(script: Path, ranks: int, *more: str) -> list[str]:
    """What each rank printed; all have to end well."""
    processes = [start(script, rank, ranks, *more) for rank in range(ranks)]
    try:
        said = [process.communicate(timeout=patience(240)) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(process.returncode for process in processes), "\n".join(
        f"rank {rank} ended with {process.returncode}: {problem[-3000:]}"
        for rank, (process, (_, problem)) in enumerate(zip(processes, said, strict=True))
    )
    return [output.strip() for output, _ in said]


@functools.cache
def _forks() -> socket.socket:
    """By what the run's `forks.py` is told; it ends once no worker of the run is left."""
    asked = str(shared_folder() / "forks")
    with alone("forks"):
        if (found := _connected(asked)) is not None:
            return found
        Path(asked).unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, str(repository.HELPERS / "forks.py"), asked],
            env={**os.environ, **_ENVIRONMENT}, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        _started.append(process)
        while (found := _connected(asked)) is None:
            assert process.poll() is None, "forks.py has ended"
            time.sleep(0.01)
    return found


def _connected(asked: str) -> socket.socket | None:
    """To who listens there, if anybody does."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        end.connect(asked)
    except OSError:
        end.close()
        return None
    return end
