"""What PyTorch holds of a collective under way.

Who waits for it is woken by who carries it out. What scripts have done after it (`Future.then`) is done by threads of its
own: it may begin other collectives, and wait for them. Who waits for a future waits no longer than who waits for the work.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hemiola.core.errors import TransportError
from hemiola.comm.process_group.deadlines import Deadlines
from hemiola.comm.process_group.helpers import Helpers
from hemiola.comm.transport.gate import Gate

__all__ = ["Pending"]

_helpers, _deadlines = Helpers(), Deadlines()
"""Of all groups of this process: they know nothing of any."""


class Pending(dist.Work):
    """A collective under way. Unlike PyTorch's own work around a future, waiting for it raises what went wrong.

    Attributes:
        source: of a message from another rank, which one, within the group.
        timeout_s: so long is waited for it.
    """

    def __init__(self, what: str, timeout_s: float, in_time: bool = False) -> None:
        """Not complete yet.

        Args:
            in_time: who carries it out ends it in time: then its future needs no deadline.
        """
        super().__init__()
        self._what, self._in_time = what, in_time
        self._begun: set[Pending] = set()
        self.timeout_s = timeout_s
        self.source = -1
        self._future: Any = None  # made for who asks: it costs as much as a small message
        self._guard = threading.Lock()
        self._gate = Gate()
        self._result: list[Tensor] | None = None
        self._problem: BaseException | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until it is complete.

        Raises:
            TransportError: it failed, or did not become complete in time.
        """
        limit_s = self.timeout_s if not timeout else timeout.total_seconds()
        try:
            if not self._gate.wait(limit_s):
                raise self._incomplete(limit_s)
        except BaseException:  # an interrupt, too
            self._begun.discard(self)
            raise
        if self._problem is not None:
            raise self._problem
        return True

    def note_in(self, begun: set[Pending]) -> None:
        """Be one of these until it has ended, or somebody has waited for it in vain."""
        with self._guard:
            if self._result is None:
                self._begun = begun
                begun.add(self)

    def _source_rank(self) -> int:
        return self.source

    def is_completed(self) -> bool:
        """Whether it is, well or not."""
        return self._result is not None

    def is_success(self) -> bool:
        """Whether it is complete and went well."""
        return self.is_completed() and self._problem is None

    def get_future(self) -> Any:
        """With the tensors, or with what went wrong: that it is not complete in time, too, counted from now."""
        with self._guard:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._result is not None:
                    self._future.set_result(self._result)
                elif not self._in_time:
                    _deadlines.set(self, self.timeout_s)
        return self._future.then(self._outcome)

    def _outcome(self, future: Any) -> list[Tensor]:
        """What a callback raises is an error for PyTorch's own code too, which takes `set_exception`'s for a result."""
        if self._problem is not None:
            raise self._problem
        return list(future.value())

    def end(self, result: list[Tensor], problem: BaseException | None = None) -> None:
        """For who carries it out. The first end counts: whoever waits may have been told already that it failed."""
        with self._guard:
            if self._result is not None:
                return
            self._problem, self._result = problem, result
            future = self._future
            self._begun.discard(self)
        self._gate.open()
        if future is not None:
            _deadlines.drop(self)
            _helpers.do(lambda: future.set_result(result))

    def expire(self) -> None:
        """It has taken too long."""
        self.end([], self._incomplete(self.timeout_s))

    def _incomplete(self, limit_s: float) -> TransportError:
        return TransportError(
            f"{self._what} was not complete within {limit_s:g} s", "do all ranks call the same collectives?"
        )
