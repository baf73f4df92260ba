"""How often an engine is looked at, and that it is sooner where something new is known to be there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from hemiola.core.decisions import Decision, Placement, Start
from hemiola.core.errors import EngineError
from hemiola.core.events import Event, Timer
from hemiola.live.live_driver import Identity
from hemiola.live.polling_driver import WOKEN_SHARE, PollingDriver, Wake
from hemiola.live.tracked_job import TrackedJob


def touch(path: Path, number: int) -> None:
    path.write_text("1")
    os.utime(path, ns=(number, number))


def test_a_wake_rings_once_each_time_it_is_written(tmp_path: Path):
    touch(path := tmp_path / "wake", 1)
    wake = Wake(path)
    assert not wake.rings(), "that was before"
    touch(path, 2)
    assert wake.rings() and not wake.rings()
    path.unlink()
    assert not wake.rings()
    touch(path, 2)
    assert wake.rings()


class Looks(PollingDriver[TrackedJob]):
    """Notes when it looked, and ends after so many looks."""

    def __init__(self, look_s: float, takes_s: float, most: int, wake: Wake | None) -> None:
        super().__init__("Nothing", look_s, None, lambda: None, wake)
        self._takes_s, self._most = takes_s, most
        self.began_s: list[float] = []
        self.gone = False
        self.told: list[Decision] = []

    def _see(self, now: float) -> list[Event]:
        self.began_s.append(time.monotonic())
        time.sleep(self._takes_s)
        if len(self.began_s) == self._most:
            self.stop()
        if self.gone:
            raise EngineError("it is away", "wait")
        return [Timer(now, "")]

    def _carry_out(self, decided: Sequence[Decision]) -> None:
        self.told += decided

    def _identity(self, known: TrackedJob) -> Identity:
        raise NotImplementedError

    def advise(self, decision: Decision) -> None:
        raise NotImplementedError

    def render(self, decision: Decision) -> str:
        raise NotImplementedError

    def hand_back(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        for _ in self.events():
            pass


def ring_while(driver: Looks, path: Path) -> None:
    """Write it again and again until the driver has ended."""
    thread = threading.Thread(target=driver.run)
    thread.start()
    number = 1
    while thread.is_alive():
        touch(path, number := number + 1)
        time.sleep(0.002)
    thread.join()


def test_a_woken_driver_looks_long_before_it_is_time_but_leaves_the_engine_room(tmp_path: Path):
    driver = Looks(look_s=1000.0, takes_s=0.05, most=5, wake=Wake(tmp_path / "wake"))
    ring_while(driver, tmp_path / "wake")
    gaps = [after - before for before, after in pairwise(driver.began_s)]
    assert len(gaps) == 4 and min(gaps) >= WOKEN_SHARE * 0.05 - 0.005


def test_an_engine_that_is_away_is_not_asked_sooner(tmp_path: Path):
    driver = Looks(look_s=0.01, takes_s=0.0, most=2, wake=Wake(tmp_path / "wake"))
    driver.gone = True
    ring_while(driver, tmp_path / "wake")
    assert driver.began_s[1] - driver.began_s[0] >= 1.0


def test_what_was_decided_at_the_instant_of_a_stop_is_carried_out():
    driver = Looks(look_s=0.01, takes_s=0.0, most=10, wake=None)
    start = Start("a", Placement((0,), (1,)), "it is free")
    for _ in driver.events():
        driver.stop()
        driver.execute(start)
    assert driver.told == [start]


def test_what_was_decided_at_an_instant_that_broke_off_is_not():
    driver = Looks(look_s=0.01, takes_s=0.0, most=10, wake=None)
    events = driver.events()
    next(events)
    driver.execute(Start("a", Placement((0,), (1,)), "it is free"))
    events.close()
    assert driver.told == []
