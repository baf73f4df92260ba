"""The benchmarks of prediction: they find what was put in, and stay as accurate on published data as the docs say."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from repository import BENCHMARKS


@pytest.fixture(autouse=True)
def _benchmarks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_the_fit_finds_the_model_that_made_the_data() -> None:
    import published_placements as published

    hosts = np.repeat([6.0, 8.0, 12.0], 9)
    gpus = hosts * np.tile(np.repeat([1.0, 2.0, 4.0], 3), 3)
    batch = np.tile([4.0, 8.0, 16.0], 9)
    compute = 0.1 + 0.02 * batch
    made = published.Model(np.unique(batch), np.unique(compute), np.array([0.02, 0.1]), 1e-3, 0.5, 0.05, 0.4)
    cases = published.Cases(gpus, hosts, batch, np.zeros(27), np.zeros(27))
    step_s = made.steps_s(cases)
    found = published.fit(published.Cases(gpus, hosts, batch, step_s, step_s - compute))
    assert (found.alpha_s, found.network_s, found.host_s) == pytest.approx((1e-3, 0.5, 0.05), rel=1e-6)
    assert found.overlap == pytest.approx(0.4)
    elsewhere = published.Cases(np.array([8.0]), np.array([2.0]), np.array([32.0]), np.zeros(1), np.zeros(1))
    assert found.steps_s(elsewhere) == pytest.approx(made.steps_s(elsewhere))


def test_a_placement_is_read_digit_by_digit(tmp_path: Path) -> None:
    import published_placements as published

    (tmp_path / "p.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n124,8,1.5,0.5\n", encoding="utf-8"
    )
    cases = published.read_placements(tmp_path / "p.csv")
    assert (cases.gpus[0], cases.hosts[0], cases.step_s[0]) == (7, 3, 1.5)


@pytest.mark.shared_data
def test_published_placements_are_predicted_as_well_as_the_docs_say(shared: Path) -> None:
    import published_placements as published

    page = published.PAGE.read_text(encoding="utf-8")
    lines = published.table(shared / "data" / "profiles" / "pollux")
    assert all(line in page for line in lines)
    assert float(lines[-1].split("**")[1].rstrip("%")) <= 10


def test_the_speed_benchmark_runs_on_a_short_chain() -> None:
    import prediction_speed as speed

    graph = speed.chain(300, 12, 48_000_000)
    text = speed.measure(graph, [8], rounds=1) + speed.agreement(graph, 16)
    assert [word in text for word in speed.PARALLELISMS] == [True] * 3
    assert text.count("met") == 3 and "missed" not in text
    assert "prediction_speed" in sys.modules
