"""What the driver makes of looks at a Slurm that does not do, or not yet say, what it should."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from fake_slurm import RUNS, Driven, FakeSlurm, node
from replays import cluster

from hemiola.core.decisions import Move, Placement, Start, Stop
from hemiola.core.events import Adopted, Arrived, Blocked, Failed, Held, Released, Requeued, Started
from hemiola.live.engines.slurm.client import Slurm
from hemiola.live.engines.slurm.doctor import _loose
from hemiola.live.engines.slurm.job_spec import HELD
from hemiola.live.engines.slurm.release import hand_back, held_jobs
from hemiola.live.engines.slurm.requests import TOP, ranks
from hemiola.live.engines.slurm.snapshot import slurm_topology
from hemiola.live.engines.slurm.tracked_job import SlurmRecoveryKey
from hemiola.live.engines.slurm.wire import PARKED_S, RunSpan, SlurmJobRow, Words, job_rows
from hemiola.live.live_driver import Vanished
from hemiola.live.tracked_job import RecoveredJob
from hemiola.sched.job_state import RUNNING
from hemiola.trace.topologies import read_topology

NODES = [node("n0"), node("n1")]
TWO = cluster([8, 8])


def waits(**other: object) -> SlurmJobRow:
    """Held as job_submit.lua does."""
    held = {"state": "PENDING", "reason": "JobHeldUser", "priority": 0, "host_list": "", "bound_to": ""}
    return msgspec.structs.replace(RUNS, **{**held, **other})


def runs(**other: object) -> SlurmJobRow:
    return msgspec.structs.replace(RUNS, **{"bound_to": "", **other})


def recovered(**recovery_key: float) -> RecoveredJob[SlurmRecoveryKey]:
    return RecoveredJob(
        uuid="u", engine_id="7", recovery_key=SlurmRecoveryKey((100,), 1000, 0, **recovery_key), running=True
    )


def only(driven: Driven) -> str:
    """Our id of the only job."""
    (uuid,) = driven.driver.tracked
    return uuid


# ---- special exits


SPECIAL = (
    "7|SPECIAL_EXIT|JobHeldUser|1|1||gres/gpu:8|N/A|N/A|1|100|1000|0|100|7||1|UNLIMITED|hemiola|42:0|(null)|1|(null)|0|1|OK|"
    "N/A|1|cpu=1,node=1|N/A|N/A|0|(null)|"
)


def test_a_job_that_ended_in_a_special_exit_waits_and_is_held():
    slurm = FakeSlurm(job_rows(SPECIAL, (24, 11)), NODES)
    driven = Driven(slurm, TWO)
    events = [event for now_s in range(5) for event in driven.look(float(now_s))]
    told = [event for event in events if isinstance(event, Adopted | Held | Released | Failed)]
    assert [type(event) for event in told] == [Adopted, Held]
    assert driven.driver.tracked[only(driven)].held == "it ended in a special exit, and is held"
    assert slurm.told == [] and held_jobs(slurm, "hemiola") == [], "it is not Hemiola's to release"
    slurm.rows = [waits(restarts=1, priority=5, reason="None")]
    assert [type(event) for event in driven.look(6.0)] == [Released] and slurm.told == ["uhold 7"]


def test_a_running_job_that_ends_in_a_special_exit_goes_back_into_the_queue():
    slurm = FakeSlurm([runs()], NODES)
    driven = Driven(slurm, TWO)
    driven.look(0.0)
    uuid = only(driven)
    slurm.rows = job_rows(SPECIAL, (24, 11))
    assert [type(event) for event in driven.look(1.0)] == [Requeued, Held]
    assert driven.look(2.0) == [] and only(driven) == uuid


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("PENDING", "launch failed requeued held"), ("REQUEUE_HOLD", "JobHoldMaxRequeue"),
        ("REQUEUE_HOLD", "launch failure limit exceeded requeued held"),
    ],
)  # fmt: skip
def test_a_job_that_slurm_could_not_launch_waits_until_it_is_released(state: str, reason: str):
    line = SPECIAL.replace("SPECIAL_EXIT|JobHeldUser", f"{state}|{reason}")
    slurm = FakeSlurm([runs()], NODES)
    driven = Driven(slurm, TWO)
    driven.look(0.0)
    slurm.rows = job_rows(line, (24, 11))
    assert [type(event) for event in driven.look(1.0)] == [Requeued, Held] and driven.look(2.0) == []
    assert driven.driver.tracked[only(driven)].held == "Slurm could not launch it, and holds it"
    assert slurm.told == [] and held_jobs(slurm, "hemiola") == [], "it is not Hemiola's to release"
    slurm.rows = job_rows(line.replace(reason, "None").replace("|1000|0|100|", "|1000|5|100|"), (24, 11))
    assert [type(event) for event in driven.look(3.0)] == [Released] and slurm.told == ["uhold 7"]


# ---- stops


REFUSED = "Only batch jobs are accepted or processed for job 7"


def test_a_stop_that_slurm_refuses_is_told_once_more_and_then_the_job_runs_on():
    slurm = FakeSlurm([runs()], NODES, complaints=f"Access denied for job 77\n{REFUSED}\n")
    driven = Driven(slurm, TWO)
    driven.look(0.0)
    uuid = only(driven)
    driven.carry_out(Stop(uuid, "another goes first"))
    assert slurm.told == ["requeuehold 7"] and driven.driver.answers() == [(uuid, False, REFUSED)]
    assert driven.look(1.0) == [] and slurm.told == ["requeuehold 7"] * 2
    assert driven.look(60.0) == [] and len(slurm.told) == 2
    assert driven.look(62.0) == [Started(62.0, uuid, Placement((1,), (0xFF,)))]
    assert driven.machine.view.jobs[uuid].status == RUNNING and len(slurm.told) == 2


def test_a_move_that_slurm_refuses_leaves_the_job_where_it_is():
    slurm = FakeSlurm([runs()], NODES, complaints=REFUSED)
    driven = Driven(slurm, TWO)
    driven.look(0.0)
    uuid = only(driven)
    driven.carry_out(Move(uuid, Placement((0,), (0xFF,)), "it is nearer"))
    driven.look(1.0)
    assert driven.driver.answers() == [(uuid, False, REFUSED)]
    assert driven.look(62.0) == [Started(62.0, uuid, Placement((1,), (0xFF,)))]
    assert slurm.told == ["requeuehold 7"] * 2


@pytest.mark.parametrize("row", [runs(), waits(restarts=1)])
def test_a_stop_that_is_lost_is_made_again_at_the_next_look(row: SlurmJobRow):
    slurm = FakeSlurm([runs()], NODES, complaints=None)
    driven = Driven(slurm, TWO)
    driven.look(0.0)
    uuid = only(driven)
    driven.carry_out(Stop(uuid, "another goes first"))
    assert driven.driver.answers() == [(uuid, False, "it gives no answer")]
    slurm.rows, slurm.complaints = [row], ""
    for now_s in (1.0, 2.0):
        assert driven.look(now_s) == []
    assert slurm.told == ["requeuehold 7"] * (1 if row.state == "PENDING" else 2), "it was heard, or was not"


# ---- what is not in the view


def test_a_job_that_runs_though_it_never_could_has_its_gpus():
    slurm = FakeSlurm([runs(hosts=2, most_hosts=2, host_list="n[0-1]")], NODES)
    slurm.said["7"] = Words("hemiola required=host")
    driven = Driven(slurm, TWO)
    assert driven.look(0.0) == [Blocked(0.0, 0, 8), Blocked(0.0, 1, 8)]
    assert driven.driver.tracked[only(driven)].refused
    slurm.rows = []
    assert driven.look(1.0) == [Blocked(1.0, 0, 0), Blocked(1.0, 1, 0)]


def test_gpus_by_socket_are_taken_where_slurm_says():
    asks = {"gpus_per_host": 0, "gpus_per_socket": 4, "strange": "it asks for GPUs by socket"}
    slurm = FakeSlurm([runs(hosts=2, host_list="n[0-1]", **asks)], NODES, dealt={"n0": 4, "n1": 2})
    assert Driven(slurm, TWO).look(0.0) == [Blocked(0.0, 0, 4), Blocked(0.0, 1, 2)]


def test_what_a_job_wants_goes_by_hosts_that_the_partition_has():
    nodes = [node("n0", partition="other"), node("n1", gpus=4), node("n2", gpus=4)]
    eight = waits(gpus_per_host=0, gpus_per_job=8)
    whole = waits(id="8", array="8", gpus_per_host=1, exclusive=True)
    driven = Driven(FakeSlurm([eight, whole], nodes), cluster([8, 4, 4]))
    driven.look(0.0)
    assert [(known.job.gpus, known.job.hosts) for known in driven.driver.tracked.values()] == [(8, 2), (4, 1)]


DEALT = {"gpus_per_host": 0, "gpus_per_job": 12, "hosts": 2, "host_list": "n[0-1]"}
"""Only Slurm's details say how many GPUs it has on which node."""


