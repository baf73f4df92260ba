"""The thread of a group that carries out collectives, in the order in which they were called.

A lost rank ends them on every rank, also where nobody talks to it: what is under way after a moment, and what is called
later.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from hemiola.comm.process_group.collectives import Channel, Ended
from hemiola.comm.schedule_executor.runner import GRACE_S, stop_later
from hemiola.comm.transport import Endpoint
from hemiola.comm.transport.messages import Gate
from hemiola.core.errors import HemiolaError, TransportError

__all__ = ["CollectiveWorker", "Deadlines", "LossWatch", "Pending"]

# By when things have to end: one thread looks after all of a process.
#
# PyTorch's futures have no timeout, and DDP, whose hooks wait for nothing else, would wait for ever for a rank that lives and
# does not come. Time in which the process is stopped does not count: a suspended job goes on.

_LOOK_S = 1.0
"""It is looked so often at least: for what is beyond it, this process was stopped."""


class _Limited(Protocol):
    def expire(self) -> None:
        """It has not ended in time."""


class Deadlines:
    """Of as many things as there are. Who sets one, or drops it, hardly ever wakes the thread."""

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # threads are not forked

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._until_s: dict[_Limited, float] = {}
        self._look_s = math.inf
        """When the thread looks again."""
        self._looked_s = 0.0
        self._thread: threading.Thread | None = None

    def set(self, one: _Limited, after_s: float) -> None:
        """Have it expire after so long, unless it is dropped before."""
        with self._changed:
            now = time.monotonic()
            if not self._until_s:  # nobody had to look until now
                self._looked_s = now
            until_s = self._until_s[one] = now + after_s
            if until_s < self._look_s:
                self._look_s = until_s
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="hemiola-deadlines", daemon=True)
                self._thread.start()

    def drop(self, one: _Limited) -> None:
        """It has ended."""
        with self._changed:
            self._until_s.pop(one, None)

    def _work(self) -> None:
        while True:
            for one in self._expired():
                one.expire()

    def _expired(self) -> list[_Limited]:
        """Those whose time is over; waits until one's is, or may be."""
        with self._changed:
            now = time.monotonic()
            if (stopped_s := now - self._looked_s - _LOOK_S) > 0:
                self._until_s = {one: until_s + stopped_s for one, until_s in self._until_s.items()}
            self._looked_s = now
            expired = [one for one, until_s in self._until_s.items() if until_s <= now]
            for one in expired:
                del self._until_s[one]
            self._look_s = min(*self._until_s.values(), now + _LOOK_S) if self._until_s else math.inf
            if not expired:
                self._changed.wait(None if self._look_s == math.inf else self._look_s - now)
        return expired


# What goes on without a thread of its own: a lost rank ends it on every rank, also where nobody awaits
# that rank.


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


# The thread of a group.

# What PyTorch holds of a collective under way.

# Threads for what others want done when a collective has ended: it may wait for another one.

_log = logging.getLogger("hemiola.group")


class Helpers:
    """As many threads as things are done at once. Those that are idle are kept, and hold up no process that ends."""

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # threads are not forked

    def _begin(self) -> None:
        self._actions: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._idle = 0
        """Threads that wait, less what lies there for them."""

    def do(self, action: Callable[[], object]) -> None:
        """Have this done now, whatever others wait for."""
        with self._guard:
            is_new = not self._idle
            if not is_new:
                self._idle -= 1
        self._actions.put(action)
        if is_new:
            threading.Thread(target=self._work, name="hemiola-helper", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                self._actions.get()()
            except Exception:
                _log.exception("what was to be done after a collective failed")
            with self._guard:
                self._idle += 1


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


class _Job(NamedTuple):
    action: Callable[[Channel], None]
    channel: Channel
    pending: Pending
    result: list[Tensor]


class CollectiveWorker:
    """Of one group."""

    def __init__(self, end: Endpoint | None) -> None:
        """Over a connected endpoint; None for a group of one."""
        self._end = end
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._left = False
        self._channel: Channel | None = None
        """Of what is under way."""
        self._broken: HemiolaError | None = None
        self._thread = threading.Thread(target=self._work, name="hemiola-group", daemon=True)
        self._thread.start()
        if end is not None:
            end.watch(self._break)

    def do(
        self, action: Callable[[Channel], None], channel: Channel, pending: Pending, result: list[Tensor]
    ) -> None:
        """Carry it out after all others, and end what is held of it; with an error, once this has been left."""
        with self._guard:
            if not self._left:
                self._jobs.put(_Job(action, channel, pending, result))
                return
        pending.end(result, TransportError("the process group was closed", "open a new one"))

    def stop(self, problem: HemiolaError) -> None:
        """End what is under way, and whatever follows."""
        self._broken = self._broken or problem
        channel = self._channel
        if channel is not None:
            channel.stop(self._broken)

    def leave(self, timeout_s: float) -> None:
        """End what was called, and the thread."""
        with self._guard:  # nothing comes behind the last one: the thread would not look at it
            self._left = True
            self._jobs.put(None)
        self._thread.join(timeout_s)

    def _break(self, problem: HemiolaError) -> None:
        assert self._end is not None
        stop_later(self._end, [self], problem, GRACE_S)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._carry_out(job)
            self._channel = None
            del job  # and with it tensors: the next one may be long in coming

    def _carry_out(self, job: _Job) -> None:
        self._channel = job.channel
        if self._broken is not None:  # only now: who stops it looks at what is under way last
            job.channel.stop(self._broken)
        try:
            with torch.inference_mode():
                job.action(job.channel)
            job.channel.finish()
        except Exception as problem:
            known = problem if isinstance(problem, HemiolaError) else RuntimeError(str(problem))
            job.pending.end(job.result, known)
        else:
            job.pending.end(job.result)
