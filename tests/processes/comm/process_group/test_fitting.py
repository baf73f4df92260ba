"""Schedules that the first rank chooses for all: one for each epoch, and nothing left of old ones."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
import torch.distributed as dist
from endpoints import connected, together
from patience import patience

from hemiola.comm.process_group.fitting import _agreed, _Chosen, _given, _Measured, _Told, fitting
from hemiola.comm.process_group.group import create
from hemiola.comm.schedule_executor.flow import nothing
from hemiola.comm.transport import Endpoint, TransportOptions
from hemiola.comm.transport.endpoint import Peer, meet
from hemiola.core.collective.schedule import Collective, CollectiveSchedule
from hemiola.core.collective.shapes import ring
from hemiola.core.errors import InputError, TransportError
from hemiola.trace.msccl import write_msccl
from hemiola.trace.struct_json import write_schedule

SIZE = 1 << 20


def named(name: str) -> object:
    """A plan of rings of this name."""

    def plan(
        collective: Collective, size_bytes: float, root: int, keep: CollectiveSchedule | None
    ) -> CollectiveSchedule:
        return msgspec.structs.replace(ring([0, 1]), name=f"{name} after {keep.name}" if keep else name)

    return plan


def name_of(schedule: CollectiveSchedule | None) -> str:
    return schedule.name if schedule else "usual"


def test_a_rank_goes_by_the_epoch_that_it_is_told() -> None:
    store = dist.HashStore()
    first, other = _Chosen(store, named("old")), _Chosen(store, None)  # type: ignore[arg-type]
    assert [name_of(one.choose("all-reduce", SIZE, 0)) for one in (first, other)] == ["old"] * 2
    first.begin_epoch(named("new"))  # type: ignore[arg-type]
    assert name_of(first.choose("all-reduce", SIZE, 0)) == "new after old"
    assert name_of(other.choose("all-reduce", SIZE, 0, first.epoch)) == "new after old", "not there yet"
    assert name_of(other.choose("all-reduce", SIZE, 0)) == "old"
    assert name_of(first.choose("all-reduce", SIZE, 0, 0)) == "old", "what is still done by the one before"
    other.begin_epoch(None)
    assert name_of(other.choose("all-reduce", SIZE, 0)) == "new after old"
    assert name_of(other.choose("all-reduce", SIZE, 0, 0)) == "old"


def test_who_waits_for_the_first_ranks_word_holds_up_nobody_else() -> None:
    store = dist.HashStore()
    first, other = _Chosen(store, named("a")), _Chosen(store, None)  # type: ignore[arg-type]
    for one in (first, other):
        one.choose("all-reduce", SIZE, 0)
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(name_of(other.choose("broadcast", SIZE, 0))))
    waiting.start()
    time.sleep(0.1)
    assert name_of(other.choose("all-reduce", SIZE, 0)) == "a"
    assert not found
    first.choose("broadcast", SIZE, 0)
    waiting.join(patience(10))
    assert found == ["a"]


@contextmanager
def measuring(store: dist.Store, ranks: int) -> Iterator[list[_Measured]]:
    """All on one host: there is nothing to measure, but all begin the same epochs."""
    with connected(ranks) as ends:
        peers = [Peer("here", 1, ("here",))] * ranks
        yield [_Measured(store, end, peers, 10.0) for end in ends]


def test_who_waits_for_the_word_of_a_first_rank_that_is_gone_is_told() -> None:
    store = dist.HashStore()
    with connected(2) as ends:
        other = _Measured(store, ends[1], [Peer("here", 1, ("here",))] * 2, 10.0)
        ends[0].close()
        with pytest.raises(TransportError, match="rank 0, which chooses the schedules, is gone: "):
            other.choose("all-reduce", SIZE, 0)


@pytest.mark.parametrize(
    ("leaves", "told"), [(True, "rank 0, which chooses the schedules, "), (False, "the store ")]
)
def test_who_waits_where_the_store_is_gone_is_told_whether_the_first_rank_is_too(
    leaves: bool, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hemiola.comm.process_group.fitting.LOOK_S", 2.0 if leaves else 0.5)
    kept: list[dist.Store] = [dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)]
    store = dist.TCPStore("127.0.0.1", kept[0].port, None, False)
    with connected(2) as ends:
        other = _Measured(store, ends[1], [Peer("here", 1, ("here",))] * 2, 10.0)
        kept.clear()
        leaving = threading.Timer(0.1, ends[0].close if leaves else nothing)
        leaving.start()
        with pytest.raises(TransportError, match=f"{told}.*is gone: "):
            other.choose("all-reduce", SIZE, 0)
        leaving.join()


def transports() -> int:
    return sum(thread.name == "hemiola-transport" for thread in threading.enumerate())


def test_where_a_rank_is_lost_while_all_measure_nobody_waits_for_those_who_found_out() -> None:
    """Rank 1 goes; in the first round, ranks 0 and 2 measure their link, and rank 2 waits for rank 0 to go on."""
    store = dist.HashStore()
    before = transports()

    def open_one(end: Endpoint) -> None:
        options = TransportOptions(interface=f"127.0.0.{end.rank + 1}", timeout_s=600.0)
        if end.rank == 1:
            meet(dist.PrefixStore("probe", store), 1, 3, options)[0].close(0.0)
        else:
            fitting("auto", "", store, end, peers, 600.0, options)

    peers = [Peer(f"127.0.0.{host}", 1, (f"h{host}",)) for host in (1, 2, 3)]
    with connected(3) as ends:
        begun_s = time.monotonic()
        raised = together(open_one, ends)
        assert [isinstance(problem, TransportError) for problem in raised] == [True, False, True]
        assert time.monotonic() < begun_s + patience(15)
        assert transports() == before + 3, "theirs alone"
    assert transports() == before


def test_a_group_that_is_not_opened_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEMIOLA_INTERFACE", "127.0.0.1")
    monkeypatch.setenv("HEMIOLA_STRATEGY", "/no/such/file.json")
    store, before = dist.HashStore(), transports()
    raised = together(lambda rank: create(store, rank, 2, timedelta(seconds=30)), [0, 1])
    assert all(isinstance(problem, InputError) for problem in raised), raised
    assert transports() == before


def test_a_schedules_file_is_known_by_its_names_end_in_capitals_too(tmp_path: Path) -> None:
    write_msccl(ring([0, 1]), tmp_path / "Fit.XML")
    write_schedule(ring([0, 1]), tmp_path / "Fit.Json")
    for name in ("Fit.XML", "Fit.Json"):
        found = _given(str(tmp_path / name), 2, [])("all-reduce", SIZE, 0, None)
        assert name_of(found) == "ring 0-1"


@pytest.mark.parametrize("kind", ["file", "hash", "tcp"])
def test_a_first_rank_that_is_slow_is_waited_for_in_every_store(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hemiola.comm.process_group.fitting.LOOK_S", 0.02)
    store: dist.Store = {
        "file": lambda: dist.FileStore(str(tmp_path / "store"), 2),
        "hash": dist.HashStore,
        "tcp": lambda: dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False),
    }[kind]()
    seconds = 1.5 if kind == "file" else 0.2  # a FileStore waits for whole seconds
    slow = threading.Timer(seconds, _agreed, [store, "word", _Told(), dict])
    slow.start()
    assert _agreed(store, "word", None, dict) == _Told()
    slow.join()


def test_who_waits_for_a_word_that_does_not_come_is_told() -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=0.5))
    with pytest.raises(TransportError, match="rank 0 chose no schedule within"):
        _Chosen(store, None).choose("all-reduce", SIZE, 0)


def choose(ranks: list[_Measured]) -> None:
    for kind in ("all-reduce", "broadcast", "all-gather"):
        for one in ranks:
            one.choose(kind, SIZE, 0)  # type: ignore[arg-type]


def test_the_store_does_not_grow_with_every_measurement() -> None:
    store = dist.HashStore()
    with measuring(store, 3) as ranks:
        counts = []
        for _ in range(8):
            for one in reversed(ranks):
                one.renew(1.0)
            choose(ranks)
            counts.append(store.num_keys())
            for word in itertools.chain(*ranks[0]._there.values()):
                word.wait(patience(10))
    assert counts[-1] == counts[3] <= 9
    assert len(ranks[0]._there) <= 2 and all(len(one._known) <= 2 for one in ranks)


def test_what_a_rank_far_behind_still_needs_is_kept() -> None:
    store = dist.HashStore()
    with measuring(store, 3) as ranks:
        for _ in range(5):
            for one in ranks[:2]:
                one.renew(1.0)
            choose(ranks[:2])
        for _ in range(5):
            ranks[2].renew(1.0)
            choose(ranks[2:])
        assert store.num_keys() == 15
        until = time.monotonic() + patience(10)
        while store.num_keys() > 9 and time.monotonic() < until:
            for one in ranks:
                one.renew(1.0)
            time.sleep(0.05)
        assert store.num_keys() <= 9


@pytest.mark.parametrize("store", [dist.HashStore, lambda: dist.TCPStore("127.0.0.1", 0, 1, True)])
def test_what_was_told_is_forgotten_in_every_store(store: object) -> None:
    kept = store()  # type: ignore[operator]
    before = kept.num_keys()
    chosen = _Chosen(dist.PrefixStore("a group", kept), named("a"))  # type: ignore[arg-type]
    chosen.choose("all-reduce", SIZE, 0)
    chosen.begin_epoch(None)
    assert kept.num_keys() == before + 1
    chosen.forget_before(1)
    assert kept.num_keys() == before
