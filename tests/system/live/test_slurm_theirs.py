"""What is not Hemiola's on a real Slurm: holds, reservations, nodes, partitions of users and administrators."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from live_slurm import Live, until

from hemiola.cli.serve import lend
from hemiola.core.errors import HemiolaError
from hemiola.core.hostlist import expand
from hemiola.live.engines.slurm.admission import NAMED
from hemiola.live.engines.slurm.job_spec import HELD
from hemiola.live.engines.slurm.release import hand_back
from hemiola.live.leadership import silent_s


def as_nobody(live: Live, *words: str) -> str:
    """What one of Slurm's commands prints, run by an ordinary user."""
    found = f"SLURM_CONF={live.slurm.environ['SLURM_CONF']}"
    done = subprocess.run(
        ["runuser", "-u", "nobody", "--", "env", found, *words],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    return done.stdout.strip()


def is_marked(live: Live, job: str) -> bool:
    """Whether job_submit.lua has written down that its user holds it."""
    return live.slurm.words([job])[job].comment.startswith(HELD)


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
            inside = live.submit("-N2 --gres=gpu:2 --reservation=maint", "sleep 6")
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
            assert live.state(inside) == "RUNNING" and live.state(wide) == "PENDING"
            assert live.service.view.inventory.blocked == {0: 0xFF, 1: 0xFF}, "of a node in use, too"
        finally:
            live.wait_state(inside, "COMPLETED")
            live.command("scancel", taken)
            live.command("scontrol", "delete", "ReservationName=maint")
        assert live.wait_outcome(wide) == "finished"


def test_a_users_hold_of_a_job_in_a_reservation_is_the_users(live: Live):
    live.command(
        "scontrol", "create", "reservation", "ReservationName=night", "StartTime=now", "Duration=10",
        "Users=nobody", "Nodes=h0",
    )  # fmt: skip
    try:
        words = ("-p", "hemiola", "--reservation=night", "-o", "/dev/null", "--wrap", "true")
        held = as_nobody(live, "sbatch", "--parsable", "--hold", *words)
        assert hand_back(live.slurm, "hemiola") == ([], []) and is_marked(live, held)
        as_nobody(live, "scontrol", "release", held)
        live.wait_state(held, "COMPLETED")
    finally:
        live.command("scancel", "-u", "nobody")
        live.command("scontrol", "delete", "ReservationName=night")


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


def test_what_users_change_on_a_full_partition_is_heeded_and_lets_nobody_go_first(live: Live):
    job = ("sbatch", "--parsable", "-p", "hemiola", "-N1", "-o", "/dev/null", "--wrap", "sleep 0.5")
    with live.serving("fifo"):
        full = [live.submit("-N1 --gres=gpu:8", "sleep 60") for _ in range(4)]
        for one in full:
            live.wait_state(one, "RUNNING")
        first = as_nobody(live, *job, "--gres=gpu:8")
        named, back, nice = (as_nobody(live, *job, "--gres=gpu:2") for _ in range(3))
        forged = as_nobody(live, *job, "--gres=gpu:8", "--comment=hemiola:names-its-nodes ")
        for one in named, back, nice, forged:
            live.record(one)
        with pytest.raises(subprocess.CalledProcessError):
            as_nobody(live, "scontrol", "update", f"jobid={nice}", "nice=1000")
        with pytest.raises(subprocess.CalledProcessError):
            as_nobody(live, "scontrol", "release", forged)
        as_nobody(live, "scontrol", "update", f"jobid={named}", "reqnodelist=h2")
        assert live.wait_outcome(named) == NAMED
        as_nobody(live, "scontrol", "update", f"jobid={back}", "partition=other")
        as_nobody(live, "scontrol", "update", f"jobid={back}", "partition=hemiola")
        until(lambda: live.rows()[named].priority, "it is Slurm's own scheduler's")
        rows = live.rows()
        assert [rows[one].priority for one in (first, back, nice, forged)] == [0] * 4
        live.command("scancel", full[2])
        live.wait_state(named, "RUNNING", "COMPLETED")
        assert live.rows(ended=True)[named].host_list == "h2"
        for one in first, back, nice, forged:
            assert live.wait_outcome(one) == "finished"
        spans = live.slurm.spans([first, forged])
        assert spans[first].began_s <= spans[forged].began_s, "nobody goes before who came earlier"


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


def test_what_somebody_else_holds_is_not_lifted_with_its_dependency(live: Live):
    with live.serving():
        first = live.submit("--gres=gpu:1", "sleep 1.5")
        theirs = live.submit(f"--gres=gpu:1 --hold --dependency=afterok:{first}")
        admins = live.submit(f"--gres=gpu:1 --dependency=afterok:{first}")
        live.command("scontrol", "hold", admins)
        assert live.wait_outcome(first) == "finished"
        assert live.wait_outcome(live.submit("--gres=gpu:1")) == "finished", "it has looked again and again"
        rows = live.rows()
        assert rows[theirs].priority == rows[admins].priority == 0 and is_marked(live, theirs)
        for job in theirs, admins:
            live.command("scontrol", "release", job)
            live.wait_state(job, "COMPLETED")


def test_a_job_that_waits_for_others_may_be_held_and_released_by_its_user(live: Live):
    job = ("sbatch", "--parsable", "-p", "hemiola", "--gres=gpu:1", "-o", "/dev/null", "--wrap", "sleep 0.1")
    with live.serving():
        first = live.submit("--gres=gpu:1", "sleep 60")
        second = as_nobody(live, *job, f"--dependency=afterany:{first}")
        until(lambda: live.rows()[second].is_parked(time.time()), "its dependency is left to Slurm")
        as_nobody(live, "scontrol", "hold", second)
        assert live.rows()[second].priority == 0 and is_marked(live, second)
        until(lambda: live.reason(second) == "its user holds it", "its reason is the hold")
        as_nobody(live, "scontrol", "release", second)
        until(lambda: live.rows()[second].is_parked(time.time()), "its dependency is left to Slurm again")
        live.command("scancel", first)
        assert live.wait_outcome(second) == "finished"


def test_a_job_that_waits_for_others_is_handed_back_to_begin_when_its_user_wants(live: Live):
    with live.serving():
        first = live.submit("--gres=gpu:1", "sleep 60")
        second = live.submit(f"--gres=gpu:1 --begin=now+1hour --dependency=afterany:{first}")
        until(lambda: live.rows()[second].is_parked(time.time()), "its dependency is left to Slurm")
    hand_back(live.slurm, "hemiola")
    live.command("scancel", first)
    until(lambda: live.rows()[second].reason == "BeginTime", "it waits for its own time alone")
    assert 3000 < (live.rows()[second].eligible_s or 0) - time.time() <= 3600


def test_an_administrators_hold_goes_with_the_job_to_another_partition(live: Live):
    with live.serving():
        job = live.submit("--gres=gpu:1 --begin=now+2")
        until(lambda: live.known(job), "it waits")
        live.command("scontrol", "hold", job)
        live.command("scontrol", "update", f"jobid={job}", "partition=other")
        assert live.wait_outcome(job) == "it was taken out of this partition"
        assert live.wait_outcome(live.submit("--gres=gpu:1")) == "finished"
        row = live.rows()[job]
        assert (row.state, row.reason, row.priority) == ("PENDING", "JobHeldAdmin", 0)


def test_a_job_that_ends_in_a_special_exit_waits_until_its_user_releases_it(live: Live):
    job = ("sbatch", "--parsable", "-p", "hemiola", "--gres=gpu:1", "-o", "/dev/null", "--wrap")
    script = "test $SLURM_RESTART_COUNT = 1 || sleep 60"
    with live.serving():
        special = as_nobody(live, *job, script)
        live.wait_state(special, "RUNNING")
        uuid = live.record(special).uuid
        live.command("scontrol", "requeuehold", "state=SpecialExit", special)
        until(lambda: "special exit" in live.reason(special), "it is known why it waits")
        assert live.wait_outcome(live.submit("--gres=gpu:1")) == "finished"
        assert hand_back(live.slurm, "hemiola") == ([], []), "nor is it handed back"
        assert live.state(special) == "PENDING" and live.record(special).uuid == uuid
        as_nobody(live, "scontrol", "release", special)
        assert live.wait_outcome(special) == "finished"
        assert live.record(special).uuid == uuid and live.rows(ended=True)[special].restarts == 1


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
    live.command("scontrol", "create", "PartitionName=infer")
    conf = Path(live.lab.environ["SLURM_CONF"])
    try:
        with live.serving("fifo:placement=first-fit"):
            stays = live.submit("--gres=gpu:8 --no-requeue", "sleep 6")
            leaves = live.submit("--gres=gpu:4", "sleep 3")
            live.wait_state(stays, "RUNNING")
            live.wait_state(leaves, "RUNNING")
            assert (live.hosts(stays), live.hosts(leaves)) == ("h0", "h1")
            lend("h[0-1],h1", to="infer", now=True, slurm_conf=conf)
            said = capfd.readouterr().out
            assert said.startswith("2 nodes went from hemiola to infer\n")
            assert said.endswith(": hemiola lend 'h[0-1],h1' --from infer --to hemiola\n")
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
                ("h1", "hemiola", "nowhere", "nowhere"),
                ("h1", "hemiola", "hemiola", "nothing can be lent"),
            ):
                with pytest.raises(HemiolaError, match=why):
                    lend(nodes, to=taker, from_=giver, slurm_conf=conf)
            assert live.wait_outcome(live.submit("-N4 --gres=gpu:1")) == "finished", "nothing was changed"
            lend("h[0-3]", to="infer", slurm_conf=conf)
            until(lambda: len(live.service.view.inventory.blocked) == 4, "nothing is Hemiola's to give")
            last = live.submit("-N4 --gres=gpu:1")
            until(lambda: live.known(last) is not None, "it is seen")
            lend("h[0-3]", to="hemiola", from_="infer", slurm_conf=conf)
            assert live.wait_outcome(last) == "finished"
    finally:
        live.command("scontrol", "update", "PartitionName=hemiola", "Nodes=h[0-3]")
        live.command("scontrol", "delete", "PartitionName=infer")


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
        assert alive.read_text().endswith(" stopped\n") and silent_s(alive, time.time()) < 60
        after = live.submit("--gres=gpu:1")
        live.wait_state(after, "RUNNING", "COMPLETED")
        own = live.submit("--gres=gpu:1 --hold")
        assert is_marked(live, own), "whoever comes back is to know it"
        live.command("scancel", own)
        alive.write_text(f"{time.time():.0f}\n")
        held = live.submit("--gres=gpu:1")
        assert live.rows()[held].priority == 0, "it was killed a moment ago"
        alive.write_text("1000\n")
        late = live.submit("--gres=gpu:1")
        live.wait_state(late, "RUNNING", "COMPLETED")
        released, left = hand_back(live.slurm, "hemiola")
        assert (released, left) == ([held], [])
        live.wait_state(held, "RUNNING", "COMPLETED")
    finally:
        lua.write_text(before)
        live.lab.restart_controller()


