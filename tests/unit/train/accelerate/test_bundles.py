"""Gradients that go together: where they lie, and for how long."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hemiola.core.plan import Piece, Plan, PlannedTransfer
from hemiola.train.accelerate.buckets import Gathered, ParameterSlot, bundles_of
from hemiola.train.accelerate.embeddings import planned_tables
from hemiola.train.accelerate.engine import PlanExecutor
from hemiola.train.accelerate.updates import Updates


class Back:
    """A transfer that is over as soon as it has begun."""

    stood_s, done, sent, moved_s = 0.0, True, True, (0.0, 0.0)
    whole, present = False, False
    parts: tuple[Any, ...] = ()

    def wait(self, timeout_s: float) -> None:
        pass


class Doubling:
    """Two ranks with the same gradients."""

    def all_reduce(self, number: int, name: str, flat: Tensor, *more: Any) -> Any:
        flat.mul_(2)
        return Back()


def slots_of(*pieces: tuple[str, int, int], **shapes: tuple[int, ...]) -> dict[str, ParameterSlot]:
    """Parameters of these shapes, whose pieces all go together."""
    slots = {
        name: ParameterSlot(name, nn.Parameter(torch.zeros(shape)), lambda *_: False)
        for name, shape in shapes.items()
    }
    transfer = PlannedTransfer(name="all", pieces=tuple(Piece(*piece) for piece in pieces))
    plan = Plan(
        name="one", graph="any", ranks=2, update="together", chunk_bytes=1 << 16, transfers=(transfer,)
    )
    bundles_of(plan, slots)
    return slots


def iteration(slots: dict[str, ParameterSlot], value: float) -> None:
    """Backward adds this to every element of every gradient; ranks add them up."""
    for slot in slots.values():
        parameter = slot.parameter
        if parameter.grad is None:
            parameter.grad = torch.full_like(parameter, value)
        else:
            parameter.grad += value
        for bundle in slot.hand_over():
            bundle.launch(Doubling(), 1.0)
    for slot in slots.values():
        slot.bring_back()


def memory_of(slots: dict[str, ParameterSlot]) -> list[int]:
    found = []
    for slot in slots.values():
        assert slot.parameter.grad is not None
        found.append(slot.parameter.grad.data_ptr())
    return found


WHOLE = (("a", 0, 6), ("b", 0, 4))


def test_whole_gradients_stay_where_they_are_reduced_and_the_memory_is_used_again():
    slots = slots_of(*WHOLE, a=(2, 3), b=(4,))
    places = []
    for value in (1.0, 2.0, 3.0):
        iteration(slots, value)
        assert torch.equal(slots["a"].parameter.grad, torch.full((2, 3), 2 * value))
        assert torch.equal(slots["b"].parameter.grad, torch.full((4,), 2 * value))
        places.append(memory_of(slots))
        for slot in slots.values():
            slot.parameter.grad.detach_()  # what older scripts do, and fails with a view
            slot.parameter.grad = None
    assert places[0] == places[1] == places[2]
    assert places[0][1] - places[0][0] == 6 * 4  # one behind the other


def test_gradients_that_are_zeroed_or_kept_accumulate_in_place():
    slots = slots_of(*WHOLE, a=(2, 3), b=(4,))
    iteration(slots, 1.0)
    places = memory_of(slots)
    iteration(slots, 1.0)  # on top of the 2 that is there
    assert torch.equal(slots["b"].parameter.grad, torch.full((4,), 6.0))
    slots["a"].parameter.grad.zero_()
    slots["b"].parameter.grad = None
    iteration(slots, 1.0)
    assert torch.equal(slots["a"].parameter.grad, torch.full((2, 3), 2.0))
    assert torch.equal(slots["b"].parameter.grad, torch.full((4,), 2.0))
    assert memory_of(slots) == places


def test_who_still_holds_a_gradient_keeps_its_values():
    slots = slots_of(*WHOLE, a=(2, 3), b=(4,))
    iteration(slots, 1.0)
    held, part = slots["a"].parameter.grad, slots["b"].parameter.grad[1:3]
    places = memory_of(slots)
    for slot in slots.values():
        slot.parameter.grad = None
    iteration(slots, 5.0)
    assert torch.equal(held, torch.full((2, 3), 2.0)) and torch.equal(part, torch.full((2,), 2.0))
    assert torch.equal(slots["a"].parameter.grad, torch.full((2, 3), 10.0))
    assert set(memory_of(slots)).isdisjoint(places)
    places = memory_of(slots)
    del held, part
    for slot in slots.values():
        slot.parameter.grad = None
    iteration(slots, 1.0)
    assert memory_of(slots) == places


def test_one_that_is_held_while_another_lies_in_place_keeps_its_values():
    slots = slots_of(*WHOLE, a=(2, 3), b=(4,))
    iteration(slots, 1.0)
    held = slots["a"].parameter.grad
    slots["a"].parameter.grad = None
    iteration(slots, 1.0)
    assert torch.equal(held, torch.full((2, 3), 2.0))
    assert torch.equal(slots["b"].parameter.grad, torch.full((4,), 6.0))


def test_gradients_in_memory_of_the_script_s_stay_there():
    slots = slots_of(*WHOLE, a=(2, 3), b=(4,))
    flat = torch.zeros(10)
    slots["a"].parameter.grad, slots["b"].parameter.grad = flat[:6].view(2, 3), flat[6:].detach()
    iteration(slots, 1.0)
    assert torch.equal(flat, torch.full((10,), 2.0))
    flat.zero_()
    iteration(slots, 3.0)
    assert torch.equal(flat, torch.full((10,), 6.0))


def test_parts_of_gradients_and_those_in_another_order_are_brought_back():
    slots = slots_of(("a", 0, 4), ("b", 0, 16), ("a", 5, 6), a=(2, 3), b=(1, 4, 2, 2))
    strided = torch.arange(16.0).view(1, 4, 2, 2).to(memory_format=torch.channels_last)
    slots["b"].parameter.grad = strided
    before = strided.clone()
    iteration(slots, 1.0)
    assert torch.equal(slots["a"].parameter.grad.flatten(), torch.tensor([2.0, 2, 2, 2, 1, 2]))
    assert torch.equal(slots["b"].parameter.grad, 2 * (before + 1))
    assert slots["b"].parameter.grad is strided


def test_what_is_saved_of_a_gradient_is_no_more_than_that():
    slots = slots_of(*WHOLE, a=(2, 3), b=(4,))
    iteration(slots, 1.0)
    for slot in slots.values():
        assert slot.parameter.grad.untyped_storage().nbytes() == slot.parameter.nbytes
        assert copy.deepcopy(slot.parameter.grad).untyped_storage().nbytes() == slot.parameter.nbytes


def test_where_it_is_not_known_who_holds_a_gradient_all_are_copied_back(monkeypatch):
    monkeypatch.setattr(Gathered, "keeps", False)
    slots = slots_of(*WHOLE, a=(2, 3), b=(4,))
    for value in (1.0, 2.0):
        iteration(slots, value)
        assert torch.equal(slots["a"].parameter.grad, torch.full((2, 3), 2 * value))
        buffer = slots["a"].bundles[0].buffer
        assert buffer is not None
        assert {place.data_ptr() for (place,) in buffer.places.values()}.isdisjoint(memory_of(slots))
        for slot in slots.values():
            slot.parameter.grad = None


class BitExchange(Doubling):
    """Alone; notes what is told before and at the end."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def name_rows(self, number: int, named: Sequence[Tensor], priority: int = 0) -> Any:
        self.said.append([own.nonzero().flatten().tolist() for own in named])
        return [len(self.said)] * len(named)

    def reduce_rows(self, number: int, name: str, table: Tensor, names: Any, *more: Any) -> Any:
        assert names == len(self.said) or not more[-1]
        return Back()

    def end_rows(
        self, number: int, tickets: Any, touched: Sequence[Tensor], present: Sequence[bool], priority: int
    ) -> None:
        self.said.append(([own.nonzero().flatten().tolist() for own in touched], list(present)))


