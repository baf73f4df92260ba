"""Large collectives of a group by strategies that fit its network."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from torch import Tensor

from hemiola.core.strategy import Collective, Strategy
from hemiola.run.group.pending import Pending
from hemiola.run.group.refresh import Refresh
from hemiola.run.strategy.flow import Join
from hemiola.run.strategy.runner import Put, Runner
from hemiola.run.transport import Endpoint

__all__ = ["Choice", "Fitted"]

FEWEST_BYTES = 64 << 10
"""Smaller data goes the direct way: several hops would cost more than they save."""


class Choice(Protocol):
    """Which strategy is used; the same at every rank."""

    def choose(self, collective: Collective, size_bytes: int, root: int) -> Strategy | None:
        """For a collective of so many bytes in all, with this root; None for the usual way."""

    def renew(self) -> float:
        """Measure again, with all other ranks; the seconds that it took."""


class Fitted:
    """One rank's side.

    Attributes:
        rank, ranks: within the group.
        used: names of the strategies that were used, by collective.
    """

    def __init__(self, end: Endpoint, choice: Choice, timeout_s: float, refresh: Refresh | None) -> None:
        """Over a connected endpoint.

        Args:
            refresh: when the network is measured again; None for never.
        """
        self._runner, self._choice, self._timeout_s = Runner(end), choice, timeout_s
        self.rank, self.ranks = end.rank, end.ranks
        self._refresh = refresh
        self._guard = threading.Lock()
        self.used: dict[Collective, set[str]] = {}

    def start(
        self, kind: Collective, given: Tensor, join: Join, put: Put, result: list[Tensor], root: int = 0,
        keeps: bool = False,
    ) -> Pending | None:  # fmt: skip
        """Begin one, as `Runner.start`; None if it is to go the usual way.

        Args:
            keeps: whether what is given must not change: a copy of it is worked on.
        """
        size_bytes = given.nbytes * (self.ranks if kind == "all-gather" else 1)
        if size_bytes <= FEWEST_BYTES:
            return None
        with self._guard:  # the order of collectives is that in which they get here
            if self._refresh is not None and self._refresh.due(size_bytes):
                self._runner.wait_idle(self._timeout_s)
                self._refresh.measured(self._choice.renew())
            strategy = self._choice.choose(kind, size_bytes, root)
            if strategy is None:
                return None
            self.used.setdefault(kind, set()).add(strategy.name)
            pending = Pending("a collective", self._timeout_s)
            begun_s = time.monotonic()

            def ended(problem: BaseException | None) -> None:
                if self._refresh is not None:
                    self._refresh.took(kind, size_bytes, time.monotonic() - begun_s)
                pending.end(result, problem)

            self._runner.start(strategy, given.clone() if keeps else given, join, put, ended)
        return pending
