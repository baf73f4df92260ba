"""Sees every collective of this process, whoever asks for it, where PyTorch's dispatcher sends it to its backend.

DDP's reducer calls its process group from C++, FSDP2 and scripts from Python, compiled graphs through
functional collectives: all of them pass the operators `c10d::*`. A kernel for the dispatch key
BackendSelect, which PyTorch leaves open for these, is called first, notes the time, and passes the call
on unchanged. The process group, the tensors and the work handed back are the script's own.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from hemiola.run.record.recorder import Recorder
from hemiola.run.record.values import Gate, Group, Transfer

__all__ = ["Collectives", "Groups"]

_NAMES = {
    "allreduce": "all-reduce", "allgather": "all-gather", "_allgather": "all-gather", "broadcast": "broadcast",
    "reduce_scatter": "reduce-scatter", "_reduce_scatter": "reduce-scatter", "alltoall": "all-to-all",
    "barrier": "barrier", "monitored_barrier": "barrier", "reduce": "reduce", "gather": "gather",
    "scatter": "scatter", "send": "send", "recv": "recv",
}  # fmt: skip
"""What the collectives are called, by how their operators' names begin; of several, the longest holds."""

_DEVICE = 1
"""Stands for the one stream of a group on a device, where a thread's number stands for gloo's threads."""
_PYTHON = "torch.distributed.distributed_c10d"


class Groups:
    """Numbers the process groups as they are met."""

    def __init__(self, announce: Callable[[Group], None]) -> None:
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
            self._announce(Group(self._numbers[name], name, *_members(group)))
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

    def __init__(self, recorder: Recorder, groups: Groups) -> None:
        self._recorder = recorder
        self._groups = groups
        self._libraries: list[Any] = []
        self._synchronous = threading.local()
        self._awaited: dict[int, tuple[Any, Transfer]] = {}
        self._by_address: dict[int, Transfer] = {}
        self._held: Any = None
        self._backward = -1
        self.gate: Gate | None = None
        self.gated: list[Transfer] = []
        self.reducers: dict[int, Any] = {}
        self.on_gate: Callable[[list[Transfer]], None] = lambda transfers: None

    def install(self) -> None:
        """Register the kernels."""
        import torch

        library = torch.library.Library("c10d", "IMPL")
        self._libraries.append(library)
        for operator, name in _operators():
            library.impl(operator, _kernel(self, operator, name), "BackendSelect", with_keyset=True)
        functional = torch.library.Library("_c10d_functional", "IMPL")
        self._libraries.append(functional)
        wait = torch.ops._c10d_functional.wait_tensor.default
        functional.impl(wait, _waiting_kernel(self, wait), "BackendSelect", with_keyset=True)

    def uninstall(self) -> None:
        """Take the kernels away again."""
        while self._libraries:
            self._libraries.pop()._destroy()

    def before(self, name: str, group: Any, tensors: list[Any], origin: str, *, blocking: bool) -> Transfer:
        """A collective is about to be handed over."""
        recorder = self._recorder
        enqueue = recorder.now()
        first = _first(tensors)
        size_bytes = 0 if name == "barrier" else max(map(_bytes, tensors), default=0)
        number = self._groups.number(group)
        transfer = recorder.transfer(name, number, size_bytes, enqueue)
        if first is not None and first.is_cuda:
            transfer.clock = recorder.stream_now
            transfer.first, transfer.thread = transfer.clock(), _DEVICE
        if self.gate is not None:
            transfer.gate = self.gate
        elif not blocking and (origin != _PYTHON or number in self.reducers):
            self._arm_backward(transfer)
        return transfer

    def after(self, transfer: Transfer, result: Any, origin: str, *, blocking: bool) -> None:
        """It has been handed over."""
        import torch.distributed as dist

        if blocking:  # PyTorch waits for it right here, in Python; or has done so, in C++
            transfer.needed = transfer.enqueue if transfer.first is None else transfer.first
            transfer.released = transfer.last = transfer.clock()
            self._synchronous.transfer = transfer
            return
        work = result[-1] if isinstance(result, tuple | list) else result
        if work is None:  # it has waited for the others already, in C++
            transfer.needed, transfer.released = transfer.enqueue, transfer.clock()
            transfer.last = transfer.released
            return
        handle = dist.Work.unbox(work)
        if origin == _PYTHON:
            self._held = handle  # so that the script gets this very object, by which `waiting` knows it
            self._awaited[id(handle)] = (weakref.ref(handle), transfer)
        try:
            handle.get_future().add_done_callback(partial(_done, transfer))
        except RuntimeError:
            return  # point-to-point work of gloo has no future: who waits for it will tell

    def waiting(self, work: Any) -> Transfer | None:
        """The transfer that the script waits for with this work; None if it was not seen."""
        transfer: Transfer | None = getattr(self._synchronous, "transfer", None)
        if transfer is not None:
            self._synchronous.transfer = None
            return transfer
        reference, transfer = self._awaited.pop(id(work), (None, None))
        if reference is None or reference() is not work:
            return None
        if self._held is work:
            self._held = None
        return transfer

    def functional(self, tensor: Any) -> Transfer | None:
        """The transfer whose result a functional collective's user waits for."""
        return self._by_address.pop(tensor.data_ptr(), None) if _is_real(tensor) else None

    def remember_output(self, transfer: Transfer, tensors: Iterable[Any]) -> None:
        """A functional collective: its user will wait for a tensor, not for a work."""
        for tensor in tensors:
            self._by_address[tensor.data_ptr()] = transfer

    def forget(self) -> None:
        """An iteration is over: let go of what nobody waited for."""
        self._held = None
        self._by_address.clear()
        self._awaited = {key: entry for key, entry in self._awaited.items() if entry[0]() is not None}

    def _arm_backward(self, transfer: Transfer) -> None:
        """Called from C++ or on a DDP group during backward: the reducer waits for it when backward ends."""
        import torch

        task = torch._C._current_graph_task_id()
        if task == -1:
            return
        if task != self._backward:
            self._backward = task
            self.gated = []
            _at_end_of_backward(partial(self._recorder.guarded, self._backward_ends))
        self.gated.append(transfer)

    def _backward_ends(self) -> None:
        """Runs before the reducer's own callback, which waits: ours was queued before it."""
        gate = Gate(self._recorder.stream_now())
        _at_end_of_backward(partial(self._recorder.guarded, self._reducer_is_done, gate))

    def _reducer_is_done(self, gate: Gate) -> None:
        gate.released = self._recorder.stream_now()
        transfers = [transfer for transfer in self.gated if transfer.needed is None]
        for transfer in transfers:
            transfer.gate = gate
        self._backward, self.gated = -1, []
        self.on_gate(transfers)