def test_a_running_job_comes_in_once_it_is_known_what_it_has():
    slurm = FakeSlurm([runs(**DEALT)], NODES)
    driven = Driven(slurm, TWO, [recovered()])
    assert driven.look(0.0) == [Blocked(0.0, 0, 8), Blocked(0.0, 1, 8)], "any of them may be its"
    assert driven.driver.tracked == {} and driven.driver.vanished() == []
    slurm.dealt = {"n0": 8, "n1": 4}
    events = driven.look(1.0)
    adopted = next(event for event in events if isinstance(event, Adopted))
    assert adopted.job.id == "u" and adopted.placement == Placement((0, 1), (0xFF, 0xF))
    assert events.index(adopted) == 2, "once its GPUs are given back to it"
    assert driven.look(2.0) == [] and slurm.told == []


def test_a_remembered_job_that_ends_before_that_is_known_has_ended():
    slurm = FakeSlurm([runs(**DEALT)], NODES)
    driven = Driven(slurm, TWO, [recovered()])
    driven.look(0.0)
    slurm.rows = []
    driven.look(1.0)
    assert driven.driver.vanished() == [Vanished("u", "it ended while nobody watched")]


def test_a_job_that_ended_while_nobody_watched_ended_when_slurm_says():
    slurm = FakeSlurm([runs(state="COMPLETED")], NODES, lasted={"7": RunSpan(200, 800)})
    driven = Driven(slurm, TWO, [recovered()])
    driven.clock.ahead_s = 20.0
    assert driven.look(10_000.0) == []
    assert driven.driver.vanished() == [Vanished("u", "finished", 780.0, True)]


