"""The model that `hemiola.accelerate` gives back: called as DistributedDataParallel's, with the module inside."""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hemiola.core.errors import InputError
from hemiola.train.accelerate.ddp_attributes import (
    WrapperSettings,
    is_ddps,
    is_so_already,
    read_only,
    why_not_read,
)
from hemiola.train.accelerate.job import COMPILED, JOB, AcceleratedJob

__all__ = ["Accelerated", "adopt", "jobs_within"]


class Accelerated(nn.Module):
    """A module trained on all ranks. `module` is the one that was given; names in `state_dict` begin with "module.".

    Attributes:
        require_backward_grad_sync: whether the backward of the next forward is exchanged; what `no_sync` sets.
        require_forward_param_sync: whether buffers may have changed since they were shared.
        forward_sync_buffers, broadcast_buffers: whether rank 0's buffers are everybody's before a forward.
    """

    def __init__(self, job: AcceleratedJob) -> None:
        super().__init__()
        self.module = job.module
        self._job = [job]  # in a list: it is no part of the model
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self.forward_sync_buffers = job.settings.broadcast_buffers
        self.__dict__.update(read_only(job.device, job.settings.find_unused_parameters, job.ignored))
        self.training = job.module.training  # its parts stay in the modes that they are in
        weakref.finalize(self, job.end)

    @property
    def job(self) -> AcceleratedJob:
        """What decides and carries out."""
        return self._job[0]

    def __setattr__(self, name: str, value: Any) -> None:
        """What DistributedDataParallel has counts here too, or is refused; all else stays on this wrapper, as there."""
        if not is_so_already(self, name, value):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """What is not here."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if is_ddps(name):
                raise AttributeError(why_not_read(name), name=name, obj=self) from None
            raise

    @property
    def process_group(self) -> Any:
        """Of the ranks."""
        if not self._job:
            raise AttributeError  # `__getattr__` says more
        return self.job.group or dist.group.WORLD

    @property
    def broadcast_buffers(self) -> bool:
        """An older name of `forward_sync_buffers`."""
        return self.forward_sync_buffers

    @broadcast_buffers.setter
    def broadcast_buffers(self, value: bool) -> None:
        self.forward_sync_buffers = value

    @property
    def given(self) -> WrapperSettings:
        """What it was told."""
        group = self.job.group if self._job else None
        return WrapperSettings(bool(self.forward_sync_buffers), self.find_unused_parameters, group)

    def __getstate__(self) -> dict[str, Any]:
        """A copy has the module alone, and exchanges nothing."""
        self.flush()
        return {**self.__dict__, "_job": []}

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """The module's."""
        if torch.compiler.is_compiling():
            raise InputError(*COMPILED)
        if not self._job:
            return self.module(*arguments, **named)
        training, syncs = torch.is_grad_enabled(), bool(self.require_backward_grad_sync)
        shares = bool(self.require_forward_param_sync and self.forward_sync_buffers)
        result = self.job.forward(training, syncs, shares, *arguments, **named)
        self.require_forward_param_sync = training and syncs
        return result

    def will_sync_module_buffers(self) -> bool:
        """Whether rank 0's buffers are everybody's before the next forward: not after one without exchange."""
        wanted = self.require_forward_param_sync and self.forward_sync_buffers
        return bool(wanted and self._job and self.job.buffers())

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of forwards inside are added up on this rank, and exchanged with those of the next one outside."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def train(self, mode: bool = True) -> Accelerated:
        """As usual; before evaluation everything is brought to an end."""
        if not mode:
            self.flush()
        super().train(mode)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As usual, without waiting for gradients that are still needed."""
        engine = self.job.engine if self._job else None
        if engine is None:
            super().zero_grad(set_to_none)
        else:
            engine.zero_grad(self.parameters(), set_to_none)

    def flush(self) -> None:
        """Until all gradients are reduced and all parameters updated. Nothing needs this; it is for measuring."""
        for job in self._job:
            job.flush()


def adopt(optimizer: torch.optim.Optimizer, job: AcceleratedJob) -> None:
    """Have the optimizer's own calls go through the job, and those of other models that it updates. It stays the same object,
    for schedulers know it."""
    vars(job.module)[JOB] = job
    known = jobs_of(optimizer)
    if known is not None:
        known[:] = [*(other for other in known if not other.has_left), job]
        return
    jobs = optimizer.__dict__["_hemiola_jobs"] = [job]
    step, zero_grad, state_dict, load = (
        optimizer.step, optimizer.zero_grad, optimizer.state_dict, optimizer.load_state_dict,
    )  # fmt: skip

    def stepped(self: Any, closure: Any = None) -> Any:
        through: Any = step
        for one in jobs:
            through = partial(one.step, through)
        return through() if closure is None else through(closure)

    def zeroed(self: Any, set_to_none: bool = True) -> None:
        engines = [one.engine for one in jobs if one.engine is not None]
        if not engines:
            zero_grad(set_to_none=set_to_none)
            return
        left = [p for group in self.param_groups for p in group["params"]]
        for engine in engines[1:]:
            engine.zero_grad([p for p in left if engine.has(p)], set_to_none)
            left = [p for p in left if not engine.has(p)]
        engines[0].zero_grad(left, set_to_none)

    def settle() -> None:
        for one in jobs:
            one.settle()

    def saved(self: Any) -> Any:
        settle()
        return state_dict()

    def loaded(self: Any, state_dict: Any) -> Any:
        settle()
        return load(state_dict)

    vars(stepped).update(vars(step))  # schedulers mark the step that they know
    for name, function in (
        ("step", stepped), ("zero_grad", zeroed), ("state_dict", saved), ("load_state_dict", loaded),
    ):  # fmt: skip
        setattr(optimizer, name, types.MethodType(function, optimizer))


def jobs_of(optimizer: torch.optim.Optimizer) -> list[AcceleratedJob] | None:
    """Those that its calls go through; None if it was never adopted."""
    found: list[AcceleratedJob] | None = optimizer.__dict__.get("_hemiola_jobs")
    return found


def jobs_within(module: nn.Module) -> list[AcceleratedJob]:
    """Those that have hold of it or of a part of it."""
    found = [vars(part).get(JOB) for part in module.modules()]
    return [job for job in found if job is not None and not job.has_left]
