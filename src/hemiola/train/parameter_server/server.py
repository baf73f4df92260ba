"""A parameter server: a process that keeps some parcels, updates them with what workers push, and answers pulls.

One thread does everything; the transport's thread only tells it what has come. Under "bsp" and "local" nothing
changes before everybody's part is there, so all workers get the same bytes from the same place; otherwise each
push is applied at once and an answer is a copy.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hemiola.comm.process_group.memory import view
from hemiola.comm.transport import Endpoint, Handle
from hemiola.core.errors import HemiolaError
from hemiola.train.parameter_server.children import answer, asked, greet, settle
from hemiola.train.parameter_server.layout import HEAD_BYTES, NUMBERS, Parcel
from hemiola.train.parameter_server.messages import (
    ANSWER_HEAD,
    PUSH_HEAD,
    TROUBLE_BYTES,
    ServerMessage,
    Tag,
    WorkerNote,
)
from hemiola.train.parameter_server.schemes import Clocks, PullRequest, Scheme
from hemiola.train.parameter_server.state import Hyper, State

__all__ = ["Kept", "Push", "Shard", "elements_of"]


# What a server keeps of one parcel: its parameters, ready to be sent, and the optimizer that updates
# them.


@dataclass(frozen=True)
class Kept:
    """What a server is told of a parcel.

    Attributes:
        number: of it.
        dtype: of its elements.
        shapes: of its stretches.
        hyper: of its optimizer; None where parameters are averaged.
        elements: at the start, as they are sent.
        states: of the optimizer at the start, for each stretch that has any.
    """

    number: int
    parcel: Parcel
    dtype: torch.dtype
    shapes: tuple[tuple[int, ...], ...]
    hyper: Hyper | None
    elements: bytes
    states: Mapping[int, State] = field(default_factory=dict)


def elements_of(memory: Tensor, parcel: Parcel, dtype: torch.dtype) -> list[Tensor]:
    """The stretches of a parcel in a message's memory, each flat."""
    size_bytes = dtype.itemsize
    found = []
    for stretch in parcel.stretches:
        start = HEAD_BYTES + stretch.offset_bytes
        stop = start + (stretch.stop - stretch.start) * size_bytes
        found.append(memory[start:stop].view(dtype))
    return found


class Push:
    """The memory for one worker's pushes of a parcel, and what of it is what.

    Attributes:
        memory: of the whole message.
        stretches: its elements.
        numbers: hyper-parameters, in the order of `Hyper.numeric`.
        present: for each stretch 1 if it has a gradient, else 0.
    """

    def __init__(self, memory: Tensor, parcel: Parcel, dtype: torch.dtype) -> None:
        self.memory = memory
        self.stretches = elements_of(memory, parcel, dtype)
        tail = HEAD_BYTES + parcel.size_bytes
        self.numbers = memory[tail : tail + 8 * NUMBERS].view(torch.float64)
        self.present = memory[tail + 8 * NUMBERS : tail + 8 * NUMBERS + len(parcel.stretches)]


