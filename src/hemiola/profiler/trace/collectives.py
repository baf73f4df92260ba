"""What becomes of each collective that a kernel has seen: who waits for it, and when it has ended. See `kernels`."""

from __future__ import annotations

import atexit
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from hemiola.profiler.trace.recorder import IterationRecorder
from hemiola.profiler.trace.values import Instant, RankGroup, RecordedTransfer, TransferGate

__all__ = ["PYTHON", "Buckets", "Collectives", "DeviceClock", "Groups", "Payload", "hide", "install_kernels"]

_DEVICE = 1
"""Stands for the one stream of a group on a device, where a thread's number stands for gloo's threads."""
PYTHON = "torch.distributed.distributed_c10d"


class Payload(NamedTuple):
    """What a collective moves: the larger of what it takes and gives, and whether that lies on a device."""

    size_bytes: int
    on_device: bool


class Groups:
    """Numbers the process groups as they are met."""

    def __init__(self, announce: Callable[[RankGroup], None]) -> None:
        self._numbers: dict[str, int] = {}
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._announce = announce

    def number(self, group: Any) -> int:
        """The group's number."""
        reference, number = self._known.get(id(group), (None, -1))
        if reference is not None and reference() is group:
            return number
        name = group.group_name
        if name not in self._numbers:
            self._numbers[name] = len(self._numbers)
            self._announce(RankGroup(self._numbers[name], name, *_members(group)))
        number = self._numbers[name]
        self._known[id(group)] = (weakref.ref(group), number)
        return number


def _members(group: Any) -> tuple[list[int], str]:
    import torch.distributed as dist

    try:
        return list(dist.get_process_group_ranks(group)), str(dist.get_backend(group))
    except (KeyError, ValueError, RuntimeError):  # a group that torch.distributed does not know
        return list(range(group.size())), ""


class Collectives:
    """The kernels, and what connects a collective with those who wait for it."""

    def __init__(self, recorder: IterationRecorder, groups: Groups) -> None:
        self.recorder = recorder
        self._groups = groups
        self._synchronous = threading.local()
        self._awaited: dict[int, tuple[Any, RecordedTransfer]] = {}
        self._by_address: dict[int, RecordedTransfer] = {}
        self._held: Any = None
        self._backward = -1
        self.gate: TransferGate | None = None
        self.gated: list[RecordedTransfer] = []
        self.reducers: dict[int, Any] = {}
        self.on_gate: Callable[[list[RecordedTransfer]], None] = lambda transfers: None

    def before(
        self, name: str, group: Any, payload: Payload, origin: str, *, blocking: bool
    ) -> RecordedTransfer:
        """A collective is about to be handed over."""
        recorder = self.recorder
        enqueue = recorder.now()
        number = self._groups.number(group)
        transfer = recorder.transfer(name, number, payload.size_bytes, enqueue)
        if payload.on_device:
            transfer.clock = recorder.stream_now
            transfer.first, transfer.thread = transfer.clock(), _DEVICE
        if self.gate is not None:
            transfer.gate = self.gate
        elif not blocking and (origin != PYTHON or number in self.reducers):
            self._arm_backward(transfer)
        return transfer

    def after(self, transfer: RecordedTransfer, result: Any, origin: str, *, blocking: bool) -> None:
        """It has been handed over."""
        import torch.distributed as dist

        work = result[-1] if isinstance(result, tuple | list) else result
        if blocking:  # PyTorch waits for it right here, in Python; or has done so, in C++, and leaves no work
            transfer.needed = transfer.enqueue if transfer.first is None else transfer.first
            transfer.released = transfer.last = transfer.clock()
            if work is not None:
                self._synchronous.transfer = transfer
            return
        if work is None:  # it has waited for the others already, in C++
            transfer.needed, transfer.released = transfer.enqueue, transfer.clock()
            transfer.last = transfer.released
            return
        handle = dist.Work.unbox(work)
        if origin == PYTHON:
            self._held = handle  # so that the script gets this very object, by which `waiting` knows it
            transfer.handle = weakref.ref(handle)
            self._awaited[id(handle)] = (transfer.handle, transfer)
        try:
            handle.get_future().add_done_callback(_Done(transfer))
        except RuntimeError:
            return  # point-to-point work of gloo has no future: who waits for it will tell

    def waiting(self, work: Any) -> RecordedTransfer | None:
        """The transfer that the script waits for with this work; None if it was not seen."""
        transfer: RecordedTransfer | None = getattr(self._synchronous, "transfer", None)
        if transfer is not None:
            self._synchronous.transfer = None
            return transfer
        reference, transfer = self._awaited.pop(id(work), (None, None))
        if reference is None or reference() is not work:
            return None
        if self._held is work:
            self._held = None
        return transfer

    def functional(self, tensor: Any) -> RecordedTransfer | None:
        """The transfer whose result a functional collective's user waits for."""
        return self._by_address.pop(tensor.data_ptr(), None) if self._by_address else None

    def remember_output(self, transfer: RecordedTransfer, tensors: Iterable[Any]) -> None:
        """A functional collective: its user will wait for a tensor, not for a work."""
        for tensor in tensors:
            self._by_address[tensor.data_ptr()] = transfer

    def forget(self) -> None:
        """An iteration is over: let go of what nobody waited for."""
        self._held = None
        self._by_address.clear()
        self._awaited = {key: entry for key, entry in self._awaited.items() if entry[0]() is not None}

    def _arm_backward(self, transfer: RecordedTransfer) -> None:
        """Called from C++ or on a DDP group during backward: the reducer waits for it when backward ends."""
        import torch

        task = torch._C._current_graph_task_id()
        if task == -1:
            return
        if task != self._backward:
            self._backward = task
            self.gated = []
            _at_end_of_backward(partial(self.recorder.guarded, self._backward_ends))
        self.gated.append(transfer)

    def _backward_ends(self) -> None:
        """Runs before the reducer's own callback, which waits: ours was queued before it."""
        gate = TransferGate(self.recorder.stream_now())
        _at_end_of_backward(partial(self.recorder.guarded, self._reducer_is_done, gate))

    def _reducer_is_done(self, gate: TransferGate) -> None:
        gate.released = self.recorder.stream_now()
        transfers = [transfer for transfer in self.gated if transfer.needed is None]
        for transfer in transfers:
            transfer.gate = gate
        self._backward, self.gated = -1, []
        self.on_gate(transfers)


