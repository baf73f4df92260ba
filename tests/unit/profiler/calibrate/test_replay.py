"""Signatures made real, and graphs run again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from hemiola.core.graph import Graph, Signature
from hemiola.profiler.calibrate.arguments import Unreplayable, call_of
from hemiola.profiler.calibrate.clocks import CpuClock
from hemiola.profiler.calibrate.replay import GraphReplay
from hemiola.profiler.capture import capture


def tensor(*shape: int, dtype: str = "float32", stride: list[int] | None = None) -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype, "stride": stride}


POOLED = tensor(2, 3, 4, 4, dtype="int64")


def live(signature: Signature) -> Any:
    call = call_of(signature, "cpu")
    for slot in call.slots:
        slot.fill(slot.fresh("cpu", 0.1, 1.0))
    return call


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("aten.embedding.default", (tensor(7, 3), tensor(50, dtype="int64"))),
        ("aten.embedding.default", (tensor(7, 3), tensor(4, 5, dtype="int64", stride=[0, 1]))),
        ("aten.embedding_dense_backward.default", (tensor(5, 3), tensor(5, dtype="int64"), 7, -1, False)),
        ("aten.nll_loss_forward.default", (tensor(9, 4), tensor(9, dtype="int64"), None, 1, -100)),
        ("aten.gather.default", (tensor(4, 6), 1, tensor(4, 2, dtype="int64"))),
        ("aten.index.Tensor", (tensor(4, 6), [None, tensor(3, dtype="int64")])),
        ("aten.index_select.default", (tensor(4, 6), 0, tensor(9, dtype="int64"))),
        (
            "aten._embedding_bag.default",
            (tensor(9, 4), tensor(12, dtype="int64"), tensor(3, dtype="int64"), False, 0, False, None),
        ),
        (
            "aten.max_pool2d_with_indices_backward.default",
            (tensor(2, 3, 4, 4), tensor(2, 3, 8, 8), [2, 2], [2, 2], [0, 0], [1, 1], False, POOLED),
        ),
        ("aten._to_copy.default", (tensor(3, 4),)),
        ("aten.arange.start", (0, 5)),
    ],
)
def test_values_that_the_operation_accepts(operation: str, arguments: tuple[Any, ...]) -> None:
    keywords = {"dtype": "torch.bfloat16"} if "_to_copy" in operation else {}
    assert live(Signature(operation, arguments, keywords))() is not None


def test_shapes_strides_and_types_are_as_asked() -> None:
    call = live(Signature("aten.mm.default", (tensor(5, 4, stride=[1, 5]), tensor(4, 3))))
    left, right = call.arguments
    assert (left.stride(), right.stride()) == ((1, 5), (3, 1))
    assert call().shape == (5, 3)


def test_embedding_indices_reach_all_rows() -> None:
    call = live(Signature("aten.embedding.default", (tensor(10, 3), tensor(1000, dtype="int64"))))
    assert set(call.arguments[1].tolist()) == set(range(10))


@pytest.mark.parametrize("operation", ["aten.nosuchthing.default", "nonsense", "other.mm.default"])
def test_an_unknown_operation_is_told(operation: str) -> None:
    with pytest.raises(Unreplayable, match=operation.split(".")[-2] if "." in operation else operation):
        call_of(Signature(operation, ()), "cpu")


class Small(nn.Module):
    """A table, a product, an activation, dropout and a loss: something of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.inner = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.dropout(self.norm(functional.gelu(self.inner(self.words(x)))), 0.1)
        return functional.cross_entropy(self.head(y).flatten(0, 1), x.flatten())


@pytest.fixture(scope="module")
def small() -> Graph:
    return capture(Small(), (torch.zeros(4, 8, dtype=torch.long),), optimizer=torch.optim.AdamW)


def test_every_operation_of_a_graph_runs_and_takes_time(small: Graph) -> None:
    replay, clock = GraphReplay(small, "cpu", repeats=1000), CpuClock(1)
    rounds = np.array([replay.round(clock) for _ in range(3)])
    assert replay.failures == {}
    assert np.isfinite(rounds).all()
    assert (rounds > 0).all()


def test_a_signature_is_repeated_no_more_than_asked(small: Graph) -> None:
    ran = ~np.isnan(GraphReplay(small, "cpu", repeats=2).round(CpuClock(1)))
    counts = np.bincount(small.operations.signature[ran], minlength=len(small.signatures))
    everything = np.bincount(small.operations.signature, minlength=len(small.signatures))
    assert (counts == np.minimum(everything, 2)).all()


def test_results_flow_to_those_who_wait_for_them(small: Graph) -> None:
    """The activation is computed on what the product gave, not on a tensor of its own."""
    seen: dict[str, Any] = {}

    class Spy(CpuClock):
        def time(self, row: int, call: Any) -> Any:
            result = super().time(row, call)
            name = small.operations.name[row]
            if small.operations.phase[row] == 0:
                seen.setdefault(name, ([*call.arguments], result))
            return result

    GraphReplay(small, "cpu").round(Spy(1))
    product, activation = seen["aten.addmm.default"], seen["aten.gelu.default"]
    assert activation[0][0].data_ptr() == product[1].data_ptr()


def test_what_only_the_next_operation_needs_is_given_back_after_it(small: Graph) -> None:
    """As the optimizer's square roots, one for each parameter."""
    roots: list[StorageWeakRef] = []
    alive: list[int] = []

    class Spy(CpuClock):
        def time(self, row: int, call: Any) -> Any:
            alive.append(sum(not root.expired() for root in roots))
            result = super().time(row, call)
            if small.operations.name[row] == "aten.sqrt.default":
                roots.append(StorageWeakRef(result.untyped_storage()))
            return result

    GraphReplay(small, "cpu").round(Spy(1))
    assert len(roots) == len(small.parameters)
    assert max(alive) == 1


def test_what_cannot_run_is_told_and_the_rest_runs(small: Graph) -> None:
    broken = list(small.signatures)
    place = [signature.operation for signature in broken].index("aten.gelu.default")
    broken[place] = Signature("aten.gelu.gone", broken[place].arguments)
    graph = Graph(name="broken", operations=small.operations, signatures=tuple(broken))
    replay = GraphReplay(graph, "cpu")
    seconds = replay.round(CpuClock(1))
    assert list(replay.failures) == [place]
    assert np.isnan(seconds[small.operations.signature == place]).all()
    assert np.isfinite(seconds).sum() > 20


def test_little_memory_is_enough(small: Graph) -> None:
    """Weights and state share tensors of one size when they may not take more."""
    replay = GraphReplay(small, "cpu", repeats=1000, limit_bytes=0)
    assert np.isfinite(replay.round(CpuClock(1))).all()
    assert replay.failures == {}