def _done(transfer: Transfer, future: Any) -> None:
    """Called by the backend's thread after the last byte; on a device, with a stream that comes after it."""
    transfer.last = transfer.clock()
    if transfer.thread == 0:
        transfer.thread = threading.get_ident()


def _at_end_of_backward(action: Callable[[], Any]) -> None:
    import torch

    torch.autograd.Variable._execution_engine.queue_callback(action)


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
    recorder = collectives._recorder

    def enter(values: Any, origin: str, blocking: bool) -> Transfer | None:
        tensors = [values[n] for n in tensors_at if n < len(values)]
        if not _is_real(_first(tensors)):
            return None
        return collectives.before(name, unbox(values[group_at]), tensors, origin, blocking=blocking)

    def leave(transfer: Transfer, values: Any, result: Any, origin: str, blocking: bool) -> None:
        collectives.after(transfer, result, origin, blocking=blocking)
        if origin == "torch._ops":
            collectives.remember_output(transfer, _flat([values[n] for n in tensors_at if n < len(values)]))

    def kernel(keys: Any, *values: Any, **named: Any) -> Any:
        rest = keys.remove(select)
        if not recorder.on:
            return operator.redispatch(rest, *values, **named)
        start = recorder.now()
        origin = _caller()
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
    recorder = collectives._recorder

    def kernel(keys: Any, tensor: Any) -> Any:
        transfer = recorder.guarded(collectives.functional, tensor)
        if transfer is not None and transfer.needed is None:
            transfer.needed = transfer.clock()
        result = operator.redispatch(keys.remove(select), tensor)
        if transfer is not None:
            transfer.released = transfer.clock()
        return result

    return kernel


def _caller() -> str:
    """The module whose Python called the operator, if through C++; "" on a thread without Python."""
    try:
        return str(sys._getframe(2).f_globals.get("__name__", ""))
    except ValueError:
        return ""


def _flat(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        return [tensor for entry in value for tensor in _flat(entry)]
    return () if value is None else (value,)


def _first(value: Any) -> Any:
    while isinstance(value, list | tuple):
        value = value[0] if value else None
    return value


def _is_real(tensor: Any) -> bool:
    """Not one of those that compilers send through a program to learn its shapes."""
    import torch

    return tensor is None or type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _bytes(value: Any) -> int:
    if isinstance(value, list | tuple):
        return (
            value[0].nbytes if len(value) == 1 and not isinstance(value[0], list) else sum(map(_bytes, value))
        )
    return 0 if value is None else int(value.nbytes)
