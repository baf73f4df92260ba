"""Hemiola on a real Slurm: jobs run where they were placed, and whatever Slurm's users and administrators do is met."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from live_policies import want
from live_slurm import Live, need_slurm, until

from hemiola.cli.lend import lend
from hemiola.cli.simulate import simulate
from hemiola.control.journal import Journal
from hemiola.control.journal.replay import replay
from hemiola.control.live.engine import Around
from hemiola.control.slurm.driver import SlurmDriver
from hemiola.control.slurm.handback import hand_back
from hemiola.control.slurm.rows import JobRow
from hemiola.core.decisions import Decision, Placement, Start
from hemiola.core.errors import EngineError, HemiolaError
from hemiola.core.hostlist import expand
from hemiola.lab.slurm import SlurmLab
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    need_slurm()
    settings = {"SlurmdTimeout": "2", "MessageTimeout": "2"}  # a node that dies is noticed within seconds
    with SlurmLab(4, gpus=8, racks=2, name=f"live-{secrets.token_hex(4)}", settings=settings) as slurm:
        yield slurm


@pytest.fixture
def live(lab: SlurmLab, tmp_path: Path) -> Iterator[Live]:
    one = Live(lab, tmp_path / "journal.db")
    yield one
    one.clear()


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
    assert len(expand(rows[jobs[2]].host_list)) == 2, "twelve GPUs on hosts of eight: six on each of two"
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
        assert rows[later].eligible_s - rows[later].submit_s >= 4
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


def test_a_drained_node_gets_nothing_new_and_what_runs_there_goes_on(live: Live):
    with live.serving("fifo:placement=first-fit"):
        first = live.submit("--gres=gpu:2", "sleep 3")
        live.wait_state(first, "RUNNING")
        node = live.hosts(first)
        live.command("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
        until(lambda: live.service.view.inventory.owed or live.service.view.inventory.blocked, "it is seen")
        second = live.submit("--gres=gpu:2")
        live.wait_state(second, "RUNNING", "COMPLETED")
        assert live.rows(ended=True)[second].host_list != node
        assert live.wait_outcome(first) == "finished"
        live.command("scontrol", "update", f"nodename={node}", "state=resume")
        third = live.submit("-N4 --gres=gpu:8")
        assert live.wait_outcome(third) == "finished"


def test_jobs_of_other_partitions_keep_their_gpus(live: Live):
    with live.serving():
        theirs = [live.submit("-N2 --gres=gpu:6", "sleep 4", partition="other") for _ in range(2)]
        for job in theirs:
            live.wait_state(job, "RUNNING")
        until(
            lambda: sum(m.bit_count() for m in live.service.view.inventory.blocked.values()) == 24,
            "they are seen",
        )
        ours = [live.submit("--gres=gpu:2", "sleep 1") for _ in range(4)]
        whole = live.submit("--gres=gpu:8")
        assert [live.wait_outcome(job) for job in [*ours, whole]] == ["finished"] * 5
        rows = live.rows(ended=True)
        assert len({rows[job].host_list for job in ours}) == 4, "one on each node beside theirs"


def test_reservations_are_slurms_and_their_nodes_are_not_given_away(live: Live):
    with live.serving():
        live.command(
            "scontrol", "create", "reservation", "ReservationName=maint", "StartTime=now", "Duration=10",
            "Users=root", "Nodes=h0,h1",
        )  # fmt: skip
        try:
            until(lambda: sorted(live.service.view.inventory.blocked) == [0, 1], "its nodes are not ours")
            inside = live.submit("-N2 --gres=gpu:8 --reservation=maint", "sleep 2")
            outside = live.submit("-N2 --gres=gpu:8", "sleep 2")
            live.wait_state(inside, "RUNNING")
            live.wait_state(outside, "RUNNING")
            assert expand(live.hosts(inside)) == ["h0", "h1"]
            assert expand(live.hosts(outside)) == ["h2", "h3"]
            assert live.known(inside) is None
            wide = live.submit("-N3 --gres=gpu:8")
            until(lambda: live.known(wide), "it waits")
            taken = live.submit("-N1 --gres=gpu:8 --hold")
            until(lambda: live.known(taken), "it waits")
            live.command("scontrol", "update", f"jobid={taken}", "reservation=maint")
            assert live.wait_outcome(taken) == "it was taken out of this partition"
            assert live.wait_outcome(outside) == "finished"
        finally:
            live.wait_state(inside, "COMPLETED")
            live.command("scancel", taken)
            live.command("scontrol", "delete", "ReservationName=maint")
        assert live.wait_outcome(wide) == "finished"


def test_jobs_that_name_their_nodes_are_slurms_and_keep_them(live: Live):
    with live.serving():
        named = live.submit("-N1 --gres=gpu:8 -w h2", "sleep 3")
        elsewhere = live.submit("-N1 --gres=gpu:8 -x h0,h1,h2", "sleep 3")
        live.wait_state(named, "RUNNING")
        live.wait_state(elsewhere, "RUNNING")
        assert (live.hosts(named), live.hosts(elsewhere)) == ("h2", "h3")
        until(lambda: sorted(live.service.view.inventory.blocked) == [2, 3], "their nodes are not ours")
        ours = live.submit("-N2 --gres=gpu:8")
        live.wait_state(ours, "RUNNING")
        assert expand(live.hosts(ours)) == ["h0", "h1"]
        assert live.known(named) is live.known(elsewhere) is None
        wide = live.submit("-N3 --gres=gpu:8 -w h[0-2]", "sleep 2")
        until(
            lambda: len(live.service.view.inventory.blocked) >= 3, "what it waits for is given to nobody else"
        )
        narrow = live.submit("-N1 --gres=gpu:8")
        live.wait_state(wide, "RUNNING")
        live.wait_state(narrow, "RUNNING")
        assert live.hosts(narrow) == "h3"
        held = live.submit("-N1 --gres=gpu:8 -w h1 --hold")
        assert live.wait_outcome(ours) == "finished"
        time.sleep(0.3)
        assert live.state(held) == "PENDING", "its user's hold is not lifted"
        live.command("scontrol", "release", held)
        live.wait_state(held, "COMPLETED")
        assert live.rows(ended=True)[held].host_list == "h1"


def test_a_daemon_that_comes_later_leaves_nodes_to_jobs_that_name_them(live: Live):
    with live.serving():
        named = live.submit("-N2 --gres=gpu:8 -w h0,h1", "sleep 4")
        live.wait_state(named, "RUNNING")
    with live.serving():
        ours = live.submit("-N2 --gres=gpu:8")
        live.wait_state(ours, "RUNNING")
        assert expand(live.hosts(ours)) == ["h2", "h3"]
        assert live.known(named) is None
        live.wait_state(named, "COMPLETED")


def test_a_job_whose_user_excludes_nodes_later_is_given_to_slurm(live: Live):
    with live.serving():
        every = live.submit("-N4 --gres=gpu:8", "sleep 1.5")
        live.wait_state(every, "RUNNING")
        choosy = live.submit("-N1 --gres=gpu:8")
        until(lambda: live.known(choosy), "it waits")
        live.command("scontrol", "update", f"jobid={choosy}", "excnodelist=h0,h1,h2")
        assert "must not have" in live.wait_outcome(choosy)
        live.wait_state(choosy, "COMPLETED")
        assert live.rows(ended=True)[choosy].host_list == "h3"


def test_what_is_handed_back_keeps_the_nodes_that_its_user_named(live: Live):
    named = live.submit("-N1 --gres=gpu:8 -w h3 --hold", partition="other")
    live.command("scontrol", "update", f"jobid={named}", "partition=hemiola")
    own = live.submit("-N1 --gres=gpu:8 -w h2 --hold")
    released, held = hand_back(live.slurm, "hemiola")
    assert live.state(own) == "PENDING", "that is its user's to lift"
    live.command("scancel", own)
    assert (released, held) == ([named], [])
    live.wait_state(named, "COMPLETED")
    assert live.rows(ended=True)[named].host_list == "h3"


def test_a_users_hold_of_a_job_without_gpus_is_kept_until_it_is_lifted(live: Live):
    with live.serving():
        held, free = live.submit("-N1 --hold"), live.submit("-N1")
        live.wait_state(free, "COMPLETED")
        assert live.state(held) == "PENDING"
        live.command("scontrol", "release", held)
        live.wait_state(held, "COMPLETED")


def test_a_job_that_is_taken_to_another_partition_is_slurms(live: Live):
    with live.serving():
        first, second = live.submit("-N4 --gres=gpu:8", "sleep 4"), live.submit("-N4 --gres=gpu:8")
        live.wait_state(first, "RUNNING")
        until(lambda: live.known(second), "it waits")
        live.command("scontrol", "update", f"jobid={second}", "partition=other")
        assert live.wait_outcome(second) == "it was taken out of this partition"
        live.wait_state(second, "COMPLETED")


def test_nodes_are_lent_to_another_partition_and_come_back(live: Live):
    with live.serving():
        three = live.submit("-N3 --gres=gpu:8", "sleep 3")
        first = live.submit("-N1 --gres=gpu:8", "sleep 6")
        live.wait_state(first, "RUNNING")
        live.wait_state(three, "RUNNING")
        assert live.hosts(first) == "h3"
        stays = live.submit("-N4 --gres=gpu:8")
        live.command("scontrol", "update", "PartitionName=hemiola", "Nodes=h[0-2]")
        try:
            three = live.submit("-N3 --gres=gpu:8")
            assert live.wait_outcome(three) == "finished"
            assert live.wait_outcome(first) == "finished"  # what ran on the node that was lent goes on
            assert live.state(stays) == "PENDING"
        finally:
            live.command("scontrol", "update", "PartitionName=hemiola", "Nodes=h[0-3]")
        assert live.wait_outcome(stays) == "finished"


def test_hemiola_lends_nodes_and_takes_them_back(live: Live, capfd: pytest.CaptureFixture[str]):
    live.command("scontrol", "create", "PartitionName=infer", "Nodes=h3")
    conf = Path(live.lab.environ["SLURM_CONF"])
    try:
        with live.serving("fifo:placement=first-fit"):
            stays = live.submit("--gres=gpu:8 --no-requeue", "sleep 6")
            leaves = live.submit("--gres=gpu:4", "sleep 3")
            live.wait_state(stays, "RUNNING")
            live.wait_state(leaves, "RUNNING")
            assert (live.hosts(stays), live.hosts(leaves)) == ("h0", "h1")
            lend("h[0-1]", to="infer", now=True, slurm_conf=conf)
            said = capfd.readouterr().out
            assert f"back in the queue: {leaves}" in said and f"{stays} may not be requeued" in said
            live.wait_state(live.submit("-w h1 --gres=gpu:8", "sleep 1", partition="infer"), "COMPLETED")
            assert live.wait_outcome(leaves) == "finished"
            assert live.rows(ended=True)[leaves].host_list == "h2"
            four = live.submit("-N4 --gres=gpu:1")
            until(lambda: live.known(four) is not None, "it is seen")
            lend("h[0-1]", to="hemiola", from_="infer", slurm_conf=conf)
            assert live.wait_outcome(four) == live.wait_outcome(stays) == "finished"
            for nodes, giver, taker, why in (
                ("h9", "hemiola", "infer", "has no node 'h9'"),
                ("h[0-3]", "hemiola", "infer", "all nodes of 'hemiola'"),
                ("h1", "hemiola", "nowhere", "nowhere"),
                ("h1", "hemiola", "hemiola", "nothing can be lent"),
            ):
                with pytest.raises(HemiolaError, match=why):
                    lend(nodes, to=taker, from_=giver, slurm_conf=conf)
            assert live.wait_outcome(live.submit("-N4 --gres=gpu:1")) == "finished", "nothing was changed"
    finally:
        live.command("scontrol", "update", "PartitionName=hemiola", "Nodes=h[0-3]")
        live.command("scontrol", "delete", "PartitionName=infer")


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


def test_jobs_are_not_held_where_hemiola_is_silent(live: Live, tmp_path: Path):
    alive, lua = tmp_path / "alive", live.lab.base / "etc" / "job_submit.lua"
    before = lua.read_text()
    lua.write_text(before.replace('"", 60', f'"{alive}", 60'))
    assert lua.read_text() != before
    live.lab.restart_controller()
    live.lab.wait_ready()
    try:
        early = live.submit("--gres=gpu:1")
        live.wait_state(early, "RUNNING", "COMPLETED")
        with live.serving(alive=alive):
            until(alive.exists, "it says that it lives")
            placed = live.submit("--gres=gpu:1")
            assert live.wait_outcome(placed) == "finished"
            assert live.rows(ended=True)[placed].bound_to
        held = live.submit("--gres=gpu:1")
        assert live.rows()[held].priority == 0, "it was there a moment ago"
        alive.write_text("1000\n")
        late = live.submit("--gres=gpu:1")
        live.wait_state(late, "RUNNING", "COMPLETED")
        released, left = hand_back(live.slurm, "hemiola")
        assert (released, left) == ([held], [])
        live.wait_state(held, "RUNNING", "COMPLETED")
    finally:
        lua.write_text(before)
        live.lab.restart_controller()


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


def test_a_users_own_hold_is_kept_until_the_user_lifts_it(live: Live):
    def as_user(*words: str) -> str:
        found = f"SLURM_CONF={live.slurm.environ['SLURM_CONF']}"
        done = subprocess.run(
            ["runuser", "-u", "nobody", "--", "env", found, *words],
            capture_output=True,
            text=True,
            check=True,
            cwd="/",
        )
        return done.stdout.strip()

    job = (
        "--parsable",
        "-p",
        "hemiola",
        "--gres=gpu:1",
        "-o",
        "/dev/null",
        "--comment=my own words",
        "--wrap",
        "sleep 1",
    )
    with live.serving():
        held, other = as_user("sbatch", "-H", *job), as_user("sbatch", *job)
        assert live.wait_outcome(other) == "finished"
        until(lambda: live.reason(held) == "its user holds it", "its reason is the hold")
        assert hand_back(live.slurm, "hemiola") == ([], []), "nor is it handed back"
        as_user("scontrol", "release", held)
        assert live.wait_outcome(held) == "finished"
        assert live.rows(ended=True)[held].bound_to, "Hemiola has placed it"
        blocker = live.submit("-N4 --gres=gpu:8", "sleep 2")
        live.wait_state(blocker, "RUNNING")
        late = as_user("sbatch", *job)
        live.record(late)
        as_user("scontrol", "hold", late)
        assert live.wait_outcome(blocker) == "finished"
        until(lambda: live.reason(late) == "its user holds it", "it was to start, and is held")
        as_user("scontrol", "release", late)
        assert live.wait_outcome(late) == "finished"


def test_a_slurm_that_goes_away_in_the_middle_of_a_look_loses_nothing(live: Live):
    with live.serving() as service:
        job = live.submit("--gres=gpu:8", "sleep 2")
        live.wait_state(job, "RUNNING")
        until(lambda: live.record(job).status == "running", "it is seen running")
        driver = service.driver
        assert isinstance(driver, Around)
        slurm = driver._inner
        assert isinstance(slurm, SlurmDriver)

        def away(ids: list[str]) -> dict[str, JobRow]:
            raise EngineError("no answer", "")

        slurm._watcher.ends = away  # type: ignore[method-assign]  # the list came, how the job ended did not
        assert live.wait_outcome(job) == "finished"
        assert service.driver is not driver, "the view was built anew"
        assert live.wait_outcome(live.submit("-N4 --gres=gpu:8")) == "finished"


def test_a_job_that_trains_is_learnt_and_its_successor_is_known(live: Live, tmp_path: Path):
    (reports := tmp_path / "reports").mkdir()
    scripts = Path(__file__).parents[1] / "run" / "record" / "record_scripts"
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


def counted(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def test_an_elastic_job_begins_again_on_as_many_nodes_as_are_decided(live: Live, tmp_path: Path):
    wanted, begins = tmp_path / "hosts", tmp_path / "begins"
    want(1, wanted)
    script = (
        f"echo $SLURM_JOB_NUM_NODES:$SLURM_NTASKS >> {begins}; sleep $((SLURM_JOB_NUM_NODES == 2 ? 1 : 60))"
    )
    with live.serving(f"live_policies:WholeHosts,file={wanted}"):
        job = live.submit("-N1-3 --gpus-per-node=8 --ntasks-per-node=2", script)
        until(lambda: counted(begins) == ["1:2"], "it runs on one node")
        assert live.rows()[job].host_list == "h0"
        want(3, wanted)
        until(lambda: counted(begins)[1:] == ["3:6"], "it runs on three nodes")
        assert live.rows()[job].host_list == "h[0-2]"
        record = live.record(job)
        assert (record.job.gpus, record.job.gpus_max, record.placement.gpus) == (8, 24, 24)
    with live.serving(f"live_policies:WholeHosts,file={wanted}"):
        until(lambda: live.record(job).placement.gpus == 24, "a daemon that begins anew finds it on three")
        want(2, wanted)
        assert live.wait_outcome(job) == "finished"
    assert counted(begins) == ["1:2", "3:6", "2:4"]
    assert live.rows(ended=True)[job].restarts == 2


def test_nodes_are_taken_from_a_job_as_it_runs_if_it_says_so(live: Live, tmp_path: Path):
    wanted, begins, go = tmp_path / "hosts", tmp_path / "begins", tmp_path / "go"
    want(3, wanted)
    script = f"echo $SLURM_JOB_NUM_NODES >> {begins}; until [ -e {go} ]; do sleep 0.2; done"
    with live.serving(f"live_policies:WholeHosts,file={wanted}") as service:
        job = live.submit("-N1-3 --gpus-per-node=8", script, comment="hemiola shrink=live")
        live.wait_state(job, "RUNNING")
        want(1, wanted)
        until(lambda: live.rows()[job].host_list == "h0", "it has one node left")
        want(2, wanted)
        until(lambda: counted(begins) == ["3", "2"], "to have more it begins again")
        go.touch()
        assert live.wait_outcome(job) == "finished"
        assert service.driver is not None
    assert live.rows(ended=True)[job].restarts == 1


def test_a_released_elastic_job_has_the_range_that_it_was_submitted_for(live: Live, tmp_path: Path):
    wanted = tmp_path / "hosts"
    want(3, wanted)
    with live.serving(f"live_policies:WholeHosts,file={wanted}"):
        job = live.submit("-N2-4 --gpus-per-node=8 --ntasks-per-node=1", "sleep 60")
        live.wait_state(job, "RUNNING")
    live.command("scontrol", "requeuehold", job)
    live.wait_state(job, "PENDING")
    live.command("scontrol", "update", "nodename=h[2-3]", "state=drain", "reason=test")
    try:
        hand_back(live.slurm, "hemiola")
        # a requeued job waits for two minutes
        live.command("scontrol", "update", f"jobid={job}", "StartTime=now+1")
        live.wait_state(job, "RUNNING")
        assert live.hosts(job) == "h[0-1]", "two nodes are enough for it again"
    finally:
        live.command("scontrol", "update", "nodename=h[2-3]", "state=resume")
