"""What outlasts a run of the service: who leads, the clock, and what is kept of jobs. Without an engine."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
from journal_helpers import OPENING, ended, record
from patience import until
from replays import at, cluster, job
from scripted import TWO, Scripted, arrivals, leading, serve

from hemiola.cli.serve import _serve
from hemiola.core.decisions import Start
from hemiola.core.errors import EngineError, InputError
from hemiola.core.events import Adopted, Event, Failed, Finished, Held, Requeued, Started, Timer
from hemiola.core.job import Job
from hemiola.core.topology import Topology
from hemiola.cost.iteration import IterationModel
from hemiola.live.job_store import JobStore
from hemiola.live.journal import Journal, JournalError, Leader
from hemiola.live.journal.replay import workload
from hemiola.live.leadership import is_gone, process_identity
from hemiola.live.live_driver import Vanished
from hemiola.live.logging_setup import _Objects
from hemiola.live.polling_driver import Clock
from hemiola.live.query.cluster import Names, engine_ids, read_cluster, read_daemon
from hemiola.live.query.job_history import story
from hemiola.live.service import LiveService, Session, SessionSettings
from hemiola.sched.view import ClusterView


def test_who_leads_is_known_to_be_gone_on_the_same_host():
    assert not is_gone(process_identity()), "this very process"
    code = "from hemiola.live.leadership import process_identity; print(process_identity())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert is_gone(done.stdout.strip())
    for other in ("elsewhere/1/2/3/4", "nonsense", process_identity().replace("/", "/x", 1)):
        assert not is_gone(other), "nobody can know"


def test_a_lease_that_somebody_else_took_is_lost(tmp_path):
    lost = threading.Event()
    with Journal.open(tmp_path / "j.db") as journal:
        leadership = leading(journal, None, lost.set)
        assert leadership.holds()
        journal.resign(leadership.epoch)
        assert journal.lead("another", time.time(), 60.0)
        until(lost.is_set, "it is told")
        assert not leadership.holds()
        leadership.end()
        leader = journal.leader()
        assert leader is not None and leader.holder == "another", "another's lease is not given back"


def test_who_leads_is_heard_though_the_clock_was_set_forward(tmp_path, monkeypatch):
    monkeypatch.setattr("hemiola.live.leadership.RENEW_S", 0.01)
    wall_s = time.time
    with Journal.open(tmp_path / "j.db") as journal:
        leadership = leading(journal)
        monkeypatch.setattr(time, "time", lambda: wall_s() + 3600.0)
        until(lambda: read_daemon(journal, time.time()).state == "leads", "it is heard")
        leadership.end()


def test_a_clock_that_was_set_forward_is_no_reason_to_take_over(tmp_path, monkeypatch):
    with Journal.open(tmp_path / "j.db") as journal:
        service = LiveService(
            SessionSettings(policy="fifo"), journal, TWO, lambda run: pytest.fail("it must not lead")
        )
        wall_s = time.time
        assert journal.lead("another", wall_s(), 10.0)
        monkeypatch.setattr(time, "time", lambda: wall_s() + 3600.0)
        assert service._take_lead() is None


@pytest.mark.parametrize(
    ("step_s", "why"),
    [(3600.0, "the clock was set forward, or this host slept"), (-3600.0, "the clock was set back")],
)
def test_a_clock_that_was_set_begins_a_run_that_goes_by_it(tmp_path, monkeypatch, step_s, why):
    wall_s = time.time

    class Sleeps(Scripted):
        def events(self) -> Iterator[list[Event]]:
            for events in super().events():
                yield events
                monkeypatch.setattr(time, "time", lambda: wall_s() + step_s)
                runs[-1].turned()  # the first turn is the beginning of a run
                runs[-1].turned()

    runs: list[Session] = []
    drivers = Sleeps(arrivals("a"), ends=False), Scripted()
    serve(tmp_path, SessionSettings(policy="fifo", mode="enforce"), *drivers, runs=runs)
    assert runs[1].clock.behind_s() == pytest.approx(0.0, abs=1.0)
    with Journal.open(tmp_path / "j.db") as journal:
        before, after = journal.runs()
        assert before.reason == why
        assert after.began_s - before.began_s == pytest.approx(step_s, abs=30.0)
    if step_s < 0:  # nobody loses what it has had by a clock that was ahead
        (there,) = runs[1].recovered
        assert there.since_s == pytest.approx(wall_s() + step_s, abs=30.0)


def test_that_it_lives_is_said_only_while_it_acts(tmp_path):
    alive = tmp_path / "alive"
    with Journal.open(tmp_path / "j.db") as journal:
        leadership = leading(journal, alive)
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
    serve(tmp_path, SessionSettings(policy=policy), Scripted(arrivals("a"), cancelled))
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
        def vanished(self) -> list[Vanished]:
            return [Vanished("a", "cancelled")]

    view = ClusterView(TWO, estimates=None, now=160.0)  # type: ignore[arg-type]
    book = JobStore(view, Without(), IterationModel(TWO), [record("a", 100.0, status=status, queued_s=0.0)])
    (found,) = book.due()
    assert (found.queued_s + found.withheld_s, found.served_s) == (waited_s, 60.0 - waited_s)


@pytest.mark.parametrize(
    ("ended_s", "served_s", "unwatched"),
    [(None, 9900.0, True), (160.0, 60.0, False), (90.0, 0.0, False), (20_000.0, 9900.0, False)],
    ids=["nobody knows", "the engine does", "by a clock that is behind", "by one that is ahead"],
)
def test_a_job_that_ended_while_nobody_looked_ran_until_the_engine_says(ended_s, served_s, unwatched):
    class Without(Scripted):
        def vanished(self) -> list[Vanished]:
            return [Vanished("a", "finished", ended_s)]

    view = ClusterView(TWO, estimates=None, now=10_000.0)  # type: ignore[arg-type]
    ran = record(
        "a", 100.0, status="running", first_started_s=100.0, placement=at((0, 0b11)), service_gpu_s=0.0
    )
    (found,) = JobStore(view, Without(), IterationModel(TWO), [ran]).due()
    assert (found.status, found.served_s, found.unwatched) == ("ended", served_s, unwatched)
    assert (found.ended_s, found.service_gpu_s) == (100.0 + served_s, 2 * served_s)


@pytest.mark.parametrize(("ran", "started_s"), [(True, 100.0), (False, None)])
def test_a_job_whose_start_nobody_saw_has_run_if_the_engine_says_so(ran, started_s):
    class Without(Scripted):
        def vanished(self) -> list[Vanished]:
            return [Vanished("a", "finished", 160.0, ran)]

    view = ClusterView(TWO, estimates=None, now=10_000.0)  # type: ignore[arg-type]
    decided = record("a", 100.0, status="running", placement=at((0, 0b11)), first_started_s=None)
    (found,) = JobStore(view, Without(), IterationModel(TWO), [decided]).due()
    assert (found.first_started_s, found.served_s, found.unwatched) == (started_s, 60.0, False)


def test_a_job_whose_binds_all_failed_has_never_run(tmp_path):
    now = Clock().now_s()
    failed: list[Event] = [
        Requeued(now + 60.0, "a", "Slurm does not start it", False),
        Held(now + 60.0, "a", "later"),
    ]
    begun: list[Event] = [Started(now + 10.0, "b"), Requeued(now + 70.0, "b", "its prolog failed")]
    ended: list[Event] = [Failed(now + 100.0, "a", "cancelled"), Failed(now + 100.0, "b", "cancelled")]
    driver = Scripted(arrivals("a", "b"), begun[:1], failed + begun[1:], ended)
    serve(tmp_path, SessionSettings(policy="fifo", mode="enforce"), driver)
    with Journal.open(tmp_path / "j.db") as journal:
        b, a = sorted(journal.jobs(), key=lambda found: found.uuid, reverse=True)
        assert (a.first_started_s, a.served_s) == (None, 0.0) and a.queued_s == pytest.approx(60.0, abs=1.0)
        assert b.first_started_s == now + 10.0 and b.served_s > 60.0
        assert workload(journal).skipped == {"never started": 1}


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
        assert JobStore(view, Refuses(), IterationModel(TWO), [known]).due() == [expected]


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
        serve(tmp_path, SessionSettings(policy="fifo", mode="enforce"), driver, topology=topology)
        with Journal.open(tmp_path / "j.db") as journal:
            shown = read_cluster(journal, Clock().now_s(), ended_since_s=0.0)
            found.append({one.uuid: one.where for one in shown.jobs})
    there = (("n3", 1),)
    assert found == [{"a": there, "b": there}, {"a": there, "b": there}, {"a": there, "b": ()}]


def test_a_job_that_runs_on_where_it_did_has_no_new_story(tmp_path):
    """The engine tells its hosts in an order of its own."""
    for place in (at((1, 1), (0, 1)), at((0, 1), (1, 1))):
        there: list[Event] = [Adopted(Clock().now_s(), job("a", 1.0, 2, 60.0), place, 1.0)]
        serve(tmp_path, SessionSettings(policy="fifo", mode="enforce"), Scripted(there))
    with Journal.open(tmp_path / "j.db") as journal:
        (its,) = journal.open_jobs()
        (found,) = story(journal, its, Names(journal, engine_ids([its])))
    assert "was found running on" in found.text and found.times == 1


def test_why_a_job_runs_there_is_kept_only_of_our_own_starts(tmp_path):
    serving = SessionSettings(policy="fifo", mode="enforce")

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

    def make(run: Session) -> Scripted:
        nonlocal now_s
        now_s += lasts_s.pop(0)
        if not lasts_s:
            service.stop()
        raise EngineError("it breaks off", "wait")

    monkeypatch.setattr("hemiola.live.service.time", Time)
    with Journal.open(tmp_path / "j.db") as journal:
        service = LiveService(SessionSettings(policy="fifo"), journal, TWO, make)
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
        service = LiveService(
            SessionSettings(policy="fifo"), journal, TWO, lambda run: pytest.fail("it must not lead")
        )
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

        settings = SessionSettings(policy="fifo", keep_s=3600.0)
        serve(tmp_path, settings, Patient(arrivals("c")))
        assert old not in [run.id for run in journal.runs()]
        assert [found.uuid for found in journal.open_jobs()] == ["b", "c"]
