"""Which optimizers can run on servers, and how their hyper-parameters get there: numbers with every push."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hemiola.core.errors import InputError
from hemiola.train.parameter_server.layout import NUMBERS

__all__ = ["Hyper", "by_element", "hyper_of", "refuse_unknown"]

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
