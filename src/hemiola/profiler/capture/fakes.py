"""A model whose tensors are stood in for, and which is as it was afterwards."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from hemiola.core.errors import GraphError

__all__ = ["Fakes", "substituted"]


class Fakes:
    """Stand-ins for tensors, one for each, made under the fake mode that is entered.

    Args:
        device: where all of them pretend to be.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The stand-in for a tensor: same shape, strides, type and flags. One that was made here stands for itself."""
        known = self._made.get(id(tensor))
        if known is None:
            known = self._made[id(tensor)] = (tensor, self._make(tensor))
            self._made[id(known[1])] = (known[1], known[1])
        return known[1]

    def _make(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
            raise GraphError(
                "the model has parameters without a shape yet (a lazy module)",
                "call it once with real inputs, then capture it",
            )
        if type(tensor).__name__ == "DTensor" or tensor.layout is not torch.strided:
            raise GraphError(
                f"the model holds a {type(tensor).__name__} of layout {tensor.layout}",
                "capture the plain model, before it is sharded, quantized or made sparse",
            )
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self._device)
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(fake, requires_grad=tensor.requires_grad)
        return fake.requires_grad_() if tensor.requires_grad else fake

    def within(self, value: Any) -> Any:
        """A value with the tensors in its lists, tuples and mappings stood in for."""
        if isinstance(value, torch.Tensor):
            return self(value)
        if isinstance(value, dict):
            return {key: self.within(item) for key, item in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.within, value))
        return type(value)(map(self.within, value)) if isinstance(value, (list, tuple)) else value


@contextmanager
def substituted(model: nn.Module, fakes: Fakes) -> Iterator[None]:
    """Put stand-ins into every module, and everything back as it was at the end.

    Attributes, and the lists, dicts, deques and sets that they hold, get their old content back, whatever
    the model's own code did to them meanwhile. What holds what it held is left alone: a frozen configuration
    cannot be filled again.

    Raises:
        GraphError: one that was changed refuses its old content; all others have theirs.
    """
    saved = [(path, _Saved(vars(module))) for path, module in model.named_modules()]
    try:
        for _, state in saved:
            state.replace(fakes)
        yield
    finally:
        refused = [(f"{path}.{name}", error) for path, state in saved for name, error in state.restore()]
        if refused:
            name, error = refused[0]
            raise GraphError(
                f"the model's {name.removeprefix('.')} was changed while it was captured, and refuses its "
                f"old content: {error}",
                "make the model anew, and keep in that attribute what forward does not change",
            ) from error


class _Saved:
    """The attributes of one module, and the content of its containers."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self._attributes = attributes
        self._content = dict(attributes)
        self._held = [
            (name, value, dict(value) if isinstance(value, dict) else list(value))
            for name, value in attributes.items()
            if isinstance(value, (dict, list, set, deque))
        ]

    def replace(self, fakes: Fakes) -> None:
        containers: list[Any] = [self._attributes, *(held for _, held, _ in self._held)]
        for container in containers:
            for place, value in _places(container):
                within = tree_leaves(value) if type(value) is tuple else (value,)
                if any(isinstance(each, torch.Tensor) for each in within):
                    container[place] = fakes.within(value)

    def restore(self) -> list[tuple[str, Exception]]:
        """Put everything back; return the attributes whose containers refuse, and what each said."""
        refused = []
        for name, held, content in self._held:
            try:
                if _identities(held) != _identities(content):
                    _refill(held, content)
            except Exception as error:  # whatever the model's own classes raise
                refused.append((name, error))
        self._attributes.clear()
        self._attributes.update(self._content)
        return refused


def _identities(container: Any) -> list[int]:
    """Of what a container holds, in its order: equality is no question to ask a tensor."""
    return list(map(id, [*container, *(container.values() if isinstance(container, dict) else ())]))


def _refill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, dict):
        for key, value in content.items():  # as stand-ins were put in, not by an `update` of its own
            container[key] = value
    elif isinstance(container, set):
        container.update(content)
    else:
        container.extend(content)


def _places(container: Any) -> list[tuple[Any, Any]]:
    """What can be put in the place of what, in a dict, a list or a deque."""
    if isinstance(container, dict):
        return list(container.items())
    return list(enumerate(container)) if isinstance(container, (list, deque)) else []