def test_a_users_own_hold_is_kept_until_the_user_lifts_it(live: Live):
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
        held = as_nobody(live, "sbatch", "-H", *job)
        until(lambda: live.reason(held) == "its user holds it", "its reason is the hold")
        as_nobody(live, "scontrol", "update", f"jobid={held}", "comment=hemiola model=resnet50")
        assert live.wait_outcome(as_nobody(live, "sbatch", *job)) == "finished"
        assert live.reason(held) == "its user holds it"
        assert live.slurm.words([held])[held].comment == f"{HELD} hemiola model=resnet50"
        assert hand_back(live.slurm, "hemiola") == ([], []), "nor is it handed back"
        as_nobody(live, "scontrol", "release", held)
        assert live.wait_outcome(held) == "finished"
        assert live.rows(ended=True)[held].bound_to, "Hemiola has placed it"
        blocker = live.submit("-N4 --gres=gpu:8", "sleep 2")
        live.wait_state(blocker, "RUNNING")
        late = as_nobody(live, "sbatch", *job)
        live.record(late)
        as_nobody(live, "scontrol", "hold", late)
        assert live.wait_outcome(blocker) == "finished"
        until(lambda: live.reason(late) == "its user holds it", "it was to start, and is held")
        as_nobody(live, "scontrol", "release", late)
        assert live.wait_outcome(late) == "finished"
