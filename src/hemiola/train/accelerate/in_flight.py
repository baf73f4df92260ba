"""A transfer of the exchange while it is under way."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from hemiola.core.errors import HemiolaError, TransportError
from hemiola.comm.transport.gate import Gate
from hemiola.comm.transport.messages import Outgoing

__all__ = ["TransferInFlight"]


class TransferInFlight:
    """A transfer under way.

    Attributes:
        problem: why it failed.
        stood_s: how long the engine has stood still for it.
    """

    def __init__(self, what: str, lanes: int) -> None:
        self._what = what
        self._begun_s = time.monotonic()
        self._ended_s = 0.0
        self._left = lanes
        self._guard = threading.Lock()
        self._gate = Gate()
        self.sends: list[Outgoing] = []
        self.stood_s = 0.0
        self.problem: HemiolaError | None = None

    @property
    def done(self) -> bool:
        """Whether it is reduced, or has failed."""
        return self._gate.is_open

    def wait(self, timeout_s: float) -> None:
        """Until it is reduced, or was stood still for so long in all.

        Raises:
            TransportError: it failed, or is not reduced in time.
        """
        if not self._gate.wait(timeout_s - self.stood_s):
            raise TransportError(
                f"{self._what} was not reduced within {timeout_s:g} s",
                "do all ranks run the same number of iterations?",
            )
        if self.problem is not None:
            raise self.problem

    def soon(self, timeout_s: float) -> bool:
        """Whether it has ended, after at most so long."""
        return self._gate.wait(timeout_s)

    def wait_sent(self) -> None:
        """Until this rank's memory may be written again."""
        self._gate.wait()
        for handle in self.sends:
            handle.wait()

    def sent_soon(self, until_s: float) -> None:
        """Until all is sent or failed, or this moment of the monotonic clock."""
        for handle in list(self.sends):
            with suppress(TransportError):
                handle.wait(max(0.0, until_s - time.monotonic()))

    @property
    def sent(self) -> bool:
        """Whether this rank's memory may be written again."""
        return self.done and all(handle.done for handle in self.sends)

    @property
    def moved_s(self) -> tuple[float, float]:
        """When its first chunk went and its last one came, by the monotonic clock."""
        started = [handle.started_s for handle in self.sends if handle.started_s]
        return min(started, default=self._begun_s), self._ended_s

    def end_lane(self, problem: HemiolaError | None) -> None:
        """For the exchange: one of its parts has ended."""
        with self._guard:
            self._left -= 1
            self.problem = self.problem or problem
            if self.done or (self._left and not self.problem):
                return
            self._ended_s = time.monotonic()
            self._gate.open()
