"""Who waits for a message from whichever rank sends it first. Lives on the transport's thread, where messages come."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from hemiola.core.errors import HemiolaError
from hemiola.comm.transport.inbox import Inbox
from hemiola.comm.transport.messages import Handle

__all__ = ["Anybody"]


class Anybody:
    """Of one endpoint. A message that somebody awaits from its very sender is not given to who takes anybody's."""

    def __init__(self, inboxes: Collection[Inbox]) -> None:
        self._inboxes = inboxes
        self._waiting: dict[int, deque[tuple[Handle, memoryview]]] = {}
        self._problem: HemiolaError | None = None
        for inbox in inboxes:
            inbox.unexpected = self._came

    def ask(self, handle: Handle, into: memoryview) -> None:
        """Give it what lies here already, or else what comes first."""
        if any(inbox.hand_out(handle, into) for inbox in self._inboxes):
            return
        if self._problem is not None:
            handle.finish(self._problem)
        else:
            self._waiting.setdefault(handle.tag, deque()).append((handle, into))

    def _came(self, inbox: Inbox, tag: int) -> None:
        """A message that nobody awaits has begun to come, and with it the turn of those that had overtaken it."""
        waiting = self._waiting.get(tag)
        while waiting and inbox.hand_out(*waiting[0]):
            waiting.popleft()
            if not waiting:
                del self._waiting[tag]

    def fail(self, problem: HemiolaError) -> None:
        """A rank is lost: it may have been the one that was waited for."""
        self._problem = problem
        waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            for handle, _ in queue:
                handle.finish(problem)
