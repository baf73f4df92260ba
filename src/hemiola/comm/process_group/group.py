"""A process group of PyTorch over the transport. Thin: each method names its collective and its tensors.

Collectives are carried out by one thread of the group, in the order in which they were called, small all-reduces and
broadcasts and those by schedules where their messages come; what is returned is complete when its future is. Who begins
one waits for nobody, except by schedules that fit the network (`fitted`): these are the first rank's, and to begin one may
wait for that rank to call it too. Point-to-point messages do not wait for collectives.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hemiola.comm.process_group import collectives as ways
from hemiola.comm.process_group import fitted as by_schedule
from hemiola.comm.process_group.collectives import (
    Channel,
    Doubling,
    check_each,
    check_rows,
    check_whole,
    exchanged,
    gathered,
    put_back,
    rows,
    scattered,
)
from hemiola.comm.process_group.fitted import Fitted
from hemiola.comm.process_group.memory import contiguous, reduction, view, writing
from hemiola.comm.process_group.worker import CollectiveWorker, LossWatch, Pending
from hemiola.comm.transport import Endpoint, Handle, TransportOptions
from hemiola.comm.transport.endpoint import meet
from hemiola.comm.transport.home import home_interface
from hemiola.core.collective.schedule import Collective
from hemiola.core.errors import InputError
from hemiola.core.units import parse_rate

__all__ = ["TransportGroup", "create", "transport_options"]


Ended = Callable[[BaseException | None], None]
_POINT_TO_POINT = 1 << 40
"""Tags of messages that a script sends by itself lie above those of collectives."""
_TAGS = 1 << 14
"""Of collectives, used again and again: a connection remembers how many messages each tag had."""


class TransportGroup(dist.ProcessGroup):
    """One rank's side."""

    def __init__(
        self, end: Endpoint | None, rank: int, ranks: int, timeout_s: float, fitted: Fitted | None = None
    ) -> None:
        """Over a connected endpoint; None for a group of one.

        Args:
            fitted: carries out what it has schedules for.
        """
        super().__init__(rank, ranks)
        self._fitted = fitted
        self._begun: set[Pending] = fitted.begun if fitted is not None else set()
        """What goes on without the group's thread."""
        self._doubling = Doubling(rank, ranks)
        self._watch = LossWatch(end) if end is not None else None
        self._end, self._rank, self._ranks, self._timeout_s = end, rank, ranks, timeout_s
        self._name = ""
        self._count = 0
        self._counting = threading.Lock()
        self._worker = CollectiveWorker(end)

    def getBackendName(self) -> str:  # noqa: N802, D102
        return "hemiola"

    @property
    def group_name(self) -> str:
        """As PyTorch calls the group."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def _device_types(self) -> list[torch.device]:
        """Whose tensors it takes; PyTorch's checkpoints ask."""
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        """What carries out collectives of such tensors."""
        return self if device.type == "cpu" else super()._get_backend(device)

    def shutdown(self) -> None:
        """End what was begun, and leave; where the script has failed, only what is queued: others may never come."""
        self._worker.leave(self._timeout_s)
        problem = sys.exception()
        if problem is None or (isinstance(problem, SystemExit) and not problem.code):
            end_s = time.monotonic() + self._timeout_s
            for pending in list(self._begun):
                with suppress(Exception):  # whoever waits for it is told
                    pending.wait(timedelta(seconds=max(1e-3, end_s - time.monotonic())))
        if self._fitted is not None:
            self._fitted.close()
        if self._end is not None:
            self._end.close()

    def abort(self) -> None:
        """Leave at once; what is called later fails."""
        if self._fitted is not None:
            self._fitted.abort()
        if self._end is not None:
            self._end.close(0.0)

    # --- how they begin

    def _start(
        self, action: Callable[[Channel], None], result: list[Tensor], kind: Collective | None = None
    ) -> Pending:
        """Hand it to the thread.

        Args:
            kind: if how long it takes tells something of the network.
        """
        if kind is not None and self._fitted is not None:
            action = self._fitted.timed(kind, sum(tensor.nbytes for tensor in result), action)
        pending = Pending("a collective", self._timeout_s, in_time=True)
        self._worker.do(action, self._channel(), pending, result)
        return pending

    def _channel(self) -> Channel:
        """For the next collective that goes the usual way; all ranks count alike."""
        if self._fitted is not None:
            self._fitted.let_go()
        with self._counting:
            tag, self._count = self._count, (self._count + 2) % _TAGS
        return Channel(self._end, self._rank, self._ranks, tag, self._timeout_s)

    def _directly(self, action: Callable[[Channel, Ended], None], result: list[Tensor]) -> Pending:
        """A small collective: begun here, ended where its last message comes; no thread is waited for."""
        assert self._watch is not None
        pending = Pending("a collective", self._timeout_s)
        self._watch.begin(partial(pending.end, result), partial(action, self._channel()))
        pending.note_in(self._begun)
        return pending

    def _is_small(self, tensors: Sequence[Tensor]) -> bool:
        return self._ranks > 1 and len(tensors) == 1 and tensors[0].nbytes <= ways.DIRECT_BYTES

    # --- collectives

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Of one tensor per rank."""
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        how = reduction(opts.reduceOp if opts is not None else dist.ReduceOp.SUM, tensors)
        if self._is_small(tensors):

            def small(channel: Channel, ended: Ended) -> None:
                flat = contiguous(tensors[0]).view(-1)
                over = _put_back_then(ended, flat, tensors[0], channel.ranks if how.average else 1)
                self._doubling.all_reduce(channel, flat, how.join, over)

            return self._directly(small, tensors)
        if pending := by_schedule.all_reduce(self._fitted, tensors, how):
            return pending

        def action(channel: Channel) -> None:
            for tensor in tensors:
                flat = contiguous(tensor).view(-1)
                if channel.ranks > 1:
                    ways.all_reduce(channel, flat, how.join)
                if how.average:
                    channel.finish()  # what is on its way still must not change
                    flat.div_(channel.ranks)
                put_back(flat, tensor)

        return self._start(action, tensors, "all-reduce")

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Of several tensors per rank."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        """From a rank to all."""
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        root = int(opts.rootRank) if opts is not None else 0
        if self._is_small(tensors):

            def small(channel: Channel, ended: Ended) -> None:
                flat = contiguous(tensors[0]).view(-1)
                ways.broadcast_directly(channel, flat, root, _put_back_then(ended, flat, tensors[0]))

            return self._directly(small, tensors)
        if pending := by_schedule.broadcast(self._fitted, tensors, root):
            return pending

        def action(channel: Channel) -> None:
            for tensor in tensors:
                flat = contiguous(tensor).view(-1)
                if channel.ranks > 1:
                    ways.broadcast(channel, flat, root)
                put_back(flat, tensor)

        return self._start(action, tensors, "broadcast")

    def reduce(self, tensors: Any, opts: Any) -> Any:
        """Of one tensor per rank, at one of them."""
        tensors = list(tensors)
        how = reduction(opts.reduceOp, tensors)
        if pending := by_schedule.reduce(self._fitted, tensors, how, int(opts.rootRank)):
            return pending

        def action(channel: Channel) -> None:
            for tensor in tensors:
                flat = contiguous(tensor).view(-1).clone()
                if channel.ranks > 1:
                    ways.all_reduce(channel, flat, how.join)
                if channel.rank == opts.rootRank:
                    tensor.copy_((flat.div_(channel.ranks) if how.average else flat).view(tensor.shape))

        return self._start(action, list(tensors), "reduce")

    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """Everybody's tensor, as a list."""
        for into in outputs:
            check_each(into, self._ranks)

        def action(channel: Channel) -> None:
            for into, own in zip(outputs, inputs, strict=True):
                parts = [contiguous(part) for part in into]
                gathered(channel, parts, contiguous(own))
                for part, tensor in zip(parts, into, strict=True):
                    put_back(part, tensor)

        return self._start(action, [tensor for into in outputs for tensor in into])

    def all_gather_single(self, output: Tensor, own: Tensor, opts: Any = None) -> Any:
        """Everybody's tensor, one behind the other."""
        return self.allgather_into_tensor_coalesced([output], [own], opts)

    _allgather_base = all_gather_single

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """Several at once."""
        for into, own in zip(outputs, inputs, strict=True):
            check_whole(into, own, self._ranks)
        if pending := by_schedule.all_gather(self._fitted, outputs, inputs):
            return pending

        def action(channel: Channel) -> None:
            for into, own in zip(outputs, inputs, strict=True):
                flat = contiguous(into).view(-1)
                gathered(channel, list(flat.chunk(channel.ranks)), contiguous(own).view(-1))
                put_back(flat, into)

        return self._start(action, list(outputs), "all-gather")

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def reduce_scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any) -> Any:
        """Everybody's lists, joined; each rank gets its part."""
        how = reduction(opts.reduceOp, outputs)
        for parts in inputs:
            check_each(parts, self._ranks)

        def action(channel: Channel) -> None:
            for into, parts in zip(outputs, inputs, strict=True):
                own = scattered(channel, [contiguous(part).view(-1).clone() for part in parts], how.join)
                into.copy_((own.div_(channel.ranks) if how.average else own).view(into.shape))

        return self._start(action, list(outputs))

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any) -> Any:
        """Everybody's tensor, joined; each rank gets its part."""
        return self.reduce_scatter_tensor_coalesced([output], [given], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any
    ) -> Any:
        """Several at once."""
        how = reduction(opts.reduceOp, outputs)
        for into, given in zip(outputs, inputs, strict=True):
            check_whole(given, into, self._ranks)
        if pending := by_schedule.reduce_scatter(self._fitted, outputs, inputs, how):
            return pending

        def action(channel: Channel) -> None:
            for into, given in zip(outputs, inputs, strict=True):
                flat = contiguous(given).view(-1).clone()
                own = scattered(channel, list(flat.chunk(channel.ranks)), how.join)
                into.copy_((own.div_(channel.ranks) if how.average else own).view(into.shape))

        return self._start(action, list(outputs), "reduce-scatter")

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Any:
        """One tensor from everybody to everybody."""
        check_each(outputs, self._ranks)
        check_each(inputs, self._ranks)

        def action(channel: Channel) -> None:
            into = [contiguous(tensor) for tensor in outputs]
            exchanged(channel, into, [contiguous(tensor) for tensor in inputs])
            for part, tensor in zip(into, outputs, strict=True):
                put_back(part, tensor)

        return self._start(action, list(outputs))

    def alltoall_base(
        self, output: Tensor, given: Tensor, output_sizes: Sequence[int], input_sizes: Sequence[int], opts: Any = None
    ) -> Any:  # fmt: skip
        """The same from one tensor to one, in rows."""
        check_rows(output, output_sizes, self._ranks)
        check_rows(given, input_sizes, self._ranks)

        def action(channel: Channel) -> None:
            into, source = contiguous(output), contiguous(given)
            exchanged(
                channel, rows(into, output_sizes, channel.ranks), rows(source, input_sizes, channel.ranks)
            )
            put_back(into, output)

        return self._start(action, [output])

    all_to_all_single = alltoall_base

    def gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any) -> Any:
        """Everybody's tensor, at one rank."""
        into = list(outputs[0]) if outputs else []

        def action(channel: Channel) -> None:
            parts = [contiguous(part) for part in into]
            if channel.ranks > 1:
                ways.gather(channel, parts, contiguous(inputs[0]), opts.rootRank)
            else:
                parts[0].copy_(inputs[0])
            for part, tensor in zip(parts, into, strict=True):
                put_back(part, tensor)

        return self._start(action, into)

    def scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any) -> Any:
        """One of a rank's tensors to everybody."""

        def action(channel: Channel) -> None:
            own = contiguous(outputs[0])
            parts = [contiguous(part) for part in inputs[0]] if inputs else []
            if channel.ranks > 1:
                ways.scatter(channel, parts, own, opts.rootRank)
            else:
                own.copy_(parts[0])
            put_back(own, outputs[0])

        return self._start(action, list(outputs))

    def barrier(self, opts: Any = None) -> Any:
        """Until everybody is here."""
        token = torch.zeros(1, dtype=torch.uint8, device="cpu")
        pending = self.allreduce([token])
        if opts is not None and opts.timeout > timedelta(0):  # else none was given
            pending.timeout_s = opts.timeout.total_seconds()
        return pending

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """The same, waited for."""
        self.barrier().wait(timeout)

    # --- point to point

    def send(self, tensors: Sequence[Tensor], peer: int, tag: int) -> Any:
        """To one rank."""
        data = contiguous(tensors[0])
        if self._fitted is not None:
            self._fitted.let_go()
        return self._alone(lambda end: end.send(peer, _POINT_TO_POINT + tag, view(data)), data, tensors[0])

    def recv(self, tensors: Sequence[Tensor], peer: int, tag: int) -> Any:
        """From one rank."""
        into = contiguous(tensors[0])
        return self._alone(
            lambda end: end.receive(peer, _POINT_TO_POINT + tag, view(into)), into, tensors[0], received=True
        )

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int) -> Any:
        """From whichever rank sends first."""
        into = contiguous(tensors[0])
        return self._alone(
            lambda end: end.receive_any(_POINT_TO_POINT + tag, view(into)), into, tensors[0], received=True
        )

    def _alone(
        self, start: Callable[[Endpoint], Handle], data: Tensor, tensor: Tensor, received: bool = False
    ) -> Pending:
        if self._end is None:
            raise InputError("a message to another rank in a group of one", "there is nobody to talk to")
        pending = Pending("a message with another rank", self._timeout_s)

        def ended(handle: Handle) -> None:
            pending.source = handle.peer
            over(handle.problem)

        over: Ended = partial(pending.end, [tensor])
        if received:
            over = _put_back_then(over, data, tensor)
        start(self._end).add_callback(ended)
        if not received:  # what nobody sends would hold up who leaves
            pending.note_in(self._begun)
        return pending