@pytest.mark.parametrize(
    ("began_s", "since_s", "queued_s"), [(6400, 6400.0, 6300.0), (50, 100.0, 0.0), (10_500, 10_000.0, 9900.0), (None, 10_000.0, 0.0)],
    ids=["before us", "before it was submitted", "in the future", "nobody knows"],
)  # fmt: skip
@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED"])
def test_a_job_that_ran_before_us_has_run_since_slurm_says(state, began_s, since_s, queued_s):
    slurm = FakeSlurm([runs(state=state)], NODES, lasted={"7": RunSpan(began_s, None)})
    driven = Driven(slurm, TWO)
    (adopted,) = (event for event in driven.look(10_000.0) if isinstance(event, Adopted))
    assert (adopted.since_s, adopted.queued_s) == (since_s, queued_s)
    done_s = 10_000.0 - since_s if state == "RUNNING" else 0.0
    state = driven.machine.view.jobs[only(driven)]
    assert state.remaining_s(10_000.0) == 86_400.0 - done_s and state.service_gpu_s(10_000.0) == 8 * (
        10_000.0 - since_s
    )


def test_a_job_that_slurm_started_while_nobody_watched_waited_until_then():
    slurm = FakeSlurm([runs()], NODES, lasted={"7": RunSpan(700, None)})
    waited = msgspec.structs.replace(recovered(), running=False, since_s=100.0, done_s=40.0)
    (adopted,) = (event for event in Driven(slurm, TWO, [waited]).look(1000.0) if isinstance(event, Adopted))
    assert (adopted.since_s, adopted.queued_s, adopted.done_s) == (700.0, 600.0, 340.0)


@pytest.mark.parametrize(("nodes", "told"), [("n1", [Started, Failed]), ("", [Failed])])
def test_a_job_that_has_ended_by_the_next_look_has_run_if_it_had_nodes(nodes, told):
    slurm = FakeSlurm([waits()], NODES)
    driven = Driven(slurm, TWO)
    driven.look(200.0)
    slurm.rows = [waits(bound_to="n1")]
    driven.carry_out(Start(only(driven), Placement((1,), (0xFF,)), "it fits"))
    slurm.rows = [runs(state="CANCELLED", host_list=nodes)]
    assert [type(event) for event in driven.look(201.0)] == told


