"""The state of an optimizer that runs on servers: divided as its parameters are, and put together as PyTorch has it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hemiola.core.errors import InputError
from hemiola.train.parameter_server.layout import NUMBERS, ParcelLayout, Stretch

__all__ = [
    "Hyper",
    "State",
    "beside",
    "by_element",
    "hyper_of",
    "joined",
    "part_of",
    "refuse_unknown",
    "shape_of",
    "to_send",
]


State = dict[str, Any]
"""Of one parameter, by name: tensors with an element for each of the parameter's, others, and numbers."""


def shape_of(stretch: Stretch, parameter: Tensor) -> tuple[int, ...]:
    """At its server: a whole parameter keeps its own, which some optimizers look at; a part of one is flat."""
    length = stretch.stop - stretch.start
    return tuple(parameter.shape) if length == parameter.numel() else (length,)


def part_of(state: Mapping[str, Any], parameter: Tensor, stretch: Stretch) -> State:
    """What belongs to some of its elements, in the shape that these have at their server."""

    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if not value.dim() or value.numel() != parameter.numel():
            return value.detach().cpu().clone()  # parts that shared it would each count a step in it
        part = value.detach().cpu().reshape(-1)[stretch.start : stretch.stop]
        return part.reshape(shape_of(stretch, parameter)).clone()

    return {name: cut(value) for name, value in state.items()}


def to_send(state: Mapping[str, Any]) -> tuple[State, set[str]]:
    """One in the host's memory, and the names of what was not there.

    A tensor that is sent from a GPU becomes one of the GPU of that number, on every rank, whichever its own is.
    """
    away = {name for name, value in state.items() if isinstance(value, Tensor) and value.device.type != "cpu"}
    return {name: value.cpu() if name in away else value for name, value in state.items()}, away


def beside(parameter: Tensor, state: Mapping[str, Any], names: Collection[str]) -> State:
    """One that another rank had, what has these names on this rank's device."""
    return {name: value.to(parameter.device) if name in names else value for name, value in state.items()}


def joined(
    layout: ParcelLayout, parts: Mapping[int, Mapping[int, State]], parameters: Sequence[Tensor]
) -> dict[int, State]:
    """Of each parameter that has any, by number.

    Args:
        parts: by parcel, of each of its stretches that has any.
        parameters: as `Stretch.tensor` counts them.
    """
    found: dict[int, State] = {}
    for number, parcel in enumerate(layout.parcels):
        for place, stretch in enumerate(parcel.stretches):
            if (part := parts.get(number, {}).get(place)) is None:
                continue
            parameter, length = parameters[stretch.tensor], stretch.stop - stretch.start
            state = found.setdefault(stretch.tensor, {})
            for name, value in part.items():
                if not isinstance(value, Tensor) or not value.dim() or value.numel() != length:
                    state.setdefault(name, value)
                    continue
                if name not in state:
                    state[name] = torch.zeros(parameter.shape, dtype=value.dtype, device="cpu")
                state[name].view(-1)[stretch.start : stretch.stop] = value.reshape(-1)
    return found


# Which optimizers can run on servers, and how their hyper-parameters get there: numbers with every push.

BY_ELEMENT = frozenset({
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
})  # fmt: skip
"""Each element is updated by itself, so tensors can be cut."""
BY_TENSOR = frozenset({"Adafactor", "Muon"})


@dataclass(frozen=True)
class Hyper:
    """Of one group of parameters.

    Attributes:
        optimizer: name of its class in `torch.optim`.
        fixed: options that stay as they are.
        numeric: names of those that may change, with their values at the start: a number or a tuple of them.
    """

    optimizer: str
    fixed: Mapping[str, Any]
    numeric: Mapping[str, Any]

    def numbers(self, group: Mapping[str, Any]) -> list[float]:
        """What is sent with a push.

        Raises:
            InputError: an option that stays as it is has changed.
        """
        for name, value in self.fixed.items():
            if group[name] != value:
                raise InputError(
                    f"{name} of the optimizer was {value!r} and is now {group[name]!r}",
                    "numbers may change while it trains, other options may not",
                )
        found: list[float] = []
        for name, first in self.numeric.items():
            found += map(float, group[name]) if isinstance(first, tuple) else [float(group[name])]
        return found

    def refuse_changed(self, sent: Sequence[float], group: Mapping[str, Any]) -> None:
        """Gradients that have been sent are applied with the numbers that went with them.

        Raises:
            InputError: the group has others by now.
        """
        now = self.numbers(group)
        if now == sent:
            return
        before, after = self.options(sent), self.options(now)
        name = next(name for name in self.numeric if before[name] != after[name])
        raise InputError(
            f"{name} of the optimizer was {before[name]!r} when gradients were sent with it and is now {after[name]!r}",
            "change it before backward, or give early=False: gradients are sent in optimizer.step() then",
        )

    def options(self, numbers: Sequence[float]) -> dict[str, Any]:
        """The group's options, on the server."""
        left = iter(numbers)
        found = dict(self.fixed)
        for name, first in self.numeric.items():
            many = isinstance(first, tuple)
            values = [_as(one, next(left)) for one in (first if many else (first,))]
            found[name] = tuple(values) if many else values[0]
        return found


def _as(first: Any, value: float) -> float | int:
    """A number that was whole at the start stays so if it can."""
    return int(value) if isinstance(first, int) and value.is_integer() else value


def refuse_unknown(optimizer: Any) -> None:
    """Only optimizers that update every parameter by itself can be spread over servers.

    Raises:
        InputError: another one.
    """
    kind = type(optimizer)
    name = kind.__name__
    if kind is not getattr(torch.optim, name, None) or name not in BY_ELEMENT | BY_TENSOR:
        raise InputError(
            f"the optimizer {kind.__module__}.{name}, which may need all parameters at once",
            f"use one of torch.optim.{', '.join(sorted(BY_ELEMENT | BY_TENSOR))}, or the scheme 'local'",
        )


def by_element(optimizer: Any) -> bool:
    """Whether its tensors can be cut."""
    return type(optimizer).__name__ in BY_ELEMENT


def hyper_of(optimizer: Any, group: Mapping[str, Any]) -> Hyper:
    """The options of one of its groups, as they are now."""
    fixed: dict[str, Any] = {}
    numeric: dict[str, Any] = {}
    for name in optimizer.defaults:
        value = group[name]
        if isinstance(value, torch.Tensor):
            value = float(value)
        parts = value if isinstance(value, tuple) else (value,)
        is_number = all(isinstance(part, (int, float)) and not isinstance(part, bool) for part in parts)
        (numeric if is_number else fixed)[name] = value
    found = Hyper(type(optimizer).__name__, fixed, numeric)
    if len(found.numbers(group)) > NUMBERS:
        raise InputError(f"{found.optimizer} has more than {NUMBERS} hyper-parameters", "report this")
    return found
