"""A capture beside what PyTorch really does: same operations, same FLOP, same order of gradients, no missing dependency."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture_samples import (
    SMALL,
    Call,
    RealRun,
    conflicts,
    run_forward_backward,
    small,
)  # fmt: skip
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from hemiola.core.graph import KINDS, PHASES, Graph
from hemiola.profiler.capture import capture

VIEW = KINDS.index("view")
OPTIMIZER = PHASES.index("optimizer")
aten = torch.ops.aten


def as_on_a_gpu(operation: Any) -> Callable[..., int]:
    """PyTorch's formula for an operation, as its counter takes it for another."""

    def formula(*arguments: Any, **keywords: Any) -> int:
        return int(flop_registry[operation](*arguments, **keywords))

    formula._get_raw = True  # type: ignore[attr-defined]
    return formula


ATTENTION = {  # PyTorch's counter has formulas for attention, but not under the names of its kernels for CPUs
    aten._scaled_dot_product_flash_attention_for_cpu: as_on_a_gpu(aten._scaled_dot_product_flash_attention),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        as_on_a_gpu(aten._scaled_dot_product_flash_attention_backward)
    ),
}


def training_rows(graph: Graph) -> range:
    """Forward and backward: the optimizer stands last."""
    return range(int((graph.operations.phase < OPTIMIZER).sum()))


def working_rows(graph: Graph) -> list[int]:
    """The operations that write something."""
    return [row for row in range(len(graph.operations)) if graph.operations.kind[row] != VIEW]


def unordered(graph: Graph, rows: list[int], calls: list[Call]) -> list[tuple[int, int]]:
    """Conflicting pairs of really run operations that the graph's dependencies do not keep in order."""
    before: list[int] = []
    for row in range(len(graph.operations)):
        reached = 0
        for other in graph.operations.dependencies(row).tolist():
            reached |= before[other] | 1 << other
        before.append(reached)
    return [(i, j) for i, j in conflicts(calls) if not before[rows[j]] >> rows[i] & 1]


@pytest.mark.parametrize("name", SMALL)
def test_the_same_operations_as_a_real_run(name: str) -> None:
    example = small(name)
    graph = capture(*example)
    with RealRun(addresses=False) as real:
        run_forward_backward(example)
    assert [graph.operations.name[i] for i in training_rows(graph)] == [call.name for call in real.calls]


@pytest.mark.parametrize("name", SMALL)
def test_flop_as_pytorch_counts_them(name: str) -> None:
    example = small(name)
    graph = capture(*example)
    with FlopCounterMode(display=False, custom_mapping=ATTENTION) as counter:
        run_forward_backward(example)
    assert graph.flop == counter.get_total_flops() > 0


@pytest.mark.parametrize("name", SMALL)
def test_gradients_become_ready_in_the_order_of_real_hooks(name: str) -> None:
    example = small(name)
    graph = capture(*example)
    order: list[str] = []
    for key, parameter in example.model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, key=key: order.append(key))
    run_forward_backward(example)
    ready = {parameter.name: parameter.gradient_ready for parameter in graph.parameters}
    rows = [ready.pop(key) for key in order]
    assert rows == sorted(rows)
    assert set(ready.values()) <= {-1}


@pytest.mark.parametrize("name", ["mlp", "dlrm", "gpt2", "bert", "llama", "vit", "resnet"])
def test_every_real_conflict_is_a_dependency_and_nothing_else_is(name: str) -> None:
    example = small(name)
    graph = capture(*example)
    with RealRun() as real:
        run_forward_backward(example)
    assert unordered(graph, list(training_rows(graph)), real.calls) == []
    rows = [
        row for row in training_rows(graph) if real.calls[row].writes
    ]  # a view waits too, and writes nothing
    found = {(int(before), row) for row in rows for before in graph.operations.dependencies(row)}
    assert found <= set(conflicts(real.calls))


class InPlace(nn.Module):
    """Writes into views of memory that others read, and reads what was overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        self.seen += hidden.detach().mean(0)
        board = torch.zeros(inputs.shape[0], 16)
        board[:, :8] = hidden
        board[:, 8:] = self.second(hidden.relu()) + self.seen
        copy = board.clone()
        board.mul_(2).clamp_(min=0)
        left, right = board.chunk(2, dim=1)
        return (left * right + copy[:, 4:12]).sum()


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "Adagrad"])
def test_writing_in_place_orders_what_it_must_up_to_the_optimizer(optimizer: str) -> None:
    torch.manual_seed(0)
    model, inputs = InPlace(), torch.randn(4, 6)
    kind = getattr(torch.optim, optimizer)
    graph = capture(model, inputs, optimizer=kind)
    stepping = kind(model.parameters())
    model(inputs).backward()
    stepping.step()  # makes the optimizer's state, as every iteration but the first finds it
    stepping.zero_grad()
    with RealRun() as real:
        model(inputs).backward()
        stepping.step()
    calls = [
        call for call in real.calls if call.writes
    ]  # a capture repeats some views after writing in place
    rows = working_rows(graph)
    assert [graph.operations.name[row] for row in rows] == [call.name for call in calls]
    assert unordered(graph, rows, calls) == []


def test_writing_different_parts_of_one_memory_needs_no_order() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, inputs: Tensor) -> Tensor:
            board = torch.empty(8, 8)
            board[:4].copy_(inputs)
            board[4:].copy_(inputs)
            board[2:6].mul_(3)
            return (board * self.weight).sum()

    operations = capture(Halves(), torch.zeros(4, 8)).operations
    upper, lower = (row for row, name in enumerate(operations.name) if name == "aten.copy_.default")
    both = operations.name.index("aten.mul_.Tensor")
    product = operations.name.index("aten.mul.Tensor")
    assert operations.dependencies(lower).tolist() == []
    assert operations.dependencies(both).tolist() == [upper, lower]
    assert operations.dependencies(product).tolist() == [upper, lower, both]


@pytest.mark.parametrize("name", ["gpt2", "vit"])
def test_mixed_precision_and_accumulation_run_the_same_operations(name: str) -> None:
    example = small(name)
    graph = capture(*example, accumulate=2, autocast="bfloat16")
    with RealRun(addresses=False) as real:
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = example.model(**example.inputs).loss
            loss.backward()
            del loss
    assert [graph.operations.name[i] for i in training_rows(graph)] == [call.name for call in real.calls]


def test_the_first_use_of_each_parameter_in_forward() -> None:
    example = small("gpt2")
    graph = capture(*example)
    order: list[str] = []
    names = {id(p): key for key, p in example.model.named_parameters()}
    for module in example.model.modules():
        module.register_forward_pre_hook(
            lambda module, _: order.extend(
                names[id(p)] for p in module.parameters(recurse=False) if names[id(p)] not in order
            )
        )
    run_forward_backward(example)
    used = {parameter.name: parameter.first_use for parameter in graph.parameters}
    rows = [used[key] for key in order]
    assert len(order) == len(graph.parameters)
    assert rows == sorted(rows)
