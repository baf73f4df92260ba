"""A signature's arguments made real: tensors of its shapes, types and strides with values that it accepts.

An operation's time hardly depends on values, so long as indices lie within their tables and floats
are ordinary positive numbers. Floating-point tensors are left as slots, so that a replay can hand
one operation's result to the next; integers always are values of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hemiola.core.graph import Signature

__all__ = ["Call", "TensorSlot", "Unreplayable", "call_of", "tensors_in"]


class Unreplayable(Exception):  # noqa: N818 - says what the signature is
    """Why a signature cannot be run alone; such operations are fitted, not measured."""


@dataclass(eq=False)
class TensorSlot:
    """A place among the arguments for a floating-point tensor.

    Attributes:
        container, place: where: `container[place] = tensor`.
        shape, stride, dtype: of the tensor.
        written: whether the operation changes it.
    """

    container: Any
    place: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    written: bool

    @property
    def span(self) -> int:
        """Elements from its first to its last."""
        if not all(self.shape):
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    def fill(self, tensor: torch.Tensor) -> None:
        """Put the beginning of a tensor's storage in, seen with this slot's shape and strides."""
        self.container[self.place] = tensor.as_strided(self.shape, self.stride, 0)

    def empty(self) -> None:
        """Let go of what was put in, as an operation does that has run."""
        self.container[self.place] = None

    def fresh(self, device: str, least: float, most: float) -> torch.Tensor:
        """A new tensor that fits, with values between two numbers."""
        wide = self.dtype if self.dtype.itemsize > 1 else torch.bfloat16
        flat = torch.full((self.span,), least, dtype=wide, device=device)
        return (flat.uniform_(least, most) if most > least else flat).to(self.dtype)


@dataclass(eq=False)
class Call:
    """An operation and its arguments: call it to run it once, when every slot is filled."""

    function: Any
    arguments: list[Any]
    keywords: dict[str, Any]
    slots: list[TensorSlot]

    def __call__(self) -> Any:
        """Run it once."""
        return self.function(*self.arguments, **self.keywords)


def call_of(signature: Signature, device: str) -> Call:
    """The operation with its arguments on a device, floating-point tensors left as slots.

    Raises:
        Unreplayable: if this PyTorch does not know the operation, or its arguments cannot be made.
    """
    function = _function(signature.operation)
    schema = {argument.name: argument for argument in function._schema.arguments}
    if len(signature.arguments) > len(schema):
        raise Unreplayable(f"{signature.operation} takes {len(schema)} arguments here")
    named = dict(zip(schema, signature.arguments, strict=False))
    named.update(signature.keywords)
    try:
        live = {name: _live(value, schema[name].real_type, device) for name, value in named.items()}
        _make_valid(signature.operation.split(".")[1], live)
    except (KeyError, RuntimeError, TypeError, AttributeError, IndexError) as error:
        raise Unreplayable(f"{signature.operation}: {error}") from error
    names = [name for name in schema if name in live and not schema[name].kwarg_only]
    arguments = [live[name] for name in names]
    keywords = {name: value for name, value in live.items() if schema[name].kwarg_only}
    slots: list[TensorSlot] = []
    for container, place, name in [
        *((arguments, i, name) for i, name in enumerate(names)),
        *((keywords, name, name) for name in keywords),
    ]:
        alias = schema[name].alias_info
        _collect(container, place, alias is not None and alias.is_write, slots)
    return Call(function, arguments, keywords, slots)


def _function(operation: str) -> Any:
    parts = operation.split(".")
    if len(parts) != 3:
        raise Unreplayable(f"{operation!r} is not namespace.name.overload")
    try:
        return getattr(getattr(getattr(torch.ops, parts[0]), parts[1]), parts[2])
    except (AttributeError, RuntimeError) as error:
        raise Unreplayable(f"this PyTorch has no operation {operation!r}") from error


def _live(value: Any, kind: Any, device: str) -> Any:
    """A signature's value as the operation wants it; `kind` is the argument's type in its schema."""
    if kind.kind() == "OptionalType":
        kind = kind.getElementType()
    if isinstance(value, dict):
        return _tensor(value, device)
    if isinstance(value, (list, tuple)):
        inner = kind.getElementType() if kind.kind() == "ListType" else kind
        return [_live(entry, inner, device) for entry in value]
    if value is not None and str(kind) == "Device":
        return torch.device(device)
    if isinstance(value, str) and str(kind) in ("ScalarType", "Layout", "MemoryFormat"):
        return getattr(torch, value.removeprefix("torch."))
    if str(kind) == "Generator":
        return None
    return value


def _tensor(facts: dict[str, Any], device: str) -> torch.Tensor:
    """A tensor of these facts: floating-point ones without memory, others with it."""
    dtype = getattr(torch, facts["dtype"].removeprefix("torch."))
    shape = [int(size) for size in facts["shape"]]
    stride = facts.get("stride")
    if stride is None:
        stride = torch.empty(shape, device="meta").stride()
    if dtype.is_floating_point or dtype.is_complex:
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    length = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if all(shape) else 0
    flat = torch.zeros(length, dtype=dtype, device=device)
    if dtype == torch.bool:
        flat = torch.rand(length, device=device) < 0.9
    return flat.as_strided(shape, stride)


def _collect(container: Any, place: Any, written: bool, slots: list[TensorSlot]) -> None:
    value = container[place]
    if isinstance(value, list):
        for i in range(len(value)):
            _collect(value, i, written, slots)
    elif isinstance(value, torch.Tensor) and value.is_meta:
        slots.append(TensorSlot(container, place, tuple(value.shape), value.stride(), value.dtype, written))


def _make_valid(name: str, live: dict[str, Any]) -> None:
    """Fill integer tensors with indices that the operation accepts, spread over all that they may be."""
    if name == "embedding":
        _indices(live["indices"], live["weight"].shape[0])
    elif name == "embedding_dense_backward":
        _indices(live["indices"], live["num_weights"])
    elif name in ("_embedding_bag", "_embedding_bag_forward_only"):
        _indices(live["indices"], live["weight"].shape[0])
        _even_steps(live["offsets"], live["indices"].numel())
    elif name in ("_embedding_bag_backward", "_embedding_bag_dense_backward"):
        _bags(live)
    elif name.startswith("nll_loss"):
        _indices(live["target"], live["self"].shape[1 if live["self"].dim() > 1 else 0])
    elif name.startswith(("gather", "scatter", "index_select", "index_add", "index_copy")):
        _indices(live["index"], live["self"].shape[live["dim"]])
    elif name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"):
        for dimension, index in enumerate(live["indices"]):
            if index is not None:
                _indices(index, live["self"].shape[dimension])
    elif name == "max_pool2d_with_indices_backward":
        height, width = live["self"].shape[-2:]
        _indices(live["indices"], height * width)


def _indices(tensor: torch.Tensor, count: int) -> None:
    """Random indices below a count; a tensor whose elements overlap (expanded) is filled through its storage."""
    if tensor.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        length = tensor.untyped_storage().nbytes() // tensor.itemsize
        flat = tensor.as_strided((length,), (1,), 0)
        flat.copy_(torch.randint(0, max(int(count), 1), (length,), device=tensor.device))


def _even_steps(offsets: torch.Tensor, count: int) -> None:
    steps = torch.arange(offsets.numel(), device=offsets.device) * count // max(offsets.numel(), 1)
    offsets.copy_(steps.view_as(offsets))


def _bags(live: dict[str, Any]) -> None:
    """Bags of equal size, described as the forward pass would have."""
    _indices(live["indices"], live["num_weights"])
    count, bags = live["indices"].numel(), live["grad"].shape[0]
    if live.get("offsets") is not None:
        _even_steps(live["offsets"], count)
    live["offset2bag"].copy_(torch.arange(live["offset2bag"].numel()) * bags // max(count, 1))
    live["bag_size"].fill_(max(count // max(bags, 1), 1))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor in a value, in order, through lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for entry in value for tensor in tensors_in(entry)]
    return []
