"""Hemiola on a real Slurm: jobs run where they were placed, whatever becomes of them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from live_slurm import Live, until
from repository import HELPERS

from hemiola.cli.simulate import simulate
from hemiola.core.decisions import Decision, Placement, Start
from hemiola.core.errors import EngineError
from hemiola.core.events import Started
from hemiola.core.hostlist import expand
from hemiola.live.engines.slurm import driver
from hemiola.live.engines.slurm.driver import SlurmDriver
from hemiola.live.engines.slurm.wire import SlurmJobRow
from hemiola.live.journal import Journal
from hemiola.live.journal.replay import replay
from hemiola.live.live_driver import DriverWrapper
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView


def test_jobs_of_every_kind_run_once_where_they_were_placed(live: Live):
    with live.serving("dally"):
        jobs = [
            live.submit("-N2 --gpus-per-node=8"), live.submit("--gres=gpu:2"), live.submit("--gpus=12 --ntasks=12"),
            live.submit("--ntasks=2 --gpus-per-task=3"), live.submit("-N3 --gres=gpu:4"),
        ]  # fmt: skip
        array = live.submit("--gres=gpu:4 --array=1-3")
        jobs += [f"{array}_{element}" for element in (1, 2, 3)]
        assert [live.wait_outcome(job) for job in jobs] == ["finished"] * 8
    rows = live.rows(ended=True)
    for job in jobs:
        assert rows[job].state == "COMPLETED" and rows[job].restarts == 0, rows[job]
        assert rows[job].host_list == rows[job].bound_to, "it ran where it was bound to"
    assert len(expand(rows[jobs[2]].host_list)) == 2, "twelve GPUs on hosts of eight"
    with Journal.open(live.journal_path, read_only=True) as journal:
        (run,) = journal.runs()
        assert replay(journal, run.id).difference is None, "the journal's decisions come out again"
        assert not journal.open_jobs() and not journal.open_intents()


def test_what_can_never_run_is_left_alone_with_the_reason_and_jobs_without_gpus_are_slurms(live: Live):
    with live.serving():
        large, small = live.submit("-N5 --gres=gpu:8"), live.submit("-n1")
        live.wait_state(small, "COMPLETED")
        other = live.submit("--gres=gpu:1")
        assert live.wait_outcome(other) == "finished"
        record = live.record(large)
        assert record.status == "held"
        assert record.note.startswith("it can never run here: it wants 40 GPUs on 5 hosts, more than")
        assert live.state(large) == "PENDING"
        live.command("scancel", large)
        assert live.wait_outcome(large) == "cancelled"


def test_arrays_run_as_many_at_once_as_they_say(live: Live):
    with live.serving():
        array = live.submit("--gres=gpu:1 --array=1-4%2", "sleep 1.5")
        most = 0
        while not all(live.state(f"{array}_{e}") == "COMPLETED" for e in (1, 2, 3, 4)):
            most = max(most, sum(row.state == "RUNNING" for row in live.rows().values()))
        assert most == 2


def test_dependencies_begin_times_and_holds_are_kept(live: Live):
    with live.serving():
        first = live.submit("--gres=gpu:1", "sleep 2")
        second = live.submit(f"--gres=gpu:1 --dependency=afterok:{first}")
        asked_s = int(time.time())
        later = live.submit("--gres=gpu:1 --begin=now+4")
        held = live.submit("--gres=gpu:1")
        live.command("scontrol", "hold", held)
        live.wait_state(first, "RUNNING")
        until(lambda: "waits for" in live.reason(second), "its reason is the dependency")
        until(
            lambda: "administrator" in live.reason(held) or live.state(held) != "PENDING",
            "its reason is the hold",
        )
        assert live.wait_outcome(first) == live.wait_outcome(second) == live.wait_outcome(later) == "finished"
        rows = live.rows(ended=True)
        assert rows[later].eligible_s >= asked_s + 4
        if live.state(held) == "PENDING":
            live.command("scontrol", "release", held)
        assert live.wait_outcome(held) == "finished"


def test_cancelled_failed_and_timed_out_jobs_end_with_their_reason(live: Live):
    with live.serving():
        failing = live.submit("--gres=gpu:1", "exit 3")
        running, waiting = live.submit("-N4 --gres=gpu:8", "sleep 60"), live.submit("-N4 --gres=gpu:8")
        live.wait_state(running, "RUNNING")
        live.command("scancel", waiting)
        assert live.wait_outcome(waiting) == "cancelled"
        live.command("scancel", running)
        assert live.wait_outcome(failing) == "failed, exit code 3"
        assert live.wait_outcome(running).startswith(("cancelled", "failed"))


def test_a_job_that_its_user_requeues_runs_again_and_keeps_what_it_has_had(live: Live):
    with live.serving():
        job = live.submit("--gres=gpu:8", "sleep 2")
        live.wait_state(job, "RUNNING")
        live.command("scontrol", "requeue", job)
        assert live.wait_outcome(job) == "finished"
    row = live.rows(ended=True)[job]
    assert row.restarts == 1 and row.state == "COMPLETED"
    assert live.record(job).preemptions == 0, "nobody here stopped it"


def test_a_shorter_job_goes_first_and_the_longer_one_goes_on_after_it(live: Live):
    with live.serving("srtf"):
        long = live.submit("-N4 --gres=gpu:8 --time=60", "sleep 3")
        live.wait_state(long, "RUNNING")
        short = live.submit("-N4 --gres=gpu:8 --time=1")
        assert live.wait_outcome(short) == "finished"
        assert live.wait_outcome(long) == "finished"
    assert live.record(long).preemptions == 1 and live.rows(ended=True)[long].restarts == 1


def test_a_job_that_may_not_be_requeued_is_not_stopped(live: Live):
    with live.serving("srtf"):
        long = live.submit("-N4 --gres=gpu:8 --time=60 --no-requeue", "sleep 2")
        live.wait_state(long, "RUNNING")
        short = live.submit("-N4 --gres=gpu:8 --time=1")
        assert live.wait_outcome(long) == live.wait_outcome(short) == "finished"
    assert live.record(long).preemptions == 0 and live.rows(ended=True)[long].restarts == 0


def test_what_srun_asked_for_is_not_stopped(live: Live, caplog: pytest.LogCaptureFixture):
    words = ("srun", "-p", "hemiola", "-N4", "--gres=gpu:8", "--time=60", "-J", "interactive", "sleep", "60")
    with (
        live.serving("srtf"),
        subprocess.Popen(words, env=live.slurm.environ, stderr=subprocess.DEVNULL, cwd="/tmp") as srun,
    ):
        until(lambda: [row for row in live.rows().values() if row.state == "RUNNING"], "it runs")
        (row,) = live.rows().values()
        until(lambda: live.record(row.id).status == "running", "it is seen running")
        short = live.submit("-N4 --gres=gpu:8 --time=1")
        until(lambda: live.known(short), "it waits")
        tried = live.submit("-N5 --gres=gpu:8")
        until(lambda: live.known(tried), "something was decided meanwhile")
        live.command("scancel", row.id)
        assert live.wait_outcome(short) == "finished"
        srun.wait(30)
    assert row.requeues and not row.batch
    assert live.record(row.id).preemptions == 0 and "no longer fits" not in caplog.text


def test_a_node_that_dies_gives_its_job_back_and_it_runs_elsewhere(live: Live):
    with live.serving("fifo:placement=first-fit"):
        job = live.submit("--gres=gpu:8", "sleep 3")
        live.wait_state(job, "RUNNING")
        node = live.hosts(job)
        live.lab.kill_node(node)
        try:
            assert live.wait_outcome(job) == "finished"
            assert live.rows(ended=True)[job].host_list != node
        finally:
            live.lab.start_node(node)


def test_observing_changes_nothing_and_says_what_it_would_do(live: Live):
    with live.serving("dally", mode="observe"):
        job = live.submit("--gres=gpu:8", "sleep 1")
        until(lambda: live.record(job).note, "something was decided about it")
        row = live.rows()[job]
        assert (row.state, row.priority, row.bound_to) == ("PENDING", 0, ""), (
            "it is held, as the lab's Lua does"
        )
        live.command("scontrol", "release", job)  # Slurm's own scheduler places it
        assert live.wait_outcome(job) == "finished"
        assert live.rows(ended=True)[job].bound_to == ""


def test_a_restart_goes_on_with_what_is_there(live: Live):
    with live.serving():
        running, waiting = live.submit("-N4 --gres=gpu:8", "sleep 5"), live.submit("-N4 --gres=gpu:8")
        live.wait_state(running, "RUNNING")
        uuids = [live.record(job).uuid for job in (running, waiting)]
    gone = live.submit("--gres=gpu:1")
    with live.serving():
        assert (
            live.wait_outcome(running) == live.wait_outcome(waiting) == live.wait_outcome(gone) == "finished"
        )
    assert [live.record(job).uuid for job in (running, waiting)] == uuids
    assert all(live.rows(ended=True)[job].restarts == 0 for job in (running, waiting, gone))
    assert live.record(running).served_s >= 4, "what it had before the restart counts"


def test_what_ran_before_and_ends_while_nobody_watches_has_run_for_as_long_as_slurm_says(
    live: Live, tmp_path: Path
):
    may_end = tmp_path / "may-end"
    job = live.submit("--gres=gpu:1", f"until [ -e {may_end} ]; do sleep 0.1; done")
    live.command("scontrol", "release", job)
    live.wait_state(job, "RUNNING")
    time.sleep(2.0)
    with live.serving():
        until(lambda: live.known(job), "it is taken up")
    (began_s, _) = live.slurm.spans([job])[job]
    found = live.record(job)
    assert found.since_s == found.first_started_s == pytest.approx(began_s, abs=0.1)
    may_end.touch()
    live.wait_state(job, "COMPLETED")
    (_, ended_s) = live.slurm.spans([job])[job]
    time.sleep(2.0)
    with live.serving():
        assert live.wait_outcome(job) == "finished"
    assert live.record(job).served_s == pytest.approx(ended_s - began_s, abs=0.1)
    assert not live.record(job).unwatched


def test_a_job_that_comes_is_looked_at_at_once_if_the_gate_says_so(
    live: Live, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(driver, "LOOK_S", 1000.0)
    with live.serving(wake=live.lab.wake):
        time.sleep(1.0)  # whatever made it look soon is over
        job = live.submit("-N1 --gres=gpu:1", "sleep 30")
        until(lambda: live.known(job), "it is known", 5.0)


def test_the_journal_is_a_workload_for_other_policies(live: Live, capfd: pytest.CaptureFixture[str]):
    with live.serving("fifo"):
        jobs = [live.submit(f"-N{hosts} --gres=gpu:8") for hosts in (2, 3, 1, 4)]
        assert [live.wait_outcome(job) for job in jobs] == ["finished"] * 4
    simulate(journal=str(live.journal_path), policy=("fifo", "srtf"))
    said = capfd.readouterr()
    assert "4 jobs, read as journal" in " ".join(said.err.split()) and "srtf" in said.out


def test_advice_is_written_where_an_administrator_sees_it_and_binds_nobody(live: Live):
    with live.serving("dally", mode="advise"):
        job = live.submit("-N2 --gres=gpu:8", "sleep 1")
        until(lambda: "advice" in live.slurm.ask("scontrol", "show", "job", job), "it is advised")
        text = live.slurm.ask("scontrol", "show", "job", job)
        assert "AdminComment=hemiola:advice:nodes=h[0-1]" in text
        row = live.rows()[job]
        assert (row.state, row.priority, row.bound_to) == ("PENDING", 0, "")


class Backwards(Policy):
    """Puts rank 0 on the last host."""

    name = "backwards"

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        for name in list(view.waiting):
            yield Start(name, Placement((3, 2, 0), (0xFF, 0xFF, 0xFF)), "to see whether ranks follow")


def test_ranks_follow_the_order_of_the_placement(live: Live, tmp_path: Path):
    found, hosts = tmp_path / "found", tmp_path / "hosts"
    command = Path(sys.executable).with_name("hemiola")
    script = (
        f"{command} ranks > {hosts}; SLURM_HOSTFILE={hosts} srun -m arbitrary -n 3 "
        f"sh -c 'echo $SLURM_PROCID $SLURMD_NODENAME >> {found}'"
    )
    with live.serving(f"{__name__}:Backwards"):
        job = live.submit("-N3 -n3 --gres=gpu:8", script)
        assert live.wait_outcome(job) == "finished"
    assert hosts.read_text().split() == ["h3", "h2", "h0"]
    assert sorted(found.read_text().splitlines()) == ["0 h3", "1 h2", "2 h0"]


def test_a_slurm_that_goes_away_in_the_middle_of_a_look_loses_nothing(live: Live):
    with live.serving() as service:
        job = live.submit("--gres=gpu:8", "sleep 2")
        live.wait_state(job, "RUNNING")
        until(lambda: live.record(job).status == "running", "it is seen running")
        driver = service.driver
        assert isinstance(driver, DriverWrapper)
        slurm = driver._inner
        assert isinstance(slurm, SlurmDriver)

        def away(ids: list[str]) -> dict[str, SlurmJobRow]:
            raise EngineError("no answer", "")

        slurm._watcher.ends = away  # type: ignore[method-assign]  # the list came, how the job ended did not
        assert live.wait_outcome(job) == "finished"
        assert service.driver is not driver, "the view was built anew"
        assert live.wait_outcome(live.submit("-N4 --gres=gpu:8")) == "finished"


class Begins:
    """A Slurm that begins a job by itself just before it is bound for the first time."""

    def __init__(self, live: Live) -> None:
        self._live, self.job = live, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._live.slurm, name)

    def tell(self, orders: Sequence[str]) -> str:
        job = next((line.split()[1] for line in orders if line.startswith("update jobid=")), "")
        if job and not self.job:
            self.job = job.partition("=")[2]
            self._live.command("scontrol", "release", self.job)
            self._live.wait_state(self.job, "RUNNING")
        return self._live.slurm.tell(orders)


def starts(journal_path: Path) -> list[Started]:
    """Of the last run."""
    with Journal.open(journal_path, read_only=True) as journal:
        instants = journal.instants(journal.runs()[-1].id)
        return [event for instant in instants for event in instant.events if isinstance(event, Started)]


def wait_starts(journal_path: Path, count: int) -> None:
    until(lambda: len(starts(journal_path)) >= count, f"{count} starts are in the journal")


def test_what_slurm_begins_as_it_is_about_to_be_bound_runs_on_there(
    live: Live, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    slurm = Begins(live)
    monkeypatch.setattr(live, "engine", lambda: slurm)
    with live.serving(f"{__name__}:Backwards"):
        for number in (1, 2):  # each runs until it has been seen to
            end = tmp_path / f"end-{number}"
            job = live.submit("-N3 -n3 --gres=gpu:8", f"until [ -e {end} ]; do sleep 0.1; done")
            wait_starts(live.journal_path, number)
            end.touch()
            assert live.wait_outcome(job) == "finished"
    row = live.rows(ended=True)[slurm.job]
    assert row.restarts == 0
    with Journal.open(live.journal_path, read_only=True) as journal:
        assert replay(journal, journal.runs()[-1].id).difference is None
    first, second = starts(live.journal_path)
    assert first.placement is not None
    assert [f"h{host}" for host in first.placement.hosts] == expand(row.host_list)
    assert second.placement is None, "it ran where it was placed"


def test_a_job_that_trains_is_learnt_and_its_successor_is_known(live: Live, tmp_path: Path):
    (reports := tmp_path / "reports").mkdir()
    scripts = HELPERS / "record_scripts"
    command, stop = Path(sys.executable).with_name("hemiola"), tmp_path / "stop"
    train = f"{command} run --nproc 2 {scripts / 'train.py'} --iterations 100000 --slow-rank 1 --until {stop}"
    with live.serving(reports=reports):
        options = f"--gres=gpu:2 --job-name=train --export=ALL,HEMIOLA_REPORTS={reports},OMP_NUM_THREADS=1"
        first = live.submit(options, train)
        until(lambda: live.record(first).iteration_s, "it reports", 120)
        stop.touch()
        assert live.wait_outcome(first) == "finished"
        second = live.submit("--gres=gpu:2 --job-name=train")
        assert live.wait_outcome(second) == "finished"
    known, successor = live.record(first), live.record(second)
    profile = known.job.profile
    assert profile is not None and profile.name == "learnt/root/train"
    assert known.iteration_s is not None and known.iteration_s > 0.03  # the pause of the slow rank
    assert successor.job.profile == profile
    assert successor.predicted_iteration_s is not None


# ---- elastic jobs
