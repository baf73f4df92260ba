"""How many things are under way, for who waits until none is."""

from __future__ import annotations

import threading

from hemiola.core.errors import TransportError

__all__ = ["InFlightCount"]


class InFlightCount:
    """A count that threads share."""

    def __init__(self, what: str) -> None:
        """Of these, in the plural, for people."""
        self._what = what
        self._count = 0
        self._changed = threading.Condition()

    def begin(self) -> None:
        """One more."""
        with self._changed:
            self._count += 1

    def end(self) -> None:
        """One less."""
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait_idle(self, timeout_s: float) -> None:
        """Until none is.

        Raises:
            TransportError: some still are after so long.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._count, timeout_s):
                raise TransportError(
                    f"{self._what} were not complete within {timeout_s:g} s",
                    "do all ranks call the same ones?",
                )
