"""Writes down every operation that PyTorch dispatches: the columns of a graph, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from hemiola.core.errors import GraphError
from hemiola.core.graph import KINDS, PHASES
from hemiola.profiler.capture.fakes import Fakes
from hemiola.profiler.capture.kinds import VIEW
from hemiola.profiler.capture.links import BackwardLinks
from hemiola.profiler.capture.modules import ModulePaths
from hemiola.profiler.capture.signatures import Signatures
from hemiola.profiler.capture.storages import Access, Storages
from hemiola.profiler.capture.work import OperationFacts, facts_of, gathered_bytes

__all__ = ["OperationRecorder", "OperationColumns"]

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
