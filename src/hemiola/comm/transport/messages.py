"""Messages on their way, and what their owners hold of them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from hemiola.core.errors import HemiolaError, TransportError

__all__ = ["Gate", "Handle", "Incoming", "Outgoing"]


# A gate that is opened once, for all who wait at it.

_LOOK_AGAIN_S = 1.0
"""Who was interrupted just behind the gate has left it shut for those who stand before it."""


class Gate:
    """As `threading.Event`, at the cost of one lock.

    Attributes:
        is_open: whether it is.
    """

    __slots__ = ("_lock", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Let all through; called once."""
        self.is_open = True
        self._lock.release()

    def wait(self, timeout_s: float = math.inf) -> bool:
        """Whether it is open, after at most so long; that this process is stopped meanwhile counts as a second at most."""
        if self.is_open:
            return True
        left_s = timeout_s
        while not self.is_open and left_s > 0:
            begun_s = time.monotonic()
            if self._lock.acquire(timeout=min(left_s, _LOOK_AGAIN_S)):
                self._lock.release()
            left_s -= min(time.monotonic() - begun_s, _LOOK_AGAIN_S)
        return self.is_open


_log = logging.getLogger("hemiola.transport")


_NOTHING = memoryview(b"")


class Handle:
    """A message that is being sent or awaited.

    Attributes:
        peer, tag: with whom, and which message.
        size_bytes: of the message.
        done: whether it has ended, well or not.
    """

    __slots__ = ("_callbacks", "_gate", "_guard", "_problem", "done", "peer", "size_bytes", "tag")

    def __init__(self, peer: int, tag: int, size_bytes: int) -> None:
        self.peer, self.tag, self.size_bytes = peer, tag, size_bytes
        self.done = False
        self._gate = Gate()
        self._guard = threading.Lock()
        self._callbacks: list[Callable[[Handle], None]] = []
        self._problem: HemiolaError | None = None

    @property
    def problem(self) -> HemiolaError | None:
        """Why it failed; None while it has not."""
        return self._problem

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it has ended. What is sent may be changed then, what is received be read.

        Raises:
            TransportError: it failed, or did not end in time (it goes on).
        """
        if not self._gate.wait(math.inf if timeout_s is None else timeout_s):
            raise TransportError(
                f"message {self.tag} with rank {self.peer} did not end within {timeout_s:g} s", "wait longer"
            )
        if self._problem is not None:
            raise self._problem

    def add_callback(self, callback: Callable[[Handle], None]) -> None:
        """Have this called once it has ended, on the transport's thread; at once if it has.

        What it raises there is logged, and harms nobody else's messages.
        """
        with self._guard:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback(self)

    def finish(self, problem: HemiolaError | None = None) -> None:
        """For the transport: it has ended."""
        with self._guard:
            if self.done:
                return
            self._problem, self.done = problem, True
            self._gate.open()
        for callback in self._callbacks:
            try:
                callback(self)
            except Exception:
                _log.exception(
                    "what was to be done after message %d with rank %d failed", self.tag, self.peer
                )
        self._callbacks.clear()


class Outgoing(Handle):
    """A message to a peer."""

    __slots__ = ("chunks", "data", "key", "order", "sent_bytes", "sequence", "started_s", "urgent_s")

    def __init__(
        self, peer: int, tag: int, sequence: int, data: memoryview, key: float, urgent_s: float, order: int
    ) -> None:
        super().__init__(peer, tag, data.nbytes)
        self.sequence = sequence
        self.data = data
        self.key = key
        self.urgent_s = urgent_s
        self.order = order
        self.sent_bytes = self.chunks = 0
        self.started_s = 0.0

    def finish(self, problem: HemiolaError | None = None) -> None:
        """For the transport: it has ended, and its bytes are no longer held."""
        self.data = _NOTHING
        super().finish(problem)

    def __lt__(self, other: Outgoing) -> bool:
        return (self.key, self.order) < (other.key, other.order)


@dataclass(slots=True)
class Incoming:
    """A message from a peer, or the place where it is to go, whichever was there first.

    Attributes:
        handle: of who waits for it; None until somebody does.
        data: where it goes; None until known. Kept by the transport until somebody asks for it.
        size_bytes: of the message; -1 until its first frame has come.
        got_bytes: of it.
        whole: whether all of it has come; of an empty message, its only frame.
    """

    handle: Handle | None = None
    data: memoryview | None = None
    size_bytes: int = -1
    got_bytes: int = 0
    whole: bool = False
