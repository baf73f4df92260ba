"""What has changed between two looks at an engine, as events in an order that a state machine can take."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hemiola.core.events import Adopted, Blocked, Event, Held, NodeBack, NodeLost, Released
from hemiola.sched.job_state import HELD, WAITING, JobState
from hemiola.sched.view import ClusterView

__all__ = ["Changing"]


class Changing:
    """The events of one look.

    Args:
        view: as it was told before.
    """

    def __init__(self, view: ClusterView, now_s: float) -> None:
        self._view, self._now = view, now_s
        self._freed: list[Event] = []
        self._hosts: list[Event] = []
        self._started: list[Event] = []
        self._others: list[Event] = []

    def with_new(self, arrived: list[Event]) -> list[Event]:
        """All of them, with those of new jobs: what became free comes first, what is taken after it."""
        running = [event for event in arrived if isinstance(event, Adopted) and event.placement is not None]
        given = [e for e in self._hosts if isinstance(e, Blocked) and not self._takes(e)]
        rest = [e for e in self._hosts if e not in given]
        waiting = [event for event in arrived if event not in running]
        return [*self._freed, *given, *running, *self._started, *rest, *self._others, *waiting]

    def _takes(self, event: Blocked) -> bool:
        return event.gpus > self._view.inventory.blocked.get(event.host, 0).bit_count()

    def hosts(
        self, is_down: Callable[[int], bool], blocked: Mapping[int, int], told: Mapping[int, int]
    ) -> set[int]:
        """Hosts that came and went, and what of them is not ours.

        Args:
            blocked: by host, GPUs that are not ours to give; `told`: as it was told before.

        Returns:
            The hosts that went.
        """
        lost = set()
        for host, was_down in enumerate(self._view.inventory.down):
            down = is_down(host)
            if was_down and not down:
                self._hosts.append(NodeBack(self._now, host))
            elif down and not was_down:
                self._hosts.append(NodeLost(self._now, host))
                lost.add(host)
        for host in sorted(blocked.keys() | told.keys()):
            gpus = blocked.get(host, 0)
            if gpus != told.get(host, 0):
                self._hosts.append(Blocked(self._now, host, gpus))
        return lost

    def _may_start(self, state: JobState, why_not: str) -> None:
        """Whether policies may start a job now; "" if they may."""
        if why_not and state.status == WAITING:
            self._others.append(Held(self._now, state.id, why_not))
        elif not why_not and state.status == HELD:
            self._others.append(Released(self._now, state.id))
