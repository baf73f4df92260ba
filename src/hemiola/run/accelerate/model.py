"""The model that `hemiola.accelerate` gives back: called as DistributedDataParallel's, with the module inside."""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hemiola.run.accelerate.job import Job

__all__ = ["Accelerated", "adopt"]


class Accelerated(nn.Module):
    """A module trained on all ranks. `module` is the one that was given; names in `state_dict` begin with "module."."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.module = job.module
        self._job = [job]  # in a list: it is no part of the model
        self._syncs = True
        self.train(job.module.training)
        weakref.finalize(self, job.close)

    @property
    def job(self) -> Job:
        """What decides and carries out."""
        return self._job[0]

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """The module's."""
        training = self.training and torch.is_grad_enabled()
        return self.job.forward(training, self._syncs, *arguments, **named)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of forwards inside are added up on this rank, and exchanged with those of the next one outside."""
        before, self._syncs = self._syncs, False
        ddp = self.job.ddp
        try:
            if ddp is not None:
                with ddp.no_sync():
                    yield
            else:
                yield
        finally:
            self._syncs = before

    def train(self, mode: bool = True) -> Accelerated:
        """As usual; before evaluation everything is brought to an end."""
        if not mode:
            self.job.flush()
        super().train(mode)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As usual, without waiting for gradients that are still needed."""
        engine = self.job.engine
        if engine is None:
            super().zero_grad(set_to_none)
        else:
            engine.zero_grad(self.parameters(), set_to_none)

    def flush(self) -> None:
        """Until all gradients are reduced and all parameters updated. Nothing needs this; it is for measuring."""
        self.job.flush()


def adopt(optimizer: torch.optim.Optimizer, job: Job) -> None:
    """Have the optimizer's own calls go through the job, instead of through one before. It stays the same object, for
    schedulers know it."""
    known: list[Job] | None = optimizer.__dict__.get("_hemiola_jobs")
    if known is not None:
        known[:] = [job]
        return
    jobs = optimizer.__dict__["_hemiola_jobs"] = [job]
    step, zero_grad, state_dict, load = (
        optimizer.step, optimizer.zero_grad, optimizer.state_dict, optimizer.load_state_dict,
    )  # fmt: skip

    def stepped(self: Any, closure: Any = None) -> Any:
        return jobs[0].step(step, closure)

    def zeroed(self: Any, set_to_none: bool = True) -> None:
        engine = jobs[0].engine
        if engine is None:
            zero_grad(set_to_none=set_to_none)
        else:
            groups = self.param_groups
            engine.zero_grad((p for group in groups for p in group["params"]), set_to_none)

    def saved(self: Any) -> Any:
        jobs[0].flush()
        return state_dict()

    def loaded(self: Any, state: Any) -> Any:
        jobs[0].flush()
        return load(state)

    for name, function in (
        ("step", stepped), ("zero_grad", zeroed), ("state_dict", saved), ("load_state_dict", loaded),
    ):  # fmt: skip
        setattr(optimizer, name, types.MethodType(function, optimizer))
