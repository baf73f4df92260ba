"""Executes a plan under a training script: gradients go as they become ready, updates happen when they are needed.

An iteration, as it goes through here:

1. backward: each gradient that is ready is handed to its transfers, and those that are complete begin.
2. `optimizer.step()`: what is back is updated now; the rest is marked for update, with the hyper-parameters
   of this moment and in its modes.
3. the next forward: a parameter's first use waits for its gradient and updates it, and whatever else has come.

Between 1 and 3 parameters are `Watched`, so whatever else a script does with them waits likewise. Updates run on
the thread that uses the parameter; the transport's thread only moves and adds bytes.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.autograd import Variable

from hemiola.core.errors import InputError
from hemiola.core.plan import Plan
from hemiola.train.accelerate.buckets import Bundle, ParameterSlot, RowBucket, bundles_of, end_rows
from hemiola.train.accelerate.embeddings import Lookups, Table, TiedHead
from hemiola.train.accelerate.handles import Carrier, RowCarrier
from hemiola.train.accelerate.parameter_hooks import attend, leave, tell_owner, unwatch, watch
from hemiola.train.accelerate.trace_hooks import TraceHooks
from hemiola.train.accelerate.updates import Modes, Updates

__all__ = ["PlanExecutor"]

_LOOK_S = 2e-3
"""While one gradient is awaited, it is looked so often whether another one can be updated meanwhile."""
_STOPPED_S = 1.0
"""It is looked so often at least, and no look counts for more: for what is beyond it, this process was stopped."""
_SMALL_BYTES = 1 << 20
"""Parameters up to this size are updated together as soon as they have come: one call for many."""

_plainly = torch._C.DisableTorchFunctionSubclass
"""Inside, watched parameters tell nobody."""


class PlanExecutor:
    """One model's exchange and updates by one plan.

    Attributes:
        slots: by parameter's name.
        syncs: whether the backward of the last forward is to be exchanged (`no_sync`).
        waited_s: how long the script has stood still for gradients, since somebody set it to 0.
    """

    def __init__(
        self, module: nn.Module, parameters: dict[str, nn.Parameter], plan: Plan, tables: dict[str, Table], carrier: Carrier,
        updates: Updates, ranks: int, timeout_s: float, teller: TraceHooks | None = None,
    ) -> None:  # fmt: skip
        """Takes hold of the model.

        Args:
            tables: of which the plan sends rows (`embeddings.planned_tables`).
        """
        self._carrier, self._updates, self._ranks, self._timeout_s = carrier, updates, ranks, timeout_s
        self._module, self._plan, self._teller = module, plan, teller
        attend(module, tell_owner)
        self.slots = {
            name: ParameterSlot(name, parameter, self._use) for name, parameter in parameters.items()
        }
        bundles = bundles_of(plan, self.slots)
        self._rows = [bundle for bundle in bundles if isinstance(bundle, RowBucket) and not bundle.is_head]
        self._slot_of = {id(slot.parameter): slot for slot in self.slots.values()}
        self._open = False  # some gradients of this iteration are handed over, and no step was made
        self._expects = False  # there was a forward to be exchanged since the last exchange began
        self._exchanged = False  # one has ended since the last step
        self._backwards: set[int] = set()  # PyTorch's numbers of those that handed over, until they end well
        self._due: dict[
            str, ParameterSlot
        ] = {}  # to be updated, or at least to be waited for, before the next use
        self._modes = Modes(next(iter(parameters.values())).device.type)  # of the last step
        self._guard = threading.RLock()
        self.syncs = True
        self.waited_s = 0.0
        self._hooks: list[Any] = []
        self._orders: list[tuple[OrderedDict[int, Any], int]] = []
        """Of each parameter, all hooks on its gradient, and which is this engine's."""
        for slot in self.slots.values():
            hook = slot.parameter.register_post_accumulate_grad_hook(self._hook(partial(self._ready, slot)))
            self._hooks.append(hook)
            self._orders.append((slot.parameter._post_accumulate_grad_hooks, hook.id))
        for name, table in tables.items():
            slot = self.slots[name]
            ready = self._hook(partial(self._head_ready, slot))
            lookups = Lookups(table) if slot.head is None else TiedHead(table, ready)
            slot.looked_up = lookups.looked_up
            self._hooks.append(lookups)
        self._tables = [self.slots[name] for name in tables]
        self._named = False  # rows of the next backward are

    # --- backward

    def _hook(self, ready: Callable[[Any], None]) -> Callable[[Any], None]:
        """Have this done with what backward has, where it is to be exchanged: as with DDP, the first one after a forward of
        the accelerated model is. Others, such as those of the module inside, are this rank's own."""

        def told(what: Any) -> None:
            if self._open or self._expects:
                with self._guard, _plainly():
                    if not self._open:
                        self._begin()
                    self._follow_to_its_end()
                    ready(what)

        return told

    def _follow_to_its_end(self) -> None:
        """This backward: what PyTorch calls when it has ended, it does not call when an exception has ended it."""
        number = torch._C._current_graph_task_id()
        if number not in self._backwards:
            self._backwards.add(number)
            Variable._execution_engine.queue_callback(partial(self._backwards.discard, number))

    def _head_ready(self, slot: ParameterSlot, gradient: torch.Tensor) -> None:
        self._launch(slot.hand_over_head(gradient))

    def _ready(self, slot: ParameterSlot, _: Any) -> None:
        if slot.handed:
            raise InputError(
                f"a second backward gave {slot.name} another gradient before the optimizer's step, and without another forward",
                "call all backwards but the last within model.no_sync()",
            )
        self._hand_over(slot)

    def _begin(self) -> None:
        """The first gradient of an iteration is there: what the last one left is ended, and all are watched."""
        self._settle(list(self._due.values()))
        for slot in self.slots.values():
            self._await_sent(slot)
            slot.handed = False
            watch(slot.parameter, slot)
        self._open, self._expects, self._exchanged = True, False, False
        self._name_rows()
        self._named = False

    def _hand_over(self, slot: ParameterSlot) -> None:
        self._launch(slot.hand_over())
        if self._rows and all(bundle.touched is not None for bundle in self._rows):
            end_rows(self._rows, self._carrier)

    def _launch(self, bundles: list[Bundle]) -> None:
        for bundle in bundles:
            bundle.launch(self._carrier, 1.0 / self._ranks)
            if self._teller is not None:
                self._teller.begins(bundle)

    def _fill(self) -> None:
        """Backward is over: what has got no gradient says so, for the others wait for it.

        Raises:
            InputError: it is not: then nobody knows of the rest, and others would train on with a part of this rank's.
        """
        if self._backwards:
            raise InputError(
                "a backward has not come to its end, and the other ranks have some of its gradients already",
                "let its exception end this rank too, and start again from a checkpoint: no rank can leave out a batch alone",
            )
        with _plainly(), self._modes.again():
            if not self._open:
                self._begin()
            for slot in self.slots.values():
                if slot.handed:
                    continue
                together = any(len(bundle.pieces) > 1 for bundle in slot.bundles)
                if slot.parameter.requires_grad or together or not self._carrier.skips:
                    self._hand_over(slot)
                else:
                    unwatch(slot.parameter)
            end_rows(self._rows, self._carrier)

    # --- the script's calls

    def share(self, buffers: list[torch.Tensor]) -> None:
        """Rank 0's buffers, everywhere, as DDP has it before a forward."""
        if buffers:
            self._carrier.share(buffers)

    def forward_begins(self, syncs: bool) -> None:
        """A forward that will be followed by a backward."""
        with self._guard:
            if self._open:  # no step since the last backward: gradients accumulate on what is reduced
                self._close()
            for hooks, own in self._orders:
                if next(reversed(hooks)) != own:  # a later one may change the gradient: it goes after that
                    hooks[own] = hooks.pop(own)  # PyTorch does not see what `move_to_end` does
            self.syncs = syncs
            self._expects = self._expects or syncs

    def forward_ends(self) -> None:
        """It has; which rows it has looked up is told while the network has little else to do."""
        if self.syncs:
            with self._guard, _plainly():
                under_way = any(slot.name in self._due for slot in self._tables)  # from the last backward
                if not under_way:
                    self._name_rows()

    def _name_rows(self) -> None:
        """Once for a backward, on all ranks."""
        if self._tables and not self._named:
            self._named = True
            first = self._tables[0].under_way
            looked_up = [slot.looked_up for slot in self._tables if slot.looked_up is not None]
            names = cast(RowCarrier, self._carrier).name_rows(
                first[-1].number, looked_up, first[0].transfer.priority
            )
            for slot, own in zip(self._tables, names, strict=True):
                slot.names = own

    def step(self, step: Callable[..., Any], closure: Any = None) -> Any:
        """The optimizer's step: now, or as its parameters are used."""
        if closure is not None:
            self.barrier()
            result = step(closure)  # not guarded: on a GPU, backward has threads of its own
            self.barrier()
            self._exchanged = False
            return result
        with self._guard:
            exchanged, self._exchanged = self._exchanged, False
            if not self._open and (exchanged or not self._expects):
                return step()
            self._fill()
            if self._plan.update == "together" or not self._updates.apart or self._updates.has_hooks:
                self._close()
                self._exchanged = False
                return step()
            return self._step_in_parts(step)

    def _step_in_parts(self, step: Callable[[], Any]) -> Any:
        """Update what is back; mark the rest."""
        self._open = False
        self._modes.keep()
        later: set[int] = set()
        for slot in self.slots.values():
            if slot.reduced:
                self._unwatch_if_sent(slot)
            elif self._may_update(slot):
                self._back(slot)
                self._unwatch_if_sent(slot)
            else:
                self._due[slot.name] = slot
                later.add(id(slot.parameter))
        with _plainly():
            result = self._updates.only(lambda parameter: id(parameter) not in later, step)
        captured = self._updates.captured()
        group_of = {id(parameter): number for parameter, number in self._updates.groups()}
        for slot in self._due.values():
            number = group_of.get(id(slot.parameter))
            slot.captured = None if number is None else captured[number]
        return result

    def has(self, parameter: nn.Parameter) -> bool:
        """Whether it is one of this model's."""
        return id(parameter) in self._slot_of

    def zero_grad(self, parameters: Iterable[nn.Parameter], set_to_none: bool) -> None:
        """The optimizer's or the model's: gradients that are still needed are cleared after their use."""
        with self._guard, _plainly(), torch.no_grad():
            if self._open:
                self._close()
            due = {id(slot.parameter): slot for slot in self._due.values()}
            for parameter in parameters:
                slot = due.get(id(parameter))
                if slot is not None:
                    slot.clear = "none" if set_to_none else "zero"
                elif set_to_none:
                    parameter.grad = None
                elif parameter.grad is not None:
                    if (sent := self._slot_of.get(id(parameter))) is not None:
                        self._await_sent(sent)
                    _zero(parameter.grad)

    def settle(self) -> None:
        """Until all updates that are due are made."""
        with self._guard:
            self._settle(list(self._due.values()))

    def barrier(self) -> None:
        """Until everything is reduced and updated."""
        with self._guard:
            self.settle()
            if self._open:
                self._close()
            for slot in self.slots.values():
                self._await_sent(slot)
                unwatch(slot.parameter)

    def drain(self, patience_s: float) -> None:
        """Let what has begun end, for others need it too; at most for so long. Updates nothing.

        What this rank has given up, or leaves in the middle of an iteration, ends nowhere, and is not waited for.
        """
        if self._open and not all(slot.handed for slot in self.slots.values()):
            return
        tickets = [b.ticket for slot in self.slots.values() for b in slot.under_way if b.ticket is not None]
        if any(ticket.stood_s >= self._timeout_s for ticket in tickets):
            return
        until = time.monotonic() + patience_s
        for ticket in tickets:
            if ticket.soon(max(0.0, until - time.monotonic())):
                ticket.sent_soon(until)

    def detach(self) -> None:
        """Leave the parameters alone, whatever is under way."""
        leave(self._module)
        for hook in self._hooks:
            hook.remove()
        for slot in self.slots.values():
            unwatch(slot.parameter)

    # --- waiting

    def _use(self, slot: ParameterSlot, how: str) -> bool:
        """Somebody is about to use a parameter."""
        with self._guard:
            if slot.name in self._due:
                if how == "drop":
                    slot.clear = "none"
                    return True
                self._settle([slot])
                if how == "grad":
                    self._await_sent(slot)
                else:
                    self._guard_sent(slot)
                return False
            if how == "data":
                if not self._open:
                    self._unwatch_if_sent(slot)
                self._guard_sent(slot)
                return False
            if torch._C._current_graph_task_id() == -1:
                if self._open:
                    self._fill()
                    self._await(slot)
                self._await_sent(slot)
            return False

    def _guard_sent(self, slot: ParameterSlot) -> None:
        """If its gradient is still being sent: a backward that adds to it, in its place, has to wait."""
        with _plainly():  # else to look for a gradient is to ask for it
            parameter = slot.parameter
            if not (slot.guarded or slot.sent) and parameter.requires_grad and parameter.grad is not None:
                slot.guarded = True
                self._hooks.append(parameter.register_hook(partial(self._before_adding, slot)))

    def _before_adding(self, slot: ParameterSlot, _: torch.Tensor) -> None:
        with _plainly():
            if slot.parameter.grad is not None:
                self._await_sent(slot)

    def _close(self) -> None:
        """Wait for all gradients of this iteration; no update is due for them."""
        self._fill()
        for slot in self.slots.values():
            self._await(slot)
            self._await_sent(slot)
            unwatch(slot.parameter)
        self._open, self._exchanged = False, True

    def _settle(self, wanted: Iterable[ParameterSlot]) -> None:
        """Wait for these and update them, and small ones that have come meanwhile."""
        with _plainly(), self._modes.again():
            for slot in wanted:
                if slot.name not in self._due:
                    continue
                while not slot.done:
                    if not self._update_another():
                        self._wait(slot)
                if self._updates.writes_gradients:
                    self._await_sent(slot)
                if slot.name in self._due:  # and was not updated when it came
                    small = (s for s in self._due.values() if s is not slot and s.bytes <= _SMALL_BYTES)
                    self._update([slot, *(s for s in small if self._may_update(s))])

    def _may_update(self, slot: ParameterSlot) -> bool:
        """Whether its gradient is back, and, where updates write to gradients, not being sent any more."""
        return slot.done and (slot.sent or not self._updates.writes_gradients)

    def _update_another(self) -> bool:
        """Use the time: an update that will be needed."""
        found = next((slot for slot in self._due.values() if self._may_update(slot)), None)
        if found is not None:
            self._update([found])
        return found is not None

    def _update(self, slots: list[ParameterSlot]) -> None:
        for slot in slots:
            self._back(slot)
            del self._due[slot.name]
        self._updates.apply(
            [
                (s.parameter, s.captured)
                for s in slots
                if s.captured is not None and s.parameter.grad is not None
            ]
        )
        for slot in slots:
            slot.captured = None
            self._clear(slot)
            self._unwatch_if_sent(slot)

    def _clear(self, slot: ParameterSlot) -> None:
        """What the script has asked for since its step."""
        clear, slot.clear = slot.clear, None
        if clear == "none":
            slot.parameter.grad = None
        elif clear == "zero" and slot.parameter.grad is not None:
            self._await_sent(slot)
            _zero(slot.parameter.grad)

    def _await(self, slot: ParameterSlot) -> None:
        """Until its gradient is reduced."""
        if slot.reduced:
            return
        while not slot.done:
            self._wait(slot)
        self._back(slot)

    def _wait(self, slot: ParameterSlot) -> None:
        """Stand still for one of its transfers, for a moment."""
        tickets = (bundle.ticket for bundle in slot.under_way)
        ticket = next((ticket for ticket in tickets if ticket is not None and not ticket.done), None)
        if ticket is None:  # it has ended meanwhile
            return
        if self._teller is not None:
            for bundle in slot.under_way:
                self._teller.needed(bundle)
        start = time.monotonic()
        ended = ticket.soon(min(_LOOK_S if len(self._due) > 1 else _STOPPED_S, self._timeout_s))
        waited_s = time.monotonic() - start
        self.waited_s += waited_s
        ticket.stood_s += min(waited_s, _STOPPED_S)
        if not ended and ticket.stood_s >= self._timeout_s:
            ticket.wait(self._timeout_s)

    def _back(self, slot: ParameterSlot) -> None:
        with _plainly(), torch.no_grad():
            slot.bring_back()
        if self._teller is not None:
            for bundle in slot.under_way:
                self._teller.released(bundle)

    @staticmethod
    def _await_sent(slot: ParameterSlot) -> None:
        for bundle in slot.under_way:
            if bundle.ticket is not None and not bundle.ticket.sent:
                bundle.ticket.wait_sent()

    @staticmethod
    def _unwatch_if_sent(slot: ParameterSlot) -> None:
        if slot.sent:
            unwatch(slot.parameter)


def _zero(gradient: torch.Tensor) -> None:
    """As PyTorch's `zero_grad` does; a view cannot be detached in its place."""
    if gradient.grad_fn is not None:
        gradient.detach_()
    else:
        gradient.requires_grad_(False)
    gradient.zero_()
