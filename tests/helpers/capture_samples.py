"""Models to capture, and what PyTorch itself says when they really run: the oracle of these tests."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import torch
from repository import EXAMPLES
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

torch.set_num_threads(1)  # tiny models: threads would wait for each other longer than they work

MODELS = EXAMPLES / "models"

SMALL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mlp": ("mlp", "tiny", {}),
    "vgg": ("vgg", "tiny", {}),
    "inception": ("inception", "tiny", {}),
    "dlrm": ("dlrm", "tiny", {}),
    "gpt2": (
        "hugging_face", "gpt2",
        {"batch": 2, "length": 8, "n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 50, "n_positions": 16,
         "bos_token_id": 0, "eos_token_id": 0},
    ),
    "bert": (
        "hugging_face", "bert",
        {
            "batch": 2, "length": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 32, "vocab_size": 50,
        },
    ),
    "llama": (
        "hugging_face", "llama",
        {
            "batch": 2, "length": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 32, "vocab_size": 50,
        },
    ),
    "t5": (
        "hugging_face", "t5",
        {"batch": 2, "length": 8, "d_model": 16, "d_kv": 8, "num_layers": 2, "num_heads": 2, "d_ff": 32,
         "vocab_size": 50},
    ),
    "vit": (
        "hugging_face", "vit",
        {"batch": 2, "image_size": 32, "patch_size": 16, "hidden_size": 16, "num_hidden_layers": 2,
         "num_attention_heads": 2, "intermediate_size": 32},
    ),
    "resnet": (
        "hugging_face", "resnet",
        {"batch": 2, "pixels": 32, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 2, 1, 1], "embedding_size": 8},
    ),
}  # fmt: skip


def load(name: str) -> ModuleType:
    """A file of examples/models as a module."""
    qualified = f"examples_models_{name}"
    if qualified not in sys.modules:
        spec = importlib.util.spec_from_file_location(qualified, MODELS / f"{name}.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[qualified] = module
        spec.loader.exec_module(module)
    return sys.modules[qualified]


class Example(NamedTuple):
    model: nn.Module
    inputs: Any
    loss: Callable[[Any], Tensor] | None


def small(name: str) -> Example:
    """One of the ten models, small enough to run, on real CPU tensors."""
    file, function, changes = SMALL[name]
    torch.manual_seed(0)
    made = getattr(load(file), function)(device="cpu", **changes)
    return Example(*made) if len(made) == 3 else Example(*made, None)


def run_forward_backward(example: Example) -> None:
    """What a training script does."""
    model, inputs, loss = example
    output = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    (loss(output) if loss else output.loss).backward()


# ---- what really runs ------------------------------------------------------------------------

IGNORED = {"aten.detach.default", "aten.alias.default", "aten.lift_fresh.default"}
ALLOCATE = ("aten.empty", "aten.new_empty")
OVERWRITE = {
    "aten.copy_.default", "aten.zero_.default", "aten.fill_.Scalar", "aten.fill_.Tensor", "aten.bernoulli_.float",
}  # fmt: skip


class Call(NamedTuple):
    name: str
    reads: list[set[int]]
    writes: list[set[int]]


class RealRun(TorchDispatchMode):
    """Logs the operations of a real run, with the addresses of the elements that each reads and writes.

    All memory is kept, so that no address is used twice; tensors are not, since autograd copies a
    gradient that somebody else holds.

    Args:
        addresses: whether to log them; without, only names.
    """

    def __init__(self, addresses: bool = True) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._addresses = addresses
        self._kept: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self._kept += [tensor.untyped_storage() for tensor in tensors(out)]
        name = str(func)
        if func.namespace == "prim" or name in IGNORED:
            return out
        given = tensors((args, kwargs))
        memory = {tensor.untyped_storage().data_ptr() for tensor in given}
        fresh = [t for t in tensors(out) if t.untyped_storage().data_ptr() not in memory]
        written = [
            t
            for place, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
            for t in tensors(kwargs.get(argument.name) if argument.kwarg_only else args[place])
        ]
        if not tensors(out) and not written:
            return out
        idle = (not fresh and not written) or name.startswith(ALLOCATE)
        reads = [] if idle else given[1:] if name in OVERWRITE else given
        writes = [] if idle else [*fresh, *written]
        if not self._addresses:
            reads, writes = [], []
        self.calls.append(Call(name, [elements(t) for t in reads], [elements(t) for t in writes]))
        return out


def tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def elements(tensor: Tensor) -> set[int]:
    """The addresses of a tensor's elements."""
    offsets = {tensor.data_ptr()}
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        offsets = {offset + i * stride * tensor.itemsize for offset in offsets for i in range(size)}
    return offsets if tensor.numel() else set()


def conflicts(calls: list[Call]) -> Iterator[tuple[int, int]]:
    """Pairs of calls (earlier, later) that must not change places: one writes what the other reads or writes."""
    readers: dict[int, set[int]] = {}
    writer: dict[int, int] = {}
    found: set[tuple[int, int]] = set()
    for i, call in enumerate(calls):
        for address in set().union(*call.reads):
            if address in writer:
                found.add((writer[address], i))
            readers.setdefault(address, set()).add(i)
        for address in set().union(*call.writes):
            if address in writer:
                found.add((writer[address], i))
            found |= {(reader, i) for reader in readers.pop(address, ())}
            writer[address] = i
    yield from ((before, after) for before, after in found if before != after)
