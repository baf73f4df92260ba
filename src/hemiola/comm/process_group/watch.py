"""What goes on without a thread of its own: a lost rank ends it on every rank, also where nobody awaits that rank."""

from __future__ import annotations

from collections.abc import Callable

from hemiola.core.errors import HemiolaError
from hemiola.comm.process_group.collectives import Ended
from hemiola.comm.schedule_executor.grace import GRACE_S, stop_later
from hemiola.comm.transport import Endpoint

__all__ = ["LossWatch"]


class LossWatch:
    """Over such collectives of one group: those under way end after a moment, those that are begun later at once."""

    def __init__(self, end: Endpoint) -> None:
        """Over a connected endpoint."""
        self._end = end
        self._under_way: dict[_Watched, Ended] = {}
        self._broken: HemiolaError | None = None
        end.watch(self._break)

    def begin(self, ended: Ended, begin: Callable[[Ended], None]) -> None:
        """Begin one.

        Args:
            ended: called once, with what went wrong or None.
            begin: begins it; it is given what to call at the end.
        """
        one = _Watched(self._under_way)
        self._under_way[one] = ended
        try:
            begin(one.stop)
        except BaseException:  # it was not begun
            self._under_way.pop(one, None)
            raise
        if self._broken is not None:  # only now: what it has sent may be all that another rank needs
            one.stop(self._broken)

    def _break(self, problem: HemiolaError) -> None:
        self._broken = self._broken or problem
        stop_later(self._end, self._under_way, problem, GRACE_S)


class _Watched:
    """One of them."""

    __slots__ = ("_under_way",)

    def __init__(self, under_way: dict[_Watched, Ended]) -> None:
        self._under_way = under_way

    def stop(self, problem: BaseException | None) -> None:
        """It ends, well or not, if it has not."""
        ended = self._under_way.pop(self, None)
        if ended is not None:
            ended(problem)
