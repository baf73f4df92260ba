"""Which parameters are tables, what their output layers have, and what a profile finds of both."""

from __future__ import annotations

import copy
import io
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn

from hemiola.core.errors import PlanError
from hemiola.core.plan import Piece, Plan, PlannedTransfer
from hemiola.plan.advice import make_plan
from hemiola.train.accelerate.embeddings import TiedHead, planned_tables, tables_of
from hemiola.train.accelerate.measured import mean_of, measured_graph, problem_of
from hemiola.train.accelerate.probe import (
    Cores,
    RankLinks,
)
from hemiola.train.accelerate.profile import TrainingProfile

ROWS, WIDTH = 2000, 16


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)
        self.own = nn.EmbeddingBag(50, WIDTH)
        self.between = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, ROWS)
        self.out.weight = self.table.weight

    def forward(self, words):
        return self.out(torch.tanh(self.between(self.table(words) + self.own(words)[:, None])))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Tied()


WORDS = torch.tensor([[3, 7, 3], [11, 7, 40]])


def names(module):
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def test_tables_are_what_rows_are_looked_up_in(model):
    found = tables_of(model, names(model))
    assert list(found) == ["table.weight", "own.weight"]
    assert found["table.weight"].head == (model.out, "weight")
    assert found["own.weight"].head is None


def heads(*names):
    transfers = [PlannedTransfer(name=n, pieces=(Piece(n, 0, ROWS * WIDTH),), part="head") for n in names]
    return Plan(
        name="early", graph="", ranks=2, update="on-arrival", chunk_bytes=1024, transfers=tuple(transfers)
    )


def test_a_plan_with_an_output_layers_part_needs_a_table_that_has_one(model):
    assert list(planned_tables(heads("table.weight"), model, names(model))) == ["table.weight"]
    assert planned_tables(heads(), model, names(model)) == {}
    for name in ("own.weight", "between.weight"):
        with pytest.raises(PlanError, match=f"'early' sends the output layer's part of '{name}'"):
            planned_tables(heads("table.weight", name), model, names(model))


def test_two_output_layers_are_none_and_frozen_tables_do_not_count(model):
    model.again = nn.Linear(WIDTH, ROWS, bias=False)
    model.again.weight = model.table.weight
    assert tables_of(model, names(model))["table.weight"].head is None
    model.waves = nn.Embedding(4, 2, dtype=torch.complex64)
    assert "waves.weight" not in tables_of(model, names(model))
    model.table.weight.requires_grad_(False)
    assert list(tables_of(model, names(model))) == ["own.weight"]


def test_the_output_layers_part_is_told_and_nothing_else_changes(model):
    model(WORDS).pow(2).sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    told = []
    head = TiedHead(tables_of(model, names(model))["table.weight"], lambda part: told.append(part.clone()))
    model(WORDS).pow(2).sum().backward()
    assert all(torch.equal(p.grad, expected[name]) for name, p in model.named_parameters())
    assert "weight" not in model.out.__dict__ and model.out.weight is model.table.weight
    assert head.looked_up.nonzero().view(-1).tolist() == [3, 7, 11, 40]
    (part,) = told
    same = torch.ones(ROWS, dtype=torch.bool)
    same[[3, 7, 11, 40]] = False
    assert torch.equal(part[same], expected["table.weight"][same])
    assert not torch.equal(part[~same], expected["table.weight"][~same])
    with torch.no_grad():
        model(WORDS + 5)
    assert head.looked_up.sum() == 4
    head.remove()
    model(WORDS).sum().backward()
    assert len(told) == 1


def test_a_forward_that_fails_leaves_the_output_layer_as_it_was(model):
    TiedHead(tables_of(model, names(model))["table.weight"], lambda part: None)
    with pytest.raises(RuntimeError):
        model.out(torch.ones(2, WIDTH + 1))
    assert "weight" not in model.out.__dict__
    with pytest.raises(IndexError):
        model(WORDS + ROWS)
    model(WORDS).sum().backward()


