"""Keeps `torch.compile` from compiling the recording: what its functions do is not part of the model.

While a compiled function runs, PyTorch looks at every Python frame beneath it, and would trace the hooks'
into graphs of their own. A code object can be marked to be left alone; that costs nothing later.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["hide"]


def hide(*modules: types.ModuleType, with_callees: bool) -> None:
    """Mark all code of the modules, and what it calls if so asked. Without effect in a PyTorch without such marks."""
    mark = _marker(with_callees=with_callees)
    for module in modules:
        for code in _codes(module):
            mark(code)


def _marker(*, with_callees: bool) -> Callable[[types.CodeType], object]:
    import torch

    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        actions = frames._FrameAction
        strategy = frames._FrameExecStrategy(actions.SKIP, actions.SKIP if with_callees else actions.DEFAULT)
        return lambda code: frames.set_code_exec_strategy(code, strategy)
    skip: Callable[[types.CodeType], object] = getattr(frames, "skip_code", lambda code: None)
    return skip


def _codes(module: types.ModuleType) -> Iterator[types.CodeType]:
    for value in vars(module).values():
        if getattr(value, "__module__", None) == module.__name__:
            members = vars(value).values() if isinstance(value, type) else (value,)
            for member in members:
                if isinstance(member, types.FunctionType):
                    yield from _nested(member.__code__)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)
