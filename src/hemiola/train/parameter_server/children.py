"""Processes that belong to a rank: how they are started, meet the others, and go when the rank goes.

A child is a fresh Python that runs one function of this package; the user's script is not imported in it.
Its configuration comes over its standard input, which stays open: its end is the end of the rank. What a
rank forks otherwise, such as workers that load data, keeps none of that open. A child shares no terminal with the
rank, so Ctrl-C reaches it as the rank's end; and no recording of the job takes it for the rank.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from hemiola.comm.transport import Address, Endpoint
from hemiola.core.errors import HemiolaError, TransportError

__all__ = ["Child", "answer", "asked", "clear_up", "greet", "only_here", "settle"]

_ends: weakref.WeakSet[Any] = weakref.WeakSet()
"""Of pipes and sockets to children, for who is forked off."""


class Child:
    """One process of a rank.

    Attributes:
        address: where its endpoint listens.
    """

    def __init__(self, what: str, module: str, config: dict[str, Any], files: Sequence[int] = ()) -> None:
        """Start it; `connect` completes that.

        Args:
            what: it is, for messages.
            module: of this package, with a function `main`.
            config: as `greet` reads it there.
            files: descriptors that it inherits.
        """
        self.what = what
        path = os.pathsep.join(p or str(Path.cwd()) for p in sys.path)
        # with these a server, which steps an optimizer, would record itself as the rank that it belongs to
        known = {name: value for name, value in os.environ.items() if not name.startswith("HEMIOLA_RECORD")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {module} import main; main()"],  # finds what the rank's script finds
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=files, env={**known, "PYTHONPATH": path},
            start_new_session=True,
        )  # fmt: skip
        only_here(self._process.stdin, self._process.stdout)
        self._send(config)

    @property
    def pid(self) -> int:
        """Its number in the system."""
        return self._process.pid

    def _send(self, value: object) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            _write(stdin, value)
        except OSError as problem:
            raise self._failed(str(problem)) from problem

    def _line(self) -> Any:
        stdout = self._process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise self._failed(f"it ended ({self.ending()})")
        said = json.loads(line)
        if "problem" in said:
            raise self._failed(said["problem"])
        return said

    def address(self) -> Address:
        """Where it listens, once it does."""
        host, port = self._line()["address"]
        return host, port

    def introduce(self, addresses: Sequence[Address]) -> None:
        """Tell it everybody's."""
        self._send(list(addresses))

    def ready(self) -> None:
        """Wait until it is connected.

        Raises:
            TransportError: it could not be.
        """
        self._line()

    def ask(self) -> Any:
        """What it answers to `asked` there.

        Raises:
            TransportError: it is gone.
        """
        try:
            self._send("?")
            assert self._process.stdout is not None
            return _read(self._process.stdout)
        except (TransportError, EOFError) as problem:
            raise TransportError(
                f"{self.what} is gone ({self.ending()})", "look at what it logged above"
            ) from problem

    def ending(self) -> str:
        """How it ended, in words."""
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "it runs, but does not answer"
        return f"killed by signal {-status}" if status < 0 else f"exit status {status}"

    def _failed(self, why: str) -> TransportError:
        return TransportError(f"{self.what} could not start: {why}", "look at what it logged above")

    def wait(self, timeout_s: float | None) -> None:
        """Until it has ended by itself; killed after that time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._clear()

    def outlive(self, timeout_s: float | None) -> None:
        """Let it end by itself: `clear_up` sees to it then, and this process waits for it so long before it ends."""
        _LEFT[self] = timeout_s

    def ended(self) -> bool:
        """Whether it has; nothing is left of it then."""
        if self._process.poll() is None:
            return False
        self._clear()
        return True

    def release(self) -> None:
        """Tell it that the rank has ended."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()
        self._clear()

    def _clear(self) -> None:
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


_LEFT: dict[Child, float | None] = {}
"""Those that end by themselves: not before other ranks let them, which may be long after their part here is over."""


def clear_up() -> None:
    """Of those that were left to end by themselves: what remains of whoever has."""
    for child in [child for child in _LEFT if child.ended()]:
        del _LEFT[child]


@atexit.register  # before any optimizer does, so it comes after all their goodbyes
def _wait_for_all() -> None:
    for child, timeout_s in _LEFT.items():
        child.wait(timeout_s)


def only_here(*ends: Any) -> None:
    """These pipes or sockets are to end with this process, whatever it has forked by then."""
    _ends.update(ends)


def _disown() -> None:
    """In a process that was forked off. It closes none of them, which could wait for a thread that is not here."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for end in list(_ends):
        with suppress(OSError, ValueError):  # it was closed before
            os.dup2(nothing, end.fileno(), inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_disown)


def greet() -> tuple[dict[str, Any], Endpoint | None]:
    """In a child: read the configuration, meet everybody; no endpoint if that failed, which is told the rank.

    The configuration has `place` (number among all endpoints), `places`, `secret`, `options`, `paces` and `cores`.
    """
    config = _read(sys.stdin.buffer)
    signal.signal(
        signal.SIGUSR2, signal.SIG_IGN
    )  # it asks ranks for a trace, and may be sent to all of a job
    if config["cores"]:
        os.sched_setaffinity(0, config["cores"])
    try:
        end = Endpoint(config["place"], config["places"], config["secret"], config["options"])
        print(json.dumps({"address": end.address}), flush=True)
        end.connect(_read(sys.stdin.buffer))
        end.call(lambda: end.pace(config["paces"]))
    except (HemiolaError, EOFError) as problem:
        print(json.dumps({"problem": str(problem)}), flush=True)
        return config, None
    return config, end


def settle() -> None:
    """In a child: tell the rank that everything stands."""
    print(json.dumps({"ready": True}), flush=True)


def asked() -> None:
    """In a child: wait until the rank asks.

    Raises:
        EOFError: it has ended.
    """
    _read(sys.stdin.buffer)


def answer(value: object) -> None:
    """In a child: what the rank has asked for."""
    _write(sys.stdout.buffer, value)


def _write(stream: IO[bytes], value: object) -> None:
    """For the other end of a pipe."""
    data = pickle.dumps(value)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def _read(stream: IO[bytes]) -> Any:
    """From the other end of a pipe.

    Raises:
        EOFError: whoever was there has ended.
    """
    head = stream.read(8)
    size = int.from_bytes(head, "little")
    data = stream.read(size) if len(head) == 8 else b""
    if len(head) < 8 or len(data) < size:
        raise EOFError("the other process has ended")
    return pickle.loads(data)
