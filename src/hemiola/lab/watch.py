"""Follows the processes of one run: passes on what they print, and ends all when one fails."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TextIO

import msgspec

from hemiola.core.errors import LabError
from hemiola.lab import namespaces
from hemiola.lab.namespaces import RUN_VARIABLE, belonging, end_processes, tell
from hemiola.lab.network import DEVICE, entered, gone
from hemiola.lab.settings import LabSettings
from hemiola.lab.state import LabState

__all__ = ["CommandOutcome", "RunWatch", "rendezvous", "start"]


GRACE_S = 5.0
"""How long processes have between being asked to end and being killed."""

CHUNK_BYTES = 65536
LINE_MAX_BYTES = 1 << 20
CHUNKS_AT_END = 32
"""More than a pipe holds: what the dead have written, but no more from one that escaped."""


class CommandOutcome(msgspec.Struct, frozen=True):
    """How a run ended, and how the lab was set.

    Attributes:
        status: 0, or the exit status of the host that failed first; 128 + the signal that ended it.
        statuses: of every host, in the order in which they ended.
        settings: as the kernel reported them before the run.
    """

    status: int
    statuses: dict[str, int]
    settings: LabSettings


class RunWatch:
    """One run's processes, by host; each has pipes for its output, read here without threads."""

    def __init__(
        self, run: str, processes: Mapping[str, subprocess.Popen[bytes]], out: TextIO, err: TextIO
    ) -> None:
        self.statuses: dict[str, int] = {}
        self._run = run
        self._processes = dict(processes)
        self._selector = selectors.DefaultSelector()
        self._pipes: list[_Pipe] = []
        self._kill_at_s: float | None = None
        self._asked: set[int] = set()
        width = max(map(len, processes))
        for host, process in self._processes.items():
            self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, host)
            for stream, sink in ((process.stdout, out), (process.stderr, err)):
                assert stream is not None
                pipe = _Pipe(stream, f"{host:{width}} | ", sink)
                self._pipes.append(pipe)
                self._selector.register(stream, selectors.EVENT_READ, pipe)

    def follow(self) -> None:
        """Until every process has ended; the first failure ends the others."""
        while self._living():
            self._step()
            if self._kill_at_s is None and any(self.statuses.values()):
                self._ask_to_end(signal.SIGTERM)

    def interrupt(self) -> None:
        """Pass Ctrl-C on, and follow them to their ends; another one leaves them no time for these."""
        try:
            self._ask_to_end(signal.SIGINT)
            self.follow()
        except KeyboardInterrupt:
            self._kill_at_s = time.monotonic()
            raise

    def _ask_to_end(self, number: signal.Signals) -> None:
        """Signal all that belongs to the run; from then it has `GRACE_S` until it is killed."""
        groups = [self._processes[host].pid for host in self._living()]
        self._asked |= tell(belonging(self._run), number, groups=groups)
        self._kill_at_s = time.monotonic() + GRACE_S

    def close(self) -> None:
        """End what is left of the run in what is left of its time, pass on the last output, let go of everything."""
        try:
            self._end_rest()
            for host in self._living():
                self._processes[host].kill()
                self._note(host)
            for pipe in self._pipes:
                pipe.drain()
        finally:
            for key in list(self._selector.get_map().values()):
                if isinstance(key.data, str):
                    os.close(key.fd)
            for pipe in self._pipes:
                pipe.stream.close()
            self._selector.close()

    def _end_rest(self) -> None:
        """What is still there, such as what a shell has started that ended itself; Ctrl-C leaves it no time."""
        ours, left_s = belonging(self._run), GRACE_S
        if self._kill_at_s is not None:
            left_s = max(0.0, self._kill_at_s - time.monotonic())
        try:
            end_processes(ours, grace_s=left_s, asked=self._asked)
        except KeyboardInterrupt:
            end_processes(ours, grace_s=0.0)
            raise

    def _living(self) -> list[str]:
        return [host for host in self._processes if host not in self.statuses]

    def _step(self) -> None:
        """Wait for output, an end, or the time to kill."""
        wait_s = None if self._kill_at_s is None else max(0.0, self._kill_at_s - time.monotonic())
        for key, _ in self._selector.select(wait_s):
            if isinstance(key.data, _Pipe):
                if not key.data.pass_on():
                    self._selector.unregister(key.fileobj)
            else:
                self._selector.unregister(key.fileobj)
                os.close(key.fd)
                self._note(key.data)
        if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
            self._kill()
            for host in self._living():
                self._note(host)

    def _note(self, host: str) -> None:
        status = self._processes[host].wait()
        self.statuses[host] = status if status >= 0 else 128 - status

    def _kill(self) -> None:
        for host in self._living():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._processes[host].pid, signal.SIGKILL)


