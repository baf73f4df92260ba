"""Writes down every operation that PyTorch dispatches: the columns of a graph, row by row."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from hemiola.core.errors import GraphError
from hemiola.core.graph import KINDS, PHASES, Signature
from hemiola.profiler.capture.fakes import Fakes
from hemiola.profiler.capture.work import VIEW, OperationFacts, facts_of, gathered_bytes

__all__ = [
    "Access",
    "ModulePaths",
    "OperationColumns",
    "OperationRecorder",
    "Storage",
    "Storages",
    "peak_bytes",
    "repeated_blocks",
]

# Where in the model an operation belongs, and which modules repeat.


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


# Signatures: what an operation was called with, in plain values.


class Signatures:
    """Signatures, each once, in the order in which they were first met."""

    def __init__(self) -> None:
        self.all: list[Signature] = []
        self._index: dict[Any, int] = {}

    def index_of(self, operation: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> int:
        """The place of this call's signature in `all`."""
        plain = [_plain(argument) for argument in arguments]
        named = {name: _plain(value) for name, value in keywords.items()}
        key = (operation, _key(plain), _key(named))
        if key not in self._index:
            self._index[key] = len(self.all)
            self.all.append(Signature(operation, tuple(plain), named))
        return self._index[key]


def _plain(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        strided = value.layout is torch.strided
        return {
            "shape": list(value.shape),
            "dtype": dtype_name(value.dtype),
            "stride": list(value.stride()) if strided else None,
        }
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return "device" if isinstance(value, torch.device) else str(value)


def _key(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(map(_key, value))
    return type(value), repr(value) if isinstance(value, float) else value


def dtype_name(dtype: Any) -> str:
    """A dtype without its prefix: "float32"."""
    return str(dtype).removeprefix("torch.")


# Which forward operation a backward operation belongs to.


class BackwardLinks:
    """Numbers of autograd's nodes, and the rows of the operations that made them.

    Args:
        parameters: index of each parameter, by identity.
    """

    def __init__(self, parameters: dict[int, int]) -> None:
        self._parameters = parameters
        self._row: dict[int, int] = {}
        self._next: int = torch.autograd._get_sequence_nr()
        self._last: tuple[int, int] = (-1, -1)

    def made(self, row: int) -> None:
        """Note the nodes made since the last call: the newest is this row's, others the row's before."""
        count = torch.autograd._get_sequence_nr()
        for number in range(self._next, count):
            self._row[number] = row if number == count - 1 else max(row - 1, 0)
        self._next = count

    def begin_backward(self, loss: torch.Tensor) -> None:
        """Backward starts here: its first operations belong to what made the loss."""
        self._last = (self._row.get(loss.grad_fn._sequence_nr(), -1), -1) if loss.grad_fn else (-1, -1)

    def current(self) -> tuple[int, int]:
        """The forward row of the node that runs now, and the parameter that it accumulates into; -1 for none.

        Between nodes (autograd adds up gradients itself) those of the node that ran last.
        """
        node: Any = torch._C._current_autograd_node()
        if node is not None:
            variable = getattr(node, "variable", None)
            if isinstance(variable, torch.Tensor):
                self._last = (-1, self._parameters.get(id(variable), -1))
            else:
                self._last = (self._row.get(node._sequence_nr(), -1), -1)
        return self._last


FORWARD, BACKWARD, OPTIMIZER = range(len(PHASES))

_BOOKKEEPING = frozenset({"aten.detach.default", "aten.alias.default", "aten.lift_fresh.default"})
"""Autograd's and the tracer's own handles on tensors: most of them are no call at all when a model really runs."""


@dataclass(eq=False)
class OperationColumns:
    """The columns of `core.graph.Operations`, as lists that grow."""

    name: list[str] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    phase: list[int] = field(default_factory=list)
    micro_step: list[int] = field(default_factory=list)
    flop: list[float] = field(default_factory=list)
    read_bytes: list[float] = field(default_factory=list)
    written_bytes: list[float] = field(default_factory=list)
    module: list[int] = field(default_factory=list)
    forward: list[int] = field(default_factory=list)
    signature: list[int] = field(default_factory=list)
    dep_start: list[int] = field(default_factory=lambda: [0])
    dep: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.name)


@dataclass(eq=False)
class _Operands:
    """The tensors of one call: `reads` and `writes` among its arguments, `fresh` among its results."""

    reads: list[Access] = field(default_factory=list)
    writes: list[Access] = field(default_factory=list)
    fresh: list[Access] = field(default_factory=list)
    aliases: int = 0


class OperationRecorder(TorchDispatchMode):
    """Records what is dispatched while it is entered.

    Args:
        paths: the modules that are running.
        parameters: the model's parameters as they take part, in the graph's order.
        owners: the place of each parameter's module in `paths`.
        fakes: stands in for real tensors.
        names: of the real parameters, by identity.
    """

    def __init__(
        self,
        paths: ModulePaths,
        parameters: list[torch.Tensor],
        owners: list[int],
        fakes: Fakes,
        names: Mapping[int, str],
    ) -> None:
        super().__init__()
        self.rows = OperationColumns()
        self.storages = Storages(lambda: len(self.rows))
        self.signatures = Signatures()
        self.links = BackwardLinks({id(parameter): i for i, parameter in enumerate(parameters)})
        self.phase = FORWARD
        self.micro_step = 0
        self.first_use: dict[int, int] = {}
        self.updated: dict[int, int] = {}
        self._paths = paths
        self._owners = owners
        self._fakes = fakes
        self._names = names
        self._facts: dict[Any, OperationFacts] = {}
        self._weights = {}
        for i, parameter in enumerate(parameters):
            storage = self.storages.of(parameter)
            storage.parameter = i
            self._weights[storage] = i

    @property
    def uncounted(self) -> list[str]:
        """Products and convolutions that there is no formula for: they count no FLOP."""
        known = (KINDS.index("matmul"), KINDS.index("convolution"))
        return [f.name for f in self._facts.values() if f.kind in known and not (f.flop or f.composite)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """PyTorch's hook: called for every operation, in the order in which they run."""
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload) or func.namespace in ("prim", "profiler"):
            return func(*args, **kwargs)
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = facts_of(func)
        if facts.composite:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if facts.name != "aten.lift_fresh.default":  # which keeps a constant's value, as of a step count
            args, kwargs = self._stood_in(args), self._stood_in(kwargs)
        result = func(*args, **kwargs)
        if facts.name not in _BOOKKEEPING:
            self._record(facts, args, kwargs, result)
        return result

    def _stood_in(self, value: Any) -> Any:
        """The arguments, with stand-ins for real tensors that the user's code brings from outside of the model."""
        if all(isinstance(tensor, FakeTensor) for tensor in _tensors(value)):
            return value
        return tree_map_only(torch.Tensor, self._stand_in, value)

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if tensor.requires_grad and id(tensor) in self._names:
            raise GraphError(
                f"the model's parameter {self._names[id(tensor)]!r} is reached around the model",
                "read it from the model where it is used (`model.parameters()`, `model.layer.weight`)",
            )
        if tensor.requires_grad:
            raise GraphError(
                f"a trainable tensor of shape {tuple(tensor.shape)} takes part that is no parameter of the model",
                "make it a parameter of the model, or detach it",
            )
        fake = self._fakes(tensor)
        self.storages.of(fake, born=0, counted=True)
        return fake

    def _record(self, facts: OperationFacts, args: Any, kwargs: Any, result: Any) -> None:
        operands = self._operands(facts, args, kwargs, result)
        if not (operands.writes or operands.fresh or operands.aliases):
            return
        view = not operands.writes and not operands.fresh
        idle = view or facts.allocates
        rows, row = self.rows, len(self.rows)
        if not facts.allocates:
            rows.dep.extend(self._dependencies(row, operands, idle))
        rows.dep_start.append(len(rows.dep))
        self._note_parameters(row, operands, idle)
        self._place(operands)
        rows.name.append(facts.name)
        rows.kind.append(VIEW if idle else facts.kind)
        rows.phase.append(self.phase)
        rows.micro_step.append(self.micro_step)
        rows.flop.append(float(facts.flop(*args, **kwargs, out_val=result)) if facts.flop else 0.0)
        read, written = (0, 0) if idle else _bytes(facts, operands, args, result)
        rows.read_bytes.append(float(read))
        rows.written_bytes.append(float(written))
        rows.signature.append(self.signatures.index_of(facts.name, args, kwargs))
        self.links.made(row)

    def _operands(self, facts: OperationFacts, args: Any, kwargs: Any, result: Any) -> _Operands:
        operands = _Operands()
        for place, argument in (*enumerate(args), *kwargs.items()):
            writes = place in facts.writes
            for tensor in _tensors(argument):
                access = self.storages.access(tensor)
                if writes:
                    operands.writes.append(access)
                if not writes or not (facts.overwrites or isinstance(place, str)):
                    operands.reads.append(access)
        given = {access.storage for access in (*operands.reads, *operands.writes)}
        for tensor in _tensors(result):
            access = self.storages.access(tensor, born=len(self.rows), counted=True)
            if access.storage in given:
                operands.aliases += 1
            else:
                operands.fresh.append(access)
        return operands

    def _dependencies(self, row: int, operands: _Operands, idle: bool) -> list[int]:
        waits: set[int] = set()
        for access in operands.reads:
            waits |= access.storage.waits_for(access.first, access.end, writes=False)
        if idle:
            return sorted(waits)
        written = dict.fromkeys((*operands.writes, *operands.fresh))
        for access in written:
            waits |= access.storage.waits_for(access.first, access.end, writes=True)
        for access in dict.fromkeys(operands.reads):
            if access not in written:
                access.storage.accessed(row, access.first, access.end, writes=False)
        for access in written:
            access.storage.accessed(row, access.first, access.end, writes=True)
        return sorted(waits)

    def _note_parameters(self, row: int, operands: _Operands, idle: bool) -> None:
        if self.phase == FORWARD and not idle:
            for access in operands.reads:
                if access.storage in self._weights:
                    self.first_use.setdefault(self._weights[access.storage], row)
        if self.phase == OPTIMIZER:
            for access in operands.writes:
                if access.storage in self._weights:
                    self.updated[self._weights[access.storage]] = row

    def _place(self, operands: _Operands) -> None:
        """Say which module the row belongs to, and which forward operation."""
        module, forward = self._paths.current, -1
        if self.phase == BACKWARD:
            forward, parameter = self.links.current()
            if parameter >= 0:
                forward = self.first_use.get(parameter, -1)
                module = self._owners[parameter]
            elif forward >= 0 and not self._paths.inside:
                module = self.rows.module[forward]
        elif self.phase == OPTIMIZER:
            held = {access.storage.parameter for access in (*operands.reads, *operands.writes)} - {-1}
            if len(held) == 1:
                (parameter,) = held
                module = self._owners[parameter]
                for access in operands.fresh:
                    access.storage.parameter = parameter
        self.rows.module.append(module)
        self.rows.forward.append(forward)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _bytes(facts: OperationFacts, operands: _Operands, args: Any, result: Any) -> tuple[int, int]:
    """Bytes read and written, of each tensor once."""
    reads, writes = dict.fromkeys(operands.reads), dict.fromkeys((*operands.writes, *operands.fresh))
    read = sum(access.touched_bytes for access in reads)
    written = sum(access.touched_bytes for access in writes)
    if facts.likes:
        return 0, written
    if facts.gathers:
        table = operands.reads[0].touched_bytes
        read -= table - min(table, gathered_bytes(args, result))
    elif facts.shaped:
        read -= operands.reads[1].touched_bytes
    elif facts.scatters and len(operands.reads) > 1:
        whole = operands.writes[0].touched_bytes
        part = min(whole, max(access.touched_bytes for access in operands.reads[1:]))
        read, written = read - whole + part, written - whole + part
    return read, written


# Memory behind tensors: who wrote and read which bytes last, and from when to when it lived.
#
# Tensors that are views of each other share a storage, so data flow is followed through storages and
# byte ranges, not through tensors. A strided range counts as all bytes between its first and its last.


@dataclass(eq=False)
class Storage:
    """One stretch of memory.

    Attributes:
        size_bytes: its length.
        born, died: rows of the operations that made it and before which it was freed; `born` is -1
            for memory that was there before, `died` is -1 for memory that is there at the end.
        counted: whether it belongs to the activations.
        parameter: the parameter that it holds, or holds the gradient or optimizer state of; -1 if none.
        history: (row, first byte, end byte, whether written) of accesses not overwritten since.
    """

    size_bytes: int
    born: int = -1
    died: int = -1
    counted: bool = False
    parameter: int = -1
    history: list[tuple[int, int, int, bool]] = field(default_factory=list)

    def waits_for(self, first: int, end: int, writes: bool) -> set[int]:
        """Rows whose work must be done before these bytes are read (or written)."""
        return {
            row for row, low, high, wrote in self.history if (wrote or writes) and low < end and first < high
        }

    def accessed(self, row: int, first: int, end: int, writes: bool) -> None:
        """Remember an access; a write hides what it covers."""
        if writes:
            self.history = [entry for entry in self.history if not (first <= entry[1] and entry[2] <= end)]
        self.history.append((row, first, end, writes))


class Access(NamedTuple):
    """What a tensor covers of its storage.

    Attributes:
        storage: the memory.
        first, end: bytes from, to.
        touched_bytes: of distinct elements (an expanded dimension counts once).
    """

    storage: Storage
    first: int
    end: int
    touched_bytes: int


class Storages:
    """The memory that has been seen, and when each part of it was freed.

    Args:
        now: the number of operations so far.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self.all: list[Storage] = []
        self._now = now
        self._living: dict[int, Storage] = {}
        self._watches: dict[int, weakref.ref[Any]] = {}

    def of(self, tensor: Any, born: int = -1, counted: bool = False) -> Storage:
        """The storage of a strided tensor; `born` and `counted` matter where it is new."""
        memory = tensor.untyped_storage()
        address = memory._cdata
        known = self._living.get(address)
        if known is not None:
            return known
        storage = Storage(memory.nbytes(), born, counted=counted)
        self.all.append(storage)
        self._living[address] = storage
        self._watches[address] = weakref.ref(memory, lambda _: self._freed(address))
        return storage

    def access(self, tensor: Any, born: int = -1, counted: bool = False) -> Access:
        """What a strided tensor covers of its storage."""
        item = tensor.itemsize
        shape, strides = tensor.shape, tensor.stride()
        first = tensor.storage_offset() * item
        if 0 in shape:
            return Access(self.of(tensor, born, counted), first, first, 0)
        span = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
        touched = math.prod(size for size, stride in zip(shape, strides, strict=True) if stride)
        return Access(self.of(tensor, born, counted), first, first + span * item, touched * item)

    def _freed(self, address: int) -> None:
        self._living.pop(address).died = self._now()
        del self._watches[address]


def peak_bytes(storages: list[Storage], operations: int) -> float:
    """The most bytes of counted storages alive during one operation."""
    change = np.zeros(operations + 1)
    for storage in storages:
        if storage.counted:
            change[max(storage.born, 0)] += storage.size_bytes
            if storage.died >= 0:
                change[storage.died] -= storage.size_bytes
    return float(np.cumsum(change).max(initial=0.0))