class Looking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(9, 2), nn.Embedding(7, 2)

    def forward(self, rows: list[int]) -> Tensor:
        return self.first(torch.tensor(rows, device="cpu")).sum()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_looked_up_is_told_once_and_what_is_touched_once_for_all_tables(device):
    model = Looking()
    parameters = dict(model.named_parameters())
    plan = Plan(
        name="rows", graph="any", ranks=2, update="together", chunk_bytes=1 << 16,
        transfers=tuple(
            PlannedTransfer(name=name, pieces=(Piece(name, 0, p.numel()),), part="rows")
            for name, p in parameters.items()
        ),
    )  # fmt: skip
    optimizer, carrier = torch.optim.SGD(model.parameters(), 0.1), BitExchange()
    with torch.device(device):
        engine = PlanExecutor(
            model,
            parameters,
            plan,
            planned_tables(plan, model, parameters),
            carrier,
            Updates(optimizer, None),
            2,
            10.0,
        )
        for rows in ([3, 5], [4]):
            engine.forward_begins(True)
            loss = model(rows) + parameters["first.weight"][0].sum()  # by hand, which cannot be seen
            engine.forward_ends()
            engine.forward_ends()
            loss.backward()
            engine.step(optimizer.step)
            optimizer.zero_grad()
    assert carrier.said == [
        [[3, 5], []], ([[0, 3, 5], []], [True, False]), [[4], []], ([[0, 4], []], [True, False]),
    ]  # fmt: skip
    engine.detach()
