"""Large collectives of a group by strategies that fit its network."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from hemiola.core.strategy import Collective, Strategy
from hemiola.run.group.pending import Pending
from hemiola.run.strategy.flow import Join
from hemiola.run.strategy.runner import Put, Runner
from hemiola.run.transport import Endpoint

__all__ = ["Choose", "Fitted"]

FEWEST_BYTES = 64 << 10
"""Smaller data goes the direct way: several hops would cost more than they save."""
Choose = Callable[[Collective, int, int], Strategy | None]
"""The strategy for a collective of so many bytes in all, with this root; None for the built-in way. Every rank has to
choose the same."""


class Fitted:
    """One rank's side."""

    def __init__(self, end: Endpoint, choose: Choose, timeout_s: float) -> None:
        self._runner, self._choose, self._timeout_s = Runner(end), choose, timeout_s
        self._ranks = end.ranks

    def start(
        self, kind: Collective, given: Tensor, join: Join, put: Put, result: list[Tensor], root: int = 0
    ) -> Pending | None:
        """Begin one, as `Runner.start`; None if it is to go the built-in way."""
        size_bytes = given.nbytes * (self._ranks if kind == "all-gather" else 1)
        strategy = self._choose(kind, size_bytes, root) if size_bytes > FEWEST_BYTES else None
        if strategy is None:
            return None
        pending = Pending("a collective", self._timeout_s)
        self._runner.start(strategy, given, join, put, lambda problem: pending.end(result, problem))
        return pending
