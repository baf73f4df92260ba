"""When a training script uses each parameter and has each gradient, measured while it trains as it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hemiola.train.accelerate.embeddings import Table, TiedHead, summed, tables_of, touched_rows
from hemiola.train.accelerate.parameter_hooks import attend, leave

__all__ = ["MeasuredIteration", "TrainingProfile", "defer_transfers"]


@dataclass(frozen=True)
class MeasuredIteration:
    """One rank's usual iteration; seconds since it began, which is when the last step ended.

    What comes between a call of the model and its module's (DistributedDataParallel brings buffers then, which can take
    longer than computing) is left out.

    Attributes:
        used_s: first use in forward, by parameter.
        forward_end_s: of the first forward.
        ready_s: gradient complete, by parameter.
        step_start_s, end_s: of the optimizer's step.
        busy: processor seconds of the whole process per second, until the last gradient.
        head_s: the output layer's part of a tied table's gradient complete, by parameter.
        computed_s: until the last gradient, of each iteration; of the ranks' mean, the slowest rank's.
        noise: how much ranks differ within an iteration, as a spread (`core.hardware.spread_of`); of the ranks' mean alone.
        touched: by table: a bit for each row (`numpy.packbits`), whether its gradient is not zero, or not the output
            layer's alone.
    """

    used_s: dict[str, float]
    forward_end_s: float
    ready_s: dict[str, float]
    step_start_s: float
    end_s: float
    busy: float = 0.0
    head_s: dict[str, float] = field(default_factory=dict)
    touched: dict[str, npt.NDArray[np.uint8]] = field(default_factory=dict)
    computed_s: tuple[float, ...] = ()
    noise: float = 0.0

    @property
    def exposed_s(self) -> float:
        """From the last gradient to the step: waiting for the others, mostly."""
        return max(0.0, self.step_start_s - max(self.ready_s.values(), default=self.step_start_s))


@dataclass
class _Iteration:
    start: float = field(default_factory=time.perf_counter)
    busy_start: float = field(default_factory=time.process_time)
    busy: float = 0.0
    entered: dict[str, float] = field(default_factory=dict)
    read: dict[str, float] = field(default_factory=dict)
    forward_end: float = 0.0
    ready: dict[str, float] = field(default_factory=dict)
    head: dict[str, float] = field(default_factory=dict)
    step_start: float = 0.0
    end: float = 0.0

    @property
    def used(self) -> dict[str, float]:
        """When a parameter was read; where none was (an LSTM keeps its own list), when its module was entered."""
        return {**self.entered, **self.read}


class _Entered:
    """A module's hook: tells that it is entered. That of a copy tells nobody, and copies can be saved."""

    def __init__(self, told: Callable[[], None]) -> None:
        self._told = told

    def __call__(self, *_: Any) -> None:
        self._told()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _Entered, (_nobody,)


def _nobody() -> None:
    return None