def test_gpus_that_slurm_divides_otherwise_than_was_decided_are_counted_where_they_are():
    """Of the one that was to have the rest of a host nothing is left."""
    wide = {key: value for key, value in DEALT.items() if key != "host_list"}
    slurm = FakeSlurm([waits(**wide), waits(id="8", array="8", gpus_per_host=2)], NODES)
    driven = Driven(slurm, TWO)
    driven.look(200.0)
    first, second = driven.driver.tracked
    slurm.rows = [
        msgspec.structs.replace(row, bound_to=nodes)
        for row, nodes in zip(slurm.rows, ("n[0-1]", "n0"), strict=True)
    ]
    driven.carry_out(Start(first, Placement((1, 0), (0x3F, 0x3F)), ""))
    driven.carry_out(Start(second, Placement((0,), (0xC0,)), ""))
    late = msgspec.structs.replace(slurm.rows[1], priority=9, reason="Resources")
    slurm.rows, slurm.dealt = [runs(**DEALT, bound_to="n[0-1]"), late], {"n0": 8, "n1": 4}
    why = "Slurm has given its GPUs to another job"
    there = Placement((1, 0), (0xF, 0xFF))
    assert driven.look(201.0) == [Requeued(201.0, second, why, False), Started(201.0, first, there)]
    inventory = driven.machine.view.inventory
    assert driven.look(202.0) == [] and [mask.bit_count() for mask in inventory.masks] == [0, 4]


def test_a_job_whose_nodes_have_left_the_topology_is_slurms():
    slurm = FakeSlurm([runs(host_list="x9")], NODES)
    driven = Driven(slurm, TWO, [recovered()])
    assert driven.look(0.0) == [] and driven.driver.tracked == {} and slurm.told == []
    assert driven.driver.vanished() == [Vanished("u", "it runs outside the topology", 0.0)]


# ---- what users change and hold


def test_an_administrators_hold_of_a_job_that_was_to_start_is_kept():
    slurm = FakeSlurm([waits()], NODES)
    driven = Driven(slurm, TWO)
    driven.look(200.0)
    uuid = only(driven)
    slurm.rows = [waits(bound_to="n0")]
    driven.carry_out(Start(uuid, Placement((0,), (0xFF,)), ""))
    assert slurm.told[1:] == ["release 7", f"update jobid=7 Priority={TOP}"]
    slurm.rows = [waits(bound_to="n0", reason="JobHeldAdmin")]
    assert [type(event) for event in driven.look(201.0)] == [Requeued, Held] and driven.look(204.0) == []
    known = driven.driver.tracked[uuid]
    assert (known.held, known.binds_failed) == ("an administrator holds it", 0)
    assert len(slurm.told) == 3, "nor is it made its user's"


def test_an_administrators_hold_that_comes_as_a_job_is_bound_is_kept():
    slurm = FakeSlurm([waits()], NODES)
    driven = Driven(slurm, TWO)
    driven.look(200.0)
    uuid = only(driven)
    slurm.rows = [waits(bound_to="n0", reason="JobHeldAdmin")]
    driven.carry_out(Start(uuid, Placement((0,), (0xFF,)), ""))
    assert len(slurm.told) == 1, "it is not released"
    assert driven.driver.answers() == [(uuid, False, "an administrator holds it")]
    assert [type(event) for event in driven.driver._soon] == [Requeued, Held]


def test_what_is_handed_back_waits_for_no_nodes_whoever_holds_it():
    mark = Words(admin=f"{PARKED.removesuffix(':begin=')}n1")
    released = waits(bound_to="n1", priority=TOP, reason="ReqNodeNotAvail")
    theirs, named = waits(id="8", bound_to="n1"), waits(id="9", bound_to="n1", priority=5)
    slurm = FakeSlurm([released, theirs, named], NODES)
    slurm.said = {"7": mark, "8": Words(HELD, admin=mark.admin)}
    assert hand_back(slurm, "hemiola") == ([], [])
    told = ["update jobid=7 ReqNodeList=", "release 7", "update jobid=8 ReqNodeList="]
    assert slurm.told == told, "the released one goes before nobody any more"


def test_a_users_hold_of_a_job_in_a_reservation_is_not_handed_back():
    slurm = FakeSlurm([waits(reservation="maint")], NODES)
    slurm.said["7"] = Words(HELD)
    assert hand_back(slurm, "hemiola") == ([], []) and slurm.told == []


