"""One rank's side of all-reduces that begin without the ranks that are late.

A rank says to the first one when it is ready; that one decides (`Coordinator`), and says to all what begins. All of
it goes on in a thread of its own: a late rank relays, and has the others' sum when its script gets there.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial

import msgspec
import torch
from torch import Tensor, UntypedStorage

from hemiola.comm.process_group.memory import REDUCTIONS, Reduction, view
from hemiola.comm.schedule_executor.flow import Ended
from hemiola.comm.schedule_executor.layout import Rooms
from hemiola.comm.schedule_executor.runner import GRACE_S, InFlightCount, Put, Runner
from hemiola.comm.stragglers.coordinator import (
    GIVEN_BYTES,
    CatchUp,
    Contribution,
    Coordinator,
    Order,
    PartialGroup,
    TensorMismatch,
    decode,
    decode_given,
    encode,
    encode_given,
    order_bytes,
)
from hemiola.comm.stragglers.partial_sum import Mine, Missed, Sum, SumStep
from hemiola.comm.transport import Endpoint, Handle
from hemiola.core.collective.schedule import Collective, CollectiveSchedule
from hemiola.core.collective.shapes import chain, relayed, ring, stars, trees
from hemiola.core.errors import HemiolaError, InputError, TransportError

__all__ = ["Choose", "Stragglers"]


# Which ways sums without late ranks go: by schedules that are chosen for this network, or by usual ones.

Choose = Callable[[Collective, int, int, int | None], CollectiveSchedule | None]
"""The schedule for a collective, so many bytes, a root and an epoch, in which these are chosen once (None: the present one);
None for the usual one."""

CHAIN_BYTES = 128 << 10
"""Of what a late rank sends, so much goes at a time from rank to rank."""
_KNOWN = 256
"""Schedules without somebody that are kept."""


class Ways:
    """For one group; the same at every rank."""

    def __init__(self, ranks: int, choose: Choose, carries: bool) -> None:
        """Among so many ranks.

        Args:
            choose: for collectives of all.
            carries: whether late ranks get the parts' results at once.
        """
        self._ranks, self._choose, self._carries = ranks, choose, carries
        self._usual = ring(range(ranks))
        self._known: dict[Hashable, tuple[CollectiveSchedule | None, CollectiveSchedule]] = {}

    def part(self, order: PartialGroup) -> CollectiveSchedule:
        """For a part of a sum."""
        fitted = self._choose("all-reduce", order.size_bytes, 0, order.epoch)
        if len(order.active) == self._ranks:
            return fitted or self._usual
        takers = None if self._carries else order.active

        def made() -> CollectiveSchedule:
            if fitted is not None:
                return relayed(fitted, order.active, takers)
            return stars(self._ranks, order.active, takers)

        return self._kept((id(fitted), order.active), fitted, made)

    def catch_up(self, order: CatchUp, source: int) -> CollectiveSchedule:
        """For what a late rank gives; to the one that brings it something last, which then sends nothing on."""
        fitted = self._choose("broadcast", order.size_bytes, order.rank, order.epoch)
        if fitted is not None:
            return fitted

        def made() -> CollectiveSchedule:
            between = [rank for rank in range(self._ranks) if rank not in (order.rank, source)]
            way = trees([chain([order.rank, *between, source])], collective="broadcast")
            return msgspec.structs.replace(way, chunk_bytes=CHAIN_BYTES)

        return self._kept((order.rank, source), None, made)

    def _kept(
        self, key: Hashable, of: CollectiveSchedule | None, make: Callable[[], CollectiveSchedule]
    ) -> CollectiveSchedule:
        """Kept with the schedule that it is made of, so that no other gets its id."""
        if key not in self._known:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[key] = of, make()
        return self._known[key][1]


_READY, _ORDER = (3 << 61) + 96, (3 << 61) + 97
"""Tags, beside those of measurements."""
_BRING, _BRINGS = (3 << 61) + (1 << 20), 1 << 10
"""Tags of results that are brought to late ranks, used again after so many sums."""
_TAGS = (1 << 61) + (1 << 40)
"""Behind those of collectives by schedules that nobody is late for."""
_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
_CARRIED = ("SUM", "AVG")
_CATCHES_UP = 1
"""Priority of what late ranks send and are brought: it flows, where a sum of all goes from rank to rank and waits."""
_KEPT = 256
"""Of so many tensors what came too late is kept; the oldest's goes when there are more."""
_Place = tuple[int, int, torch.dtype]
"""Where a tensor lies, and how much of what."""
_log = logging.getLogger("hemiola.strategy")


