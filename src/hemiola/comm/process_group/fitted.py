"""Large collectives of a group by strategies that fit its network.

To begin one may wait for the first rank to call it too: it chooses for all, once for each kind and size, and all measure the
network between the same two collectives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from torch import Tensor

from hemiola.core.collective.schedule import FEWEST_BYTES, Collective, CollectiveSchedule
from hemiola.plan.collective.balance import NAME
from hemiola.comm.process_group.balanced import Balanced, Turn
from hemiola.comm.process_group.collectives import Channel
from hemiola.comm.process_group.memory import Reduction
from hemiola.comm.process_group.pending import Pending
from hemiola.comm.process_group.refresh import Refresh
from hemiola.comm.stragglers.all_reduce import Stragglers
from hemiola.comm.schedule_executor.flow import Join
from hemiola.comm.schedule_executor.runner import Put, Runner
from hemiola.comm.schedule_executor.under_way import InFlightCount
from hemiola.comm.transport import Endpoint

__all__ = ["LATE", "Fitted"]


LATE = ("", "wait", "relay", "carry-over")
"""What is done about ranks that are late: waited for, or not (`run.late`)."""


class Chosen(Protocol):
    """Which strategies fit."""

    @property
    def epoch(self) -> int:
        """How often others were chosen."""

    def choose(
        self, collective: Collective, size_bytes: int, root: int, epoch: int | None
    ) -> CollectiveSchedule | None:
        """As `Choose`."""


class Fitted:
    """One rank's side.

    Attributes:
        rank, ranks: within the group.
        used: names of the strategies that were used, by collective.
        begun: what is under way here.
    """

    def __init__(
        self, runner: Runner, chosen: Chosen, timeout_s: float, refresh: Refresh | None, late: str = "",
        balanced: Balanced | None = None, probing: Endpoint | None = None,
    ) -> None:  # fmt: skip
        """With what carries them out.

        Args:
            chosen: the same at every rank.
            refresh: when the network is measured again; None for never.
            late: one of `LATE`.
            balanced: how all-reduces go while the network changes, if not as chosen.
            probing: over which it is measured; closed with this.
        """
        self._probing = probing
        end = runner.end
        self._runner, self._timeout_s = runner, timeout_s
        self.rank, self.ranks = end.rank, end.ranks
        self._chosen, self._refresh, self._balanced = chosen, refresh, balanced
        took = partial(self._took, "all-reduce")
        self._late = (
            Stragglers(end, self._used, lambda: chosen.epoch, timeout_s, late == "carry-over", took)
            if late not in LATE[:2]
            else None
        )
        self._guard = threading.Lock()
        self._holds = False  # whether something that holds connections back was begun since they were let go
        self._usual = InFlightCount("collectives")
        """Those that go the usual way."""
        self.used: dict[Collective, set[str]] = {}
        self.begun: set[Pending] = set()

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
            self._renew(size_bytes)
            if self._balanced is not None and self._balanced.active and kind == "all-reduce":
                self._holds = True
                self.used.setdefault(kind, set()).add(NAME)
                pending = Pending("a collective", self._timeout_s)
                self._balanced.start(given, join, put, partial(pending.end, result))
                pending.note_in(self.begun)
                return pending
            strategy = self._used(kind, size_bytes, root)
            if strategy is None:
                return None
            self._holds = self._holds or bool(strategy.paces)
            pending = Pending("a collective", self._timeout_s)
            begun_s = time.monotonic()

            def ended(problem: BaseException | None) -> None:
                self._took(kind, size_bytes, time.monotonic() - begun_s)
                pending.end(result, problem)

            self._runner.start(strategy, given.clone() if keeps else given, join, put, ended)
            pending.note_in(self.begun)
        return pending

    def add_up(self, given: Tensor, how: Reduction, put: Put, result: list[Tensor]) -> Pending | None:
        """An all-reduce in place; without ranks that are late, if it is to begin without them."""
        late = self._late
        if late is None or given.nbytes <= FEWEST_BYTES or not late.takes(given, how):
            return self.start("all-reduce", given, how.join, put, result)
        with self._guard:
            self._renew(given.nbytes)
            self._holds = True
            pending = Pending("a collective", self._timeout_s)
            late.start(given, how, put, partial(pending.end, result))
            pending.note_in(self.begun)
        return pending

    def timed(
        self, kind: Collective, size_bytes: int, action: Callable[[Channel], None]
    ) -> Callable[[Channel], None]:
        """One that goes the usual way: how long it takes from now on tells of the network too."""
        if size_bytes <= FEWEST_BYTES or self._refresh is None:
            return action
        begun_s = time.monotonic()
        self._usual.begin()

        def noted(channel: Channel) -> None:
            try:
                action(channel)
                self._took(kind, size_bytes, time.monotonic() - begun_s)
            finally:
                self._usual.end()

        return noted

    def let_go(self) -> None:
        """Something else is to be sent: as fast as it goes."""
        if self._holds:
            self._holds = False
            self._runner.let_go()

    def abort(self) -> None:
        """Wait for nobody any more."""
        if self._late is not None:
            self._late.abort()
        if self._probing is not None:
            self._probing.close(0.0)

    def close(self) -> None:
        """Leave."""
        if self._late is not None:
            self._late.close()
        if self._probing is not None:
            self._probing.close()

    def _renew(self, size_bytes: int) -> None:
        """Measure the network again if it is time, before a collective of so many bytes."""
        if self._refresh is None:
            return
        turn = self._refresh.due(size_bytes)
        if self._balanced is not None:
            if turn == Turn.BALANCE:
                self._balanced.enter()
            elif turn != Turn.NOTHING and self._balanced.active:
                self._balanced.leave()
                self.let_go()
        if turn == Turn.MEASURE:
            self._runner.wait_idle(self._timeout_s)
            self._usual.wait_idle(self._timeout_s)
            if self._late is not None:
                self._late.wait_idle(self._timeout_s)
            self._refresh.measure()
        elif turn != Turn.NOTHING:
            self._refresh.learn()

    def _used(
        self, kind: Collective, size_bytes: int, root: int, epoch: int | None = None
    ) -> CollectiveSchedule | None:
        strategy = self._chosen.choose(kind, size_bytes, root, epoch)
        if strategy is not None:
            self.used.setdefault(kind, set()).add(strategy.name)
        return strategy

    def _took(self, kind: Collective, size_bytes: int, seconds: float) -> None:
        if self._refresh is not None:
            self._refresh.took(kind, size_bytes, seconds)