class _Pipe:
    """A process's output on its way to ours, line by line with the host's name before each."""

    def __init__(self, stream: IO[bytes], prefix: str, sink: TextIO) -> None:
        self.stream = stream
        self._prefix = prefix
        self._sink = sink
        self._rest = b""
        os.set_blocking(stream.fileno(), False)

    def pass_on(self) -> bool:
        """Pass on what has come, a chunk at most; False: nothing is there, or nothing comes any more."""
        try:
            data = os.read(self.stream.fileno(), CHUNK_BYTES)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_MAX_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        self._print(lines)
        return bool(data)

    def drain(self) -> None:
        """Pass on all that is left, an unfinished line too."""
        for _ in range(CHUNKS_AT_END):
            if not self.pass_on():
                break
        if self._rest:
            self._print([self._rest])
            self._rest = b""

    def _print(self, lines: list[bytes]) -> None:
        if lines:
            text = (f"{self._prefix}{line.decode(errors='replace')}\n" for line in lines)
            self._sink.write("".join(text))
            self._sink.flush()


# Starts commands on a lab's hosts, with what they need to find each other.

ENTER = Path(__file__).with_name("enter.py")


def rendezvous(state: LabState, hosts: Sequence[str]) -> dict[str, dict[str, str]]:
    """The variables with which one process on each of these hosts finds the others.

    Those of torchrun (MASTER_ADDR, MASTER_PORT, RANK, ...), the interface for gloo and NCCL, and
    HEMIOLA_LAB_HOST. The port is free on the first host at this moment.

    Raises:
        LabError: an unknown host, or one named twice.
    """
    for host in hosts:
        if host not in state.spec.hosts:
            raise LabError(
                f"the lab {state.spec.name!r} has no host {host!r}",
                f"its hosts: {', '.join(state.spec.hosts)}",
            )
    if len(set(hosts)) != len(hosts) or not hosts:
        raise LabError(f"the hosts {', '.join(hosts) or '(none)'}", "name at least one host, and each once")
    port = str(entered(state.namespace(hosts[0]), _free_port))
    return {
        host: {
            "MASTER_ADDR": state.address(hosts[0]),
            "MASTER_PORT": port,
            "RANK": str(rank),
            "WORLD_SIZE": str(len(hosts)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GLOO_SOCKET_IFNAME": DEVICE,
            "NCCL_SOCKET_IFNAME": DEVICE,
            "HEMIOLA_LAB_HOST": host,
        }
        for rank, host in enumerate(hosts)
    }


def start(
    state: LabState, host: str, command: Sequence[str], *, run: str, env: Mapping[str, str], **popen: Any
) -> subprocess.Popen[Any]:
    """Start a command on a host, in a session of its own.

    Args:
        run: the sign by which all that comes of it is found and ended.
        env: variables over those of this process.
        popen: as `subprocess.Popen` takes it.

    Raises:
        LabError: no command, or the host is gone.
    """
    if not command:
        raise LabError("no command to run", "write it behind two dashes: hemiola lab run -- python train.py")
    path = namespaces.path_of(state.namespace(host))
    if not path.exists():
        raise gone(path.name)
    place = [str(path), host, str(state.hosts_file)]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(ENTER), *place, *command],
        env={"PYTHONUNBUFFERED": "1", **os.environ, **env, RUN_VARIABLE: run},
        start_new_session=True,
        **{"stdin": subprocess.DEVNULL, **popen},
    )


def _free_port(_: Any) -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