class _Done:
    """Called by the backend's thread after the last byte; on a device, with a stream that comes after it."""

    __slots__ = ("__weakref__", "_transfer")

    def __init__(self, transfer: RecordedTransfer) -> None:
        self._transfer = transfer
        _held_by_backends.add(self)

    def __call__(self, future: Any) -> None:
        transfer = self._transfer
        transfer.last = transfer.clock()
        if transfer.thread == 0:
            transfer.thread = threading.get_ident()


_held_by_backends: weakref.WeakSet[_Done] = weakref.WeakSet()
_LAST_CALLS_S = 1.0


@atexit.register
def _await_last_calls() -> None:
    """Who waits for a collective goes on before the backend's thread has called and let go of what is here.

    CPython ends a thread that asks for its lock after the interpreter has, and from within C++ that ends the
    process: "terminate called without an active exception".
    """
    end_s = time.monotonic() + _LAST_CALLS_S
    while _held_by_backends and time.monotonic() < end_s:
        time.sleep(0.001)
    time.sleep(0.005)  # the last one has been let go of, and its thread comes back from that


def _at_end_of_backward(action: Callable[[], Any]) -> None:
    import torch

    torch.autograd.Variable._execution_engine.queue_callback(action)


# Which of a backward pass's all-reduces is which of DDP's buckets, and what lies in it.

_ATTEMPTS = 8
"""So often is the reducer's log read when it does not explain what was sent; it changes once, after iteration 0."""


class Buckets:
    """Names transfers after the buckets of the DDP modules of one process."""

    def __init__(self, reducers: dict[int, Any], announce: Callable[[dict[str, Any]], None]) -> None:
        self._reducers = reducers
        self._announce = announce
        self._sizes: dict[int, list[int]] = {}
        self._rebuilt: dict[int, bool] = {}
        self._attempts = _ATTEMPTS

    def name(self, transfers: Sequence[RecordedTransfer]) -> None:
        """Name the transfers that the reducers waited for at the end of one backward pass."""
        for group, reference in self._reducers.items():
            module = reference()
            mine = [transfer for transfer in transfers if transfer.group == group]
            if module is not None and mine:
                self._name_group(group, module, mine)

    def _name_group(self, group: int, module: Any, transfers: list[RecordedTransfer]) -> None:
        sizes = [transfer.size_bytes for transfer in transfers]
        final = self._rebuilt.get(group, False)
        if self._attempts and not (final and self._explains(group, sizes)):
            self._attempts -= 1
            self._read_log(group, module)
        explained = self._explains(group, sizes)
        word = "bucket" if self._rebuilt.get(group, False) or not explained else "first bucket"
        buckets = len(self._sizes[group]) if explained else len(transfers)
        for number, transfer in enumerate(transfers):
            transfer.name = f"{word} {number}" if number < buckets else "used parameters"

    def _explains(self, group: int, sizes: list[int]) -> bool:
        known = self._sizes.get(group)
        return known is not None and sizes[: len(known)] == known and len(sizes) - len(known) in (0, 1)

    def _read_log(self, group: int, module: Any) -> None:
        log = module._get_ddp_logging_data()
        rebuilt = bool(log.get("has_rebuilt_buckets"))
        self._rebuilt[group] = rebuilt or not _will_rebuild(module)
        self._sizes[group] = _numbers(log.get("rebuilt_bucket_sizes" if rebuilt else "bucket_sizes", ""))
        if rebuilt:
            places = str(log.get("rebuilt_per_bucket_param_indices", "")).split(", ")
            names = _parameter_names(module)
            contents = {
                f"bucket {number}": [names[int(place)] for place in bucket.split()]
                for number, bucket in enumerate(places)
            }
            self._announce({"buckets": contents})


def _will_rebuild(module: Any) -> bool:
    return not module.find_unused_parameters or module.static_graph


def _numbers(text: object) -> list[int]:
    return [int(number) for number in str(text).split(", ") if number]


def _parameter_names(module: Any) -> list[str]:
    """Names in the order in which DDP counts: each parameter once, those that need a gradient."""
    ignored = module.parameters_to_ignore
    return [
        name
        for name, parameter in module.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]


# Sees every collective of this process, whoever asks for it, where PyTorch's dispatcher sends it to its backend.
#
# DDP's reducer calls its process group from C++, FSDP2 and scripts from Python, compiled graphs through
# functional collectives: all of them pass the operators `c10d::*`. A kernel for the dispatch key
# BackendSelect, which PyTorch leaves open for these, is called first, notes the time, and passes the call
# on unchanged. The process group, the tensors and the work handed back are the script's own.

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
