"""The executor's benchmark on small graphs."""

from __future__ import annotations

import pytest
from repository import BENCHMARKS

from hemiola.kernels.executor import execute


@pytest.fixture(autouse=True)
def _benchmarks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_the_bare_scheduler_reaches_the_same_end() -> None:
    import executor

    for tasks in (executor.random_graph(500), executor.random_graph(300, 3, 20), executor.chains(500)):
        assert executor.plain_of(tasks)() == pytest.approx(execute(tasks).makespan_s, rel=1e-12)


def test_a_ring_alone_takes_what_the_formula_says() -> None:
    import executor

    tasks = executor.rings(1, at_once=1)
    step_s = executor.LATENCY_S + tasks.size_bytes[0] / executor.NIC_BYTES_PER_S
    assert execute(tasks).makespan_s == pytest.approx(126 * step_s)


def test_the_slices_pause_each_other_and_the_slowest_link_is_never_idle() -> None:
    import executor

    tasks = executor.paused(50)
    ended = execute(tasks)
    assert ended.end_s[0] == ended.end_s.max()
    since = tasks.release_s[0] + executor.LATENCY_S
    assert ended.makespan_s == pytest.approx(since + tasks.size_bytes.sum() / tasks.link_bytes_per_s.min())


def test_every_graph_is_executed_and_shown() -> None:
    import executor

    assert "times as fast" in executor.measure_fixed(400, rounds=1)
    assert len(executor.measure_paused((10, 20), rounds=1).splitlines()) == 4
    text = executor.measure_flows(20_000, rounds=1)
    names = [line.split("|")[1].strip() for line in text.splitlines()[2:]]
    assert len(names) == 5
    assert names[0].startswith("iteration on 64 ranks")
