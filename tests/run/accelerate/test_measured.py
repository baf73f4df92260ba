"""A measured iteration as a graph that predictions are made from."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from hemiola.cost.strategies import DDP  # noqa: E402
from hemiola.run.accelerate.measured import measured_graph, problem_of  # noqa: E402
from hemiola.run.accelerate.probe import Links  # noqa: E402
from hemiola.run.accelerate.processors import Cores  # noqa: E402
from hemiola.run.accelerate.profile import Measured  # noqa: E402

PARAMETERS = {name: nn.Parameter(torch.zeros(4, 4)) for name in "abc"}


def iteration():
    return Measured(
        used_s={"c": 0.0, "b": 0.3, "a": 0.6}, forward_end_s=0.9, ready_s={"a": 1.0, "b": 2.0, "c": 3.0},
        step_start_s=5.0, end_s=5.5,
    )  # fmt: skip


def test_ranks_wait_for_the_slowest_of_them_as_much_as_they_differ():
    graph, seconds = measured_graph("m", iteration(), PARAMETERS)
    links = Links("h", 1e-5, 1e9, 0.0)

    def predicted_s(noise):
        return (
            problem_of(graph, seconds, links, 2, Cores(), noise).predict_strategy(DDP(25 << 20)).iteration_s
        )

    assert predicted_s(0.06745) == pytest.approx(predicted_s(0.0) + 0.1 * 0.589 * seconds.sum(), rel=1e-2)
