"""What a job's own user changes in it: Hemiola heeds it or says why not, and nobody goes before others by it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from fake_slurm import RUNS, Driven, FakeSlurm, node
from replays import cluster

from hemiola.core.events import Adopted, Failed, Held, Released, Requeued
from hemiola.lab.slurm.config import LUA
from hemiola.live.engines.slurm.admission import NAMED
from hemiola.live.engines.slurm.doctor import gate_checks
from hemiola.live.engines.slurm.driver import FEATURES
from hemiola.live.engines.slurm.job_spec import HELD
from hemiola.live.engines.slurm.release import hand_back
from hemiola.live.engines.slurm.requests import TOP
from hemiola.live.engines.slurm.tracked_job import SlurmRecoveryKey
from hemiola.live.engines.slurm.wire import PARKED_S, SlurmJobRow, Words
from hemiola.live.tracked_job import RecoveredJob
from hemiola.sched.job_state import RUNNING

TWO = cluster([8, 8])
BOUND = Words(admin=f"hemiola:{'0' * 36}:ranks=n0")
DEPENDS = "afterok:1(unfulfilled)"


def waits(**other: object) -> SlurmJobRow:
    """Held as job_submit.lua does."""
    held = {"state": "PENDING", "reason": "JobHeldUser", "priority": 0, "host_list": "", "bound_to": ""}
    return msgspec.structs.replace(RUNS, **{**held, "eligible_s": None, **other})


def free(**other: object) -> SlurmJobRow:
    """In Slurm's own hands."""
    return waits(**{"priority": 5, "reason": "Priority", **other})


def driven_on(*rows: SlurmJobRow, bound: bool = False, **said: Words) -> tuple[FakeSlurm, Driven]:
    """After a first look; `bound`: the daemon had bound the job to n0 before it began anew."""
    slurm = FakeSlurm(list(rows), [node("n0"), node("n1")], said={"7": BOUND} if bound else dict(said))
    memory = (
        [RecoveredJob(uuid="u", engine_id="7", recovery_key=SlurmRecoveryKey((100,), 1000, 0), running=True)]
        if bound
        else []
    )
    driven = Driven(slurm, TWO, memory)
    driven.look(0.0)
    return slurm, driven


def only(driven: Driven):
    (known,) = driven.driver.tracked.values()
    return known


# ---- nodes


def test_a_waiting_job_whose_user_names_its_nodes_is_slurms_and_keeps_them():
    slurm, driven = driven_on(waits())
    slurm.rows = [waits(bound_to="n1")]
    (event,) = driven.look(1.0)
    assert isinstance(event, Failed) and event.reason == NAMED
    assert slurm.told == ["release 7"] and not driven.driver.tracked
    slurm.rows = [free(bound_to="n1")]
    assert not any(event.__class__ is Adopted for event in driven.look(2.0)) and slurm.told == ["release 7"]


def test_a_job_that_was_to_start_goes_where_its_user_names_nodes_but_before_nobody():
    slurm, driven = driven_on(free(bound_to="n0", priority=TOP), bound=True)
    assert driven.machine.view.jobs["u"].status == RUNNING
    slurm.rows = [free(bound_to="n1", priority=TOP)]
    assert [event.reason for event in driven.look(1.0) if isinstance(event, Failed)] == [NAMED]
    assert slurm.told == ["release 7"], "which gives it its usual priority, and leaves it its nodes"


def test_a_job_that_was_to_start_is_placed_anew_where_its_user_takes_its_nodes_off():
    slurm, driven = driven_on(free(bound_to="n0", priority=TOP), bound=True)
    slurm.rows = [free(priority=TOP)]
    assert [type(event) for event in driven.look(1.0)] == [Requeued] and slurm.told == ["uhold 7"]


def test_nodes_that_its_user_names_while_nobody_looks_are_not_overwritten():
    slurm, driven = driven_on(waits(bound_to="n1"), bound=True)
    assert not driven.driver.tracked and slurm.told == ["release 7"]
    assert [vanished.outcome for vanished in driven.driver.vanished()] == [NAMED]


def test_nodes_to_which_hemiola_has_bound_it_are_not_its_users():
    slurm, driven = driven_on(waits(bound_to="n0"), bound=True)
    assert only(driven).job.id == "u" and slurm.told == []


def test_what_is_handed_back_keeps_the_nodes_that_its_user_named_after_hemiola():
    slurm = FakeSlurm([waits(bound_to="n1", priority=TOP)], [node("n0"), node("n1")], said={"7": BOUND})
    hand_back(slurm, "hemiola")
    assert slurm.told == ["release 7"]


