"""Parameters that tell before they are used.

While a parameter's gradient or update is still on its way, the parameter is of the class `Watched`: whatever
PyTorch function it is given to, from wherever, first calls its owner, which waits for what is needed. So
nothing that a script does with a parameter (its first use in forward, `.grad`, `state_dict`, clipping, a copy)
can see it half done. What has arrived is an ordinary parameter again and costs nothing.

Functions of `torch.autograd.Function` and kernels of somebody's own do not ask the class; for them reading the
parameter from its module (`self.weight`) tells as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["Use", "Watched", "attend", "leave", "tell_owner", "unwatch", "watch"]

Use = Callable[[Any, str], bool]
"""Called with a parameter's slot and how it is used: "data", "grad", or "drop" where its gradient is set to None;
whether that is done by it."""

_SAYS_NOTHING = frozenset(
    {
        "shape", "dtype", "device", "requires_grad", "is_leaf", "layout", "ndim", "is_cuda", "is_sparse", "names",
        "is_quantized", "is_meta", "is_cpu", "is_mkldnn", "is_nested", "itemsize", "nbytes", "_backward_hooks",
        "size", "numel", "dim", "stride", "is_contiguous", "element_size", "nelement", "is_floating_point", "is_complex",
        "register_hook", "register_post_accumulate_grad_hook", "data_ptr", "storage_offset", "get_device",
    }
)  # fmt: skip
"""What can be asked of a parameter at any time: neither its value nor its gradient."""


class Watched(nn.Parameter):
    """A parameter with something on its way to it. Never made: parameters become it, and themselves again."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        """Tell the owners of all watched arguments, then do what was asked."""
        name, is_set = _name_of(function)
        if name not in _SAYS_NOTHING:
            use = "grad" if name == "grad" else "data"
            if use == "grad" and is_set and arguments[1] is None:
                use = "drop"
            for parameter in _watched_in((*arguments, *(named or {}).values())):
                slot = parameter.__dict__.get("_hemiola_slot")
                if slot is None:  # a copy of one
                    unwatch(parameter)
                elif slot.use(slot, use):
                    return None
        with torch._C.DisableTorchFunctionSubclass():
            return function(*arguments, **(named or {}))


def watch(parameter: nn.Parameter, slot: Any) -> None:
    """Have `slot.use(slot, how)` called, a `Use`, before anything is done with it."""
    parameter.__dict__["_hemiola_slot"] = slot
    parameter.__class__ = Watched


def unwatch(parameter: nn.Parameter) -> None:
    """Make it an ordinary one again."""
    parameter.__dict__.pop("_hemiola_slot", None)
    parameter.__class__ = nn.Parameter


class _Telling(dict[str, Any]):
    """A module's parameters: reading one by its name is told."""

    def __init__(self, parameters: dict[str, Any], tell: Callable[[Any], None]) -> None:
        super().__init__(parameters)
        self._tell = tell

    def __getitem__(self, name: str) -> Any:
        parameter = super().__getitem__(name)
        self._tell(parameter)
        return parameter

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy is an ordinary dictionary."""
        return dict, (), None, None, iter(list(self.items()))


def attend(module: nn.Module, tell: Callable[[Any], None]) -> None:
    """Have this called with every parameter that is read from a part of the module, before it is given."""
    for part in module.modules():
        part.__dict__["_parameters"] = _Telling(part.__dict__["_parameters"], tell)


def leave(module: nn.Module) -> None:
    """No more of that."""
    for part in module.modules():
        part.__dict__["_parameters"] = dict(part.__dict__["_parameters"])


def tell_owner(parameter: Any) -> None:
    """That a watched one is about to be used."""
    if type(parameter) is Watched:
        slot = parameter.__dict__.get("_hemiola_slot")
        if slot is not None:
            slot.use(slot, "data")


def _name_of(function: Any) -> tuple[str, bool]:
    """What is done: a method's name, or that of the attribute that is read or set; and whether it is set."""
    name = getattr(function, "__name__", "")
    if name in ("__get__", "__set__"):
        return getattr(getattr(function, "__self__", None), "__name__", name), name == "__set__"
    return name, False


def _watched_in(values: Iterable[Any]) -> Iterator[Watched]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if type(value) is Watched:
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _watched_in(value)
        elif isinstance(value, dict):
            yield from _watched_in(value.values())
