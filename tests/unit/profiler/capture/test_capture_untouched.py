"""A captured model is as it was: values, gradients, flags, hooks and attributes, also after an error."""

from __future__ import annotations

import functools
from collections import OrderedDict, deque
from typing import Any

import pytest
import torch
from capture_samples import small
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from hemiola.core.errors import GraphError
from hemiola.profiler.capture import capture


def facts(model: nn.Module) -> list[Any]:
    """All that could change, by identity and by value."""
    state: list[Any] = []
    for path, module in model.named_modules():
        state.append((path, module.training, sorted(vars(module))))
        state += [(path, name, id(value)) for name, value in vars(module).items()]
        for table in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_parameters", "_buffers"):
            state.append((path, table, [(name, id(value)) for name, value in getattr(module, table).items()]))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        state.append(
            (name, type(tensor), tensor.requires_grad, tensor.grad, tensor._version, tensor.tolist())
        )
        state.append((name, len(tensor._post_accumulate_grad_hooks or ()), tensor._backward_hooks))
    return [*state, len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks)]


@pytest.mark.parametrize("name", ["mlp", "inception", "dlrm", "gpt2", "t5", "resnet"])
def test_a_model_is_untouched(name: str) -> None:
    example = small(name)
    example.model.eval()
    next(iter(example.model.children())).train()
    before, generator = facts(example.model), torch.get_rng_state()
    capture(*example, optimizer=torch.optim.AdamW)
    assert facts(example.model) == before
    assert torch.equal(torch.get_rng_state(), generator)


class Careless(nn.Module):
    """Writes into itself wherever it can, and fails if told to."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.lstm, self.norm = nn.LSTM(8, 8), nn.BatchNorm1d(8)
        self.constant = torch.ones(8)
        self.register_buffer("total", torch.zeros(8))
        self.history: list[Tensor] = []
        self.recent: deque[Tensor] = deque(maxlen=2)
        self.cache: dict[str, Any] = {"calls": 0}
        self.seen: set[int] = set()
        self.fails = fails

    def forward(self, inputs: Tensor) -> Tensor:
        self.cache["calls"] += 1
        self.constant += 1
        self.total = self.total + 1
        self.last = self.norm(self.lstm(inputs)[0]) * self.constant
        self.history.append(self.last)
        self.recent.append(self.last)
        self.seen.add(3)
        self.eval()
        if self.fails and self.last.sum() > 0:
            raise AssertionError
        return self.last.sum()


def test_a_careless_model_is_untouched() -> None:
    model = Careless(fails=False)
    before = facts(model)
    capture(model, torch.zeros(4, 8))
    assert facts(model) == before
    assert (model.history, list(model.recent), model.cache, model.seen) == ([], [], {"calls": 0}, set())
    assert model.constant.tolist() == [1.0] * 8
    assert model(torch.randn(4, 8)).isfinite()


def test_a_model_that_fails_is_untouched() -> None:
    model = Careless(fails=True)
    before = facts(model)
    with pytest.raises(GraphError):
        capture(model, torch.zeros(4, 8))
    assert facts(model) == before


class Frozen(OrderedDict[str, Any]):
    """Refuses to be changed, by some ways; can be emptied. So are the configurations of diffusers' models."""

    def update(self, *given: Any, **named: Any) -> None:
        raise TypeError("cannot be updated")


@pytest.mark.parametrize("value", [8, torch.ones(8)], ids=["number", "tensor"])
def test_a_frozen_configuration_is_untouched(value: Any) -> None:
    model = nn.Linear(8, 8)
    model.config = Frozen(value=value)
    before = facts(model)
    assert capture(model, torch.zeros(4, 8)).operations
    assert facts(model) == before
    assert model.config["value"] is value


class Sealed(dict[str, int]):
    """Cannot be emptied."""

    def clear(self) -> None:
        raise TypeError("cannot be emptied")


class Counting(nn.Module):
    """Counts its calls."""

    def __init__(self, calls: dict[str, int]) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 8), calls

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls["forward"] += 1
        return self.layer(inputs)


def test_one_that_refuses_its_old_content_is_named_and_stops_no_other() -> None:
    model = nn.Sequential(Counting(Sealed(forward=0)), Counting({"forward": 0}))
    before = facts(model)
    with pytest.raises(GraphError, match=r"the model's 0\.calls .* cannot be emptied"):
        capture(model, torch.zeros(4, 8))
    assert facts(model) == before
    assert model[1].calls == {"forward": 0}


@functools.lru_cache
def table(size: int) -> dict[str, tuple[Tensor, int]]:
    return {"range": (torch.arange(float(size)), size)}


@functools.cache
def doubled(size: int) -> int:
    return 2 * size


class Caches(nn.Module):
    """Keeps tensors outside of itself, in cached functions of its file and of its class."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.fails = fails

    @functools.cache  # noqa: B019
    def mask(self, size: int) -> Tensor:
        return torch.ones(size)

    def forward(self, inputs: Tensor) -> Tensor:
        value = self.layer(inputs) * table(doubled(4))["range"][0] * self.mask(8)
        if self.fails and value.sum() > 0:
            raise AssertionError
        return value


@pytest.mark.parametrize("fails", [False, True])
def test_cached_functions_keep_no_stand_in(fails: bool) -> None:
    model = Caches(fails)
    table.cache_clear()
    doubled.cache_clear()
    if fails:
        with pytest.raises(GraphError):
            capture(model, torch.zeros(4, 8))
    else:
        capture(model, torch.zeros(4, 8))
    model.fails = False
    assert model(torch.ones(4, 8)).isfinite().all()
    assert doubled.cache_info().currsize == 1, "a cache without stand-ins keeps what it holds"
    assert capture(model, torch.zeros(4, 8)).operations, "with real tensors in the caches"


def test_gradients_that_are_there_stay() -> None:
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    gradient = model.weight.grad
    assert gradient is not None
    before = gradient.tolist()
    capture(model, torch.ones(1, 3))
    assert model.weight.grad is gradient
    assert gradient.tolist() == before


def test_capturing_twice_gives_the_same() -> None:
    example = small("gpt2")
    first, second = capture(*example), capture(*example)
    assert first.operations.name == second.operations.name
    assert first.operations.dep.tolist() == second.operations.dep.tolist()
    assert first.parameters == second.parameters
    assert first.saved_bytes == second.saved_bytes