def _put_back_then(ended: Ended, flat: Tensor, tensor: Tensor, parts: int = 1) -> Ended:
    """The end of what goes on without a thread of its own: what comes last here is part of it, and may fail.

    Args:
        parts: the result is divided by.
    """
    is_whole = flat.data_ptr() == tensor.data_ptr()
    if parts == 1 and is_whole:
        return ended

    def over(problem: BaseException | None) -> None:
        if problem is None:
            try:
                with writing(flat) if is_whole else torch.inference_mode():
                    put_back(flat.div_(parts) if parts > 1 else flat, tensor)
            except Exception as raised:
                problem = raised
        ended(problem)

    return over


# How the ranks of a process group meet, and with which options.


def create(store: Any, rank: int, ranks: int, timeout: timedelta) -> TransportGroup:
    """Meet the other ranks through PyTorch's store. The job's secret is made by rank 0 and lies in the store until they have.

    With HEMIOLA_STRATEGY at rank 0, large collectives go by schedules that fit the network: "auto" measures it, and has
    shares follow it once it changes, "follow" has them do so from the beginning, a file is a topology or a schedule,
    nothing or "usual" is a ring. With HEMIOLA_STRAGGLERS, large all-reduces begin without ranks that are late, and end
    with what these give ("relay"), or leave that to the next one ("carry-over").
    """
    timeout_s = timeout.total_seconds()
    if ranks == 1:
        return TransportGroup(None, 0, 1, timeout_s)
    options = transport_options(timeout_s, store=store)
    wanted = [os.environ.get(name, "") for name in ("HEMIOLA_STRATEGY", "HEMIOLA_STRAGGLERS")]
    end, peers = meet(store, rank, ranks, options, lambda address: [*wanted, secrets.token_hex(8)])
    schedule, late, name = peers[0].word
    schedule = "" if schedule == "usual" else schedule
    if not schedule and late in ("", "wait"):
        return TransportGroup(end, rank, ranks, timeout_s)
    from torch.distributed import PrefixStore

    from hemiola.comm.process_group.fitting import fitting

    own = PrefixStore(f"hemiola/{name}", store)  # another group may have left something there
    try:
        fitted = fitting(schedule, late, own, end, peers, timeout_s, options)
    except BaseException:
        end.close(0.0)  # others may wait for this rank's word, and it still says that it lives
        raise
    return TransportGroup(end, rank, ranks, timeout_s, fitted)


def transport_options(
    timeout_s: float,
    interface: str = "",
    rate_bytes_per_s: float | None = None,
    chunk_bytes: int = 0,
    store: Any = None,
) -> TransportOptions:
    """As given, else as the environment says: HEMIOLA_INTERFACE, HEMIOLA_RATE; else where the master is reached from."""
    rate = os.environ.get("HEMIOLA_RATE", "")
    if rate and rate_bytes_per_s is None:
        rate_bytes_per_s = parse_rate(rate)
    return TransportOptions(
        interface=interface or home_interface(store),
        timeout_s=min(0.9 * timeout_s, 300.0),  # before a collective's own, so that the silent rank is named
        rate_bytes_per_s=rate_bytes_per_s,
        chunk_bytes=chunk_bytes,
        unexpected_bytes_max=4 << 30,
    )
