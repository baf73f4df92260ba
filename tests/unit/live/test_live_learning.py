"""What jobs report becomes speeds and profiles; what was learnt of a name is known when it is submitted again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from journal_helpers import OPENING
from replays import CheckedMachine
from scripted import Scripted

from hemiola.core.decisions import Placement
from hemiola.core.events import Adopted, Arrived, Event, Finished, Measured, Profiled, Timer
from hemiola.core.job import Demand, batch_job
from hemiola.cost.iteration import IterationModel
from hemiola.live.driver_wrappers import JournalingDriver
from hemiola.live.job_store import JobStore
from hemiola.live.journal import Journal, RunRecord
from hemiola.live.journal.replay import replay
from hemiola.live.live_driver import Identity, is_same_place
from hemiola.live.polling_driver import Clock
from hemiola.live.profiling_driver import ProfilingDriver
from hemiola.live.query.cluster import RunSoFar
from hemiola.live.query.forecast import _adopted
from hemiola.live.tracked_job import recovered
from hemiola.sched.loop import run_loop
from hemiola.sched.policies import policy_from_text
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import Costs, SimulatedEstimates
from hemiola.trace.reports import HostReport, JobReport, Reports, write_report
from hemiola.trace.topologies.native import topology_text
from hemiola.trace.topologies.read import read_topology

TOPOLOGY = read_topology("leaf-spine:hosts=4,gpus_per_host=4,hosts_per_rack=2,nic=10gbit,oversubscription=4")
BEGAN_S = 1_800_000_000.0
RUN = RunRecord(1, 1, OPENING, BEGAN_S, None, "")
Step = Callable[["Cluster"], None] | list[Event]


class Hand(Clock):
    """Stands still until a test sets it, and the wall clock beside it."""

    now = BEGAN_S
    behind = 0.0

    def now_s(self) -> float:
        return self.now

    def behind_s(self) -> float:
        return self.behind


class Cluster(Scripted):
    """An engine, a loop with a journal, and a folder of reports; a test says step by step what happens."""

    def __init__(self, folder: Path, *steps: Step) -> None:
        super().__init__()
        self.folder, self.steps = folder, steps
        self.reports = folder / "reports"
        self.reports.mkdir(exist_ok=True)
        self.clock = Hand()
        self.clock.now = BEGAN_S
        model = IterationModel(TOPOLOGY)
        self.view = ClusterView(TOPOLOGY, SimulatedEstimates(model, Costs()), now=BEGAN_S)
        self.added: list[Event] = []
        self.seen: list[Event] = []
        with Journal.open(folder / "journal.db") as journal:
            epoch = journal.lead("one", BEGAN_S, 1e6)
            assert epoch is not None
            opening = OPENING.__class__(
                policy="fifo", engine="none", mode="enforce", topology=topology_text(TOPOLOGY), version="0"
            )
            run = journal.begin_run(epoch, opening, BEGAN_S)
            reports = Reports(self.reports)
            self.learning = ProfilingDriver(self, self.view, model, journal, self.clock, reports)
            book = JobStore(self.view, self.learning, model, journal.open_jobs())
            journaled = JournalingDriver(self.learning, journal, run, book, intents=True)
            run_loop(journaled, CheckedMachine(self.view), policy_from_text("fifo"), journaled.note)
            self.records = {record.uuid: record for record in journal.jobs()}
            self.faithful = replay(journal, run)
            journal.resign(epoch)

    def events(self) -> Iterator[list[Event]]:
        for step in self.steps:
            self.clock.now += 10.0
            if callable(step):
                step(self)
            else:
                yield step
            self.learning.turned()
            if self.added:
                added, self.added = self.added, []
                self.seen += added
                yield added

    def add(self, events: Sequence[Event]) -> None:
        self.added += events

    def identity(self, job_id: str) -> Identity | None:
        return Identity(
            engine_id=job_id,
            submit_s=1.0,
            user=self.view.jobs[job_id].job.user if job_id in self.view.jobs else "",
            name="train",
        )


def reported(job: str, iteration_s: float, compute_s: float, at_s: float = 10.0, **more: int) -> Step:
    """A step: a job on 8 GPUs that sends 625 MB per iteration reports."""

    def step(cluster: Cluster) -> None:
        report = JobReport(
            job=job, time_s=BEGAN_S + at_s, gpus=8, iterations=10, iteration_s=iteration_s, compute_s=compute_s,
            traffic_bytes=625e6,
        )  # fmt: skip
        write_report(cluster.reports, report)
        if more:
            os.chown(cluster.reports / f"job-{job}.json", more["uid"], -1)

    return step


def arrives(name: str, user: str = "ada") -> list[Event]:
    job = batch_job(id=name, submit_s=0.0, gpus=8, duration_s=1000.0, hosts=2, user=user)
    return [Arrived(BEGAN_S, job)]


def ends(name: str, at_s: float) -> list[Event]:
    return [Finished(BEGAN_S + at_s, name)]


def test_a_job_that_reports_is_learnt_and_its_speed_is_told(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, arrives("1"), reported("1", 0.5, 0.2), ends("1", 100.0))
    (profiled,) = cluster.seen
    assert isinstance(profiled, Profiled)
    assert profiled.profile.demands == (Demand(8, 0.2, 625e6),)
    # 625 MB at 1.25 GB/s take 0.5 s, of which 0.3 s were seen: 0.2 s are hidden, all of the computation
    assert profiled.profile.overlap == pytest.approx(1.0, abs=1e-3)
    record = cluster.records["1"]
    assert (record.iteration_s, record.predicted_iteration_s) == (0.5, None)
    assert record.speed == pytest.approx(1.0, rel=1e-3)
    assert record.job.profile == profiled.profile
    assert cluster.faithful


def test_slower_iterations_are_neighbours_and_quicker_ones_are_learnt_anew(tmp_path: Path) -> None:
    cluster = Cluster(
        tmp_path, arrives("1"), reported("1", 0.5, 0.2), reported("1", 1.0, 0.2), reported("1", 0.4, 0.2),
        ends("1", 100.0),
    )  # fmt: skip
    kinds = [type(event) for event in cluster.seen]
    assert kinds == [Profiled, Measured, Profiled, Measured]
    first, slow, second, quick = cluster.seen
    assert isinstance(slow, Measured) and slow.speed == pytest.approx(0.5, rel=1e-3)
    assert isinstance(quick, Measured) and quick.speed == pytest.approx(1.0, rel=1e-3)
    assert isinstance(first, Profiled) and isinstance(second, Profiled)
    assert second.profile.demands == first.profile.demands
    record = cluster.records["1"]  # 20 s at 1, 10 s at 0.5, the rest at 1
    assert record.speed == pytest.approx(1 - 0.5 * 10 / record.served_s, rel=0.01)


def test_a_job_of_the_same_name_is_known_when_it_is_submitted_again(tmp_path: Path) -> None:
    cluster = Cluster(
        tmp_path, arrives("1"), reported("1", 0.5, 0.2), ends("1", 100.0), arrives("2"), ends("2", 200.0),
        arrives("3", user="bob"), ends("3", 300.0),
    )  # fmt: skip
    first, second, third = (cluster.records[name] for name in "123")
    assert second.job.profile == first.job.profile is not None
    assert second.predicted_iteration_s == pytest.approx(0.5, rel=1e-3)
    assert second.predicted_s == pytest.approx(1000.0, rel=1e-3)
    assert third.job.profile is None
    again = Cluster(tmp_path, arrives("4"), ends("4", 10.0))
    assert again.records["4"].job.profile == first.job.profile


def test_what_was_learnt_of_a_job_outlives_the_daemon(tmp_path: Path) -> None:
    """After a restart a neighbour's slowness is told from the job's own by what was known before.

    The engine tells neither the order of its ranks nor which GPUs it has.
    """
    before = Cluster(tmp_path, arrives("1"), reported("1", 0.5, 0.2)).records["1"]
    assert before.placement is not None
    job = msgspec.structs.replace(before.job, profile=None)
    place = Placement(before.placement.hosts[::-1], before.placement.masks)
    there: Step = [Adopted(BEGAN_S + 10.0, job, place, BEGAN_S)]
    slow = reported("1", 1.0, 0.2, at_s=15.0)
    again = Cluster(tmp_path, there, slow, ends("1", 100.0))
    (measured,) = again.seen
    assert isinstance(measured, Measured) and measured.speed == pytest.approx(0.5, rel=1e-3)
    after = again.records["1"]
    assert after.job.profile == before.job.profile
    assert after.predicted_iteration_s is None, "it was measured before anything was predicted there"
    assert is_same_place(Placement((0,), (0xF0,)), Placement((0,), (0x0F,)))


def test_work_goes_on_over_a_restart(tmp_path: Path) -> None:
    """Nothing is written of a job while nothing happens to it: what it did in that time is not lost."""
    later_s = BEGAN_S + 600.0
    before = Cluster(tmp_path, arrives("1"), reported("1", 0.5, 0.2)).records["1"]
    (memory,) = recovered([msgspec.structs.replace(before, memory="{}")], msgspec.Struct)
    had = memory.history(later_s, running=True)
    there: Step = [Adopted(later_s, before.job, before.placement, **had)]  # type: ignore[arg-type]
    again = Cluster(tmp_path, there, reported("1", 0.5, 0.2, at_s=605.0), ends("1", 700.0))
    assert again.records["1"].speed == pytest.approx(1.0)
    asked = _adopted(RUN, RunSoFar(), IterationModel(TOPOLOGY), [before], later_s)
    assert asked.view.jobs["1"].remaining_s(later_s) == pytest.approx(400.0)


def test_a_job_that_was_moved_meanwhile_is_learnt_anew(tmp_path: Path) -> None:
    before = Cluster(tmp_path, arrives("1"), reported("1", 0.5, 0.2)).records["1"]
    elsewhere: Step = [Adopted(BEGAN_S + 10.0, before.job, Placement((0, 2), (15, 15)), BEGAN_S)]
    assert before.placement is not None and before.placement.hosts != (0, 2)
    again = Cluster(tmp_path, elsewhere, reported("1", 1.0, 0.2, at_s=15.0), ends("1", 100.0))
    assert isinstance(again.seen[0], Profiled)


def test_a_timer_that_comes_after_a_job_has_ended_changes_nothing(tmp_path: Path) -> None:
    late: Step = [Timer(BEGAN_S + 60.0, "1")]
    cluster = Cluster(tmp_path, arrives("1"), ends("1", 50.0), late)
    record = cluster.records["1"]
    assert (record.status, record.outcome, record.ended_s) == ("ended", "finished", BEGAN_S + 50.0)


def test_a_report_from_before_it_ran_here_is_of_another_place(tmp_path: Path) -> None:
    assert not Cluster(tmp_path, arrives("1"), reported("1", 0.5, 0.2, at_s=-50.0), ends("1", 50.0)).seen


def test_a_clock_that_was_set_back_keeps_no_report_away(tmp_path: Path) -> None:
    def set_back(cluster: Cluster) -> None:
        cluster.clock.behind = -3600.0

    reports: Step = reported("1", 0.5, 0.2, at_s=20.0 - 3600.0)
    assert Cluster(tmp_path, arrives("1"), set_back, reports, ends("1", 50.0)).seen


@pytest.mark.skipif(os.getuid() != 0, reason="only root can write in another user's name")
def test_nobody_reports_of_somebody_elses_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(
        tmp_path, arrives("1", user="daemon"), reported("1", 0.5, 0.2, uid=4243), ends("1", 50.0)
    )
    assert not cluster.seen
    assert "4243 reports of job 1, which is daemon's" in caplog.text
    mine = Cluster(tmp_path, arrives("2", user="daemon"), reported("2", 0.5, 0.2, uid=1), ends("2", 50.0))
    assert mine.seen


def test_hosts_tell_their_counters_and_strangers_files_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = HostReport(host="n1", time_s=BEGAN_S, sent_bytes_per_s=5.0, received_bytes_per_s=6.0)

    def step(cluster: Cluster) -> None:
        write_report(cluster.reports, host)
        (cluster.reports / "job-9.json").write_text("no report")

    cluster = Cluster(tmp_path, arrives("1"), step, [Timer(BEGAN_S, "")], ends("1", 50.0))
    assert cluster.learning.counters() == {"n1": host}
    assert caplog.text.count("'job-9.json'") == 1
