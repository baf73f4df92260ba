"""Tells a recording, if one is on, of every transfer: ready, first byte, last byte, needed, released.

The recording sees PyTorch's collectives by itself; messages of a plan it can only be told of.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from hemiola.profiler.trace.session import TraceSession

if TYPE_CHECKING:
    from hemiola.profiler.trace.values import RecordedTransfer
    from hemiola.train.accelerate.buckets import Bundle

__all__ = ["TraceHooks", "forward_begins"]

_FIRST_LINE = 2
"""Recordings know lines, on which one transfer follows another; each transfer of a plan has its own."""


class _PlanGroup:
    """The ranks of a plan, as recordings know process groups: apart from PyTorch's, for the two count alike nowhere."""

    def __init__(self, group: Any) -> None:
        self.group_name = f"plan of {dist.get_world_size(group)} ranks"
        self._ranks = int(dist.get_world_size(group))

    def size(self) -> int:
        return self._ranks


class TraceHooks:
    """Of one job. Called from the training thread alone."""

    def __init__(self, group: Any, bundles: int) -> None:
        """So many transfers an iteration, between the ranks of this group."""
        self._group, self._bundles = _PlanGroup(group), bundles
        self._told: dict[int, RecordedTransfer] = {}

    def begins(self, bundle: Bundle) -> None:
        """A transfer has been handed over."""
        session = TraceSession.active
        if session is None or not session.recorder.on:
            return
        recorder, group = session.recorder, session.number(self._group)
        transfer = recorder.transfer("all-reduce", group, bundle.bytes, recorder.now())
        transfer.name = bundle.transfer.name
        transfer.sequence = bundle.launches * self._bundles + bundle.number  # the same on all ranks
        transfer.thread = _FIRST_LINE + bundle.number
        self._told[bundle.number] = transfer

    def needed(self, bundle: Bundle) -> None:
        """Somebody begins to wait for it, or finds it there."""
        transfer = self._told.get(bundle.number)
        if transfer is not None and transfer.needed is None:
            transfer.needed = transfer.clock()

    def released(self, bundle: Bundle) -> None:
        """It is there, and used."""
        transfer = self._told.pop(bundle.number, None)
        if transfer is None or bundle.ticket is None:
            return
        now = transfer.clock()
        offset_ns = now - time.monotonic_ns()
        first_s, last_s = bundle.ticket.moved_s
        transfer.first, transfer.last = int(first_s * 1e9) + offset_ns, int(last_s * 1e9) + offset_ns
        transfer.size_bytes = bundle.bytes  # of rows it is known by now
        transfer.needed = now if transfer.needed is None else transfer.needed
        transfer.released = now


def forward_begins() -> None:
    """Tell a recording that the model is called, as it sees of DistributedDataParallel by itself."""
    session = TraceSession.active
    if session is not None:
        session.recorder.guarded(session.recorder.forward_begins)
