"""When a trace is agreed upon, and what a rank does that heard of it too late."""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hemiola.profiler.trace import clock
from hemiola.profiler.trace.demands import Demands, demand_path
from hemiola.profiler.trace.keeper import Keeper
from hemiola.profiler.trace.parts import PartWriter, read_parts
from hemiola.profiler.trace.peers import Peers
from hemiola.profiler.trace.profile import Profiling
from hemiola.profiler.trace.recorder import IterationRecorder
from hemiola.profiler.trace.session import TraceSession
from hemiola.profiler.trace.values import Iteration, IterationDraft, PartHead, TraceOptions
from hemiola.trace.jobs.timeline_json import read_timeline

torch_distributed = pytest.importorskip("torch.distributed")
from patience import patience


class Rank:
    """One rank's requests, without its thread: visited when the test says."""

    def __init__(self, folder: Path, rank: int, store: Any) -> None:
        head = PartHead(
            rank=rank, world_size=2, host="h", device="cpu", pid=rank, mode="light", monotonic_ns=0, unix_ns=0
        )
        self.recorder = IterationRecorder()
        self.profiling = Profiling(self.recorder, always=False)
        writer = PartWriter(folder / "parts" / f"rank{rank}", 10)
        writer.write(head)
        self.keeper = Keeper(self.recorder, writer, lambda: head)
        self.keeper.head = head
        self.options = TraceOptions(path=str(folder / "run.json"), parts=str(folder / "parts"))
        self.demands = Demands(self.recorder, self.profiling, self.keeper, self.options)
        self.demands.store = store

    def iterate(self, duration_s: float) -> None:
        self.recorder.number += 1
        end = round(duration_s * 1e9)
        draft = IterationDraft.__new__(IterationDraft)
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
    request = asking.demands.ask(3)
    asking.visit()
    assert not request.answered.is_set()
    asking.iterate(0.5)
    asking.iterate(0.01)
    asking.iterate(0.6)
    asking.visit()
    assert request.answered.is_set()
    assert asking.profiling.demand is request.demand is not None
    assert (request.demand.number, request.demand.first, request.demand.iterations) == (1, 3 + 2 + 150, 3)


def test_where_the_store_is_gone_a_rank_traces_by_itself(rank: Callable[..., Rank]) -> None:
    master = torch_distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = torch_distributed.TCPStore("127.0.0.1", master.port, is_master=False, wait_for_workers=False)
    asking = rank(1, client)
    asking.visit()
    del master
    request = asking.demands.ask(3)
    for _ in range(2):
        asking.iterate(0.5)
        asking.visit()
    assert request.demand is not None and request.demand.first == 3


def test_ranks_that_are_all_asked_at_once_agree_on_one_trace(rank: Callable[..., Rank]) -> None:
    """As by a signal to the whole job; some hear of the others before they are asked themselves, some do not."""
    store = torch_distributed.HashStore()
    both = rank(0, store), rank(1, store)
    requests = []
    for one in both:
        one.iterate(1.0)
        requests.append(one.demands.ask(3))
    for one in both:
        one.demands._answer(one.demands._asked[0])
    both[1].visit()
    requests.append(both[0].demands.ask(2))
    longer = both[1].demands.ask(4)
    for one in both:
        one.visit()
    assert all(request.demand is not None for request in requests)
    assert {(r.demand.number, r.demand.first, r.demand.iterations) for r in requests if r.demand} == {
        (1, 4, 3)
    }
    assert not longer.answered.is_set()
    assert not store.check(["demand/2"])


