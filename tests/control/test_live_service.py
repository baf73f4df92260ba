"""The service around the loop: a policy that breaks, observing, leadership, and beginning anew. Without an engine."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from pathlib import Path

import msgspec
import numpy as np
import pytest
from journal_helpers import OPENING, ended, record
from live_slurm import until
from test_outputs import as_nobody

from hemiola.cli.serve import FOLDER, _journal, _serve
from hemiola.control.clock import Clock
from hemiola.control.driver import run_loop
from hemiola.control.journal import Journal, JournalError, Leader
from hemiola.control.journal.replay import replay
from hemiola.control.journal.workload import workload
from hemiola.control.live.book import Book
from hemiola.control.live.engine import Identity, LiveDriver
from hemiola.control.live.files import check_folder
from hemiola.control.live.guard import BrokenPolicyError, Guarded
from hemiola.control.live.holder import holder_name, is_gone
from hemiola.control.live.lease import Leadership
from hemiola.control.live.logs import _Objects
from hemiola.control.live.observing import Observing
from hemiola.control.live.reading import Names, read_cluster, read_daemon
from hemiola.control.live.reading_story import story
from hemiola.control.live.service import Run, Service, Settings
from hemiola.control.simulated import Costs, Estimates
from hemiola.core.decisions import Decision, Move, Placement, Resize, Start, Stop, WakeAt
from hemiola.core.errors import EngineError, InputError
from hemiola.core.events import Adopted, Arrived, Event, Failed, Finished, Measured, Started, Timer
from hemiola.core.job import Job
from hemiola.core.topology import Topology
from hemiola.cost.iteration import IterationModel
from hemiola.sched.policies import policy_from_text
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView
from hemiola.trace.reports import check_reports
from replays import CheckedMachine, at, cluster, job

TWO = cluster([4, 4])


class Scripted(LiveDriver):
    """An engine that says what it is given, and does nothing."""

    away = ""

    def __init__(self, *instants: list[Event], ends: bool = True) -> None:
        self.instants, self.ends = instants, ends
        self.told: list[Decision] = []
        self.stopped = threading.Event()

    def events(self) -> Iterator[list[Event]]:
        yield from self.instants
        if not self.ends:
            self.stopped.wait(30)

    def execute(self, decision: Decision) -> None:
        self.told.append(decision)

    def render(self, decision: Decision) -> str:
        return f"do {decision}"

    def identity(self, job_id: str) -> Identity | None:
        return Identity(engine_id=f"e-{job_id}", submit_s=1.0, user="ada")

    def vanished(self) -> list[tuple[str, str]]:
        return []

    def answers(self) -> list[tuple[str, bool, str]]:
        return []

    def advise(self, decision: Decision) -> None:
        self.told.append(decision)

    def hand_back(self) -> None:
        self.told.append("handed back")  # type: ignore[arg-type]

    def add(self, events: Sequence[Event]) -> None:
        raise AssertionError(events)

    def stop(self) -> None:
        self.stopped.set()


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
    driver = Observing(inner, view)
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
    driver = Observing(
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
    view = ClusterView(TWO, Estimates(IterationModel(TWO), Costs()))
    jobs = [job(name, 0.0, gpus, 1e6, gpus_min=1, gpus_max=8) for name, gpus in (("a", 4), ("b", 2))]
    inner = Ticking(
        [Arrived(0.0, one) for one in jobs],
        *([Timer(float(time_s), "")] for time_s in range(10, 1200, 10)),
        [Started(1200.0, "a", at((0, 0b1111)))],
        [Timer(2100.0, "")],
    )
    driver = Observing(inner, view)
    run_loop(driver, CheckedMachine(view), policy_from_text(policy), driver.note)
    woken = [decision for decision in inner.told if isinstance(decision, WakeAt)]
    assert len(woken) < 30
    assert pytest.approx(1200 + after_s) in [wake.time_s for wake in woken if wake.job_id == "a"]


def serve(
    tmp_path: Path, settings: Settings, *drivers: Scripted, before: Callable[[], object] = lambda: None,
    topology: Topology = TWO, runs: list[Run] | None = None,
) -> tuple[Service, list[Run]]:  # fmt: skip
    """A service that has one of these drivers in each run, and ends after the last; something is done before it runs."""
    runs = [] if runs is None else runs
    left = list(drivers)
    with Journal.open(tmp_path / "j.db") as journal:

        def make(run: Run) -> Scripted:
            runs.append(run)
            if len(left) == 1:
                service.stop()
            return left.pop(0)

        service = Service(settings, journal, topology, make)
        before()
        service.run()
        return service, runs


def arrivals(*names: str) -> list[Event]:
    now = Clock().now_s()
    return [Arrived(now, job(name, now, 2, 60.0)) for name in names]


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
    monkeypatch.setattr("hemiola.control.driver.DECISIONS_PER_INSTANT", 20)
    first, second = Scripted(arrivals("a")), Scripted(arrivals("a", "b"))
    settings = Settings(policy=f"{__name__}:{policy}", fallback="fifo", mode="enforce", engine="scripted")
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

    monkeypatch.setattr("hemiola.control.live.service.AGAIN_S", 0.0)
    alive = tmp_path / "alive"
    bad = f"{__name__}:Bad"
    settings = Settings(policy=bad, fallback=bad, mode="enforce", alive=alive)
    runs: list[Run] = []
    serve(tmp_path, settings, *(Turns(arrivals("a")) for _ in range(3)), runs=runs)
    assert not alive.exists()
    serve(tmp_path, msgspec.structs.replace(settings, policy="fifo"), Turns(arrivals("a")), runs=runs)
    assert alive.read_text().endswith("stopped\n")


def test_the_kill_switch_hands_back_and_decides_no_more(tmp_path):
    switch = tmp_path / "off"
    switch.touch()
    driver = Scripted(arrivals("a"))
    serve(tmp_path, Settings(policy="fifo", mode="enforce", kill_switch=switch), driver)
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
    serve(tmp_path, Settings(policy="fifo", mode="enforce", kill_switch=switch), driver)
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


def test_a_run_ends_once_many_jobs_have_however_they_ended(tmp_path, monkeypatch):
    class Turns(Scripted):
        def events(self) -> Iterator[list[Event]]:
            for events in super().events():
                yield events
                runs[-1].turned()

    monkeypatch.setattr("hemiola.control.live.one_run.ENDED_MOST", 2)
    names, now = ("a", "b", "c"), Clock().now_s() + 9.0
    ends: list[Event] = [Finished(now, "a"), Failed(now, "b", "cancelled"), Failed(now, "c", "timeout")]
    runs: list[Run] = []
    settings = Settings(policy="fifo", mode="enforce")
    serve(tmp_path, settings, Turns(arrivals(*names), ends), Scripted(arrivals("d")), runs=runs)
    with Journal.open(tmp_path / "j.db") as journal:
        assert [run.reason for run in journal.runs()] == ["3 jobs have ended in it", "it was asked to stop"]


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
    serve(tmp_path, Settings(policy="fifo", mode="enforce"), driver)
    assert asked == [2, 1, 1]


def test_an_unknown_policy_is_refused_before_anything_is_served(tmp_path):
    with pytest.raises(Exception, match="no policy is called 'nonesuch'"):
        serve(tmp_path, Settings(policy="nonesuch"), Scripted())


def test_a_folder_of_reports_has_to_be_there_at_the_start_and_may_go_later(tmp_path):
    reports = tmp_path / "reports"
    settings = Settings(policy="fifo", mode="enforce", reports=reports)
    with pytest.raises(InputError, match=r"the folder of reports .* is not there"):
        serve(tmp_path, settings, Scripted())
    reports.mkdir()
    driver = Scripted(arrivals("a"))
    serve(tmp_path, settings, driver, before=reports.rmdir)
    assert [type(d).__name__ for d in driver.told] == ["Start"]


@pytest.mark.parametrize("name", ["alive", "kill_switch"])
def test_a_file_in_no_folder_is_refused(tmp_path, name):
    settings = msgspec.structs.replace(Settings(policy="fifo"), **{name: tmp_path / "none" / "file"})
    with pytest.raises(InputError, match=r"the folder .* is not there") as caught:
        serve(tmp_path, settings, Scripted())
    assert f"--{name.replace('_', '-')}" in caught.value.what


def test_who_leads_is_known_to_be_gone_on_the_same_host():
    assert not is_gone(holder_name()), "this very process"
    code = "from hemiola.control.live.holder import holder_name; print(holder_name())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert is_gone(done.stdout.strip())
    for other in ("elsewhere/1/2/3/4", "nonsense", holder_name().replace("/", "/x", 1)):
        assert not is_gone(other), "nobody can know"


def test_a_lease_that_somebody_else_took_is_lost(tmp_path):
    lost = threading.Event()
    with Journal.open(tmp_path / "j.db") as journal:
        epoch = journal.lead("me", time.time(), 10.0)
        assert epoch is not None
        leadership = Leadership(journal, epoch, None, lost.set)
        assert leadership.holds()
        journal.resign(epoch)
        assert journal.lead("another", time.time(), 60.0)
        until(lost.is_set, "it is told")
        assert not leadership.holds()
        leadership.end()
        leader = journal.leader()
        assert leader is not None and leader.holder == "another", "another's lease is not given back"


def test_who_leads_is_heard_though_the_clock_was_set_forward(tmp_path, monkeypatch):
    monkeypatch.setattr("hemiola.control.live.lease.RENEW_S", 0.01)
    wall_s = time.time
    with Journal.open(tmp_path / "j.db") as journal:
        epoch = journal.lead("me", time.time(), 10.0)
        assert epoch is not None
        leadership = Leadership(journal, epoch, None, lambda: None)
        monkeypatch.setattr(time, "time", lambda: wall_s() + 3600.0)
        until(lambda: read_daemon(journal, time.time()).state == "leads", "it is heard")
        leadership.end()


def test_a_clock_that_was_set_forward_is_no_reason_to_take_over(tmp_path, monkeypatch):
    with Journal.open(tmp_path / "j.db") as journal:
        service = Service(Settings(policy="fifo"), journal, TWO, lambda run: pytest.fail("it must not lead"))
        wall_s = time.time
        assert journal.lead("another", wall_s(), 10.0)
        monkeypatch.setattr(time, "time", lambda: wall_s() + 3600.0)
        assert service._take_lead() is None


def test_a_clock_that_was_set_forward_begins_a_run_that_goes_by_it(tmp_path, monkeypatch):
    wall_s = time.time

    class Sleeps(Scripted):
        def events(self) -> Iterator[list[Event]]:
            for events in super().events():
                yield events
                monkeypatch.setattr(time, "time", lambda: wall_s() + 3600.0)
                runs[-1].turned()  # the first turn is the beginning of a run
                runs[-1].turned()

    runs: list[Run] = []
    drivers = Sleeps(arrivals("a"), ends=False), Scripted()
    serve(tmp_path, Settings(policy="fifo", mode="enforce"), *drivers, runs=runs)
    assert runs[1].clock.behind_s() == pytest.approx(0.0, abs=1.0)
    with Journal.open(tmp_path / "j.db") as journal:
        before, after = journal.runs()
        assert before.reason == "the clock was set forward, or this host slept"
        assert after.began_s - before.began_s > 3599.0


def test_that_it_lives_is_said_only_while_it_acts(tmp_path):
    alive = tmp_path / "alive"
    with Journal.open(tmp_path / "j.db") as journal:
        epoch = journal.lead("me", time.time(), 10.0)
        assert epoch is not None
        leadership = Leadership(journal, epoch, alive, lambda: None)
        leadership.turned(acts=True)
        until(alive.exists, "it says so")
        assert abs(int(alive.read_text()) - time.time()) < 30
        leadership.turned(acts=False)
        alive.unlink()
        time.sleep(2.5)
        assert not alive.exists()
        leadership.end()


def test_log_lines_for_machines_have_all_that_was_said():
    record = logging.makeLogRecord(
        {"msg": "refused %s", "args": ("it",), "peer": "10.0.0.9", "_ray_timestamp_ns": 1}
    )
    line = msgspec.json.decode(_Objects().format(record))
    assert (line["message"], line["peer"]) == ("refused it", "10.0.0.9")
    assert set(line) == {"time", "level", "from", "message", "peer"}


@pytest.mark.parametrize("policy", ["fifo", "tiresias", "gittins"])
def test_what_was_only_decided_has_never_run(tmp_path, policy):
    """Some policies ask for a timer as they start a job."""
    cancelled: list[Event] = [Failed(Clock().now_s() + 300.0, "a", "cancelled")]
    serve(tmp_path, Settings(policy=policy), Scripted(arrivals("a"), cancelled))
    with Journal.open(tmp_path / "j.db") as journal:
        (run,) = journal.runs()
        decisions = [made for instant in journal.instants(run.id) for made in instant.decisions or ()]
        assert [decision.job_id for decision, _ in decisions if isinstance(decision, Start)] == ["a"]
        (found,) = journal.jobs()
        assert (found.status, found.first_started_s, found.placement) == ("ended", None, None)
        (shown,) = read_cluster(journal, Clock().now_s(), ended_since_s=0.0).jobs
        assert shown.where == () and shown.started_s is None
        with pytest.raises(InputError, match="1 never started"):
            workload(journal)


@pytest.mark.parametrize(("status", "waited_s"), [("waiting", 60.0), ("held", 60.0), ("running", 0.0)])
def test_a_job_that_ended_while_nobody_looked_has_waited_until_then(status, waited_s):
    class Without(Scripted):
        def vanished(self) -> list[tuple[str, str]]:
            return [("a", "cancelled")]

    view = ClusterView(TWO, estimates=None, now=160.0)  # type: ignore[arg-type]
    book = Book(view, Without(), IterationModel(TWO), [record("a", 100.0, status=status, queued_s=0.0)])
    (found,) = book.due()
    assert (found.queued_s + found.withheld_s, found.served_s) == (waited_s, 60.0 - waited_s)


def test_a_job_that_can_run_here_no_longer_keeps_what_it_had():
    class Refuses(Scripted):
        def refused(self) -> list[tuple[Job, str]]:
            return [(job("a", 100.0, 64, 50.0), "the cluster has 8 GPUs")]

    before = record(
        "a", 100.0, status="running", placement=at((0, 0b11)), since_s=120.0, done_s=5.0, settled_s=130.0, pace=0.5,
        served_s=100.0, queued_s=20.0, first_started_s=110.0, preemptions=1,
    )  # fmt: skip
    held = msgspec.structs.replace(
        before, job=job("a", 100.0, 64, 50.0), status="held", since_s=160.0, done_s=20.0, settled_s=160.0, pace=0.0,
        served_s=140.0, note="it can never run here: the cluster has 8 GPUs",
    )  # fmt: skip
    still = msgspec.structs.replace(held, since_s=200.0, settled_s=200.0, withheld_s=40.0)
    for now_s, known, expected in ((160.0, before, held), (200.0, held, still)):
        view = ClusterView(TWO, estimates=None, now=now_s)  # type: ignore[arg-type]
        assert Book(view, Refuses(), IterationModel(TWO), [known]).due() == [expected]


def named(*names: str) -> Topology:
    found = cluster([2] * len(names))
    return dataclasses.replace(found, hosts=dataclasses.replace(found.hosts, names=names))


def test_hosts_are_called_by_name_after_others_have_gone(tmp_path):
    class Ends(Scripted):
        def events(self) -> Iterator[list[Event]]:
            now = Clock().now_s()
            jobs = (job("a", now, 1, 60.0), at((3, 1))), (job("b", now, 1, 60.0), at((3, 2)))
            yield [Adopted(now, one, place, now) for one, place in jobs]
            yield [Finished(Clock().now_s(), "a")]

    found = []
    for topology, driver in (
        (named("n0", "n1", "n2", "n3"), Ends()), (named("n0", "n1", "n3"), Scripted()), (named("n0"), Scripted()),
    ):  # fmt: skip
        serve(tmp_path, Settings(policy="fifo", mode="enforce"), driver, topology=topology)
        with Journal.open(tmp_path / "j.db") as journal:
            shown = read_cluster(journal, Clock().now_s(), ended_since_s=0.0)
            found.append({one.uuid: one.where for one in shown.jobs})
    there = (("n3", 1),)
    assert found == [{"a": there, "b": there}, {"a": there, "b": there}, {"a": there, "b": ()}]


def test_a_job_that_runs_on_where_it_did_has_no_new_story(tmp_path):
    """The engine tells its hosts in an order of its own."""
    for place in (at((1, 1), (0, 1)), at((0, 1), (1, 1))):
        there: list[Event] = [Adopted(Clock().now_s(), job("a", 1.0, 2, 60.0), place, 1.0)]
        serve(tmp_path, Settings(policy="fifo", mode="enforce"), Scripted(there))
    with Journal.open(tmp_path / "j.db") as journal:
        (its,) = journal.open_jobs()
        (found,) = story(journal, its, Names(journal, [its]))
    assert "was found running on" in found.text and found.times == 1


def test_why_a_job_runs_there_is_kept_only_of_our_own_starts(tmp_path):
    serving = Settings(policy="fifo", mode="enforce")

    def noted() -> str:
        with Journal.open(tmp_path / "j.db") as journal:
            (its,) = journal.open_jobs()
            return its.note

    serve(tmp_path, serving, Scripted(arrivals("a")))
    why = noted()
    assert why
    now = Clock().now_s()
    there = [Adopted(now, job("a", now, 2, 60.0), at((0, 0b11)), now)]
    serve(tmp_path, serving, Scripted(there))
    assert noted() == why
    elsewhere = [Started(now + 1.0, "a", at((1, 0b11)))]
    serve(tmp_path, serving, Scripted(there, elsewhere))
    assert noted() == "", "the engine has begun it elsewhere"


class Waits(threading.Event):
    """Does not, and notes for how long it should have."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_s.append(timeout)
        return self.is_set()


