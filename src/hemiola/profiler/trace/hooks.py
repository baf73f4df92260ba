"""Where PyTorch tells, or is made to tell, what the training loop does. All is undone by `uninstall`.

Public hooks where there are some (optimizer steps); elsewhere functions are wrapped by ones that note the time
and call the original with the script's own arguments. Under `torch.compile` they are traced as if not there.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from hemiola.profiler.trace.collectives import Collectives, Groups, install_kernels
from hemiola.profiler.trace.inject._hemiola_when_imported import when_imported
from hemiola.profiler.trace.profile import Profiling
from hemiola.profiler.trace.recorder import IterationRecorder
from hemiola.profiler.trace.values import Instant, RecordedTransfer, TransferGate

__all__ = ["Hooks"]

_FSDP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"

_BLOCKING = (
    ("", "_broadcast_coalesced"),
    ("", "_verify_params_across_processes"),
    ("Reducer", "_rebuild_buckets"),
)
"""What in `torch.distributed` communicates in C++ and returns when all is done."""

_PROFILERS = (("profile", "_prepare_trace"), ("emit_nvtx", "__enter__"), ("emit_itt", "__enter__"))
"""What in `torch.autograd.profiler` a script may profile with, and where that begins."""

Wrapper = Callable[..., Any]


class Hooks:
    """What is installed in PyTorch to feed one recorder."""

    def __init__(self, recorder: IterationRecorder, groups: Groups, profiling: Profiling) -> None:
        self._recorder = recorder
        self._profiling = profiling
        self.collectives = Collectives(recorder, groups)
        self._groups = groups
        self._undo: list[Callable[[], Any]] = []
        self._optimizer: weakref.ref[Any] | None = None
        self._step_start: Instant = None

    def install(self) -> None:
        """Wrap and register; what this version of PyTorch does not have is left out, and said."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._undo.append(install_kernels(self.collectives))
        self._undo.append(register_optimizer_step_pre_hook(self._before_step).remove)
        self._undo.append(register_optimizer_step_post_hook(self._after_step).remove)
        data = torch.utils.data.dataloader
        self._wrap(torch.autograd, "backward", self._backward)
        self._wrap(data._BaseDataLoaderIter, "__next__", self._input)
        self._wrap(data.DataLoader, "__iter__", self._input)
        self._wrap(torch.nn.parallel.DistributedDataParallel, "forward", self._ddp_forward)
        for kind, name in _PROFILERS:
            owner = getattr(torch.autograd.profiler, kind)
            self._wrap(owner, name, self._profiler_begins)
            self._wrap(owner, "__exit__", self._profiler_ends)
        if torch.distributed.is_available():
            self._wrap(torch.distributed.Work, "wait", self._wait)
            for path, name in _BLOCKING:
                owner = getattr(torch.distributed, path, None) if path else torch.distributed
                if hasattr(owner, name):
                    self._wrap(owner, name, self._gate)
            when_imported(_FSDP, lambda: self._recorder.guarded(self._install_fsdp))

    def uninstall(self) -> None:
        """Leave PyTorch as it was."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _install_fsdp(self) -> None:
        from torch.distributed.fsdp._fully_shard import _fsdp_param_group

        if self._undo:  # it may be imported after the recording has ended
            self._wrap(_fsdp_param_group.FSDPParamGroup, "unshard", self._fsdp_unshard)
            self._wrap(_fsdp_param_group.FSDPParamGroup, "post_backward", self._fsdp_named)

    def _wrap(self, owner: Any, name: str, around: Wrapper) -> None:
        """Put `around(original, *arguments)` in the place of `owner.name`."""
        import torch

        original = getattr(owner, name)
        recorder, is_compiling = self._recorder, torch.compiler.is_compiling

        @functools.wraps(original)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if is_compiling() or not recorder.on:
                return original(*arguments, **named)
            return around(original, *arguments, **named)

        setattr(owner, name, wrapped)
        self._undo.append(lambda: _restore(owner, name, wrapped, original))

    def _before_step(self, optimizer: Any, arguments: Any, named: Any) -> None:
        import torch

        if not torch.compiler.is_compiling() and self._recorder.on:
            self._step_start = self._recorder.stream_now()

    def _after_step(self, optimizer: Any, arguments: Any, named: Any) -> None:
        import torch

        if not torch.compiler.is_compiling() and self._recorder.on:
            self._recorder.guarded(self._stepped, optimizer)

    def _stepped(self, optimizer: Any) -> None:
        recorder = self._recorder
        start = recorder.now()
        recorder.optimizer(self._step_start, recorder.stream_now())
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is optimizer and not recorder.explicit:
            recorder.boundary()
        recorder.cost_ns += recorder.now() - start

    def _backward(self, original: Wrapper, *arguments: Any, **named: Any) -> Any:
        recorder = self._recorder
        start = recorder.stream_now()
        result = original(*arguments, **named)
        recorder.guarded(recorder.backward, start, recorder.stream_now())
        return result

    def _input(self, original: Wrapper, *arguments: Any, **named: Any) -> Any:
        recorder = self._recorder
        start = recorder.now()
        result = original(*arguments, **named)
        recorder.guarded(recorder.input, start, recorder.now())
        return result

    def _wait(self, original: Wrapper, work: Any, *arguments: Any, **named: Any) -> Any:
        transfer = self._recorder.guarded(self.collectives.waiting, work)
        return self._until_released(transfer, functools.partial(original, work, *arguments, **named))

    def _until_released(self, transfer: RecordedTransfer | None, wait: Callable[[], Any]) -> Any:
        if transfer is None:
            return wait()
        needed = transfer.clock() if transfer.needed is None else transfer.needed
        transfer.needed = needed
        blocking = transfer.released is not None
        result = wait()
        transfer.released = transfer.clock()
        if blocking or (transfer.last is None and transfer.collective in ("send", "recv")):
            transfer.last = transfer.released
        return result

    def _profiler_begins(self, original: Wrapper, profiler: Any, *arguments: Any, **named: Any) -> Any:
        self._recorder.guarded(self._profiling.make_way, profiler)
        return original(profiler, *arguments, **named)

    def _profiler_ends(self, original: Wrapper, profiler: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return original(profiler, *arguments, **named)
        finally:
            self._recorder.guarded(self._profiling.has_ended, profiler)

    def _gate(self, original: Wrapper, *arguments: Any, **named: Any) -> Any:
        """C++ that hands over several collectives and waits for all of them before it returns."""
        gate = self.collectives.gate = TransferGate(self._recorder.stream_now())
        try:
            result = original(*arguments, **named)
        finally:
            self.collectives.gate = None
        gate.released = self._recorder.stream_now()
        return result

    def _ddp_forward(self, original: Wrapper, module: Any, *arguments: Any, **named: Any) -> Any:
        self._recorder.guarded(self._enter_ddp, module)
        return original(module, *arguments, **named)

    def _enter_ddp(self, module: Any) -> None:
        import torch

        if torch.is_grad_enabled():
            self._recorder.forward_begins()
            number = self._groups.number(module.process_group)
            self.collectives.reducers[number] = weakref.ref(module)

    def _fsdp_unshard(self, original: Wrapper, group: Any, *arguments: Any, **named: Any) -> Any:
        self._recorder.guarded(self._enter_fsdp)
        return self._fsdp_named(original, group, *arguments, **named)

    def _enter_fsdp(self) -> None:
        import torch

        if torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            self._recorder.forward_begins()

    def _fsdp_named(self, original: Wrapper, group: Any, *arguments: Any, **named: Any) -> Any:
        recorder = self._recorder
        outer, recorder.context = recorder.context, getattr(group, "_module_fqn", "") or "root"
        try:
            return original(group, *arguments, **named)
        finally:
            recorder.context = outer


def _restore(owner: Any, name: str, ours: Any, original: Any) -> None:
    """Put the original back, unless somebody else has wrapped ours since: then it stays, and does nothing."""
    if getattr(owner, name) is ours:
        setattr(owner, name, original)
