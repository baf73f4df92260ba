"""The service around the loop: a policy that breaks, observing, and what is refused or handed back. Without an engine."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from pathlib import Path

import msgspec
import numpy as np
import pytest
from nobody import as_nobody
from replays import CheckedMachine, at, cluster, job
from scripted import TWO, Scripted, arrivals, serve

from hemiola.cli.serve import FOLDER, _journal
from hemiola.core.decisions import Decision, Move, Placement, Resize, Start, Stop, WakeAt
from hemiola.core.errors import InputError
from hemiola.core.events import Adopted, Arrived, Event, Failed, Finished, Measured, Started, Timer
from hemiola.cost.iteration import IterationModel
from hemiola.live.driver_wrappers import ObserveDriver
from hemiola.live.journal import Journal
from hemiola.live.journal.replay import replay
from hemiola.live.logging_setup import check_folder
from hemiola.live.polling_driver import Clock
from hemiola.live.service import LiveService, Session, SessionSettings
from hemiola.live.session import BrokenPolicyError, Guarded
from hemiola.sched.loop import run_loop
from hemiola.sched.policies import policy_from_text
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import Costs, SimulatedEstimates
from hemiola.trace.reports import check_reports


class Breaks(Policy):
    name = "breaks"

    def __init__(self, how: str) -> None:
        self.how = how

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        if self.how == "raises":
            raise ValueError("no such key")
        if self.how == "hangs":
            while True:
                with suppress(Exception):  # swallows what it can
                    time.sleep(0.01)
        if self.how == "babbles":
            yield "start everything"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("how", "words"),
    [("raises", "raised ValueError: no such key"), ("hangs", "more than 0.2 s"), ("babbles", "no decision")],
)
def test_a_policy_that_breaks_says_how(how, words):
    view = ClusterView(cluster([4]), estimates=None)  # type: ignore[arg-type]
    with pytest.raises(BrokenPolicyError, match=words):
        list(Guarded(Breaks(how), 0.2).decide(view))


def test_a_good_policy_is_left_alone_and_its_time_is_told():
    view = ClusterView(cluster([4]), estimates=None)  # type: ignore[arg-type]
    machine = CheckedMachine(view)
    machine.apply(Arrived(0.0, job("a", 0.0, 2, 5.0)))
    told: list[float] = []
    (decision,) = Guarded(policy_from_text("fifo"), 5.0, told.append).decide(view)
    assert len(told) == 1 and 0 < told[0] < 5
    assert isinstance(decision, Start) and decision.job_id == "a"


def test_observing_leaves_everything_as_it_was():
    view = ClusterView(cluster([4, 4]), estimates=None)  # type: ignore[arg-type]
    machine = CheckedMachine(view)
    jobs = [job(name, 0.0, 4, 50.0) for name in ("runs", "moves", "waits")]
    inner = Scripted(
        [Arrived(0.0, one) for one in jobs],
        [Started(1.0, "runs", at((0, 0b1111))), Started(1.0, "moves", at((1, 0b1111)))],
        [Timer(9.0, "")],
        [Timer(12.0, "")],
        [Finished(20.0, "runs")],
    )
    driver = ObserveDriver(inner, view)
    seen: dict[float, tuple] = {}

    class Restless(Policy):
        def decide(self, view: ClusterView) -> Iterable[Decision]:
            seen[view.now] = tuple(
                (
                    one.id,
                    one.status,
                    one.placement,
                    one.since_s,
                    one.done_at(view.now),
                    one.preemptions,
                    one.migrations,
                )
                for one in view.jobs.values()
            )
            if view.now in (9.0, 12.0):
                yield Stop("runs", "for the one that waits")
                yield Move("moves", at((0, 0b1111)), "there")
                yield Start("waits", at((1, 0b1111)), "in its place")

    run_loop(driver, machine, Restless(), driver.note)
    assert inner.told == []
    before, after = seen[9.0], seen[12.0]
    assert [one[:4] for one in before] == [one[:4] for one in after]
    assert [one[4] for one in after] == [11.0, 11.0, 0.0], "they went on working"
    assert all(one[5:] == (0, 0) for one in after)
    assert view.running.keys() == {"moves"} and view.waiting.keys() == {"waits"}


@pytest.mark.parametrize("speed", [0.5, 0.0])
def test_observing_falsifies_neither_a_jobs_service_nor_its_speed(speed):
    """It runs on other GPUs than it was submitted for, slower than there it should; or is suspended."""
    view = ClusterView(TWO, estimates=None)  # type: ignore[arg-type]
    elastic = job("e", 0.0, 4, 1000.0, gpus_min=1, gpus_max=8)
    times_s = (2.0, 3.0, 4.0)
    driver = ObserveDriver(
        Scripted(
            [Adopted(0.0, elastic, at((0, 0b1111), (1, 0b1111)), 0.0)], [Measured(1.0, "e", speed)],
            *([Timer(time_s, "")] for time_s in times_s),
        ),
        view,
    )  # fmt: skip
    seen = []

    class Restless(Policy):
        def decide(self, view: ClusterView) -> Iterable[Decision]:
            now, state = view.now, view.jobs["e"]
            seen.append((state.gpus, state.service_gpu_s(now), state.speed, state.done_at(now)))
            if now in times_s:
                yield Stop("e", "for another") if now < 3.0 else Resize("e", at((0, 0b1)), "for another")

    run_loop(driver, CheckedMachine(view), Restless(), driver.note)
    assert seen[1:] == [(8, 8 * time_s, speed, 2.0 + speed * (time_s - 1.0)) for time_s in times_s]


class Ticking(Scripted):
    """It says when timers are due, too, until the last of what it is given."""

    def __init__(self, *instants: list[Event]) -> None:
        super().__init__(*instants)
        self.timers: list[tuple[float, str]] = []

    def events(self) -> Iterator[list[Event]]:
        for events in self.instants:
            while self.timers and self.timers[0][0] < events[0].time_s:
                yield [Timer(*heappop(self.timers))]
            yield events

    def execute(self, decision: Decision) -> None:
        super().execute(decision)
        assert isinstance(decision, WakeAt)
        heappush(self.timers, (decision.time_s, decision.job_id))


@pytest.mark.parametrize(
    ("policy", "after_s"),
    [("tiresias", 3250 / 4), ("gittins", 3250 / 4), ("dally", 3250 / 4), ("elastic", 300.0)],
)
def test_what_is_decided_again_and_again_and_never_carried_out_has_one_timer(policy, after_s):
    """The engine lets both wait for 20 minutes, and then starts the first; something happens every 10 s."""
    view = ClusterView(TWO, SimulatedEstimates(IterationModel(TWO), Costs()))
    jobs = [job(name, 0.0, gpus, 1e6, gpus_min=1, gpus_max=8) for name, gpus in (("a", 4), ("b", 2))]
    inner = Ticking(
        [Arrived(0.0, one) for one in jobs],
        *([Timer(float(time_s), "")] for time_s in range(10, 1200, 10)),
        [Started(1200.0, "a", at((0, 0b1111)))],
        [Timer(2100.0, "")],
    )
    driver = ObserveDriver(inner, view)
    run_loop(driver, CheckedMachine(view), policy_from_text(policy), driver.note)
    woken = [decision for decision in inner.told if isinstance(decision, WakeAt)]
    assert len(woken) < 30
    assert pytest.approx(1200 + after_s) in [wake.time_s for wake in woken if wake.job_id == "a"]


class Nonsense(Policy):
    """Decides for its first job what has the shape of a decision, and is none."""

    name = "nonsense"
    placement: object = None

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        for name in view.waiting:
            yield Start(name, self.placement, "there")  # type: ignore[arg-type]


class OfNumPy(Nonsense):
    """Counts hosts as NumPy does."""

    placement = Placement((np.int64(1),), (0b11,))


class OfLists(Nonsense):
    """Names two hosts in a list."""

    placement = Placement([0, 1], [0b1, 0b1])  # type: ignore[arg-type]


class Stubborn(Policy):
    """Decides again and again what was refused."""

    name = "stubborn"

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        while view.waiting:
            yield Stop("a", "it does not run")


class Bad(Policy):
    """Breaks at its first job."""

    name = "bad"

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        if view.waiting:
            raise KeyError("its own bug")
        return ()


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("Bad", "its own bug"), ("Nonsense", "Expected `object`, got `null`"), ("OfNumPy", "numpy.int64"),
        ("OfLists", "it should be Start"),
        ("Stubborn", "never ends"),
    ],
)  # fmt: skip
def test_the_fallback_takes_over_from_a_policy_that_broke(tmp_path, monkeypatch, policy, why):
    monkeypatch.setattr("hemiola.sched.loop.DECISIONS_PER_INSTANT", 20)
    first, second = Scripted(arrivals("a")), Scripted(arrivals("a", "b"))
    settings = SessionSettings(
        policy=f"{__name__}:{policy}", fallback="fifo", mode="enforce", engine="scripted"
    )
    service, runs = serve(tmp_path, settings, first, second)
    assert why in service.broken and len(runs) == 2
    assert first.told == [] and [type(d).__name__ for d in second.told] == ["Start", "Start"]
    with Journal.open(tmp_path / "j.db") as journal:
        before, after = journal.runs()
        assert (before.opening.policy, after.opening.policy) == (settings.policy, "fifo")
        assert why in before.reason
        assert replay(journal, after.id).difference is None
        assert {record.engine_id for record in journal.open_jobs()} == {"e-a", "e-b"}


def test_who_breaks_off_again_and_again_does_not_say_that_it_lives(tmp_path, monkeypatch):
    class Turns(Scripted):
        def events(self) -> Iterator[list[Event]]:
            runs[-1].turned()
            for events in super().events():
                yield events
                runs[-1].turned()

    monkeypatch.setattr("hemiola.live.service.AGAIN_S", 0.0)
    alive = tmp_path / "alive"
    bad = f"{__name__}:Bad"
    settings = SessionSettings(policy=bad, fallback=bad, mode="enforce", alive=alive)
    runs: list[Session] = []
    serve(tmp_path, settings, *(Turns(arrivals("a")) for _ in range(3)), runs=runs)
    assert not alive.exists()
    serve(tmp_path, msgspec.structs.replace(settings, policy="fifo"), Turns(arrivals("a")), runs=runs)
    assert alive.read_text().endswith("stopped\n")


def test_the_kill_switch_hands_back_and_decides_no_more(tmp_path):
    switch = tmp_path / "off"
    switch.touch()
    driver = Scripted(arrivals("a"))
    serve(tmp_path, SessionSettings(policy="fifo", mode="enforce", kill_switch=switch), driver)
    assert driver.told == ["handed back"]
    with Journal.open(tmp_path / "j.db") as journal:
        (run,) = journal.runs()
        assert run.opening.mode == "observe"
        assert [[type(e).__name__ for e in i.events] for i in journal.instants(run.id)] == [
            ["Arrived"],
            ["Undone"],
        ]


def test_a_kill_switch_that_nobody_can_look_at_is_taken_to_be_thrown(tmp_path, caplog):
    switch = tmp_path / "off"
    switch.symlink_to(switch)
    driver = Scripted(arrivals("a"))
    serve(tmp_path, SessionSettings(policy="fifo", mode="enforce", kill_switch=switch), driver)
    assert driver.told == ["handed back"]
    assert caplog.text.count("off is there, or cannot be looked at") == 1


def test_a_kill_switch_in_a_folder_that_may_not_be_looked_into_is_refused():
    with tempfile.TemporaryDirectory() as name:  # of mode 0700, below one that anyone may search
        for switch in (Path(name) / "off", Path(name) / "below" / "off"):
            assert as_nobody(partial(check_reports, switch)).startswith("InputError: the folder of reports")
            said = as_nobody(partial(check_folder, switch, "--kill-switch"))
            assert said.startswith(
                f"InputError: --kill-switch {switch}: the folder {str(switch.parent)!r} is not there, or"
            )


def test_a_folder_in_which_nobody_could_say_that_hemiola_lives_is_refused():
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        alive, switch = Path(name) / "alive", Path(name) / "off"
        said = as_nobody(lambda: LiveService(SessionSettings(policy="fifo", alive=alive), None, TWO, None))
        assert said.startswith(
            f"InputError: --alive {alive}: the folder {name!r} is not there, or this user may"
        )
        assert "not write into it" in said
        assert (
            as_nobody(
                lambda: LiveService(SessionSettings(policy="fifo", kill_switch=switch), None, TWO, None)
            )
            == ""
        )


def test_the_log_says_where_the_journal_is(tmp_path, caplog):
    with caplog.at_level("INFO", "hemiola.serve"):
        serve(tmp_path, SessionSettings(policy="fifo"), Scripted())
    assert f"the journal is {tmp_path / 'j.db'}" in caplog.text


def test_a_run_ends_once_many_jobs_have_however_they_ended(tmp_path, monkeypatch):
    class Turns(Scripted):
        def events(self) -> Iterator[list[Event]]:
            for events in super().events():
                yield events
                runs[-1].turned()

    monkeypatch.setattr("hemiola.live.session.ENDED_MOST", 2)
    names, now = ("a", "b", "c"), Clock().now_s() + 9.0
    ends: list[Event] = [Finished(now, "a"), Failed(now, "b", "cancelled"), Failed(now, "c", "timeout")]
    runs: list[Session] = []
    settings = SessionSettings(policy="fifo", mode="enforce")
    serve(tmp_path, settings, Turns(arrivals(*names), ends), Scripted(arrivals("d")), runs=runs)
    with Journal.open(tmp_path / "j.db") as journal:
        assert [run.reason for run in journal.runs()] == ["3 jobs have ended in it", "it was asked to stop"]


def test_a_run_ends_once_it_is_long(tmp_path, monkeypatch):
    class Turns(Scripted):
        def events(self) -> Iterator[list[Event]]:
            while not self.stopped.is_set():
                runs[-1].turned()
                yield [Timer(Clock().now_s(), "")]

    monkeypatch.setattr("hemiola.live.session.INSTANTS_MOST", 5)
    runs: list[Session] = []
    serve(tmp_path, SessionSettings(policy="fifo"), Turns(), Scripted(), runs=runs)
    with Journal.open(tmp_path / "j.db") as journal:
        first, second = journal.runs()
        assert first.reason == "it has 6 instants" and second.reason == "it was asked to stop"
        assert first.ended_s is not None and len(list(journal.instants(first.id))) in (6, 7)


def test_a_home_that_nobody_may_make_is_refused(monkeypatch):
    if os.access(FOLDER, os.F_OK):
        pytest.skip(f"there is a {FOLDER}")
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nonexistent")
    said = as_nobody(partial(_journal, "gpus"))
    assert said.startswith("InputError: the folder /proc/nonexistent/hemiola of the journal cannot be made")


def test_what_was_asked_for_a_job_that_ended_is_open_no_more(tmp_path):
    asked: list[int] = []

    class Silent(Scripted):
        def events(self) -> Iterator[list[Event]]:
            for events in super().events():
                yield events
                with Journal.open(tmp_path / "j.db", read_only=True) as journal:
                    asked.append(len(journal.open_intents()))

    now = Clock().now_s() + 9.0
    driver = Silent(arrivals("a", "b"), [Failed(now, "a", "cancelled")], [Timer(now, "")])
    serve(tmp_path, SessionSettings(policy="fifo", mode="enforce"), driver)
    assert asked == [2, 1, 1]


def test_an_unknown_policy_is_refused_before_anything_is_served(tmp_path):
    with pytest.raises(Exception, match="no policy is called 'nonesuch'"):
        serve(tmp_path, SessionSettings(policy="nonesuch"), Scripted())


def test_a_folder_of_reports_has_to_be_there_at_the_start_and_may_go_later(tmp_path):
    reports = tmp_path / "reports"
    settings = SessionSettings(policy="fifo", mode="enforce", reports=reports)
    with pytest.raises(InputError, match=r"the folder of reports .* is not there"):
        serve(tmp_path, settings, Scripted())
    reports.mkdir()
    driver = Scripted(arrivals("a"))
    serve(tmp_path, settings, driver, before=reports.rmdir)
    assert [type(d).__name__ for d in driver.told] == ["Start"]


@pytest.mark.parametrize("name", ["alive", "kill_switch"])
def test_a_file_in_no_folder_is_refused(tmp_path, name):
    settings = msgspec.structs.replace(SessionSettings(policy="fifo"), **{name: tmp_path / "none" / "file"})
    with pytest.raises(InputError, match=r"the folder .* is not there") as caught:
        serve(tmp_path, settings, Scripted())
    assert f"--{name.replace('_', '-')}" in caught.value.what