def test_a_run_that_went_well_for_long_begins_the_pauses_anew(tmp_path, monkeypatch):
    now_s, lasts_s = 0.0, [1.0, 1.0, 1.0, 900.0, 1.0]

    class Time:
        @staticmethod
        def monotonic() -> float:
            return now_s

        time = monotonic

    def make(run: Run) -> Scripted:
        nonlocal now_s
        now_s += lasts_s.pop(0)
        if not lasts_s:
            service.stop()
        raise EngineError("it breaks off", "wait")

    monkeypatch.setattr("hemiola.control.live.service.time", Time)
    with Journal.open(tmp_path / "j.db") as journal:
        service = Service(Settings(policy="fifo"), journal, TWO, make)
        service._stop = Waits()
        service.run()
    assert service._stop.waited_s[:-1] == [0.0, 1.0, 2.0, 4.0, 1.0]


def test_a_journal_that_fails_while_another_leads_ends_nothing(tmp_path, monkeypatch):
    asked = 0

    def leader(journal: Journal) -> Leader | None:
        nonlocal asked
        asked += 1
        if asked == 3:  # by then it is known that another leads
            raise JournalError("the disk fails", "look at it")
        if asked > 3:
            service.stop()
        return Leader("another", 1, 1e12)

    with Journal.open(tmp_path / "j.db") as journal:
        journal.lead("another", Clock().now_s(), 1e6)
        monkeypatch.setattr(Journal, "leader", leader)
        service = Service(Settings(policy="fifo"), journal, TWO, lambda run: pytest.fail("it must not lead"))
        service._stop = Waits()
        service.run()
    assert asked > 3


