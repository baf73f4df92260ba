"""A gate that is opened once, for all who wait at it."""

from __future__ import annotations

import math
import threading
import time

__all__ = ["Gate"]

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