class Shard:
    """One parcel at its server.

    Attributes:
        message: its head and its elements, as they are sent.
    """

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self.message = torch.zeros(kept.parcel.answer_bytes, dtype=torch.uint8)
        self.message[HEAD_BYTES:] = torch.frombuffer(bytearray(kept.elements), dtype=torch.uint8)
        flat = elements_of(self.message, kept.parcel, kept.dtype)
        self._masters = [one.view(shape) for one, shape in zip(flat, kept.shapes, strict=True)]
        self._optimizer: Any = None
        if kept.hyper is not None:
            for master in self._masters:
                master.grad = torch.zeros_like(master)
            self._gradients = [master.grad for master in self._masters]
            options = {**kept.hyper.fixed, **kept.hyper.numeric}
            self._optimizer = getattr(torch.optim, kept.hyper.optimizer)(
                [{"params": self._masters, **options}]
            )
            if kept.states:
                begun = self._optimizer.state_dict()
                self._optimizer.load_state_dict({**begun, "state": dict(kept.states)})

    def states(self) -> dict[int, State]:
        """Of the optimizer now, for each stretch that has any."""
        return self._optimizer.state_dict()["state"] if self._optimizer is not None else {}

    def average(self, pushes: Sequence[Push]) -> None:
        """Become the mean of what was pushed."""
        for number, master in enumerate(self._masters):
            master.copy_(pushes[0].stretches[number].view_as(master))
            for push in pushes[1:]:
                master.add_(push.stretches[number].view_as(master))
            master.div_(len(pushes))

    def update(self, pushes: Sequence[Push], parts: int, rate_scale: float = 1.0) -> None:
        """One step of the optimizer with the sum of these gradients, each divided by `parts` first, as DDP does.

        Args:
            rate_scale: of the learning rate.
        """
        for number, (master, gradient) in enumerate(zip(self._masters, self._gradients, strict=True)):
            given = [push.stretches[number].view_as(master) for push in pushes if push.present[number]]
            master.grad = gradient if given else None
            if given:
                torch.mul(given[0], 1.0 / parts, out=gradient)
            for other in given[1:]:
                gradient.add_(other, alpha=1.0 / parts)
        group = self._optimizer.param_groups[0]
        assert self._kept.hyper is not None
        group.update(self._kept.hyper.options(pushes[0].numbers.tolist()))
        if "lr" in group:
            group["lr"] *= rate_scale
        self._optimizer.step()


GOODBYE_S = 5.0
_ASKS = object()


class _TroubleError(Exception):
    """What ends this server, for all."""


