"""What `benchmarks/synchronisation.py` makes of its runs."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from repository import BENCHMARKS


@pytest.fixture(autouse=True)
def _benchmarks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_the_target_is_reached_by_the_mean_of_all_ranks_in_the_order_of_time(monkeypatch):
    import synchronisation

    monkeypatch.setattr(synchronisation, "SMOOTH", 2)
    ends, losses = [[1.0, 3.0, 5.0], [2.0, 4.0]], [[5.0, 3.0, 1.0], [4.0, 1.0]]
    assert synchronisation.reached_s(ends, losses, 2.0) == 4.0  # 5 4 3 1 1 at 1 2 3 4 5
    assert synchronisation.reached_s(ends, losses, 1.0) == 5.0
    assert synchronisation.reached_s(ends, losses, 0.5) is None


def test_the_page_says_what_decoupling_gains_and_what_was_not_reached():
    pytest.importorskip("torch")
    import synchronisation
    from synchronisation import page, picture

    ways = synchronisation.ways()
    even, slow = {}, {}
    for found, asp_s in ((even, 7.0), (slow, None)):
        for way in ways:
            usual_s = 10.0 if way.coupled or way.name.startswith("all") else 7.0
            target_s = asp_s if way.label == "ASP" else usual_s
            found["n-gram", way.label] = [synchronisation.Outcome(target_s, 0.05, 2.5, 0.04)] * 3
    settings = {"rate": "500mbit", "rounds": 3, "sleep_ms": 60.0}
    text = page(even, slow, ways, settings, "a command")
    assert "| n-gram | 30 to 30 % | 4 of 4 | BSP: 0.70 |" in text
    assert "| n-gram, one rank slow | 30 to 30 % | 3 of 3 | BSP: 0.70 |" in text
    assert "| ASP | not reached |" in text
    root = ElementTree.fromstring(picture(even, slow, ways))
    assert root.tag.endswith("svg")


def test_every_task_can_be_drawn_and_learns_something():
    torch = pytest.importorskip("torch")
    from synchronisation_job import TASKS

    for name, make in TASKS.items():
        task = make()
        batch = task.draw(torch.Generator().manual_seed(0))
        loss = task.loss((batch[0][:4], batch[1][:4]))
        loss.backward()
        assert loss.isfinite(), name
        assert all(p.grad is not None for p in task.model.parameters())
        assert task.target < float(loss.detach())
