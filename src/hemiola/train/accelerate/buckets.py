"""What goes on its way together: a plan's transfers as memory of this rank.

A transfer that is a stretch of one gradient is exchanged in the gradient's own memory; one of several
gradients in a buffer of its own, where whole gradients stay: `.grad` is a part of the buffer from then on, so nothing
is copied back, and the memory that backward gave them is free. A script that still holds such a part keeps what it
has, for the next gradients get another buffer then. Gradients are divided by the number of ranks before they are added
up, as DistributedDataParallel does it.

Of a table only rows may go, those that are not zero on some rank. Of a tied table those that no rank has looked up
go first, with the output layer's part of the gradient; then, in their final values, those that were looked up and
any that have changed since: what is reduced is the same, whatever else has used the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from hemiola.core.errors import InputError
from hemiola.core.plan import Plan, PlannedTransfer
from hemiola.train.accelerate.embeddings import summed, touched_rows
from hemiola.train.accelerate.handles import Carrier, RowCarrier, RowNames, RowTransfer, TransferHandle
from hemiola.train.accelerate.updates import Captured

__all__ = ["Bundle", "Gathered", "ParameterSlot", "RowBucket", "bundles_of", "end_rows"]


# Memory in which several gradients lie one behind the other, to go on their way together.

Owner = TypeVar("Owner")

_uses_of = getattr(torch._C, "_storage_Use_Count", None)
"""How many tensors lie in some memory; PyTorch's own, for CUDA graphs."""


class Gathered(Generic[Owner]):
    """A buffer in parts, each of which may be somebody's gradient for as long as they like.

    Gradients are tensors of storages of their own in the same memory: who moves bytes has hold of another one, and who
    saves a gradient saves no more than that.

    Attributes:
        flat: all of it.
        places: the parts, by whose they are.
        keeps: whether gradients can stay here: it is known whether somebody still has one.
    """

    keeps = _uses_of is not None

    def __init__(self, sizes: Mapping[Owner, list[int]], like: Tensor) -> None:
        """Of parts of so many elements, of this kind."""
        self._sizes, self._like = sizes, like
        self._make()

    def _make(self) -> None:
        counts = [count for own in self._sizes.values() for count in own]
        self.flat = torch.empty(sum(counts), dtype=self._like.dtype, device=self._like.device)
        parts = iter(self.flat.split(counts))
        self.places = {whose: [next(parts) for _ in own] for whose, own in self._sizes.items()}
        self._given = {whose: torch.from_dlpack(own[0]) for whose, own in self.places.items()}
        self._own = self._uses()

    def gradient(self, whose: Owner, shape: torch.Size) -> Tensor:
        """One of this shape in the first place of these. It is no view, for a view's `detach_` fails."""
        return self.flat.new_empty(0).set_(self._given[whose].untyped_storage(), 0, shape)

    def leave_to_others(self, known: int) -> None:
        """Before it is written to: go on in other memory if somebody has hold of gradients in this, beside so many known."""
        if self._uses() > self._own + known:
            self._make()

    def _uses(self) -> int:
        if _uses_of is None:
            return 0
        return sum(int(_uses_of(given.untyped_storage()._cdata)) for given in self._given.values())


_FEW_ELEMENTS = 64
"""So many elements of a real gradient may by chance all be -0.0, the mark of one that is not there."""


