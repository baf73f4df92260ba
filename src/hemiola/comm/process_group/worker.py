"""The thread of a group that carries out collectives, in the order in which they were called.

A lost rank ends them on every rank, also where nobody talks to it: what is under way after a moment, and what is called
later.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hemiola.core.errors import HemiolaError, TransportError
from hemiola.comm.process_group.collectives import Channel
from hemiola.comm.process_group.pending import Pending
from hemiola.comm.schedule_executor.grace import GRACE_S, stop_later
from hemiola.comm.transport import Endpoint

__all__ = ["CollectiveWorker"]


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
