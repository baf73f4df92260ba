"""A measured iteration as a graph that predictions are made from."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from hemiola.cost.parallelism import DDP
from hemiola.cost.prediction.uncertainty import expected_maximum
from hemiola.train.accelerate import probe
from hemiola.train.accelerate.measured import (
    autoplan,
    mean_of,
    measured_graph,
    problem_of,
)
from hemiola.train.accelerate.probe import (
    Cores,
    RankLinks,
)
from hemiola.train.accelerate.profile import MeasuredIteration

PARAMETERS = {name: nn.Parameter(torch.zeros(4, 4)) for name in "abc"}


def iteration():
    return MeasuredIteration(
        used_s={"c": 0.0, "b": 0.3, "a": 0.6}, forward_end_s=0.9, ready_s={"a": 1.0, "b": 2.0, "c": 3.0},
        step_start_s=5.0, end_s=5.5,
    )  # fmt: skip


def test_ranks_wait_for_the_slowest_of_them_as_much_as_they_differ():
    graph, seconds = measured_graph("m", iteration(), PARAMETERS)
    links = RankLinks("h", 1e-5, 1e9, 1e9, 0.0)

    def predicted_s(noise):
        return (
            problem_of(graph, seconds, links, 2, Cores(), noise)
            .predict_parallelism(DDP(25 << 20))
            .iteration_s
        )

    assert predicted_s(0.06745) == pytest.approx(predicted_s(0.0) + 0.1 * 0.589 * seconds.sum(), rel=1e-2)


def test_how_long_the_slowest_rank_was_waited_for_is_what_is_predicted():
    """In each iteration the slower rank took 1.2 times the mean, whichever it was; that both were slow once is no wait."""
    found = [replace(iteration(), computed_s=times) for times in ((0.8, 1.2, 2.4), (1.2, 0.8, 1.6))]
    both = mean_of(found)
    assert 1 + expected_maximum(2) * both.noise / 0.6745 == pytest.approx(1.2, abs=1e-4)
    assert both.computed_s == (1.2, 1.2, 2.4)
    assert mean_of([found[0], found[0]]).noise == 0.0
    assert mean_of(found[:1]).noise == 0.0


def test_links_that_are_slower_beside_computing_are_so_for_as_long_as_ranks_compute():
    links = RankLinks("h", 1e-5, 1e9, 4e8, 0.0)
    assert links.cost("hemiola", 2).bytes_per_s == 1e9
    assert links.cost("hemiola", 2, computing=0.25).bytes_per_s == pytest.approx(0.25 * 4e8 + 0.75 * 1e9)
    tensors = {name: nn.Parameter(torch.zeros(1000, 1000)) for name in "abc"}
    cores = probe.Cores(1, 1)

    def figures(beside):
        slow = RankLinks("h", 1e-5, 2e6, beside, 1e-9)
        return autoplan("m", iteration(), tensors, slow, 2, cores, 0.0).figures

    same, slower = figures(2e6), figures(1.6e6)
    for name in ("predicted_s", "bound_s"):
        assert slower[name] > same[name] * 1.1
    assert slower["predicted_before_s"] == same["predicted_before_s"]
    assert slower["bound_s"] <= slower["predicted_s"] * 1.001


def rank_on(cores, busy=1.0, machine="m", copied=8e9):
    return probe.Processors(machine, frozenset(cores), 2, busy, copied)


def test_ranks_have_their_part_of_a_machine_s_cores_and_the_slowest_one_s_memory():
    found = probe.cores_of([rank_on({0, 1, 2, 3}), rank_on({0, 1, 2, 3}, copied=3e9)])
    assert found == probe.Cores(2, 2, 3e9)
    apart = probe.cores_of([rank_on({0, 1}), rank_on({0, 1}, machine="n")])
    assert apart == probe.Cores(2, 2, 8e9)
    asleep = probe.cores_of([rank_on({0}), rank_on({0}, busy=0.1)])
    assert asleep.cores > 100 and asleep.copied_bytes_per_s == 8e9
    own = probe.own_processors(1.0)
    assert 1e8 < own.copied_bytes_per_s < 1e12
