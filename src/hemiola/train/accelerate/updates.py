"""A step of any optimizer, parameter by parameter: each with the hyper-parameters of the moment of `step()`.

Most of PyTorch's optimizers update every parameter by itself. Where that is known, a part of them can be stepped
now and the rest later; where it is not (LBFGS, somebody's own class), all are stepped at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from hemiola.profiler.trace.hooks import Hooks

__all__ = ["Captured", "Modes", "Updates"]


Captured = dict[str, Any]
"""A parameter group without its parameters."""

_APART = (
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Rprop", "Adagrad", "Adadelta", "Adamax", "ASGD", "Adafactor",
    "Muon",
)  # fmt: skip


class Updates:
    """An optimizer's steps, whole or in parts.

    Attributes:
        apart: whether it can be stepped in parts.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, apart: bool | None) -> None:
        """Of this optimizer.

        Args:
            apart: whether it updates every parameter by itself; None where PyTorch's own are known.
        """
        self.optimizer = optimizer
        known = {getattr(torch.optim, name) for name in _APART if hasattr(torch.optim, name)}
        self._is_known = type(optimizer) in known
        self.apart = self._is_known if apart is None else apart
        self._bare: Callable[..., Any] = getattr(
            type(optimizer).step, "__wrapped__", type(optimizer).step
        )  # without hooks

    @property
    def writes_gradients(self) -> bool:
        """Whether a step may change gradients: of PyTorch's own, one does; what others do is not known."""
        groups = self.optimizer.param_groups
        return not self._is_known or any(group.get("nesterov") and group.get("foreach") for group in groups)

    @property
    def has_hooks(self) -> bool:
        """Whether somebody wants to see every step whole; a recording looks at the clock alone."""
        own = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
        return any(getattr(self.optimizer, name, None) for name in own) or any(
            not isinstance(getattr(hook, "__self__", None), Hooks)
            for hook in chain(_global_optimizer_pre_hooks.values(), _global_optimizer_post_hooks.values())
        )

    def groups(self) -> Iterator[tuple[nn.Parameter, int]]:
        """Every parameter, and the number of its group."""
        for number, group in enumerate(self.optimizer.param_groups):
            for parameter in group["params"]:
                yield parameter, number

    def captured(self) -> list[Captured]:
        """The groups' hyper-parameters as they are now."""
        return [
            {k: v.clone() if isinstance(v, Tensor) else v for k, v in group.items() if k != "params"}
            for group in self.optimizer.param_groups
        ]

    def apply(self, chosen: Sequence[tuple[nn.Parameter, Captured]]) -> None:
        """Step these alone, each with its captured group; hooks are not called."""
        if not chosen:
            return
        groups: dict[int, tuple[Captured, list[nn.Parameter]]] = {}
        for parameter, captured in chosen:
            groups.setdefault(id(captured), (captured, []))[1].append(parameter)
        with self._instead([{**captured, "params": members} for captured, members in groups.values()]):
            self._bare(self.optimizer)

    def only(self, wanted: Callable[[nn.Parameter], bool], action: Callable[[], Any]) -> Any:
        """Do something with the optimizer as if it had these parameters alone."""
        kept = [group["params"] for group in self.optimizer.param_groups]
        try:
            for group in self.optimizer.param_groups:
                group["params"] = [parameter for parameter in group["params"] if wanted(parameter)]
            return action()
        finally:
            for group, members in zip(self.optimizer.param_groups, kept, strict=True):
                group["params"] = members

    @contextmanager
    def _instead(self, groups: list[dict[str, Any]]) -> Iterator[None]:
        kept = self.optimizer.param_groups
        self.optimizer.param_groups = groups
        try:
            yield
        finally:
            self.optimizer.param_groups = kept


# How PyTorch's functions are carried out on a thread, kept for what is to be carried out in the same way
# later.

_SAME = nullcontext()


class Modes:
    """Of one thread at one moment: whether operations are recorded, and what they cast to."""

    def __init__(self, device: str) -> None:
        """Those of now, as far as they matter to operations on this type of device."""
        self._device = device
        self.keep()

    def keep(self) -> None:
        """Those of now instead."""
        self._kept = self._now()

    def again(self) -> AbstractContextManager[None]:
        """Within, they are as they were kept. Where they are so anyway, it costs less than a microsecond."""
        return _SAME if self._now() == self._kept else self._as_kept()

    def _now(self) -> tuple[bool, bool, bool, torch.dtype]:
        device = self._device
        return (
            torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.is_autocast_enabled(device),
            torch.get_autocast_dtype(device),
        )  # fmt: skip

    @contextmanager
    def _as_kept(self) -> Iterator[None]:
        inference, recorded, *cast = self._kept
        _, _, *cast_now = self._now()
        with torch.inference_mode(inference), torch.set_grad_enabled(recorded):
            try:
                self._cast(*cast)
                yield
            finally:
                self._cast(*cast_now)

    def _cast(self, casts: bool, to: torch.dtype) -> None:
        """Not by `torch.autocast`, which forgets the script's cast parameters when it ends."""
        torch.set_autocast_enabled(self._device, casts)
        torch.set_autocast_dtype(self._device, to)