def test_a_parked_job_whose_user_names_its_nodes_begins_when_its_user_wants():
    slurm, driven = driven_on(waits(dependency=DEPENDS, eligible_s=100))
    driven.look(0.5)
    slurm.told.clear()
    slurm.rows = [waits(dependency=DEPENDS, eligible_s=PARKED_S, bound_to="n1")]
    driven.look(1.0)
    assert slurm.told == ["update jobid=7 StartTime=now+99", "release 7"]


def test_a_job_that_is_parked_is_bound_to_nothing():
    slurm, driven = driven_on(waits(bound_to="n0", dependency=DEPENDS, eligible_s=100), bound=True)
    driven.look(1.0)
    assert " ReqNodeList= " in slurm.told[0] and slurm.told[0].endswith(":begin=100")


# ---- what is Slurm's, and comes back


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"bound_to": "n1"}, {}), ({"features": "ib"}, {}), ({"gpus_per_host": 0}, {}),
        ({"bound_to": "n1"}, {"priority": 5, "reason": "Priority"}), ({"strange": "it is odd"}, {}),
    ],
)  # fmt: skip
def test_a_job_that_was_slurms_is_hemiolas_when_it_no_longer_asks_for_that(
    before: dict[str, object], after: dict[str, object]
):
    slurm, driven = driven_on(free(**before))
    assert not driven.driver.tracked and slurm.told == []
    slurm.rows = [waits(**after)]
    driven.look(2.0)
    driven.look(3.0)
    assert only(driven).why_not == "" and slurm.told == (["uhold 7"] if after else [])


def test_a_job_that_excludes_nodes_is_slurms_until_it_no_longer_does():
    slurm = FakeSlurm([free()], [node("n0"), node("n1")], excluded={"7"})
    driven = Driven(slurm, TWO)
    driven.look(0.0)
    assert not driven.driver.tracked and slurm.told == []
    slurm.rows = [waits()]  # job_submit.lua holds it as it changes
    driven.look(1.0)
    assert not driven.driver.tracked and slurm.told == ["release 7"]
    driven.look(1.5)
    driven.look(2.5)
    assert slurm.told == ["release 7"] * 2, "as the first one was lost"
    slurm.excluded.clear()
    driven.look(4.0)
    assert only(driven).why_not == "" and len(slurm.told) == 2


def test_a_hold_of_its_users_of_a_job_that_is_slurms_is_not_lifted():
    slurm, driven = driven_on(free(bound_to="n1"))
    slurm.rows, slurm.said["7"] = [waits(bound_to="n1")], Words(HELD)
    for now_s in (1.0, 2.5, 4.0):
        driven.look(now_s)
    assert slurm.told == []
    slurm.said["7"] = Words()
    driven.look(6.0)
    assert slurm.told == ["release 7"]


def test_a_waiting_job_whose_user_wants_features_that_not_all_nodes_have_is_slurms():
    slurm, driven = driven_on(free(bound_to="n0", priority=TOP), bound=True)
    slurm.rows = [waits(bound_to="n0", features="ib")]
    assert [event.reason for event in driven.look(1.0) if isinstance(event, Failed)] == [FEATURES]
    assert slurm.told == ["update jobid=7 ReqNodeList=", "release 7"]


# ---- comments


@pytest.mark.parametrize("forged", ["hemiola:names-its-nodes ", f"{HELD}x ", "hemiola:held-as-it-left"])
def test_what_a_user_writes_into_a_comment_changes_nothing(forged: str):
    slurm, driven = driven_on(waits(), **{"7": Words(forged + "hemiola model=unheard-of")})
    assert only(driven).why_not == "" and slurm.told == []
    slurm.rows = [free()]
    driven.look(1.0)
    assert slurm.told == ["uhold 7"], "whoever released it"


def test_a_partition_changed_and_changed_back_is_nobodys_hold():
    slurm, driven = driven_on(waits())
    slurm.rows, slurm.said["7"] = [waits(partition="other")], Words("hemiola:held-as-it-left ")
    driven.look(1.0)
    slurm.rows, slurm.said["7"] = [waits()], Words("hemiola")
    events = driven.look(2.0) + driven.look(3.0)
    assert only(driven).why_not == "" and not [e for e in events if isinstance(e, Held | Released | Failed)]


def test_the_doctor_knows_a_gate_that_believes_what_users_write(tmp_path: Path):
    settings = {"SLURM_CONF": str(tmp_path / "slurm.conf"), "JobSubmitPlugins": "lua"}
    gate = tmp_path / "job_submit.lua"
    text = LUA.read_text()
    for written, old in (text, False), (text.replace("may_name_nodes", "x"), True):
        gate.write_text(written)
        told = [check.what for check in gate_checks(settings, "hemiola", None, "WARN")]
        assert any("earlier Hemiola" in what for what in told) is old
