"""Why a model cannot be captured: PyTorch's complaint, with the line of the user's code that caused it."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from hemiola.core.errors import GraphError, HemiolaError

__all__ = ["explained", "quiet"]

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