def test_a_signal_ends_it_whatever_it_interrupts():
    class Interrupted:
        def __init__(self) -> None:
            self.stopped = threading.Event()

        def stop(self) -> None:
            self.stopped.set()

        def run(self) -> None:
            with self.stopped._cond:  # type: ignore[attr-defined]  # as within `wait`
                signal.raise_signal(signal.SIGTERM)
            assert self.stopped.wait(10)

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        _serve(Interrupted())  # type: ignore[arg-type]
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


def test_what_is_old_is_forgotten_beside_the_loop(tmp_path):
    with Journal.open(tmp_path / "j.db") as journal:
        epoch = journal.lead("before", 100.0, 10.0)
        assert epoch is not None
        old = journal.begin_run(epoch, OPENING, 100.0)
        journal.record_events(old, 1, [Timer(101.0, "")], [ended("a", 10.0), record("b", 10.0)])
        journal.end_run(old, "over", 110.0)
        journal.resign(epoch)

        class Patient(Scripted):
            def events(self) -> Iterator[list[Event]]:
                until(lambda: journal.job("a") is None, "it is forgotten")
                yield from super().events()

        settings = Settings(policy="fifo", keep_s=3600.0)
        serve(tmp_path, settings, Patient(arrivals("c")))
        assert old not in [run.id for run in journal.runs()]
        assert [found.uuid for found in journal.open_jobs()] == ["b", "c"]
