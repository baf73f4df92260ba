"""Where in the model an operation belongs, and which modules repeat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

__all__ = ["ModulePaths", "repeated_blocks"]


class ModulePaths:
    """The module whose forward is running, by global hooks: the model gets none of its own.

    Args:
        model: its modules are numbered in the order of `named_modules`; one that has several paths
            has its first.

    Attributes:
        paths: of the modules.
        sequences: (steps, samples) of what modules took that have the steps first.
    """

    def __init__(self, model: nn.Module) -> None:
        self.paths: list[str] = []
        self._place: dict[int, int] = {}
        for path, module in model.named_modules():
            self._place[id(module)] = len(self.paths)
            self.paths.append(path)
        self._stack: list[int] = []
        self.sequences: set[tuple[int, ...]] = set()

    @property
    def inside(self) -> bool:
        """Whether a module's forward is running."""
        return bool(self._stack)

    @property
    def current(self) -> int:
        """The innermost module that is running, as a place in `paths`; the model itself if none is."""
        return self._stack[-1] if self._stack else 0

    def place(self, path: str) -> int:
        """The place of a path in `paths`."""
        return self.paths.index(path)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow every module that is called meanwhile."""
        before = hooks.register_module_forward_pre_hook(self._enter)
        after = hooks.register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        self._stack.append(self._place.get(id(module), self.current))
        if getattr(module, "batch_first", None) is False:
            self.sequences.update(
                tuple(value.shape[:2])
                for value in inputs[:1]
                if isinstance(value, torch.Tensor) and value.dim() > 2
            )

    def _leave(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._stack:
            self._stack.pop()


def repeated_blocks(model: nn.Module) -> tuple[str, ...]:
    """The modules of one class that stand at least twice in a list or sequence and hold most parameters.

    Of classes that hold the same, the one with more modules: layers rather than stages of layers.
    Sequences themselves only where nothing else repeats: they have no class of their own. A module that has
    several paths has its first, as in `ModulePaths`.
    """
    paths = {module: path for path, module in model.named_modules()}
    groups: dict[type, dict[str, nn.Module]] = defaultdict(dict)
    for module in paths:
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            kinds = [type(child) for child in module.children()]
            for child in module.children():
                if kinds.count(type(child)) > 1:
                    groups[type(child)][paths[child]] = child
    candidates = [(_weight(kind, group), tuple(group)) for kind, group in groups.items()]
    best = max(candidates, key=lambda candidate: candidate[0], default=((False, 0, 0), ()))
    return best[1] if best[0][1] else ()


def _weight(kind: type, group: dict[str, nn.Module]) -> tuple[bool, int, int]:
    """How good a class of modules is as blocks; drops those that lie within another of the same class."""
    for path in list(group):
        if any(path.startswith(f"{other}.") for other in group):
            del group[path]
    held = {id(p): p.numel() for module in group.values() for p in module.parameters()}
    return kind not in (nn.Sequential, nn.ModuleList), sum(held.values()), len(group)