@dataclass(eq=False)
class ParameterSlot:
    """One parameter and what is under way for it.

    Attributes:
        name, parameter: which.
        use: called before it is used (`parameter_hooks.Use`).
        bundles: that hold parts of its gradient.
        head: of the output layer's part of a tied table's, which goes before; None where none does.
        handed: whether its gradient of this backward is given to its bundles.
        reduced: whether what was handed over is back, in `.grad`.
        absent: whether this rank had no gradient for it.
        captured: with what it is to be updated; None if no update is due.
        clear: what the script wanted done with the gradient after that: None, "none" or "zero".
        looked_up: the rows that have been looked up for this iteration's gradient, as far as this rank knows; None where
            no rows go, or nothing is known of lookups.
        names: what ranks have told each other of them.
        base: that part, from when it is handed over until the whole gradient is.
        guarded: whether a hook has backwards wait until its gradient is sent.
    """

    name: str
    parameter: nn.Parameter
    use: Callable[[ParameterSlot, str], bool]
    bundles: list[Bundle] = field(default_factory=list)
    head: RowBucket | None = None
    handed: bool = False
    reduced: bool = True
    absent: bool = False
    captured: Captured | None = None
    clear: str | None = None
    looked_up: Tensor | None = None
    names: RowNames | None = None
    base: Tensor | None = None
    guarded: bool = False
    _flat: Tensor | None = None

    def __reduce__(self) -> Any:
        """Who saves a parameter saves nothing of what is on its way."""
        return _nothing, ()

    @property
    def bytes(self) -> int:
        """Of the parameter."""
        return int(self.parameter.numel() * self.parameter.element_size())

    @property
    def done(self) -> bool:
        """Whether all of it has come back, or failed."""
        return all(bundle.ticket is not None and bundle.ticket.done for bundle in self.under_way)

    @property
    def sent(self) -> bool:
        """Whether its gradient's memory is its own again."""
        return all(bundle.ticket is None or bundle.ticket.sent for bundle in self.under_way)

    @property
    def under_way(self) -> list[Bundle]:
        """All bundles of an iteration."""
        return self.bundles if self.head is None else [self.head, *self.bundles]

    def hand_over_head(self, gradient: Tensor) -> list[Bundle]:
        """Give the output layer's part of the gradient to its transfer; what is to be launched.

        Only the first such part of a backward goes; what follows it comes with the rest.
        """
        if self.handed or self.base is not None:
            return []
        return self._hand_over_head(summed(self.parameter, gradient))

    def _hand_over_head(self, base: Tensor) -> list[Bundle]:
        assert self.head is not None
        self.base = base
        self.head.hold(base, self.names)
        return [self.head]

    def hand_over(self) -> list[Bundle]:
        """Give the gradient, or the mark that there is none, to the bundles; those that are complete by it."""
        parameter = self.parameter
        gradient = parameter.grad
        self.absent = gradient is None
        if gradient is None:
            gradient = parameter.grad = torch.full_like(
                parameter, -0.0, memory_format=torch.contiguous_format
            )
        elif gradient.layout is not torch.strided:
            raise InputError(
                f"the gradient of {self.name} is sparse", "build its layer with sparse=False, or use DDP"
            )
        self._flat = _flat(gradient, self.absent)
        found: list[Bundle] = []
        if self.head is not None and self.base is None:  # backward did not come by the output layer
            found = self._hand_over_head(self._flat.view(gradient.shape))
        self.handed, self.reduced = True, False
        found += [bundle for bundle in self.bundles if bundle.take(self, self._flat)]
        self.base = None
        if self.looked_up is not None:
            self.looked_up.fill_(False)
        return found

    def moves(self, buffer: Gathered[ParameterSlot]) -> bool:
        """Its place there, where its gradient was copied to, is where it is from now on; whether it can be, for all of it is
        there, and it is not a part of memory that the script looks at as a whole."""
        gradient, place = self.parameter.grad, buffer.places[self][0]
        if gradient is None or place.numel() < gradient.numel() or not gradient.is_contiguous():
            return False
        if gradient._is_view() or gradient.untyped_storage().nbytes() > gradient.nbytes:
            return False
        if gradient.data_ptr() != place.data_ptr():
            self.parameter.grad = buffer.gradient(self, gradient.shape)
        self._flat = place
        return True

    def bring_back(self) -> None:
        """All bundles have ended: put what came into `.grad`.

        Raises:
            TransportError: one of them failed.
        """
        for bundle in self.under_way:
            assert bundle.ticket is not None
            bundle.ticket.wait(0.0)
        parameter, flat = self.parameter, self._flat
        gradient = parameter.grad
        if flat is not None and gradient is not None:
            for bundle in self.bundles:
                bundle.give(self, flat)
            if self.absent and _is_absent(flat):
                parameter.grad = None
            elif flat.data_ptr() != gradient.data_ptr():
                gradient.copy_(flat.view(gradient.shape))
        self._flat, self.reduced = None, True


