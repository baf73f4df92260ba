"""Ray, asked through a process of its own that is ended when it is late."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from hemiola.core.errors import EngineError, InputError
from hemiola.live.engines.ray.kv_store import use_token
from hemiola.live.failpoints import failpoint

__all__ = ["Command", "Ray"]


START_S, REACH_S = 30.0, 3.0


class AgentAnswer(msgspec.Struct):
    """Of the agent."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""


class Ray:
    """One cluster, as long as it is used; the agent is started when something is asked.

    Args:
        address: of the head: "127.0.0.1:6379". A node of the cluster has to run on this host.
        limit_s: so long an answer may take.

    Attributes:
        version: of Ray, once it has been asked something.
    """

    def __init__(self, address: str, limit_s: float = 15.0) -> None:
        self.address, self.version = address, ""
        self._limit_s = limit_s
        self._agent: subprocess.Popen[bytes] | None = None
        self._read = b""

    def ask(self, request: str, *arguments: object) -> msgspec.Raw:
        """What it answers, as JSON.

        Raises:
            EngineError: Ray is away, late, or refuses.
        """
        if self._agent is None:
            self._start()
        assert self._agent is not None and self._agent.stdin is not None
        failpoint(f"ray.{request}.before")
        try:
            self._agent.stdin.write(msgspec.json.encode([request, arguments]) + b"\n")
            self._agent.stdin.flush()
        except OSError:
            raise self._gone("the connection to Ray has ended") from None
        answer = self._answer(self._limit_s)
        failpoint(f"ray.{request}.after")
        if answer.error:
            raise EngineError(f"Ray refuses: {_short(answer.error)}", "try: ray status")
        return answer.value

    def close(self) -> None:
        """End the agent."""
        if self._agent is not None:
            self._end()

    def _start(self) -> None:
        self._reach()
        environ = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
        for name in (
            "RAY_ADDRESS",
            "RAY_JOB_CONFIG_JSON_ENV_VAR",
        ):  # the daemon's own, or of the job around it
            environ.pop(name, None)
        use_token(environ)
        self._read = b""
        self._agent = subprocess.Popen(
            [sys.executable, "-P", "-m", "hemiola.live.engines.ray.agent", self.address], env=environ,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        answer = self._answer(START_S)
        if answer.error:
            raise self._gone(f"there is no Ray at {self.address}: {_short(answer.error)}")
        self.version = msgspec.json.decode(answer.value, type=str)

    def _reach(self) -> None:
        """Ray itself tries for minutes where nobody is."""
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit():
            raise InputError(
                f"{self.address!r} is no address of Ray's head", "write HOST:PORT, such as 10.0.0.1:6379"
            )
        try:
            socket.create_connection((host, int(port)), REACH_S).close()
        except OSError as problem:
            raise EngineError(
                f"nobody is at {self.address}: {problem}", "is the head up? try: ray status"
            ) from None

    def _answer(self, limit_s: float) -> AgentAnswer:
        assert self._agent is not None and self._agent.stdout is not None
        end_s = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._agent.stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not selector.select(end_s - time.monotonic()) or time.monotonic() > end_s:
                    raise self._gone(f"Ray gave no answer within {limit_s:g} s")
                piece = os.read(self._agent.stdout.fileno(), 1 << 16)
                if not piece:
                    raise self._gone("the connection to Ray has ended")
                self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        try:
            return msgspec.json.decode(line, type=AgentAnswer)
        except msgspec.DecodeError:
            raise self._gone("the answer of Ray cannot be read") from None

    def _gone(self, what: str) -> EngineError:
        self._end()
        return EngineError(what, "is the head up? try: ray status")

    def _end(self) -> None:
        assert self._agent is not None
        agent, self._agent = self._agent, None
        for pipe in (agent.stdin, agent.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        agent.kill()
        agent.wait()


def _short(text: Any) -> str:
    return " ".join(str(text).split())[:300]


# A command that can be ended with all that it has started.

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
