"""What is under way when a rank is lost: given a moment, and then ended."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol

from hemiola.core.errors import HemiolaError
from hemiola.comm.transport import Endpoint

__all__ = ["GRACE_S", "stop_later"]

GRACE_S = 2.0
"""What is under way may end well after a rank is lost: it may have done its part of a script's last collective."""


class _Stoppable(Protocol):
    def stop(self, problem: HemiolaError) -> None:
        """End it, if it has not."""


def stop_later(end: Endpoint, doomed: Iterable[_Stoppable], problem: HemiolaError, after_s: float) -> None:
    """End these with this problem after so long, on the transport's thread."""
    left = list(doomed)

    def stop() -> None:
        for one in left:
            one.stop(problem)

    timer = threading.Timer(after_s, lambda: end.call(stop))
    timer.daemon = True
    timer.start()