def test_what_its_user_changes_is_read_after_a_failed_bind_too():
    slurm = FakeSlurm([waits(hosts=2, most_hosts=2)], NODES)
    driven = Driven(slurm, TWO)
    driven.look(0.0)
    known = driven.driver.tracked[only(driven)]
    known.binds_failed, known.named = 1, {frozenset({"n0", "n1"})}
    slurm.rows = [waits(hosts=1, most_hosts=1, bound_to="n[0-1]")]
    slurm.said["7"] = Words(admin="hemiola:01234567-89ab-cdef-0123-456789abcdef:ranks=n[0-1]")
    driven.look(1.0)
    assert driven.driver.tracked[only(driven)].job.gpus == 8


DEPENDS = "afterok:1(unfulfilled)"
BOUND = Words(admin=f"hemiola:{'0' * 36}:ranks=n0")
"""What is written of a job that Hemiola has bound to its first node."""
PARKED = f"hemiola:{'0' * 36}:ranks=:begin="
"""What the AdminComment of a parked job says, and then when its user wants it to begin."""


def park(driven: Driven, begin_s: int) -> list[str]:
    words = f"AdminComment=hemiola:{only(driven)}:ranks=:begin={begin_s}"
    return [f"update jobid=7 StartTime=now+{PARKED_S} {words}", "release 7"]


def test_a_job_that_waits_for_others_is_parked_until_it_need_not():
    slurm = FakeSlurm([waits(dependency=DEPENDS, eligible_s=500)], NODES)
    driven = Driven(slurm, TWO)
    driven.look(0.0)
    driven.look(1.0)
    told = park(driven, 500)
    assert slurm.told == told
    slurm.rows = [
        waits(dependency=DEPENDS, eligible_s=PARKED_S)
    ]  # told, and scontrol died before the release
    driven.look(2.0)
    assert slurm.told == told * 2
    slurm.rows = [waits(dependency=DEPENDS, eligible_s=PARKED_S, priority=5, reason="Dependency")]
    driven.look(3.0)
    assert slurm.told == told * 2
    slurm.rows = [waits(eligible_s=PARKED_S, priority=5, reason="BeginTime")]
    driven.look(4.0)
    slurm.rows = [waits(eligible_s=PARKED_S)]  # held again, and scontrol died there
    driven.look(5.0)
    assert slurm.told == told * 2 + ["uhold 7", "update jobid=7 StartTime=now+496"] + [
        "uhold 7", "update jobid=7 StartTime=now+495",
    ]  # fmt: skip


@pytest.mark.parametrize("reason", ["JobHeldAdmin", "JobHeldUser"])
def test_a_hold_of_somebody_elses_is_not_lifted_for_a_dependency(reason: str):
    slurm = FakeSlurm([waits(reason=reason, dependency=DEPENDS)], NODES)
    driven = Driven(slurm, TWO)
    if reason == "JobHeldUser":
        slurm.said["7"] = Words(f"{HELD} my own words")
    driven.look(0.0)
    driven.look(1.0)
    slurm.rows = [waits(reason=reason)]
    driven.look(2.0)
    assert slurm.told == []


def test_a_parked_job_that_its_user_holds_is_parked_again_when_that_is_lifted():
    parked = {"dependency": DEPENDS, "eligible_s": PARKED_S}
    slurm = FakeSlurm([waits(**parked, priority=5, reason="Dependency")], NODES)
    slurm.said["7"] = Words(admin=f"{PARKED}500")
    driven = Driven(slurm, TWO)
    driven.look(0.0)
    driven.look(1.0)
    slurm.rows, slurm.said["7"] = [waits(**parked)], Words(HELD)
    for now_s in (2.0, 3.0, 4.0):
        driven.look(now_s)
    assert slurm.told == [] and driven.driver.tracked[only(driven)].held == "its user holds it"
    slurm.said["7"] = Words()
    driven.look(6.0)
    assert slurm.told == park(driven, 500)