def test_copies_and_borrowed_weights_are_left_alone(model):
    told = []
    TiedHead(tables_of(model, names(model))["table.weight"], told.append)
    loaded = io.BytesIO()
    torch.save(model, loaded)
    loaded.seek(0)
    for other in (copy.deepcopy(model), torch.load(loaded, weights_only=False)):
        other(WORDS).sum().backward()
        assert other.table.weight.grad is not None and not told
    others = {name: torch.zeros_like(p, requires_grad=True) for name, p in model.named_parameters()}
    torch.func.functional_call(model, others, WORDS).sum().backward()
    assert others["table.weight"].grad is not None and model.table.weight.grad is None and not told
    model(WORDS).sum().backward()
    assert len(told) == 1


def measured(model, words, call=None):
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    profile = TrainingProfile(model, names(model), 3)
    for _ in range(3):
        profile.forward_begins()
        loss = (call or model)(words).pow(2).sum()
        profile.forward_ends()
        loss.backward()
        profile.step_begins()
        optimizer.step()
        optimizer.zero_grad()
        profile.step_ends()
    profile.stop()
    return profile.measured(1)


def test_copies_of_a_module_that_is_measured_can_be_saved_then_and_later(model):
    profile = TrainingProfile(model, names(model), 1)
    copied = copy.deepcopy(model)
    torch.save(model, io.BytesIO())
    profile.stop()
    loaded = io.BytesIO()
    torch.save(copied, loaded)
    loaded.seek(0)
    assert torch.equal(torch.load(loaded, weights_only=False)(WORDS), model(WORDS))


def test_a_profile_has_every_iteration_and_not_what_a_wrapper_does_before_the_module(model):
    waits = []

    class Wrapper(nn.Module):
        def forward(self, words):
            time.sleep(0.5 if waits else 0.0)
            return model(words)

    plain = measured(model, WORDS)
    waits.append(True)
    found = measured(model, WORDS, call=Wrapper())
    assert len(found.computed_s) == 2
    for one in (plain, found):
        assert 0 < min(one.used_s.values()) < one.forward_end_s < max(one.computed_s) < 0.5


def test_a_profile_finds_rows_and_heads_and_ranks_touch_them_together(model):
    both = mean_of([measured(model, WORDS), measured(model, torch.tensor([[40, 41]]))])
    graph, _ = measured_graph("tied", both, names(model))
    known = {p.name: p for p in graph.parameters}
    assert known["table.weight"].touched == pytest.approx(5 / ROWS)
    assert known["own.weight"].touched == pytest.approx(5 / 50)
    assert known["between.weight"].touched == 1.0 and known["between.weight"].head_ready == -1
    table, between = known["table.weight"], known["between.weight"]
    assert 0 < table.head_ready < between.gradient_ready < table.gradient_ready
    assert known["own.weight"].head_ready == -1
    assert np.unpackbits(both.touched["table.weight"]).nonzero()[0].tolist() == [3, 7, 11, 40, 41]


def test_where_links_are_slow_the_plan_sends_what_is_touched(model):
    graph, seconds = measured_graph("tied", measured(model, WORDS), names(model))
    links = RankLinks("here", 1e-4, 1e6, 1e6, 1e-9)
    advice = make_plan(problem_of(graph, seconds, links, 2, Cores(2, 1)))
    parts = {t.part: t for t in advice.plan.transfers if t.pieces[0].parameter == "table.weight"}
    assert set(parts) == {"head", "rows"}
    assert parts["head"].priority < parts["rows"].priority
    assert any("rows" in words for words in advice.plan.changes)
    dense = advice.plan.dense().verify(graph)
    assert {t.part for t in dense.transfers} == {"all"}
    assert len(dense.transfers) == len(advice.plan.transfers) - 1


def test_a_table_that_all_of_is_looked_up_in_goes_as_it_is(model):
    graph, seconds = measured_graph("tied", measured(model, torch.arange(ROWS)[None] % 50), names(model))
    assert {p.name: p.touched for p in graph.parameters}["own.weight"] == 1.0
    plan = make_plan(problem_of(graph, seconds, RankLinks("here", 1e-4, 1e6, 1e6, 1e-9), 2, Cores(2, 1))).plan
    assert {t.part for t in plan.transfers if t.pieces[0].parameter == "own.weight"} == {"all"}