class TrainingProfile:
    """Notes times by hooks, until `stop`."""

    def __init__(self, module: nn.Module, parameters: dict[str, nn.Parameter], iterations: int) -> None:
        """Of so many; in the last one it is also looked which rows of tables are touched."""
        self._module = module
        self._names = set(parameters)
        self._all: list[_Iteration] = []
        self._now = _Iteration()
        self._in_forward = False
        self._called = self._called_busy = 0.0
        self._hooks: list[Any] = []
        self._name_of = names = {id(parameter): name for name, parameter in parameters.items()}
        attend(module, self._reading)
        self._hooks.append(module.register_forward_pre_hook(_Entered(self._enters)))
        for child in module.modules():
            own = [names[id(p)] for p in child.parameters(recurse=False) if id(p) in names]
            if own:
                self._hooks.append(child.register_forward_pre_hook(_Entered(partial(self._entering, own))))
        for name, parameter in parameters.items():
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._having(name)))
        self._iterations = iterations
        self._tables = tables_of(module, parameters)
        self._bases: dict[str, Tensor] = {}
        self._touched: dict[str, npt.NDArray[np.uint8]] = {}
        for name, table in self._tables.items():
            if table.head is not None:
                self._hooks.append(TiedHead(table, self._having_head(name, table)))

    def _reading(self, parameter: Any) -> None:
        name = self._name_of.get(id(parameter))
        if self._in_forward and name is not None:
            self._now.read.setdefault(name, time.perf_counter())

    def _entering(self, names: list[str]) -> None:
        if self._in_forward:
            now = time.perf_counter()
            for name in names:
                self._now.entered.setdefault(name, now)

    def forward_begins(self) -> None:
        """The model is called."""
        self._in_forward = not self._now.forward_end
        self._called, self._called_busy = time.perf_counter(), time.process_time()

    def _enters(self) -> None:
        if self._in_forward and self._called:
            self._now.start += time.perf_counter() - self._called
            self._now.busy_start += time.process_time() - self._called_busy
        self._called = 0.0

    def _having(self, name: str) -> Callable[..., None]:
        def note(*_: Any) -> None:
            self._now.ready[name] = now = time.perf_counter()
            self._now.busy = (time.process_time() - self._now.busy_start) / (now - self._now.start)
            if self._is_last and name in self._tables:
                self._touch(name, self._tables[name].parameter.grad)

        return note

    @property
    def _is_last(self) -> bool:
        return len(self._all) == self._iterations - 1

    def _having_head(self, name: str, table: Table) -> Callable[[Tensor], None]:
        def note(gradient: Tensor) -> None:
            self._now.head[name] = time.perf_counter()
            if self._is_last:
                self._bases[name] = summed(table.parameter, gradient)

        return note

    def _touch(self, name: str, gradient: Tensor | None) -> None:
        if gradient is None or gradient.layout is not torch.strided:
            return
        base = self._bases.pop(name, None)
        self._touched[name] = np.packbits(touched_rows(gradient, base).numpy())

    def forward_ends(self) -> None:
        """The model has returned."""
        self._in_forward = False
        if not self._now.forward_end:
            self._now.forward_end = time.perf_counter()

    def step_begins(self) -> None:
        """The optimizer's step is called."""
        self._now.step_start = time.perf_counter()

    def closing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The step's closure, which has forward and backward within: what counts as the step begins after it."""

        def closed() -> Any:
            result = closure()
            self.step_begins()
            return result

        return closed

    def step_ends(self) -> None:
        """It has returned: the next iteration begins."""
        self._now.end = time.perf_counter()
        self._all.append(self._now)
        self._now = _Iteration(self._now.end)

    def stop(self) -> None:
        """Take the hooks away."""
        leave(self._module)
        for hook in self._hooks:
            hook.remove()

    def measured(self, skip: int) -> MeasuredIteration:
        """The median of every time, without the first iterations; parameters that were always used and trained alone."""
        rows = self._all[skip:]

        def middle(times: Callable[[_Iteration], dict[str, float]]) -> dict[str, float]:
            return {
                name: median(times(row)[name] - row.start for row in rows)
                for name in sorted(self._names)
                if all(name in times(row) for row in rows)
            }

        def one(value: Callable[[_Iteration], float]) -> float:
            return median(value(row) - row.start for row in rows)

        return MeasuredIteration(
            used_s=middle(lambda row: row.used),
            forward_end_s=one(lambda row: row.forward_end),
            ready_s=middle(lambda row: row.ready),
            step_start_s=one(lambda row: row.step_start),
            end_s=one(lambda row: row.end),
            busy=median(row.busy for row in rows),
            head_s=middle(lambda row: row.head),
            touched=self._touched,
            computed_s=tuple(max(row.ready.values(), default=row.start) - row.start for row in rows),
        )


# Iterations of DistributedDataParallel whose transfers begin when backward has ended.


def defer_transfers(ddp: DistributedDataParallel, group: Any) -> None:
    """Have the model's buckets wait for the last of them; for good, as PyTorch has it with communication hooks."""
    waiting: list[tuple[Tensor, torch.futures.Future[Tensor]]] = []
    scale = 1.0 / dist.get_world_size(group)

    def hook(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        waiting.append((bucket.buffer(), future))
        if bucket.is_last():
            begun, waiting[:] = list(waiting), []
            for flat, own in begun:
                _average(flat, own, scale, group)
        return future

    hook.__annotations__.clear()  # PyTorch compares them with types, and here they are text
    ddp.register_comm_hook(None, hook)


def _average(flat: Tensor, future: torch.futures.Future[Tensor], scale: float, group: Any) -> None:
    """Begin it, and fill the future when it is done."""

    def done(reduced: torch.futures.Future[Any]) -> None:
        try:
            reduced.value()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(flat)

    work = dist.all_reduce(flat.mul_(scale), group=group, async_op=True)
    assert work is not None
    work.get_future().add_done_callback(done)