def test_a_begin_time_that_a_user_sets_is_kept():
    """It is far away, or that of a job that was parked by the run before."""
    slurm = FakeSlurm([waits(eligible_s=200 * 86400)], NODES)
    driven = Driven(slurm, TWO)
    driven.look(0.0)
    driven.look(1.0)
    assert slurm.told == [] and driven.driver.tracked[only(driven)].recovery_key.begin_s == 200 * 86400
    slurm = FakeSlurm([waits(eligible_s=PARKED_S, priority=5)], NODES)
    slurm.said["7"] = Words(admin=f"{PARKED}500")
    driven = Driven(slurm, TWO, [recovered(begin_s=500.0)])
    driven.look(0.0)
    driven.look(1.0)
    assert slurm.told == ["uhold 7", "update jobid=7 StartTime=now+499"]


def test_a_begin_time_far_away_is_kept_where_the_job_is_not_held():
    """It came while Hemiola was silent."""
    slurm = FakeSlurm([waits(eligible_s=200 * 86400, priority=9, reason="BeginTime")], NODES)
    driven = Driven(slurm, TWO)
    driven.look(0.0)
    driven.look(1.0)
    assert slurm.told == ["uhold 7"]
    slurm.rows = [waits(eligible_s=200 * 86400)]
    assert driven.look(2.0) == [] and slurm.told == ["uhold 7"]


@pytest.mark.parametrize(("said", "told"), [("", []), (f"{PARKED}0", ["update jobid=7 StartTime=now"])])
def test_only_the_begin_time_of_a_parked_job_is_taken_back_with_it(said: str, told: list[str]):
    far_s = int(time.time()) + 200 * 86400
    slurm = FakeSlurm([waits(eligible_s=far_s, priority=9, reason="BeginTime")], NODES)
    slurm.said["7"] = Words(admin=said)
    assert hand_back(slurm, "hemiola") == ([], []) and slurm.told == told
    slurm.said["7"] = Words(admin=f"{PARKED}{far_s - 86400}")
    hand_back(slurm, "hemiola")
    begin_s = int(slurm.told[-1].removeprefix("update jobid=7 StartTime=now+"))
    assert 198 * 86400 < begin_s <= 199 * 86400, "as its user wants it"


def test_begin_times_go_by_the_wall_clock():
    """It was set forward by an hour while the daemon ran."""
    slurm = FakeSlurm([], NODES)
    driven = Driven(slurm, TWO)
    driven.clock.ahead_s = 3600.0
    driven.look(0.0)
    slurm.rows = [waits(submit_s=3601, eligible_s=3601)]
    assert [type(event) for event in driven.look(1.0)] == [Arrived] and driven.look(2.0) == []
    slurm.rows = [waits(submit_s=3601, eligible_s=3605)]
    assert [type(event) for now_s in (3.0, 4.0, 6.0) for event in driven.look(now_s)] == [Held, Released]


def test_a_parked_jobs_begin_time_goes_by_the_wall_clock():
    slurm = FakeSlurm([waits(eligible_s=PARKED_S, priority=5)], NODES)
    slurm.said["7"] = Words(admin=f"{PARKED}5000")
    driven = Driven(slurm, TWO, [recovered(begin_s=5000.0)])
    driven.clock.ahead_s = 3600.0
    driven.look(0.0)
    driven.look(1.0)
    assert slurm.told == ["uhold 7", "update jobid=7 StartTime=now+1399"]


def test_who_was_submitted_by_a_clock_that_is_ahead_has_not_waited_yet():
    driven = Driven(FakeSlurm([waits(submit_s=100)], NODES), TWO)
    driven.look(1.0)
    state = driven.machine.view.jobs[only(driven)]
    assert (state.since_s, state.queued_s) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("reason", "said", "lifted"),
    [("JobHeldUser", "", True), ("JobHeldUser", HELD, False), ("JobHeldAdmin", "", False)],
)
def test_a_job_that_leaves_the_partition_takes_the_holds_of_others_with_it(
    reason: str, said: str, lifted: bool
):
    slurm = FakeSlurm([waits()], NODES)
    driven = Driven(slurm, TWO)
    driven.look(0.0)
    slurm.rows, slurm.said["7"] = [waits(reason=reason, partition="other")], Words(said)
    driven.look(1.0)
    assert [type(event) for event in driven.look(4.0)] == [Failed]
    assert slurm.told == (["release 7"] if lifted else [])


def test_a_job_that_leaves_the_partition_does_not_wait_for_the_nodes_that_it_was_given():
    slurm = FakeSlurm([waits(bound_to="n0")], NODES, said={"7": BOUND})
    driven = Driven(slurm, TWO)
    driven.look(0.0)
    slurm.rows = [waits(bound_to="n0", priority=TOP, partition="other")]
    driven.look(2.0)
    driven.look(5.0)
    assert slurm.told == ["update jobid=7 ReqNodeList=", "release 7"]


