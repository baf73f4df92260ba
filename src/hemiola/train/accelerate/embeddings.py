"""Embeddings' tables: parameters whose gradient is zero but for the rows that were looked up.

A table that is the output layer's weight too (GPT-2's, BERT's) has a gradient from two sides: the output layer's,
which is the first that backward comes to and reaches all rows, and the lookup's, which is the last and reaches few.
Autograd adds them up before anybody sees them; `TiedHead` sees the first one when it is there, and which rows the second
one will reach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hemiola.core.errors import PlanError
from hemiola.core.plan import Plan

__all__ = ["Lookups", "Table", "TiedHead", "planned_tables", "summed", "tables_of", "touched_rows"]

_BLOCK_BYTES = 768 << 10
"""So much of a table is looked at at once: it stays in a processor's cache."""


@dataclass(frozen=True)
class Table:
    """A parameter that rows are looked up in.

    Attributes:
        parameter: of two dimensions, a row to be looked up in each.
        lookups: the modules that look up in it.
        head: the module that uses it as a weight too, and by which name; None if none does, or several.
    """

    parameter: nn.Parameter
    lookups: tuple[nn.Module, ...]
    head: tuple[nn.Module, str] | None = None


def tables_of(module: nn.Module, parameters: dict[str, nn.Parameter]) -> dict[str, Table]:
    """Those among these parameters that an Embedding or EmbeddingBag of the module looks rows up in, by name."""
    users_of: dict[int, list[tuple[nn.Module, str]]] = {}
    for part in module.modules():
        for own, parameter in part.__dict__["_parameters"].items():
            users_of.setdefault(id(parameter), []).append((part, own))
    found: dict[str, Table] = {}
    for name, parameter in parameters.items():
        users = users_of.get(id(parameter), [])
        lookups = tuple(part for part, _ in users if isinstance(part, (nn.Embedding, nn.EmbeddingBag)))
        if lookups and parameter.dim() == 2 and parameter.numel() and parameter.is_floating_point():
            others = [(part, own) for part, own in users if part not in lookups]
            found[name] = Table(parameter, lookups, others[0] if len(others) == 1 else None)
    return found


def planned_tables(plan: Plan, module: nn.Module, parameters: dict[str, nn.Parameter]) -> dict[str, Table]:
    """Those of which the plan sends rows, by name.

    Raises:
        PlanError: the output layer's part of one of them is to go before the rest, and in this model it is not one layer's
            weight and an embedding's table.
    """
    names = {t.pieces[0].parameter: t.part for t in plan.transfers if t.part != "all"}
    heads = {t.pieces[0].parameter for t in plan.transfers if t.part == "head"}
    found = tables_of(module, {name: parameters[name] for name in names}) if names else {}
    for name in names:
        if name in heads and (name not in found or found[name].head is None):
            raise PlanError(
                f"the plan {plan.name!r} sends the output layer's part of {name!r} before the rest, which "
                "is not one layer's weight and an embedding's table in this model",
                "make a plan for this model",
            )
    return found


class Lookups:
    """Sees which rows of a table are looked up.

    Attributes:
        looked_up: (rows,) of booleans: those that forward has looked up since they were last set to False; as far as
            modules have, whose inputs can be seen.
    """

    def __init__(self, table: Table) -> None:
        self._hooks: list[Any] = [
            part.register_forward_pre_hook(self._looks_up, with_kwargs=True) for part in table.lookups
        ]
        self.looked_up = torch.zeros(len(table.parameter), dtype=torch.bool, device="cpu")

    def _looks_up(self, _: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        places = arguments[0] if arguments else named.get("input")
        if not (self._hooks and torch.is_grad_enabled() and isinstance(places, Tensor) and places.numel()):
            return
        least, most = torch.aminmax(places)
        if least >= 0 and most < len(self.looked_up):  # else forward says what is wrong
            self.looked_up[places.reshape(-1).long()] = True

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy does nothing."""
        return _mute, (type(self),)

    def remove(self) -> None:
        """See no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


class TiedHead(Lookups):
    """Tells of the output layer's part of a tied table's gradient too, when backward has it.

    While that module's forward runs, its weight is another name for the same memory (`Tensor.view_as`), with a
    place of its own in autograd's graph, on which a hook can be. A copy of the module tells nobody.
    """

    def __init__(self, table: Table, told: Callable[[Tensor], None]) -> None:
        """Have this called on the thread that runs backward; what it is given must not be changed.

        Raises:
            ValueError: the table has no head.
        """
        if table.head is None:
            raise ValueError("nothing but lookups uses this table")
        super().__init__(table)
        self._parameter, self._told = table.parameter, told
        self._node: Any = None
        self._module, self._name = table.head
        self._hooks += [
            self._module.register_forward_pre_hook(self._before),
            self._module.register_forward_hook(self._after, always_call=True),
        ]

    def _before(self, *_: Any) -> None:
        if not (self._hooks and torch.is_grad_enabled() and self._parameter.requires_grad):
            return
        own = self._module.__dict__["_parameters"].get(self._name)
        if own is self._parameter:  # not called with another one
            alias = self._parameter.view_as(self._parameter)
            self._node = alias.grad_fn.next_functions[0][0]
            alias.register_hook(self._tell)
            self._module.__dict__[self._name] = alias  # found before its parameters are

    def _after(self, *_: Any) -> None:
        if self._hooks:
            self._module.__dict__.pop(self._name, None)

    def _tell(self, gradient: Tensor) -> None:
        """Not where `.grad` will get nothing, as in `torch.autograd.grad`."""
        try:
            comes = torch._C._will_engine_execute_node(self._node)
        except RuntimeError:
            return
        if comes:
            self._told(gradient)

    def remove(self) -> None:
        """Tell no more."""
        self._after()
        super().remove()


def _mute(kind: type[Lookups]) -> Lookups:
    copied = object.__new__(kind)
    copied._hooks = []
    return copied


def summed(parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    """What `.grad` will be if backward has no more than this to add to it; not to be changed."""
    with torch.no_grad():
        return gradient.detach() if parameter.grad is None else parameter.grad + gradient


def touched_rows(gradient: Tensor, base: Tensor | None = None) -> Tensor:
    """Which rows are not zero, or not as in `base`.

    Args:
        gradient, base: (rows, width).

    Returns:
        (rows,) of booleans; what is no number counts as different.
    """
    rows, width = gradient.shape
    found = torch.empty(rows, dtype=torch.bool, device="cpu")
    step = max(1, _BLOCK_BYTES // (width * gradient.element_size()))
    for start in range(0, rows, step):
        block = gradient[start : start + step]
        if base is None:
            found[start : start + step] = (block.amax(1) != 0).logical_or_(block.amin(1) != 0)
            continue
        differs = block != base[start : start + step]
        if width % 8 == 0:  # eight at once
            found[start : start + step] = differs.view(torch.int64).amax(1) != 0
        else:
            found[start : start + step] = differs.any(1)
    return found