def _nothing() -> None:
    return None


@dataclass(eq=False)
class Bundle:
    """One transfer of the plan.

    Attributes:
        number: of the transfer.
        transfer: as planned.
        pieces: by slot: its elements from and to.
        buffer: of what is made of several pieces.
        missing: parameters that have not handed over yet.
        ticket: of the transfer under way, or the last one.
        launches: how often it was begun.
    """

    number: int
    transfer: PlannedTransfer
    pieces: dict[ParameterSlot, list[tuple[int, int]]]
    buffer: Gathered[ParameterSlot] | None = None
    missing: int = 0
    ticket: TransferHandle | None = None
    launches: int = 0
    _own: Tensor | None = None
    _taken: dict[ParameterSlot, list[Tensor]] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Of the transfer."""
        return sum(
            (stop - start) * slot.parameter.element_size()
            for slot, own in self.pieces.items()
            for start, stop in own
        )

    def take(self, slot: ParameterSlot, flat: Tensor) -> bool:
        """A parameter's gradient is there; whether that makes the transfer complete."""
        pieces = self.pieces[slot]
        if self.buffer is None:
            ((start, stop),) = pieces
            self._own = flat[start:stop]
            return True
        place = self.buffer.places[slot][0]
        if flat.numel() and flat.data_ptr() == place.data_ptr() and slot.moves(self.buffer):
            self._taken[slot] = [place]
        else:
            self._taken[slot] = [flat[start:stop] for start, stop in pieces]
        self.missing -= 1
        return self.missing == 0

    def give(self, slot: ParameterSlot, flat: Tensor) -> None:
        """The reduced gradient of a parameter; those of the others with it, for one call for many costs little more."""
        if slot in self._taken:
            assert self.buffer is not None
            _copy(self._parts(self.buffer))
            self._taken.clear()

    def _parts(self, buffer: Gathered[ParameterSlot]) -> list[tuple[Tensor, Tensor]]:
        """Where each part of a gradient that was taken lies in the buffer, and the part."""
        return [
            pair
            for slot, parts in self._taken.items()
            for pair in zip(buffer.places[slot], parts, strict=True)
        ]

    def _gather(self, buffer: Gathered[ParameterSlot]) -> Tensor:
        """All that was taken, in the buffer. Whole gradients stay there."""
        buffer.leave_to_others(sum(place is part for place, part in self._parts(buffer)))
        _copy([(part, place) for place, part in self._parts(buffer)])
        if buffer.keeps:
            moved = [slot for slot in self._taken if slot.moves(buffer)]
            for slot in moved:
                del self._taken[slot]
        return buffer.flat

    def launch(self, carrier: Carrier, factor: float) -> None:
        """Begin the transfer."""
        self.launches += 1
        self.missing = len(self.pieces)
        flat, self._own = self._own if self.buffer is None else self._gather(self.buffer), None
        assert flat is not None
        transfer = self.transfer
        self.ticket = carrier.all_reduce(
            self.number, f"the gradient {transfer.name}", flat, transfer.priority, transfer.algorithm, factor
        )


