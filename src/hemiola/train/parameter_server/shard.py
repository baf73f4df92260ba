"""What a server keeps of one parcel: its parameters, ready to be sent, and the optimizer that updates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hemiola.train.parameter_server.hyper import Hyper
from hemiola.train.parameter_server.layout import HEAD_BYTES, NUMBERS, Parcel
from hemiola.train.parameter_server.state import State

__all__ = ["Kept", "Push", "Shard", "elements_of"]


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