def test_a_rank_that_gets_no_time_asks_again_and_talks_on(
    rank: Callable[..., Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "_TIMEOUT_S", 0.5)
    goes_on = threading.Event()
    server = clock.ClockServer(
        lambda: time.perf_counter_ns() * goes_on.wait(patience(60)), only_this_host=True
    )
    store = torch_distributed.HashStore()
    asking = rank(1, store)
    peers = Peers(asking.keeper, asking.demands, time.perf_counter_ns, 1)
    peers._store, peers._rank, peers._world = store, 1, 2
    address = {"run": "a run", "hosts": ["127.0.0.1"], "port": server.port, "token": server.token}
    store.set("clock", msgspec.json.encode(address).decode())
    totals = asking.keeper.totals
    try:
        totals.add(Iteration(0, 0, 10**9, True, False, [], []))
        asking.visit()
        assert (totals.clock_error_s, asking.demands.store) == (None, store)
        assert store.check(["pace/1"])
        goes_on.set()
        peers._next_clock = 0.0
        asking.visit()
        assert totals.clock_error_s is not None
    finally:
        peers.close()
        server.close()


def test_a_request_that_was_given_up_is_not_carried_out(tmp_path: Path, rank: Callable[..., Rank]) -> None:
    asked = rank(0, torch_distributed.HashStore())
    session = TraceSession(asked.options)
    session._demands = asked.demands
    assert session._ask(3, 0.0) is None
    asked.iterate(1.0)
    asked.visit()
    assert asked.profiling.demand is None


def test_who_hears_of_a_trace_too_late_says_so_and_the_others_part_is_kept(
    tmp_path: Path, rank: Callable[..., Rank]
) -> None:
    store = torch_distributed.HashStore()
    first, late = rank(0, store), rank(1, store)
    first.iterate(1.0)
    request = first.demands.ask(3)
    first.visit()
    assert request.demand is not None
    late.recorder.number = request.demand.first + 3
    late.visit()
    assert late.profiling.demand is None
    [part] = read_parts(tmp_path / "parts" / "demand-1")
    assert part.end is not None
    assert (part.head.rank, part.end.why, part.iterations) == (1, "the request came too late", [])


def test_parts_are_put_together_where_the_jobs_python_does_not_have_hemiola(
    tmp_path: Path,
    rank: Callable[..., Rank],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As under the `hemiola trace` of another environment; where it has not even what Hemiola needs, that is said."""
    for name in ("python", "bare"):
        packages = f"PYTHONPATH={sysconfig.get_path('purelib')}" if name == "python" else "PYTHONPATH="
        (tmp_path / name).write_text(f'#!/bin/sh\n{packages} exec {sys.executable} -S "$@"\n')
        (tmp_path / name).chmod(0o755)
    first = rank(0, None)
    for number, name in enumerate(("python", "bare"), 1):
        monkeypatch.setattr(sys, "executable", str(tmp_path / name))
        first.demands._complete(number, "")
        first.demands._merging[number] -= 100
        first.visit()
    for action in first.keeper.at_end:
        action()
    assert read_timeline(demand_path(tmp_path / "run.json", 1)).ranks[0].rank == 0
    assert [entry.message.partition(" could not")[0] for entry in caplog.records] == [
        str(demand_path(tmp_path / "run.json", 2))
    ]


def test_a_late_first_rank_still_has_the_parts_put_together(
    tmp_path: Path, rank: Callable[..., Rank]
) -> None:
    store = torch_distributed.HashStore()
    first, other = rank(0, store), rank(1, store)
    other.iterate(1.0)
    request = other.demands.ask(1)
    other.visit()
    assert request.demand is not None
    draft = IterationDraft.__new__(IterationDraft)
    draft.demand, draft.demand_ends = 1, True
    for heard in other.keeper.on_iteration:
        heard(
            draft,
            Iteration(request.demand.first, 0, 10**9, True, True, [("forward", "compute", 0, 10**9)], []),
        )
    first.recorder.number = request.demand.first + 1
    first.visit()
    for action in first.keeper.at_end:
        action()
    target = demand_path(tmp_path / "run.json", 1)
    assert [merger.wait(patience(60)) for merger in first.demands.mergers] == [0]
    timeline = read_timeline(target)
    assert timeline.iterations.rank.tolist() == [1]
    assert "the request came too late" in str(timeline.facts["partial"])
