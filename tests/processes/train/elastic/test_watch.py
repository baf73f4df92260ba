"""A store that is slow for a while: who asks it finds out, and is a member like all others once it answers again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import repository
import torch.distributed as dist
from patience import patience, slowly

from hemiola.core.errors import TransportError
from hemiola.train.elastic.board import Epoch, MemberBoard, _Reached
from hemiola.train.elastic.roll import EpochWatch, RollCallRules

RULES = RollCallRules(silence_s=slowly(0.3), patience_s=10.0)
PATIENCE_S = slowly(0.4)
LIMIT_S = 10.0
SOURCE = str(repository.SOURCE)


class Store:
    """A real store that answers while it may."""

    def __init__(self) -> None:
        self._store = dist.HashStore()
        self.may = threading.Event()
        self.may.set()

    def add(self, key: str, amount: int) -> int:
        self.may.wait()
        return int(self._store.add(key, amount))

    def compare_set(self, key: str, expected: str, wanted: str) -> bytes:
        self.may.wait()
        return bytes(self._store.compare_set(key, expected, wanted))


@contextmanager
def watched() -> Iterator[tuple[Store, MemberBoard, EpochWatch, list[str]]]:
    """Member 0 of 2, what the other says, and what was aborted."""
    store, aborted = Store(), []
    board = MemberBoard(store)
    epoch = board.decide(Epoch(0, (0, 1), (0, 0)))
    watch = EpochWatch(MemberBoard(_Reached(store, "here:1", PATIENCE_S)), 0, RULES)
    watch.follow(epoch, lambda: aborted.append(watch.alarm))
    try:
        yield store, board, watch, aborted
    finally:
        store.may.set()
        watch.close()


def until(happened: Callable[[], object]) -> None:
    until_s = time.monotonic() + patience(LIMIT_S)
    while not happened():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_store_that_is_slow_ends_the_epoch_and_its_member_beats_again_when_it_answers() -> None:
    with watched() as (store, board, watch, aborted):
        store.may.clear()
        until(lambda: aborted)
        assert (
            f"the store of this job at here:1 is gone: nothing was heard of it for {PATIENCE_S:g} s"
            in aborted[0]
        )
        store.may.set()
        beats = board.beat(0, 0)
        until(lambda: board.beat(0, 0) > beats + 3)

        following = board.decide(Epoch(1, (0, 1), (0, 0)))
        board.beat(1)
        watch.follow(following, lambda: aborted.append(watch.alarm))
        board.alarm(1, "member 1: it fell over")
        until(lambda: aborted[1:])
        assert aborted[1] == "member 1: it fell over"


def test_a_store_that_stays_silent_lets_its_member_end() -> None:
    with watched() as (store, _, watch, aborted):
        store.may.clear()
        until(lambda: aborted)
        with pytest.raises(TransportError, match="nothing was heard of it"):
            watch._board.alarm(0, "this one ends")
        began_s = time.monotonic()
        watch.close()
        assert time.monotonic() - began_s < PATIENCE_S + patience(0.4)


STOPPED = """\
import sys, time
from hemiola.train.elastic.board import _Reached
class Slow:
    def add(self, key, amount):
        print("asked", flush=True)
        for _ in range(50):
            time.sleep(0.02)
        return amount
print(_Reached(Slow(), "here:1", 2.5).add("key", 7))
"""


@pytest.mark.slow
def test_who_is_stopped_while_it_asks_does_not_take_the_store_for_dead() -> None:
    asks = subprocess.Popen(
        [sys.executable, "-c", STOPPED], env=os.environ | {"PYTHONPATH": SOURCE}, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert asks.stdout is not None and asks.stdout.readline() == "asked\n"
    asks.send_signal(signal.SIGSTOP)
    time.sleep(3.0)
    asks.send_signal(signal.SIGCONT)
    said, _ = asks.communicate(timeout=patience(LIMIT_S))
    assert said == "7\n"