class Stragglers:
    """Sums of one group, begun in the order in which each rank calls them."""

    def __init__(
        self, end: Endpoint, choose: Choose, epoch: Callable[[], int], timeout_s: float, carries: bool,
        took: Callable[[int, float], None],
    ) -> None:  # fmt: skip
        """Over a connected endpoint.

        Args:
            epoch: that this rank is in.
            carries: what comes too late is added to the rank's next tensor at the same place; otherwise before anybody
                has the result.
            took: called with the bytes and seconds of sums of all.
        """
        self._end, self._timeout_s, self._took = end, timeout_s, took
        self._carries = carries
        self._runner = Runner(end, _TAGS)
        self._rooms = Rooms()
        self._sums: dict[int, Sum] = {}
        self._refused: dict[int, HemiolaError] = {}
        self._count = 0
        self._kept: dict[_Place, tuple[weakref.ref[UntypedStorage], Missed]] = {}
        """Of tensors that are still there: once their memory has been given up, it may be another one's."""
        self._dropped = 0
        self._ways = Ways(end.ranks, choose, carries)
        self._broken: BaseException | None = None
        self._open = True
        self._waited_for = InFlightCount("sums")
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._coordinator = Coordinator(end.ranks, carries, epoch) if end.rank == 0 else None
        self._listen()
        end.watch(self._lost)
        self._thread = threading.Thread(target=self._work, name="hemiola-stragglers", daemon=True)
        self._thread.start()

    def takes(self, flat: Tensor, how: Reduction) -> bool:
        """Whether sums of such tensors are done here; the same at every rank."""
        return flat.dtype in _DTYPES and (not self._carries or how.name in _CARRIED)

    def start(self, flat: Tensor, how: Reduction, put: Put, ended: Ended) -> None:
        """Begin one, from the script's thread.

        Args:
            flat: gives, and gets the result.
            put: called with it then, on a thread of this object.
            ended: called after it, with what went wrong or None.
        """
        place = flat.data_ptr(), flat.numel(), flat.dtype
        memory = weakref.ref(flat.untyped_storage())
        before, late = self._kept.pop(place, (memory, Missed()))
        if before() is memory():
            with torch.inference_mode():
                for first, missed in late:
                    flat[first : first + missed.numel()].add_(missed)
        else:  # of another tensor, which was here before
            self._drop()

        def keep(missed: Missed) -> None:
            for other, (its, _) in list(self._kept.items()):
                goes = its() is None or len(self._kept) >= _KEPT
                if goes and self._kept.pop(other, None) is not None:  # it may have come meanwhile
                    self._drop()
            self._kept[place] = memory, missed

        kind = _DTYPES.index(flat.dtype) * len(REDUCTIONS) + REDUCTIONS.index(how)
        given = Contribution(flat.numel(), flat.element_size(), kind, flat.data_ptr())
        number, self._count = self._count, self._count + 1
        self._waited_for.begin()
        mine = Mine(flat, put, partial(self._over, ended), keep)
        self._events.put(partial(self._add, number, given, mine))
        if not self._thread.is_alive():  # closed
            with suppress(queue.Empty):
                self._events.get_nowait()()

    def wait_idle(self, timeout_s: float) -> None:
        """Until all that was begun here has ended.

        Raises:
            TransportError: it has not in time.
        """
        self._waited_for.wait_idle(timeout_s)

    def abort(self) -> None:
        """End all that is waited for, at once."""
        self._events.put(self._leave)

    def close(self) -> None:
        """End the thread, and say what is left over."""
        self.abort()
        self._thread.join(self._timeout_s)
        if lost := self._dropped + len(self._kept):
            _log.warning("%d tensors that came too late were never added: their next sums did not come", lost)

    def _drop(self) -> None:
        """What came too late of a tensor that does not come again."""
        self._dropped += 1
        if self._dropped == 1:
            _log.warning("what came too late is not added: sums are of other tensors each time (zero_grad(set_to_none=False) keeps them)")  # fmt: skip

    def _over(self, ended: Ended, problem: BaseException | None) -> None:
        ended(problem)
        self._waited_for.end()

    # on its own thread alone

    def _work(self) -> None:
        while self._open:
            try:
                self._turn()
            except Exception as problem:
                _log.exception("sums cannot go on")
                words = TransportError(f"sums cannot go on: {problem!r}", "see the log")
                self._fail(problem if isinstance(problem, HemiolaError) else words)

    def _turn(self) -> None:
        coordinator = self._coordinator
        wait_s = None
        if coordinator is not None:
            next_s = coordinator.next_s()
            wait_s = None if math.isinf(next_s) else max(next_s - time.monotonic(), 0.0)
        try:
            event = self._events.get(timeout=wait_s)
        except queue.Empty:
            assert coordinator is not None
            self._give(coordinator.due(time.monotonic()))
        else:
            event()

    def _leave(self) -> None:
        self._open = False
        self._fail(TransportError("the process group was closed", "open a new one"))

    def _add(self, number: int, given: Contribution, mine: Mine) -> None:
        refused = self._refused.pop(number, None)
        if self._broken is not None and number not in self._sums:
            mine.ended(self._broken)
            return
        if refused is None:
            self._sum(number, given).mine = mine
        if self._broken is None:
            self._tell_ready(given)  # of what was refused too: the first rank counts
        if refused is not None:
            mine.ended(refused)
            return
        self._look(number)  # it may be complete without anybody's help
        if self._broken is not None:
            self._fail(self._broken, not self._open)

    def _tell_ready(self, given: Contribution) -> None:
        if self._coordinator is not None:
            self._give(self._coordinator.ready(0, given, time.monotonic()))
        else:
            self._end.send(0, _READY, encode_given(given), priority=-1)

    def _give(self, orders: list[Order]) -> None:
        """From the first rank to all."""
        for order in orders:
            word = encode(order, self._end.ranks)
            for rank in range(1, self._end.ranks):
                self._end.send(rank, _ORDER, word, priority=-1)
        for order in orders:
            self._take(order)

    def _take(self, order: Order) -> None:
        if self._broken is not None:
            return
        if isinstance(order, TensorMismatch):
            self._refuse(order)
            return
        this = self._sum(order.number, order.given)
        if isinstance(order, PartialGroup):
            schedule = self._ways.part(order)
            step = this.begin(order)
        else:
            schedule = self._ways.catch_up(order, this.source)
            step = this.catch_up(order)
            if (brings := this.bring(order)) is not None and brings[0] == this.source:
                brought = brings[1]
                for part in brought.parts:
                    place = view(brought.tensor[part.first : part.last])
                    handle = self._end.receive(this.source, _BRING + order.number % _BRINGS, place)
                    handle.add_callback(partial(self._brought, order, brought))
        begun_s = time.monotonic()

        def put(found: Tensor) -> None:
            if found.data_ptr() != step.tensor.data_ptr():
                step.tensor.copy_(found)

        def ended(problem: BaseException | None) -> None:
            self._events.put(partial(self._went, step, time.monotonic() - begun_s, problem))

        self._runner.start(
            schedule, step.tensor, this.join, put, ended, _CATCHES_UP * isinstance(order, CatchUp)
        )
        self._look(order.number)

    def _went(self, step: SumStep, seconds: float, problem: BaseException | None) -> None:
        order = step.order
        if not self._is_over(step, problem):
            return
        if isinstance(order, PartialGroup) and len(order.active) == self._end.ranks:
            self._took(order.size_bytes, seconds)
        if self._coordinator is not None:
            self._give(self._coordinator.ended(order, time.monotonic()))
        self._look(order.number)

    def _is_over(self, step: SumStep, problem: BaseException | None) -> bool:
        """Note that a step has been done here; False, and the end of its sum, if it went wrong.

        No other begins then: messages of this one may be on their way still, and be taken for a later one's.
        """
        number = step.order.number
        if problem is not None:
            self._end_one(number, problem)
            self._fail(problem, whole=False)
        elif number in self._sums:
            self._sums[number].over(step)
        return problem is None

    def _brought(self, order: CatchUp, step: SumStep, handle: Handle) -> None:
        """On the transport's thread."""

        def done() -> None:
            step.left -= 1
            if handle.problem is not None or not step.left:
                self._is_over(step, handle.problem)
            self._look(order.number)

        self._events.put(done)

    def _look(self, number: int) -> None:
        """Bring late ranks what is there; end a sum that is complete."""
        this = self._sums.get(number)
        if this is None:
            return
        for order, step, result in this.to_bring():
            handle = self._end.send(order.rank, _BRING + number % _BRINGS, view(result), _CATCHES_UP)
            handle.add_callback(partial(self._brought, order, step))
        if not this.is_complete():
            return
        assert this.mine is not None
        del self._sums[number]
        problem: BaseException | None = None
        try:
            this.finish()
        except Exception as raised:
            problem = raised
        this.mine.ended(problem)

    def _refuse(self, order: TensorMismatch) -> None:
        problem = InputError(
            f"rank {order.rank} adds another tensor than the others in sum {order.number}",
            "do all ranks call the same collectives, with tensors of one size and type?",
        )
        this = self._sums.get(order.number)
        if this is None or this.mine is None:
            self._refused[order.number] = problem
        self._end_one(order.number, problem)

    def _end_one(self, number: int, problem: BaseException) -> None:
        this = self._sums.pop(number, None)
        if this is not None and this.mine is not None:
            this.mine.ended(problem)

    def _fail(self, problem: BaseException, whole: bool = True) -> None:
        """Begin nothing more, and end all that is waited for; what nobody waits for yet may be complete.

        Args:
            whole: also what has been ordered in whole. That needs no more words of anybody, and ends as what is under way does.
        """
        self._broken = self._broken or problem
        for number, this in list(self._sums.items()):
            if this.mine is not None and (whole or not this.is_whole()):
                self._end_one(number, problem)

    def _sum(self, number: int, given: Contribution) -> Sum:
        if number not in self._sums:
            dtype, how = divmod(given.kind, len(REDUCTIONS))
            self._sums[number] = Sum(
                self._end.rank,
                self._end.ranks,
                _DTYPES[dtype],
                REDUCTIONS[how].join,
                self._carries,
                self._rooms,
            )
        return self._sums[number]

    # what the transport's thread hands over

    def _listen(self) -> None:
        if self._coordinator is not None:
            for rank in range(1, self._end.ranks):
                self._hear_ready(rank)
        else:
            self._hear_order()

    def _hear_ready(self, rank: int) -> None:
        word = bytearray(GIVEN_BYTES)

        def heard(handle: Handle) -> None:
            if handle.problem is not None:
                self._lost(handle.problem, whole=False)
                return
            self._events.put(partial(self._ready, rank, decode_given(word)))
            self._hear_ready(rank)

        self._end.receive(rank, _READY, word).add_callback(heard)

    def _ready(self, rank: int, given: Contribution) -> None:
        assert self._coordinator is not None
        self._give(self._coordinator.ready(rank, given, time.monotonic()))

    def _hear_order(self) -> None:
        word = bytearray(order_bytes(self._end.ranks))

        def heard(handle: Handle) -> None:
            if handle.problem is not None:
                self._lost(handle.problem, whole=False)
                return
            self._events.put(partial(self._take, decode(word)))
            self._hear_order()

        self._end.receive(0, _ORDER, word).add_callback(heard)

    def _lost(self, problem: HemiolaError, whole: bool = True) -> None:
        """Somebody is gone: what needs no more of them may still end well.

        Args:
            whole: as of `_fail`; not after a mere goodbye, for who says that has done its part.
        """
        timer = threading.Timer(GRACE_S, lambda: self._events.put(partial(self._fail, problem, whole)))
        timer.daemon = True
        timer.start()