def test_a_parked_job_that_leaves_the_partition_begins_when_its_user_wants():
    slurm = FakeSlurm([waits(dependency=DEPENDS)], NODES)
    driven = Driven(slurm, TWO)
    driven.look(0.0)
    driven.look(1.0)
    slurm.told.clear()
    slurm.rows = [waits(dependency=DEPENDS, eligible_s=PARKED_S, priority=5, partition="other")]
    driven.look(2.0)
    driven.look(5.0)
    assert slurm.told == ["update jobid=7 StartTime=now+95"]


# ---- its doctor


def test_jobs_that_are_slurms_are_not_looked_for_among_those_that_are_held():
    free = {"priority": 5, "reason": "Priority"}
    slurm = FakeSlurm(
        [
            waits(**free, gpus_per_host=0), waits(id="8", **free, features="ib"), waits(id="9", **free),
            waits(id="10", **free, strange="it is part of a heterogeneous job"), waits(id="11"),
        ],
        NODES,
        excluded={"9"},
    )  # fmt: skip
    (check,) = _loose(slurm, "hemiola", "enforce")  # type: ignore[arg-type]
    assert (check.state, check.what) == ("OK", "jobs that wait in hemiola: 5, of them held: 1")
    slurm.rows.append(waits(id="12", **free))
    (check,) = _loose(slurm, "hemiola", "enforce")  # type: ignore[arg-type]
    assert check.what == "1 waiting jobs are not held, and Slurm may place them: 12"


# ---- its network


class Shown(Slurm):
    """A Slurm whose nodes and tree `scontrol` shows; its configuration is elsewhere."""

    def ask(self, command: str, *arguments: str) -> str:
        gres = {"h0": "gpu:8(S:0-1)", "h1": "gpu:8(S:0-1)", "c0": "(null)"}
        shown = {
            "node": "".join(f"NodeName={name} Arch=x86_64 Gres={has} NodeAddr={name}\n" for name, has in gres.items()),
            "topology": "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=h[0-1],c0\n",
        }  # fmt: skip
        return shown.get(arguments[-1], "")


def test_nodes_without_gpus_may_stand_in_the_tree():
    hosts = slurm_topology(Shown()).hosts
    assert dict(zip(hosts.names, hosts.gpus.tolist(), strict=True)) == {"h0": 8, "h1": 8, "c0": 0}


class Configured(Slurm):
    """A Slurm whose configuration lies in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def ask(self, command: str, *arguments: str) -> str:
        return f"SLURM_CONF              = {self.folder}/slurm.conf\n"


def test_nodes_of_a_live_cluster_that_are_down_may_come_back(tmp_path: Path):
    (tmp_path / "topology.conf").write_text("SwitchName=s0 Nodes=h[0-3]\n")
    (tmp_path / "slurm.conf").write_text(
        "NodeName=h[0-3] Gres=gpu:8\nDownNodes=h3\nPartitionName=a Nodes=h[0-1]\n"
    )
    live = slurm_topology(Configured(tmp_path))
    assert live.hosts.names == ("h0", "h1", "h2", "h3") and not live.left_out
    assert read_topology(str(tmp_path)).hosts.names == ("h0", "h1")


# ---- its ranks


class Elements(Slurm):
    """A Slurm with an array of two elements: the later one has the number of the whole."""

    def ask(self, command: str, *arguments: str) -> str:
        mark = f"AdminComment=hemiola:{'0' * 36}:ranks="
        later, earlier = f"JobId=40 {mark}h1,h0 JobName=a\n", f"JobId=41 {mark}h0,h1 JobName=a\n"
        return {"40": later + earlier, "40_2": later, "40_1": earlier}[arguments[-1]]


def test_an_element_of_an_array_has_its_own_order_of_ranks():
    environ = {"SLURM_JOB_NODELIST": "h[0-1]", "SLURM_ARRAY_JOB_ID": "40"}
    for job, element, order in ("40", "2", ["h1", "h0"]), ("41", "1", ["h0", "h1"]):
        own = {"SLURM_JOB_ID": job, "SLURM_ARRAY_TASK_ID": element}
        assert ranks(Elements(), environ | own) == (order, True)
