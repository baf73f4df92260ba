"""When a trace is agreed upon, and what a rank does that heard of it too late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hemiola.run.record.demands import Demands, demand_path
from hemiola.run.record.keeper import Keeper
from hemiola.run.record.parts import PartWriter, read_parts
from hemiola.run.record.profile import Profiling
from hemiola.run.record.recorder import Recorder
from hemiola.run.record.values import Draft, Head, Iteration, Options
from hemiola.trace.jobs.timeline_json import read_timeline

torch_distributed = pytest.importorskip("torch.distributed")


class Rank:
    """One rank's requests, without its thread: visited when the test says."""

    def __init__(self, folder: Path, rank: int, store: Any) -> None:
        head = Head(
            rank=rank, world_size=2, host="h", device="cpu", pid=rank, mode="light", monotonic_ns=0, unix_ns=0
        )
        self.recorder = Recorder()
        self.profiling = Profiling(self.recorder, always=False)
        writer = PartWriter(folder / "parts" / f"rank{rank}", 10)
        writer.write(head)
        self.keeper = Keeper(self.recorder, writer, lambda: head)
        self.keeper.head = head
        options = Options(path=str(folder / "run.json"), parts=str(folder / "parts"))
        self.demands = Demands(self.recorder, self.profiling, self.keeper, options)
        self.demands.store = store

    def iterate(self, duration_s: float) -> None:
        self.recorder.number += 1
        end = round(duration_s * 1e9)
        draft = Draft.__new__(Draft)
        draft.demand, draft.demand_ends = 0, False
        for heard in self.keeper.on_iteration:
            heard(draft, Iteration(self.recorder.number, 0, end, True, False, [], []))

    def visit(self) -> None:
        for action in self.keeper.every:
            action()


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Callable[..., Rank]]:
    made: list[Rank] = []

    def make(number: int, store: Any) -> Rank:
        made.append(Rank(tmp_path, number, store))
        return made[-1]

    yield make
    for one in made:
        one.keeper.writer.close()


def test_a_trace_is_agreed_upon_once_the_pace_is_known_and_at_the_fastest(rank: Callable[..., Rank]) -> None:
    asking = rank(1, torch_distributed.HashStore())
    answered, answer = asking.demands.ask(3)
    asking.visit()
    assert not answered.is_set()
    asking.iterate(0.5)
    asking.iterate(0.01)
    asking.iterate(0.6)
    asking.visit()
    assert answered.is_set()
    assert answer == [1, 3 + 2 + 150]
    assert asking.profiling.demand is not None
    assert asking.profiling.demand.first == answer[1]


def test_who_hears_of_a_trace_too_late_says_so_and_the_others_part_is_kept(
    tmp_path: Path, rank: Callable[..., Rank]
) -> None:
    store = torch_distributed.HashStore()
    first, late = rank(0, store), rank(1, store)
    first.iterate(1.0)
    _, answer = first.demands.ask(3)
    first.visit()
    late.recorder.number = answer[1] + 3
    late.visit()
    assert late.profiling.demand is None
    [part] = read_parts(tmp_path / "parts" / "demand-1")
    assert part.end is not None
    assert (part.head.rank, part.end.why, part.iterations) == (1, "the request came too late", [])


def test_a_late_first_rank_still_has_the_parts_put_together(
    tmp_path: Path, rank: Callable[..., Rank]
) -> None:
    store = torch_distributed.HashStore()
    first, other = rank(0, store), rank(1, store)
    other.iterate(1.0)
    _, answer = other.demands.ask(1)
    other.visit()
    draft = Draft.__new__(Draft)
    draft.demand, draft.demand_ends = 1, True
    for heard in other.keeper.on_iteration:
        heard(draft, Iteration(answer[1], 0, 10**9, True, True, [("forward", "compute", 0, 10**9)], []))
    first.recorder.number = answer[1] + 1
    first.visit()
    for action in first.keeper.at_end:
        action()
    target = demand_path(tmp_path / "run.json", 1)
    assert [merger.wait(60) for merger in first.demands.mergers] == [0]
    timeline = read_timeline(target)
    assert timeline.iterations.rank.tolist() == [1]
    assert "the request came too late" in str(timeline.facts["partial"])
