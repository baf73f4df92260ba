"""The computing side of a worker: pushes what is ready, takes what has come, waits only for what it needs now.

A parcel's gradients are pushed from backward as soon as all are there; its parameters are asked for with them and
taken when forward comes to the first module that reads them. Until then the communication process has them.
Parameters change between iterations only: what has come later waits for the next one.
What others than servers make of them is refused: nobody would hear of it, and the next answer would undo it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hemiola.core.errors import InputError
from hemiola.train.parameter_server.courier import Courier, RemoteCourier
from hemiola.train.parameter_server.layout import ParcelLayout
from hemiola.train.parameter_server.messages import ANSWER_HEAD, PUSH_HEAD, ServerMessage, WorkerNote
from hemiola.train.parameter_server.schemes import Scheme
from hemiola.train.parameter_server.server import Push, elements_of
from hemiola.train.parameter_server.state import Hyper

__all__ = ["ServerWorker", "TrainedParameter"]


class TrainedParameter:
    """A parameter that is trained.

    Attributes:
        group: of the optimizer, as a dict that schedules change.
        hyper: of that group; None where parameters are averaged.
        taken: so many of its changes in place were servers' answers.
    """

    def __init__(self, name: str, tensor: Any, group: dict[str, Any], hyper: Hyper | None) -> None:
        self.name, self.tensor, self.group, self.hyper = name, tensor, group, hyper
        self.seen: tuple[Tensor, int] | None = None
        self.taken = 0

    @property
    def changes(self) -> int:
        """How many were made by others."""
        return int(self.tensor._version) - self.taken


class _State:
    """Of one parcel.

    Attributes:
        pushes: so many were made.
        own, floor: updates that the parameters here hold: one's own, everybody's since all met.
        met: pushes that were made before.
        busy: whether a push is still being sent.
        asked: whether an answer is on its way; landed: whether it lies here.
        checked: the iteration for which its parameters were last taken.
        quiet: whether only the answer to the last push says that it has been sent.
        missing: gradients that this iteration's push waits for.
        sent: hyper-parameters that went with the last push.
        changes: of its parameters, by others, that are known to lose nothing.
    """

    __slots__ = ("answer", "asked", "busy", "changes", "checked", "floor", "landed", "members", "met", "missing",
                 "own", "priority", "push", "pushes", "quiet", "sent", "views")  # fmt: skip

    def __init__(
        self, push: Push, answer: Tensor, views: list[Tensor], members: list[TrainedParameter]
    ) -> None:
        self.push, self.answer, self.views, self.members = push, answer, views, members
        self.pushes = self.own = self.floor = self.met = self.checked = self.priority = 0
        self.busy = self.asked = self.landed = self.quiet = False
        self.missing = 0
        self.sent: list[float] = []
        self.changes = [member.changes for member in members]


class ServerWorker:
    """One worker's parcels.

    Attributes:
        iteration: iterations that are complete; of "local", exchanges.
    """

    def __init__(
        self, trained: Sequence[TrainedParameter], layout: ParcelLayout, memory: Tensor, courier: Courier | RemoteCourier,
        scheme: Scheme,
    ) -> None:  # fmt: skip
        self._layout, self._courier, self._scheme, self._trained = layout, courier, scheme, trained
        self._states: list[_State] = []
        self._of: dict[int, list[int]] = {number: [] for number in range(len(trained))}
        for number, parcel in enumerate(layout.parcels):
            members = [trained[stretch.tensor] for stretch in parcel.stretches]
            dtype = members[0].tensor.dtype
            push = memory[parcel.push_offset : parcel.push_offset + parcel.push_bytes]
            answer = memory[parcel.answer_offset : parcel.answer_offset + parcel.answer_bytes]
            views = elements_of(answer, parcel, dtype)
            self._states.append(_State(Push(push, parcel, dtype), answer, views, members))
            for here, taken in self._elements(number):
                taken.copy_(here)
            for tensor in {stretch.tensor for stretch in parcel.stretches}:
                self._of[tensor].append(number)
        self.iteration = 0
        self._meetings = 0
        self._pushed: set[int] = set()
        self.prefer(range(len(layout.parcels)))
        self._begin()

    @property
    def parcels(self) -> range:
        """All of them."""
        return range(len(self._states))

    def _elements(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each stretch of a parcel: the parameter's, and the last answer's, in which the next one comes to lie."""
        state, parcel = self._states[number], self._layout.parcels[number]
        for stretch, member, taken in zip(parcel.stretches, state.members, state.views, strict=True):
            yield member.tensor.detach().view(-1)[stretch.start : stretch.stop], taken

    def parcels_of(self, tensor: int) -> list[int]:
        """Those that have a part of a parameter."""
        return self._of[tensor]

    def prefer(self, parcels: Iterable[int]) -> None:
        """From now on the first of these goes first."""
        for priority, number in enumerate(parcels):
            self._states[number].priority = 1 + priority

    def _begin(self) -> None:
        """A new iteration."""
        self._pushed.clear()
        for state in self._states:
            state.missing = len({id(member) for member in state.members})
        for one in self._trained:
            one.seen = None

    def ready(self, tensor: int) -> None:
        """A parameter has its gradient: push what is complete with it.

        Raises:
            InputError: it had it before in this iteration; or it was used without having been waited for.
        """
        one = self._trained[tensor]
        if one.seen is not None:
            raise InputError(
                f"{one.name} got a gradient twice before optimizer.step()",
                "wrap all but the last backward of an iteration in `with optimizer.no_sync():`, or use early=False",
            )
        self.used(tensor)
        one.seen = (one.tensor.grad, one.tensor.grad._version)
        for number in self._of[tensor]:
            self._states[number].missing -= 1
            if not self._states[number].missing:
                self.push(number)

    def used(self, tensor: int) -> None:
        """A parameter has been used in this iteration: was it waited for?"""
        if any(self._states[number].checked < self.iteration for number in self._of[tensor]):
            raise InputError(
                f"{self._trained[tensor].name} was used before the forward of the module that owns it",
                "call optimizer.wait() before each forward",
            )

    def push(self, number: int) -> None:
        """Send a parcel's gradients, or parameters, to its server, and ask for what becomes of it."""
        state, parcel = self._states[number], self._layout.parcels[number]
        while state.busy:
            self._notice(block=True)
        self._forgive(number)
        self._refuse_changed(number)
        self._pushed.add(number)
        averaged = self._scheme.period > 0
        for stretch, member, into in zip(parcel.stretches, state.members, state.push.stretches, strict=True):
            given = member.tensor.detach() if averaged else member.tensor.grad
            if given is not None:
                if given.is_sparse:
                    raise InputError(f"{member.name} has a sparse gradient", "use sparse=False")
                into.copy_(given.reshape(-1)[stretch.start : stretch.stop])
        state.pushes += 1
        asks = not (state.asked or state.landed)
        own, floor = (state.pushes, self._scheme.needs(state.pushes, state.met)[1]) if asks else (-1, 0)
        PUSH_HEAD.pack_into(state.push.memory.numpy(), 0, own, floor, state.priority)
        if not averaged:
            has = [member.tensor.grad is not None for member in state.members]
            state.push.present.copy_(torch.tensor(has, dtype=torch.uint8, device="cpu"))
            first = state.members[0]
            assert first.hyper is not None
            state.sent = first.hyper.numbers(first.group)
            state.push.numbers[: len(state.sent)] = torch.tensor(
                state.sent, dtype=torch.float64, device="cpu"
            )
        state.busy = True
        state.quiet = asks and not self._scheme.own_lag
        state.asked |= asks
        self._courier.tell(
            WorkerNote(ServerMessage.PUSH, number, own, floor, int(not state.quiet), state.priority)
        )

    def _forgive(self, number: int) -> None:
        """Before a push: where parameters themselves are sent any change counts, and one that was undone is none."""
        state = self._states[number]
        now = [member.changes for member in state.members]
        if now != state.changes and (self._scheme.period or self._as_taken(number)):
            state.changes = now

    def _as_taken(self, number: int) -> bool:
        state = self._states[number]
        known = not (state.asked or state.landed)  # else an answer lies there, or will
        return known and all(torch.equal(here.cpu(), taken) for here, taken in self._elements(number))

    def _refuse_changed(self, number: int) -> None:
        state = self._states[number]
        for member, known in zip(state.members, state.changes, strict=True):
            if member.changes == known:
                continue
            if self._scheme.period:
                raise InputError(
                    f"{member.name} was changed while its average was on its way",
                    "call optimizer.wait() before",
                )
            raise InputError(
                f"{member.name} was changed since synchronise, and its server knows nothing of it",
                "change it before synchronise; what you mean to put back, after optimizer.wait()",
            )

    def _ask(self, number: int, own: int, floor: int | None = None, meeting: int = 0) -> None:
        """For a parcel's parameters, unless they are on their way or here already."""
        state = self._states[number]
        if state.asked or state.landed:
            return
        state.asked = True
        if floor is None:
            floor = self._scheme.needs(own, state.met)[1]
        self._courier.tell(WorkerNote(ServerMessage.PULL, number, own, floor, meeting, state.priority))

    def _notice(self, block: bool) -> None:
        """What the courier has done since."""
        note = self._courier.next(block)
        while note is not None:
            state = self._states[note.parcel]
            if note.kind is ServerMessage.SENT:
                state.busy = False
            else:
                state.asked, state.landed = False, True
                state.busy &= not state.quiet
            note = self._courier.next(False)

    def _take(self, number: int) -> None:
        """Make the parameters what has landed.

        Raises:
            InputError: others have changed them.
        """
        self._refuse_changed(number)
        state = self._states[number]
        with torch.no_grad():
            for member, (here, landed) in zip(state.members, self._elements(number), strict=True):
                before = member.changes
                here.copy_(landed)
                member.taken += member.changes - before
        state.own, state.floor = ANSWER_HEAD.unpack_from(state.answer.numpy())
        state.landed = False

    def require(self, parcels: Iterable[int]) -> None:
        """Before an iteration uses these: take what has come, wait for what the scheme demands. Once per iteration."""
        for number in parcels:
            state = self._states[number]
            if state.checked < self.iteration:
                self._until(number, *self._scheme.needs(self.iteration, state.met))
                state.checked = self.iteration

    def _until(self, number: int, own: int, floor: int) -> None:
        state = self._states[number]
        self._notice(block=False)
        while True:
            if state.landed:
                self._take(number)
            if state.own >= own and state.floor >= floor:
                break
            self._ask(number, own, floor)
            self._notice(block=True)
        if state.own < state.pushes:
            self._ask(number, state.pushes)

    def fetch(self) -> None:
        """Until all parameters hold all updates of this worker, whatever they hold of others."""
        for number in self.parcels:
            self._until(number, self._states[number].pushes, 0)

    def wait(self) -> None:
        """Until all parameters hold all updates of this worker, and of others what the scheme demands."""
        for number in self.parcels:
            state = self._states[number]
            self._until(number, state.pushes, self._scheme.needs(state.pushes, state.met)[1])
            state.checked = self.iteration

    def finish_iteration(self) -> None:
        """Push what has not been, and begin the next one.

        Raises:
            InputError: a gradient, or a number of the optimizer, was changed after it had been sent; a parameter was
                changed by others.
        """
        for one in self._trained:
            if one.seen is not None and not (
                one.tensor.grad is one.seen[0] and one.tensor.grad._version == one.seen[1]
            ):
                raise InputError(
                    f"the gradient of {one.name} was changed after it had been sent to its server",
                    "give early=False: gradients are sent in optimizer.step() then, clipped or scaled as you like",
                )
        for number in self._pushed:
            self._refuse_changed(number)
            state = self._states[number]
            first = state.members[0]
            if first.hyper is not None:
                first.hyper.refuse_changed(state.sent, first.group)
        for number in sorted(set(self.parcels) - self._pushed, key=lambda n: self._states[n].priority):
            self.push(number)
        self.iteration += 1
        self._begin()

    def meet(self) -> None:
        """Until all workers have called this; then all have the same parameters, with all updates."""
        self._meetings += 1
        self.fetch()
        for number in self.parcels:
            state = self._states[number]
            while state.asked:
                self._notice(block=True)
            state.landed = False
            self._ask(number, state.pushes, 0, self._meetings)
        for number in self.parcels:
            while self._states[number].asked:
                self._notice(block=True)
            self._take(number)
            self._states[number].met = self._states[number].pushes

    def leave(self) -> None:
        """Say goodbye to the servers."""
        self._courier.tell(WorkerNote(ServerMessage.LEAVE))
        self._courier.close()

    def abort(self) -> None:
        """Go without a goodbye; the others will miss this worker."""
        self._courier.abort()
