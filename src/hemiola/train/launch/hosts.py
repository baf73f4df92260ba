"""A connection to the agent of one host: this one, or another behind a remote shell. Knows no ranks."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hemiola.core.errors import InputError

__all__ = ["HostConnection", "connect", "remote_command"]

_CHUNK_BYTES = 1 << 20
_AGENT = Path(__file__).with_name("agent.py")
_TAKE_OVER = 'exec(eval(open(0,"rb",0,closefd=False).readline()))'
"""The agent's text comes as the first line, and takes over without a byte of what follows read."""


class HostConnection:
    """An agent at the other end of three pipes.

    Attributes:
        name: as the user wrote it; "" for this host.
        said: the last lines that came on its standard error, from the remote shell say.
        alive: until its output has ended.
        keyboard: number of the handle, in the agent, of this process's standard input; None behind a remote shell.
    """

    def __init__(self, name: str, command: list[str], keyboard: int | None = None) -> None:
        self.name = name
        self.said: deque[str] = deque(maxlen=5)
        self.alive = True
        self.keyboard = keyboard
        self._rest = b""
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                start_new_session=True, pass_fds=() if keyboard is None else (keyboard,),
            )  # fmt: skip
        except OSError as error:
            raise InputError(
                f"cannot run {command[0]!r}: {error.strerror}", "check --remote-shell and --python"
            ) from error
        assert (
            self.process.stdin is not None
            and self.process.stdout is not None
            and self.process.stderr is not None
        )
        self.input, self.output, self.errors = self.process.stdin, self.process.stdout, self.process.stderr
        self._write(ascii(_AGENT.read_text(encoding="utf-8")).encode())

    def send(self, *words: Any) -> None:
        """Tell the agent; nothing happens if it is gone."""
        self._write(json.dumps(words).encode())  # in ASCII: what is no text has lone surrogates

    def receive(self) -> Iterator[tuple[str, list[Any]]]:
        """What the agent has said by now: (verb, values); what a login prints before counts as said on its errors."""
        data = os.read(self.output.fileno(), _CHUNK_BYTES)
        self.alive = bool(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                words = json.loads(line)
            except ValueError:
                words = None
            if isinstance(words, list) and words:
                yield words[0], words[1:]
            elif line.strip():
                self.said.append(line.decode(errors="replace"))

    def status(self, patience_s: float) -> int:
        """How the agent or the remote shell ended; it is killed if it does not within the time given."""
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def close(self) -> None:
        """Let go: the agent ends its ranks, if there still are any. Does not wait for that."""
        for stream in (self.input, self.output, self.errors):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _write(self, line: bytes) -> None:
        data = memoryview(line + b"\n")
        try:
            while data:
                data = data[os.write(self.input.fileno(), data) :]
        except BrokenPipeError:  # its output ends too, and says how
            pass


def connect(name: str, template: str, python: str) -> HostConnection:
    """Start the agent of a host, which answers "hello" once it is there.

    Raises:
        InputError: the remote shell or Python cannot be run here.
    """
    agent = [python, "-I", "-S", "-c", _TAKE_OVER]
    here = socket.gethostname()
    if name in ("", "localhost", here, here.partition(".")[0]):
        keyboard = os.dup(0) if sys.stdin is not None else None
        try:
            return HostConnection(name, agent, keyboard)
        finally:
            if keyboard is not None:
                os.close(keyboard)
    return HostConnection(name, remote_command(template, name, shlex.join(agent)))


def remote_command(template: str, host: str, command: str) -> list[str]:
    """The words that run a command on a host.

    Args:
        template: words as in a shell; {host} and {command} stand for both, or else both are put behind.
        host: its name.
        command: for a shell on that host.

    Raises:
        InputError: the template is none.

    Example:
        >>> remote_command("kubectl exec -i {host} -- sh -c {command}", "n1", "hostname -f")
        ['kubectl', 'exec', '-i', 'n1', '--', 'sh', '-c', 'hostname -f']
    """
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise InputError(f"--remote-shell {template!r}: {error}", "close every quote") from error
    if not words:
        raise InputError("--remote-shell is empty", "write for example: ssh {host} {command}")
    for word in ("{host}", "{command}"):
        if not any(word in each for each in words):
            words.append(word)
    return [word.replace("{host}", host).replace("{command}", command) for word in words]
