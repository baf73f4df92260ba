"""The plan's transfers as ordinary collectives, for GPUs: NCCL carries them, on communicators of their own.

A collective that runs cannot be pre-empted, and all ranks have to issue those of one communicator in one
order. So urgency acts where a transfer is issued: those that are needed first have a communicator (and with
it a stream) of their own and are never behind bulk; within each, transfers are issued in the order in which
backward makes them ready, the least urgent first. Pieces of the plan are the chunks.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hemiola.core.errors import HemiolaError, InputError, TransportError
from hemiola.core.plan import Plan
from hemiola.train.accelerate.probe import gathered

__all__ = ["GroupExchange"]

_URGENT_SHARE = 0.25
"""So much of the plan's elements, the first to be used, has a communicator of its own."""


class GroupTicket:
    """A collective that is under way, or waits for its turn to be issued."""

    def __init__(self, what: str, flat: Tensor) -> None:
        self._what, self._flat = what, flat
        self._begun_s = time.monotonic()
        self.stood_s = 0.0
        self.work: Any = None
        self.problem: HemiolaError | None = None
        self._waited = False

    @property
    def done(self) -> bool:
        """Issued, on a GPU, whose streams wait by themselves; else reduced."""
        return self.work is not None and (self._flat.is_cuda or self._waited or self.work.is_completed())

    @property
    def sent(self) -> bool:
        """Whether its memory may be written again, by what comes after `wait`."""
        return self._waited

    def soon(self, timeout_s: float) -> bool:
        """Whether it has ended, after at most so long."""
        until = time.monotonic() + timeout_s
        while not self.done and time.monotonic() < until:
            time.sleep(1e-4)
        return self.done

    def wait(self, timeout_s: float) -> None:
        """Until it is reduced; on a GPU its stream waits.

        Raises:
            TransportError: it failed, or was never issued.
        """
        if self._waited:
            return
        if self.work is None:
            raise TransportError(f"{self._what} was never issued", "do all ranks train the same parameters?")
        try:
            if self._flat.is_cuda:
                self.work.wait()
            else:
                self.work.wait(timedelta(seconds=max(timeout_s - self.stood_s, 1.0)))
        except RuntimeError as problem:
            self.problem = TransportError(
                f"{self._what} failed: {problem}", "look at what the other ranks logged"
            )
            raise self.problem from problem
        self._waited = True

    def wait_sent(self) -> None:
        """The same."""
        self.wait(1800.0)

    @property
    def moved_s(self) -> tuple[float, float]:
        """Not known here: recordings see collectives by themselves."""
        return self._begun_s, self._begun_s

    def sent_soon(self, until_s: float) -> None:
        """Collectives end by themselves."""


class GroupExchange:
    """One rank's all-reduces as collectives of process groups."""

    skips = False
    is_seen = True

    def __init__(self, plan: Plan, group: Any) -> None:
        """Makes two groups of the given one's backend and ranks; called by all of these.

        Raises:
            InputError: these are a part of the job's ranks, and would not give the groups the same names.
        """
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        backend = dist.get_backend(group)
        self._is_part = len(ranks) < dist.get_world_size()
        if self._is_part:
            _check_names(group)
        self._groups = [
            dist.new_group(ranks, backend=backend, use_local_synchronization=self._is_part) for _ in range(2)
        ]
        self._first = ranks[0]
        urgent = _urgent(plan)
        self._lane = [int(number not in urgent) for number in range(len(plan.transfers))]
        by_turn = sorted(range(len(plan.transfers)), key=lambda n: (-plan.transfers[n].priority, n))
        self._turns = [[n for n in by_turn if self._lane[n] == lane] for lane in (0, 1)]
        self._next = [0, 0]
        self._held: dict[int, tuple[GroupTicket, Tensor]] = {}

    def all_reduce(
        self,
        number: int,
        name: str,
        flat: Tensor,
        priority: int = 0,
        algorithm: str = "",
        factor: float = 1.0,
    ) -> GroupTicket:
        """As `Carrier.all_reduce`, once it is this transfer's turn."""
        ticket = GroupTicket(name, flat.mul_(factor))
        self._held[number] = (ticket, flat)
        lane = self._lane[number]
        turns = self._turns[lane]
        while turns and turns[self._next[lane]] in self._held:
            due, tensor = self._held.pop(turns[self._next[lane]])
            due.work = dist.all_reduce(tensor, group=self._groups[lane], async_op=True)
            self._next[lane] = (self._next[lane] + 1) % len(turns)
        return ticket

    def share(self, buffers: list[Tensor]) -> None:
        """Rank 0's buffers, everywhere."""
        with torch.no_grad():
            for buffer in buffers:
                dist.broadcast(buffer, self._first, group=self._groups[0])

    def close(self) -> None:
        """Give the groups back; called by all ranks, once nothing is under way.

        A part of the job's ranks keeps them: PyTorch would give their names to the next ones, and the store would still
        tell under these where the old ones listened.
        """
        if not self._is_part:
            with suppress(ValueError):  # the script has destroyed all groups
                for group in self._groups:
                    dist.destroy_process_group(group)


def _check_names(group: Any) -> None:
    """What a part of the job's ranks makes, each of them names by the ranks and by how many groups it knows itself."""
    counts = gathered(len(dist.distributed_c10d._world.pg_names), group)
    if len(set(counts)) > 1:
        raise InputError(
            f"some ranks of the group are in {min(counts)} process groups and some in {max(counts)}, so that they "
            "would give new ones unlike names",
            "make the others after hemiola.accelerate",
        )


def _urgent(plan: Plan) -> set[int]:
    """The transfers that are needed first."""
    sizes = [sum(piece.stop - piece.start for piece in transfer.pieces) for transfer in plan.transfers]
    order = sorted(range(len(sizes)), key=lambda number: (plan.transfers[number].priority, number))
    found: set[int] = set()
    total = 0
    for number in order:
        total += sizes[number]
        if total > _URGENT_SHARE * sum(sizes) and found:
            break
        found.add(number)
    return found
