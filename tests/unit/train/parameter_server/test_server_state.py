"""An optimizer's state, divided over servers and put together again, is the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hemiola.train.parameter_server.layout import Parcel, Tensor, lay_out
from hemiola.train.parameter_server.server import Kept, Push, Shard
from hemiola.train.parameter_server.state import (
    BY_ELEMENT,
    BY_TENSOR,
    Hyper,
    beside,
    by_element,
    hyper_of,
    joined,
    part_of,
    shape_of,
    to_send,
)

SHAPES = [(3, 5), (7,), (300, 400), (), (1,), (64, 64)]


def trained(name: str, steps: int) -> tuple[list[nn.Parameter], Any]:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in SHAPES if name != "Muon" or len(shape) == 2]
    optimizer = getattr(torch.optim, name)(parameters)
    for _ in range(steps):
        for parameter in parameters[:-1]:  # one never has a gradient
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return parameters, optimizer


def same(ours: Any, wanted: Any) -> None:
    assert ours.keys() == wanted.keys()
    for number, state in wanted.items():
        assert ours[number].keys() == state.keys()
        for name, value in state.items():
            other = ours[number][name]
            assert torch.equal(torch.as_tensor(other), torch.as_tensor(value)), name
            assert torch.as_tensor(other).shape == torch.as_tensor(value).shape, name


@pytest.mark.parametrize("name", sorted(BY_ELEMENT | BY_TENSOR))
@pytest.mark.parametrize("servers", [1, 3])
def test_servers_that_begin_with_it_have_it(name: str, servers: int) -> None:
    parameters, optimizer = trained(name, 3)
    whole = not by_element(optimizer)
    layout = lay_out([Tensor(p.numel(), p.element_size(), "", whole) for p in parameters], servers)
    hyper = hyper_of(optimizer, optimizer.param_groups[0])
    shards = {}
    for number, parcel in enumerate(layout.parcels):
        members = [parameters[stretch.tensor] for stretch in parcel.stretches]
        shapes = tuple(shape_of(s, p) for s, p in zip(parcel.stretches, members, strict=True))
        begun = {
            place: part_of(optimizer.state[p], p, stretch)
            for place, (stretch, p) in enumerate(zip(parcel.stretches, members, strict=True))
            if optimizer.state.get(p)
        }
        kept = Kept(number, parcel, torch.float32, shapes, hyper, bytes(parcel.size_bytes), begun)
        shards[number] = Shard(kept)
        for stretch, master, parameter in zip(
            parcel.stretches, shards[number]._masters, members, strict=True
        ):
            master.copy_(parameter.detach().reshape(-1)[stretch.start : stretch.stop].view_as(master))

    def kept_now() -> Any:
        return joined(layout, {number: shard.states() for number, shard in shards.items()}, parameters)

    same(kept_now(), copy.deepcopy(optimizer.state_dict()["state"]))
    for _ in range(2):
        for parameter in parameters[:-1]:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        with torch.no_grad():
            for number, parcel in enumerate(layout.parcels):
                shards[number].update([push_of(parcel, parameters, hyper)], 1)
    same(kept_now(), optimizer.state_dict()["state"])


def push_of(parcel: Parcel, parameters: list[nn.Parameter], hyper: Hyper) -> Push:
    push = Push(torch.zeros(parcel.push_bytes, dtype=torch.uint8), parcel, torch.float32)
    for place, (stretch, into) in enumerate(zip(parcel.stretches, push.stretches, strict=True)):
        gradient = parameters[stretch.tensor].grad
        push.present[place] = gradient is not None
        if gradient is not None:
            into.copy_(gradient.reshape(-1)[stretch.start : stretch.stop])
    numbers = hyper.numbers({**hyper.fixed, **hyper.numeric})
    push.numbers[: len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
    return push


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=8), st.integers(1, 4), st.integers(64, 4096))
def test_however_tensors_are_cut(sizes: list[int], servers: int, cut_bytes: int) -> None:
    parameters = [torch.zeros(size) for size in sizes]
    states = {
        number: {"step": torch.tensor(float(number)), "mean": torch.randn(size), "number": number}
        for number, size in enumerate(sizes)
        if number % 3 != 2
    }
    layout = lay_out([Tensor(size, 4) for size in sizes], servers, cut_bytes)
    parts = {
        number: {
            place: part_of(states[stretch.tensor], parameters[stretch.tensor], stretch)
            for place, stretch in enumerate(parcel.stretches)
            if stretch.tensor in states
        }
        for number, parcel in enumerate(layout.parcels)
    }
    same(joined(layout, parts, parameters), states)


def test_what_a_gpu_has_is_sent_from_the_hosts_memory_and_comes_to_each_ranks_own() -> None:
    with FakeTensorMode():
        had = {"step": torch.zeros(()), "mean": torch.zeros(3, device="cuda:1"), "factor": 0.5}
        sent, away = to_send(had)
        assert {value.device.type for value in sent.values() if isinstance(value, torch.Tensor)} == {"cpu"}
        back = beside(torch.zeros(3, device="cuda:0"), sent, away)
    assert (str(back["step"].device), str(back["mean"].device), back["factor"]) == ("cpu", "cuda:0", 0.5)