def _copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Each first to its second."""
    apart = [(source, target) for source, target in pairs if source is not target]
    if apart:
        torch._foreach_copy_([target for _, target in apart], [source for source, _ in apart])


@dataclass(eq=False)
class RowBucket(Bundle):
    """One transfer of a table's rows: those that some rank has touched, or of the output layer's part all others.

    Attributes:
        touched: by this rank, from the launch until `end_rows`.
        absent: whether this rank had no gradient.
    """

    touched: Tensor | None = None
    absent: bool = False
    _names: RowNames | None = None
    _base: Tensor | None = None

    @property
    def is_head(self) -> bool:
        """Whether it is of the output layer's part."""
        return self.transfer.part == "head"

    @property
    def bytes(self) -> int:
        """Of the rows that go; of all of them while that is not known."""
        whole = super().bytes
        if self.ticket is None or not self.ticket.done or self.rows.whole:
            return whole
        return sum(values.nbytes for _, values in self.rows.parts)

    @property
    def rows(self) -> RowTransfer:
        """The ticket."""
        return cast(RowTransfer, self.ticket)

    def hold(self, table: Tensor, names: RowNames | None) -> None:
        """What is to be launched."""
        self._own, self._names = table, names

    def take(self, slot: ParameterSlot, flat: Tensor) -> bool:
        """The table's gradient is complete."""
        self.hold(flat.view(slot.parameter.shape), slot.names)
        self._base, self.absent = slot.base, slot.absent
        return True

    def give(self, slot: ParameterSlot, flat: Tensor) -> None:
        """What nobody has touched came with the output layer's part, or is zero; the rest by rows."""
        if self.rows.whole:
            return
        table = flat.view(slot.parameter.shape)
        if slot.absent and not self.rows.present:  # of nobody
            table.fill_(-0.0)
            return
        if slot.absent:
            table.zero_()
        if slot.head is not None:
            slot.head.put(table)
        self.put(table)

    def put(self, table: Tensor) -> None:
        """The reduced rows, where they belong."""
        for rows, values in self.rows.parts:
            table.index_copy_(0, rows, values)

    def launch(self, carrier: Carrier, factor: float) -> None:
        """Begin the transfer: of rows that were named before at once, and look which others there are."""
        self.launches += 1
        self.missing = 1
        table, names, base, transfer = self._own, self._names, self._base, self.transfer
        assert table is not None
        self._own = self._names = self._base = None
        self.ticket = cast(RowCarrier, carrier).reduce_rows(
            self.number, f"the gradient {transfer.name}", table, names, transfer.priority, transfer.algorithm, factor,
            self.is_head,
        )  # fmt: skip
        if not self.is_head:
            if self.absent and base is None:
                self.touched = torch.zeros(len(table), dtype=torch.bool, device="cpu")
            else:
                self.touched = touched_rows(table, base)


def end_rows(bundles: Sequence[RowBucket], carrier: Carrier) -> None:
    """Of those that were launched: tell the others which rows they have beside those that were named before."""
    launched = [(bundle, bundle.touched) for bundle in bundles if bundle.touched is not None]
    if launched:
        first = launched[0][0]
        cast(RowCarrier, carrier).end_rows(
            first.number, [bundle.rows for bundle, _ in launched], [touched for _, touched in launched],
            [not bundle.absent for bundle, _ in launched], first.transfer.priority,
        )  # fmt: skip
    for bundle, _ in launched:
        bundle.touched = None


def bundles_of(plan: Plan, slots: dict[str, ParameterSlot]) -> list[Bundle]:
    """The plan's transfers for these parameters, which it was verified for."""
    found = []
    for number, transfer in enumerate(plan.transfers):
        pieces: dict[ParameterSlot, list[tuple[int, int]]] = {}
        for piece in transfer.pieces:
            pieces.setdefault(slots[piece.parameter], []).append((piece.start, piece.stop))
        kind = Bundle if transfer.part == "all" else RowBucket
        bundle = kind(number, transfer, pieces, missing=len(pieces))
        if len(transfer.pieces) > 1:
            sizes = {slot: [stop - start for start, stop in own] for slot, own in pieces.items()}
            bundle.buffer = Gathered(sizes, next(iter(pieces)).parameter)
        for slot in pieces:
            if isinstance(bundle, RowBucket) and bundle.is_head:
                slot.head = bundle
            else:
                slot.bundles.append(bundle)
        found.append(bundle)
    return found


def _flat(gradient: Tensor, absent: bool) -> Tensor:
    """Its elements one behind the other, in its own memory where that has no gaps."""
    flat = gradient.detach()
    if not flat.is_contiguous():
        flat = flat.contiguous()
    flat = flat.view(-1)
    if not absent and flat.numel() <= _FEW_ELEMENTS:
        flat.add_(0.0)
    return flat


def _is_absent(flat: Tensor) -> bool:
    """Whether no rank had a gradient: -0.0 is what nothing else adds up to."""
    if not flat.numel():
        return True
    return bool((flat[0] == 0).item() and math.copysign(1.0, flat[0].item()) < 0) and bool(
        (flat == 0).logical_and_(torch.signbit(flat)).all()
    )
