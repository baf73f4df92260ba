"""Sees every collective of this process, whoever asks for it, where PyTorch's dispatcher sends it to its backend.

DDP's reducer calls its process group from C++, FSDP2 and scripts from Python, compiled graphs through
functional collectives: all of them pass the operators `c10d::*`. A kernel for the dispatch key
BackendSelect, which PyTorch leaves open for these, is called first, notes the time, and passes the call
on unchanged. The process group, the tensors and the work handed back are the script's own.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hemiola.profiler.trace.collectives import Collectives, Payload
from hemiola.profiler.trace.values import Instant, RecordedTransfer

__all__ = ["DeviceClock", "hide", "install_kernels"]


_NAMES = {
    "allreduce": "all-reduce", "allgather": "all-gather", "_allgather": "all-gather", "broadcast": "broadcast",
    "reduce_scatter": "reduce-scatter", "_reduce_scatter": "reduce-scatter", "alltoall": "all-to-all",
    "barrier": "barrier", "monitored_barrier": "barrier", "reduce": "reduce", "gather": "gather",
    "scatter": "scatter", "send": "send", "recv": "recv",
}  # fmt: skip
"""What the collectives are called, by how their operators' names begin; of several, the longest holds."""


def install_kernels(collectives: Collectives) -> Callable[[], None]:
    """Register the kernels; a function that takes them away again."""
    import torch

    library = torch.library.Library("c10d", "IMPL")
    for operator, name in _operators():
        library.impl(operator, _kernel(collectives, operator, name), "BackendSelect", with_keyset=True)
    functional = torch.library.Library("_c10d_functional", "IMPL")
    wait = torch.ops._c10d_functional.wait_tensor.default
    functional.impl(wait, _waiting_kernel(collectives, wait), "BackendSelect", with_keyset=True)

    def uninstall() -> None:
        library._destroy()
        functional._destroy()

    return uninstall


def _operators() -> list[tuple[Any, str]]:
    """The operators that communicate, and what each is called."""
    import torch

    found = []
    for full_name in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full_name.partition("::")
        if namespace != "c10d":
            continue
        prefix = max((prefix for prefix in _NAMES if name.startswith(prefix)), key=len, default="")
        if prefix:
            found.append((getattr(torch.ops.c10d, name).default, _NAMES[prefix]))
    return found


def _kernel(collectives: Collectives, operator: Any, name: str) -> Callable[..., Any]:
    """A kernel that notes the call and passes it on; the operator's schema tells where its arguments are."""
    import torch

    arguments = operator._schema.arguments
    group_at = next(n for n, a in enumerate(arguments) if "ProcessGroup" in str(a.type))
    tensors_at = [n for n, a in enumerate(arguments) if "Tensor" in str(a.type)]
    async_at = next((n for n, a in enumerate(arguments) if a.name == "async_op"), len(arguments))
    select = torch._C.DispatchKey.BackendSelect
    unbox = torch.distributed.ProcessGroup.unbox
    recorder = collectives.recorder
    real = (torch.Tensor, torch.nn.Parameter)
    caller = sys._getframe

    def enter(values: Any, origin: str, blocking: bool) -> RecordedTransfer | None:
        first = _first([values[n] for n in tensors_at if n < len(values)])
        if type(first) not in real:  # one that a compiler sends through a program to learn its shapes
            return None
        size_bytes = 0 if name == "barrier" else max(_bytes(values[n]) for n in tensors_at if n < len(values))
        payload = Payload(size_bytes, first.is_cuda)
        return collectives.before(name, unbox(values[group_at]), payload, origin, blocking=blocking)

    def leave(transfer: RecordedTransfer, values: Any, result: Any, origin: str, blocking: bool) -> None:
        collectives.after(transfer, result, origin, blocking=blocking)
        if origin == "torch._ops":
            collectives.remember_output(transfer, _flat([values[n] for n in tensors_at if n < len(values)]))

    def kernel(keys: Any, *values: Any, **named: Any) -> Any:
        rest = keys.remove(select)
        if not recorder.on:
            return operator.redispatch(rest, *values, **named)
        start = recorder.now()
        try:
            origin = caller(1).f_globals.get("__name__", "")
        except ValueError:  # a thread without Python, such as autograd's on a device
            origin = ""
        blocking = len(values) > async_at and values[async_at] is False
        transfer = recorder.guarded(enter, values, origin, blocking)
        middle = recorder.now()
        result = operator.redispatch(rest, *values, **named)
        if transfer is not None:
            handed = recorder.now()
            recorder.guarded(leave, transfer, values, result, origin, blocking)
            recorder.cost_ns += recorder.now() - handed + middle - start
        return result

    return kernel


def _waiting_kernel(collectives: Collectives, operator: Any) -> Callable[..., Any]:
    """A kernel for the wait on the result of a functional collective."""
    import torch

    select = torch._C.DispatchKey.BackendSelect
    recorder = collectives.recorder

    def kernel(keys: Any, tensor: Any) -> Any:
        transfer = recorder.guarded(collectives.functional, tensor) if type(tensor) is torch.Tensor else None
        if transfer is not None and transfer.needed is None:
            transfer.needed = transfer.clock()
        result = operator.redispatch(keys.remove(select), tensor)
        if transfer is not None:
            transfer.released = transfer.clock()
        return result

    return kernel


def _flat(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        return [tensor for entry in value for tensor in _flat(entry)]
    return () if value is None else (value,)


def _first(value: Any) -> Any:
    """The first tensor in lists of lists; None without any. A rank that gets nothing has an empty list for it."""
    if isinstance(value, list | tuple):
        return next((first for entry in value if (first := _first(entry)) is not None), None)
    return value


def _bytes(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_bytes, value))
    if value is None:
        return 0
    if value.is_sparse:  # which PyTorch gives no size: its indices are sent, and its values
        return int(value._indices().nbytes + value._values().nbytes)
    return int(value.nbytes)


# Times on a CUDA device: events recorded on streams, read later and brought onto the host's clock.

_RENEW_NS = 10_000_000_000
"""An anchor is used for so long: CUDA tells elapsed milliseconds in single precision."""


class DeviceClock:
    """Makes events and reads them. An anchor is an event whose time on the host's clock is known."""

    def __init__(self, now: Callable[[], int]) -> None:
        import torch

        self._now = now
        self._cuda = torch.cuda
        self._stream = torch.cuda.Stream()
        self._anchor: tuple[Any, int] | None = None
        self.anchor()

    def stream_now(self) -> Any:
        """An event for the time at which the current stream has done what was asked of it so far."""
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def is_known(self, event: Any) -> bool:
        """Whether the device has passed the event."""
        return bool(event.query())

    def resolve(self, instant: Instant) -> int:
        """Nanoseconds on the host's clock."""
        if isinstance(instant, int):
            return instant
        if self._anchor is None or self._now() - self._anchor[1] > _RENEW_NS:
            self.anchor()
        assert self._anchor is not None
        event, host_ns = self._anchor
        instant.synchronize()
        return host_ns + int(event.elapsed_time(instant) * 1e6)

    def anchor(self) -> None:
        """Take a new anchor, on a stream of its own that has nothing else to do."""
        event = self._cuda.Event(enable_timing=True)
        event.record(self._stream)
        event.synchronize()
        self._anchor = (event, self._now())


# Keeps `torch.compile` from compiling the recording: what its functions do is not part of the model.


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