class ParcelServer:
    """The parcels of one server."""

    def __init__(self, end: Endpoint, workers: int, host: int, scheme: Scheme, kept: list[Kept]) -> None:
        """Begin to listen.

        Args:
            host: the worker whose process this one belongs to.
        """
        self._end, self._workers, self._host, self._scheme = end, workers, host, scheme
        self._events: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._present = set(range(workers))
        self._shards = {one.number: Shard(one) for one in kept}
        self._priority = dict.fromkeys(self._shards, 0)
        self._clocks = {number: Clocks(self._present, [0] * workers) for number in self._shards}
        self._arrived: dict[int, set[int]] = {number: set() for number in self._shards}
        self._answers: dict[tuple[int, int], Any] = {}
        self._pushes: dict[tuple[int, int], Push] = {}
        for worker in range(workers):
            self._await_note(worker)
            for one in kept:
                memory = torch.empty(one.parcel.push_bytes, dtype=torch.uint8)
                self._pushes[worker, one.number] = Push(memory, one.parcel, one.dtype)
                self._await_push(worker, one.number)

    def _await_note(self, worker: int) -> None:
        data = bytearray(WorkerNote.SIZE_BYTES)
        handle = self._end.receive(worker, Tag.NOTES, data)
        handle.add_callback(
            lambda handle: self._events.put((worker, handle.problem or WorkerNote.unpack(data)))
        )

    def _await_push(self, worker: int, parcel: int) -> None:
        handle = self._end.receive(worker, Tag.PARCELS + parcel, view(self._pushes[worker, parcel].memory))

        def tell(handle: Handle) -> None:
            if handle.problem is None:  # else it is told where notes are awaited
                self._events.put((worker, parcel))

        handle.add_callback(tell)

    def host_asks(self) -> None:
        """That process wants to know the state of the optimizers here. From any thread."""
        self._events.put((self._host, _ASKS))

    def host_ended(self) -> None:
        """The worker's process that this one belongs to is gone. From any thread."""
        self._events.put((self._host, HemiolaError("its process has ended")))

    def run(self) -> bool:
        """Serve until all have said goodbye; whether they have."""
        try:
            while self._present:
                self._handle(*self._events.get())
        except _TroubleError as trouble:
            said = str(trouble).encode()[:TROUBLE_BYTES].ljust(TROUBLE_BYTES, b"\0")
            for worker in self._present:
                if worker not in self._end.lost:
                    self._end.send(worker, Tag.TROUBLE, said)
            return False
        finally:
            self._end.close(GOODBYE_S)
        return True

    def _handle(self, worker: int, event: int | WorkerNote | HemiolaError | object) -> None:
        if isinstance(event, HemiolaError):
            if worker in self._present:
                raise _TroubleError(f"rank {worker} was lost before it said goodbye: {event.what}")
        elif isinstance(event, int):
            self._pushed(worker, event)
        elif not isinstance(event, WorkerNote):
            answer({number: shard.states() for number, shard in self._shards.items()})
        elif event.kind is ServerMessage.LEAVE:
            self._left(worker)
        else:
            self._note(
                worker, event.parcel, PullRequest(event.own, event.floor, event.meeting), event.priority
            )
            self._refuse_if_stuck(event.parcel)
            self._answer(event.parcel)
            self._await_note(worker)

    def _note(self, worker: int, parcel: int, wish: PullRequest, priority: int) -> None:
        self._priority[parcel] = priority
        self._clocks[parcel].waiting[worker] = wish

    def _pushed(self, worker: int, parcel: int) -> None:
        own, floor, priority = PUSH_HEAD.unpack_from(self._pushes[worker, parcel].memory.numpy())
        if own >= 0:
            self._note(worker, parcel, PullRequest(own, floor), priority)
        self._arrived[parcel].add(worker)
        self._refuse_if_stuck(parcel)
        self._apply(parcel)

    def _left(self, worker: int) -> None:
        self._present.discard(worker)
        for parcel in self._shards:
            self._refuse_if_stuck(parcel)
            self._apply(parcel)

    def _refuse_if_stuck(self, parcel: int) -> None:
        """Under "bsp" nobody can go on once somebody has left, or waits for the others to stop."""
        clocks, gone = self._clocks[parcel], set(range(self._workers)) - self._present
        met = {worker for worker, wish in clocks.waiting.items() if wish.meeting} - self._arrived[parcel]
        if self._scheme.name == "bsp" and self._arrived[parcel] and (gone or met):
            worker = min(gone or met)
            did = "has left" if gone else "has called synchronise()"
            raise _TroubleError(
                f"rank {worker} {did} after {clocks.applied[worker]} iterations, and others go on; "
                "under 'bsp' all ranks need the same number"
            )

    def _apply(self, parcel: int) -> None:
        """Apply what has come, if the scheme lets it; then answer whoever can be."""
        arrived, clocks, shard = self._arrived[parcel], self._clocks[parcel], self._shards[parcel]
        if arrived and (not self._scheme.together or arrived >= self._present):
            pushes = [self._pushes[worker, parcel] for worker in sorted(arrived)]
            if self._scheme.period:
                shard.average(pushes)
            elif self._scheme.together:
                shard.update(pushes, self._workers)
            else:
                shard.update(pushes, 1, rate_scale=1.0 / self._workers)
            for worker in arrived:
                clocks.applied[worker] += 1
                self._await_push(worker, parcel)
            arrived.clear()
        self._answer(parcel)

    def _answer(self, parcel: int) -> None:
        clocks, shard = self._clocks[parcel], self._shards[parcel]
        for worker in clocks.answerable():
            message = shard.message
            if not self._scheme.together:  # it may change while it is sent
                place = (worker, parcel)
                message = self._answers.setdefault(place, torch.empty_like(message)).copy_(message)
            data = view(message)
            ANSWER_HEAD.pack_into(data, 0, clocks.applied[worker], clocks.floor)
            self._end.send(worker, Tag.PARCELS + parcel, data, self._priority[parcel])


def main() -> None:
    """The server's process: its configuration comes over standard input."""
    config, end = greet()
    if end is None:
        return
    torch.set_num_threads(max(len(config["cores"]), 1))
    server = ParcelServer(end, config["ranks"], config["host"], config["scheme"], config["kept"])
    threading.Thread(target=_watch, args=(server,), daemon=True).start()
    settle()
    with torch.no_grad():
        well = server.run()
    sys.stderr.flush()
    os._exit(0 if well else 1)


def _watch(server: ParcelServer) -> None:
    """Standard input ends with the rank."""
    try:
        while True:
            asked()
            server.host_asks()
    except EOFError:
        server.host_ended()
