"""Threads for what others want done when a collective has ended: it may wait for another one."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable

__all__ = ["Helpers"]

_log = logging.getLogger("hemiola.group")


class Helpers:
    """As many threads as things are done at once. Those that are idle are kept, and hold up no process that ends."""

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # threads are not forked

    def _begin(self) -> None:
        self._actions: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._idle = 0
        """Threads that wait, less what lies there for them."""

    def do(self, action: Callable[[], object]) -> None:
        """Have this done now, whatever others wait for."""
        with self._guard:
            is_new = not self._idle
            if not is_new:
                self._idle -= 1
        self._actions.put(action)
        if is_new:
            threading.Thread(target=self._work, name="hemiola-helper", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                self._actions.get()()
            except Exception:
                _log.exception("what was to be done after a collective failed")
            with self._guard:
                self._idle += 1
