"""Ranks that meet through a store, one group after the other."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from patience import patience
from ranks import run

from hemiola.comm.transport import Endpoint, TransportOptions
from hemiola.comm.transport.endpoint import meet

OPTIONS = TransportOptions(interface="127.0.0.1", timeout_s=10.0)


class KeepsAll:
    """A store that can do no more than it has to."""

    def __init__(self) -> None:
        self._store = dist.HashStore()
        self.set, self.get = self._store.set, self._store.get


def meeting(store: object, ranks: int, order: list[int]) -> list[object]:
    """What each says of all; they come one after the other."""
    found: list[object] = [None] * ranks
    ends: list[Endpoint] = []

    def one(rank: int) -> None:
        end, peers = meet(store, rank, ranks, OPTIONS, lambda address: f"word of {rank}")
        ends.append(end)
        found[rank] = [peer.word for peer in peers]

    threads = [threading.Thread(target=one, args=(rank,)) for rank in order]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join(patience(20))
    closing = [threading.Thread(target=end.close) for end in ends]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(patience(20))
    return found


def test_groups_meet_through_one_store_one_after_the_other_and_leave_nothing_there() -> None:
    store = dist.HashStore()
    words = [f"word of {rank}" for rank in range(3)]
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        assert meeting(store, 3, order) == [words] * 3
        assert store.num_keys() == 0


def test_a_store_that_forgets_nothing_is_enough() -> None:
    assert meeting(KeepsAll(), 2, [1, 0]) == [["word of 0", "word of 1"]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["", "auto"])
def test_process_groups_follow_one_another_on_one_store(schedule, tmp_path, monkeypatch):
    monkeypatch.setenv("HEMIOLA_STRATEGY", schedule)
    said = run(Path(__file__).with_name("cases.py"), 3, str(tmp_path / "meet"), "again_and_again")
    assert said == ["right"] * 3
