"""A model whose tensors are stood in for, and which is as it was afterwards."""

from __future__ import annotations

import functools
import gc
import logging
import os
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_leaves

from hemiola.core.errors import GraphError, HemiolaError

__all__ = ["Fakes", "explained", "forget_stand_ins", "quiet", "substituted"]


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


# What capturing leaves in the caches of the model's own functions (`functools.lru_cache`), taken out
# again.

_NESTED = 4
"""How deep in lists, tuples and dicts a cached tensor is looked for."""

_CACHED = functools._lru_cache_wrapper


def forget_stand_ins(mode: FakeTensorMode) -> None:
    """Clear every cached function of the process that has kept a stand-in made under this mode.

    A later real call would otherwise get a tensor without values from it. Caches without stand-ins keep
    what they hold. Every cached function is looked at, since which of them a model calls is not known.
    """
    for found in gc.get_objects():
        if type(found) is not _CACHED or not found.cache_info().currsize:
            continue
        if any(tensor.fake_mode is mode for tensor in _stand_ins(gc.get_referents(found), _NESTED)):
            found.cache_clear()


def _stand_ins(values: Any, nested: int) -> Iterator[FakeTensor]:
    for value in values:
        if isinstance(value, FakeTensor):
            yield value
        elif nested and type(value) in (list, tuple, dict):
            yield from _stand_ins(value.values() if type(value) is dict else value, nested - 1)


# Why a model cannot be captured: PyTorch's complaint, with the line of the user's code that caused it.

_OURS = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[2]))
_TRACE = 'trace it instead while it really runs: "hemiola trace -- python train.py"'


@contextmanager
def explained(doing: str, remedy: str = "") -> Iterator[None]:
    """Turn whatever goes wrong meanwhile into a GraphError that names the line.

    Args:
        doing: "the model's forward", for the message.
        remedy: what to do about it; depends on what went wrong unless given.
    """
    try:
        yield
    except HemiolaError:
        raise
    except (Exception, SystemExit) as error:
        what, usual = _reason(error)
        raise GraphError(f"{doing} cannot be captured: {what}{_where(error)}", remedy or usual) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PyTorch from logging a stack trace for what is raised, and explained, anyway."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _reason(error: BaseException) -> tuple[str, str]:
    if isinstance(error, SystemExit):
        return "it ends the program", "have it raise an exception instead"
    if isinstance(error, DataDependentOutputException):
        return (
            "it asks for a tensor's value (`.item()`, `if tensor:`, `.tolist()`), and there are no values in a capture",
            f"take the decision from shapes or configuration; or {_TRACE}",
        )
    if isinstance(error, DynamicOutputShapeException):
        return (
            f"the shape of {error.func} depends on a tensor's values (`nonzero`, a boolean mask, `unique`)",
            f"use `torch.where` or a fixed shape; or {_TRACE}",
        )
    text = str(error).strip().partition("\n")[0]
    if isinstance(error, UnsupportedOperatorException) or "no fake impl" in text:
        return (
            f"PyTorch knows no shape function for {getattr(error, 'func', text)}",
            f"give it one with `torch.library.register_fake`; or {_TRACE}",
        )
    if ".numpy()" in text or "tensor subclass" in text:
        return (f"it leaves PyTorch ({text})", f"stay in tensors; or {_TRACE}")
    if "HigherOrderOperator" in text:
        operator = text.partition("HigherOrderOperator ")[2].partition(" ")[0] or "such an operator"
        return (
            f"it takes functions as arguments of an operator (`torch.cond` and the like): {operator}",
            f"write the branch or loop in plain Python, decided by configuration; or {_TRACE}",
        )
    if "TorchScript interpreter" in text:
        return (
            "a part of it is compiled by `torch.jit`, into which no stand-in can go",
            "capture with the module or function that was given to `torch.jit.script` or `torch.jit.trace`",
        )
    return (
        f"{type(error).__name__}: {text}",
        "check that the model runs with inputs of these shapes and types on one device",
    )


def _where(error: BaseException) -> str:
    """The deepest line that is neither PyTorch's nor ours."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_OURS) and not frame.filename.startswith("<"):
            line = f": {frame.line}" if frame.line else ""
            return f"\n  at {frame.filename}:{frame.lineno}, in {frame.name}{line}"
    return ""
