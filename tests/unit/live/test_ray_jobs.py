"""What Ray's users say of their jobs, and what Ray says: read strictly, and nothing is guessed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest
from replays import CheckedMachine, cluster

from hemiola.core.decisions import Move, Placement, Resize, Start, Stop, WakeAt
from hemiola.core.errors import EngineError, InputError
from hemiola.core.events import Adopted, Arrived, Released, Requeued
from hemiola.core.job import Profile
from hemiola.live.engines.ray.client import Command, Ray
from hemiola.live.engines.ray.diff import RayDiff
from hemiola.live.engines.ray.driver import RayDriver
from hemiola.live.engines.ray.hold import job_around
from hemiola.live.engines.ray.job_spec import Wish, job_of, take_up, wish_of
from hemiola.live.engines.ray.kv_store import ALONE, HOLDS, JobPlace, Wrapper
from hemiola.live.engines.ray.release import hand_back
from hemiola.live.engines.ray.snapshot import RaySnapshot
from hemiola.live.engines.ray.tracked_job import RayRecoveryKey, RayTrackedJob
from hemiola.live.engines.ray.wire import GroupRow, RayJobRow, RayNodeRow, RayReply, read_answer
from hemiola.live.live_driver import Vanished
from hemiola.live.tracked_job import RecoveredJob, adopted
from hemiola.sched.policies.fifo import FifoBackfill
from hemiola.sched.view import ClusterView

NONE = b'{"groups": [], "notes": {}, "jobs": [], "nodes": []}'
NESTED = '{"token":' + "[" * 50_000


def row(words: str, start_ms: int = 5000) -> RayJobRow:
    return RayJobRow("raysubmit_1", "RUNNING", start_ms, None, words)


def two_hosts() -> ClusterView:
    return ClusterView(cluster([8, 8]), estimates=None)  # type: ignore[arg-type]


def no_profile(model: str) -> Profile:
    raise InputError(f"no profile has the model {model!r}", "")


@pytest.mark.parametrize(
    ("words", "wish"),
    [
        ("gpus=16", Wish(16, 0, 1)),
        ("gpus=16 hosts=2 cpus=0 model=x", Wish(16, 2, 0)),
        ("gpus=8 requeue=no", Wish(8, 0, 1)),
        ("gpus=8 gpu_type=A100", Wish(8, gpu_type="A100")),
        ("max_gpus=32 gpus=16 min_gpus=8 hosts=2", Wish(16, 2, 1, 8, 32)),
        ("gpus=3 max_gpus=4", Wish(3, max_gpus=4)),
    ],
)
def test_wishes_are_read(words: str, wish: Wish):
    assert wish_of(words) == wish


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("", "does not say how many GPUs"),
        ("hosts=2", "does not say how many GPUs"),
        ("gpus=0", "gpus='0': write a number from 1"),
        ("gpus=-1", "gpus='-1'"),
        ("gpus=²", "gpus='²'"),
        ("gpus=1e3", "gpus='1e3'"),
        ("gpus=99999999", "gpus='99999999'"),
        ("gpus=7 hosts=2", "7 GPUs on 2 hosts, equally many on each"),
        ("min_gpus=8 max_gpus=16", "does not say how many GPUs"),
        ("gpus=8 min_gpus=0", "min_gpus='0': write a number from 1"),
        ("gpus=8 max_gpus=all", "max_gpus='all': write a number from 1"),
        (
            "gpus=16 min_gpus=24",
            "24 to 16, which does not hold its 16 GPUs; write min_gpus and max_gpus that fit",
        ),
        ("gpus=16 max_gpus=8", "16 to 8, which does not hold its 16 GPUs"),
        ("gpus=16 hosts=2 max_gpus=20", "16 to 20, on whole hosts with 8 GPUs each; write"),
        ("gpus=8 cpus=many", "cpus='many': write a number from 0"),
        ("gpus=8 requeue=never", "write yes or no"),
    ],
)
def test_wishes_that_cannot_be_are_problems(words: str, problem: str):
    assert problem in wish_of(words).problem


def test_a_job_has_what_its_user_said():
    said = "gpus=16 hosts=2 gpu_type=a100 required=rack preferred=host runtime=2h user=eve requeue=no"
    job, note = job_of(row(said), "uuid", 60.0, no_profile)
    assert (job.gpus, job.hosts, job.gpu_type, job.user, job.pinned) == (16, 2, "a100", "eve", True)
    assert (job.required, job.preferred, job.duration_s, job.submit_s) == ("rack", "host", 7200.0, 5.0)
    assert note == ""


def test_an_elastic_job_keeps_the_size_that_it_asked_for_and_has_others():
    job, note = job_of(row("gpus=16 hosts=2 min_gpus=8 max_gpus=32"), "uuid", 60.0, no_profile)
    assert (job.gpus, job.hosts, list(job.sizes), note) == (16, 2, [8, 16, 24, 32], "")
    other, _ = job_of(row("gpus=2 max_gpus=4"), "uuid", 60.0, no_profile)
    assert other.is_elastic and list(other.sizes) == [2, 3, 4]
    fixed, _ = job_of(row("gpus=2"), "uuid", 60.0, no_profile)
    assert not fixed.is_elastic
    wrong, note = job_of(row("gpus=2 min_gpus=3"), "uuid", 60.0, no_profile)
    assert not wrong.is_elastic and "which does not hold its 2 GPUs" in note


def test_a_job_that_runs_at_another_size_is_taken_up_there():
    job, _ = job_of(row("gpus=1 max_gpus=4"), "uuid", 60.0, no_profile)
    known = RayTrackedJob(job, row("gpus=1 max_gpus=4"), "t")
    group = GroupRow("hemiola:raysubmit_1:3", "CREATED", "ab" * 18, ("aa" * 8, "aa" * 8, "cc" * 8))
    wrapper = Wrapper(token="t", state="runs", number=3)
    told = JobPlace(token="t", number=3, group=group.name, group_id=group.id)
    names = {group.name: group}
    look = RaySnapshot({}, {known.row.id: wrapper}, {known.row.id: told}, names, ["aa" * 8, "cc" * 8], {})
    take_up(known, look, 10.0)
    event = adopted(job, known.wanted, None, 10.0)
    assert (known.ran, event.placement, event.job.gpus) == (True, Placement((0, 1), (0b11, 0b1)), 1)
    machine = CheckedMachine(two_hosts())
    machine.apply(event)
    state = machine.view.jobs["uuid"]
    assert (state.gpus, state.asked_gpus) == (3, 1)
    machine.apply(Requeued(11.0, "uuid", "a node died"))
    assert (state.gpus, state.placement) == (1, None)


class Asked(Ray):
    """Two nodes and a job that waits; what is asked of it is written down, and none of it happens."""

    def __init__(self, words: str) -> None:
        super().__init__("nowhere:1")
        node = RayNodeRow("", (), 8, 8.0, {})
        self.answer = RayReply(
            groups=(), notes={"wrapper:raysubmit_1": '{"token": "t", "state": "waits"}'}, jobs=(row(words),),
            nodes=tuple(msgspec.structs.replace(node, id=f"{i}" * 8, names=(f"n{i}",)) for i in range(2)),
        )  # fmt: skip
        self.asked: dict[str, list[tuple[object, ...]]] = {}

    def ask(self, request: str, *arguments: object) -> msgspec.Raw:
        self.asked.setdefault(request, []).append(arguments)
        answers = {"look": self.answer, "delete": self.asked[request].count(arguments) == 1}
        return msgspec.Raw(msgspec.json.encode(answers.get(request)))


def test_a_job_that_ended_while_nobody_watched_ended_when_ray_says():
    ray, machine = Asked("gpus=8"), CheckedMachine(two_hosts())
    ended = msgspec.structs.replace(ray.answer.jobs[0], status="SUCCEEDED", end_ms=160_000)
    ray.answer = msgspec.structs.replace(ray.answer, jobs=(ended,), notes={})
    memory = RecoveredJob(
        uuid="u", engine_id=ended.id, recovery_key=RayRecoveryKey(5000), running=True, since_s=100.0
    )
    driver = RayDriver(ray, machine, recovered=[memory], profile=no_profile)
    next(driver.events())
    assert driver.vanished() == [Vanished("u", "finished", 160.0)]


def test_a_job_that_ray_placed_before_us_has_run_since_its_wrapper_says():
    ray, machine = Asked("gpus=8"), CheckedMachine(two_hosts())
    note = '{"token": "t", "state": "runs", "since_s": 65.0}'
    ray.answer = msgspec.structs.replace(
        ray.answer, groups=(alone("raysubmit_1", 8),), notes={"wrapper:raysubmit_1": note}
    )
    adopted, *_ = next(RayDriver(ray, machine, acts=False, profile=no_profile).events())
    assert isinstance(adopted, Adopted) and (adopted.since_s, adopted.queued_s) == (65.0, 60.0)
    assert adopted.done_s == adopted.time_s - 65.0


def test_a_job_goes_to_the_node_whose_processors_are_free():
    ray, machine = Asked("gpus=4 cpus=2"), CheckedMachine(two_hosts())
    busy, idle = (
        msgspec.structs.replace(node, cpus=16.0, free_cpus=free)
        for node, free in zip(ray.answer.nodes, (7.0, 8.0), strict=True)
    )
    ray.answer = msgspec.structs.replace(ray.answer, nodes=(busy, idle))
    driver = RayDriver(ray, machine, profile=no_profile)
    machine.apply(*next(driver.events()))
    (decision,) = FifoBackfill().decide(machine.view)
    assert isinstance(decision, Start) and decision.placement.hosts == (1,)
    assert "has 7 CPUs left" in machine.execute(Start(decision.job_id, Placement((0,), (0b1111,)), ""))


def test_a_group_that_does_not_stand_is_made_on_another_node_next():
    ray, machine = Asked("gpus=4"), CheckedMachine(two_hosts())
    driver = RayDriver(ray, machine, profile=no_profile)
    look = driver._watcher.look([], 0.0)
    machine.apply(*driver._compare(look, 0.0))
    (known,) = driver.tracked.values()
    (decision,) = FifoBackfill().decide(machine.view)
    assert not machine.execute(decision)
    driver._carry_out([decision])
    driver._bind_failed(known, "its placement group did not stand", look, 60.0)
    machine.apply(*driver._soon, Released(1e6, known.job.id))
    (again,) = FifoBackfill().decide(machine.view)
    assert (decision.placement.hosts, again.placement.hosts) == ((0,), (1,))


def test_each_rank_of_the_size_that_was_decided_has_a_bundle():
    ray, machine = Asked("gpus=1 max_gpus=4 cpus=2"), CheckedMachine(two_hosts())
    driver = RayDriver(ray, machine, profile=no_profile)
    events = driver.events()
    machine.apply(*next(events))
    (job,) = machine.view.waiting
    shown, notes = [], []
    for decision in (
        Start(job, Placement((1, 0), (0b11, 0b1)), "three"),
        Resize(job, Placement((0,), (0b11,)), "two"),
        Move(job, Placement((1,), (0b11,)), "two, elsewhere"),
    ):
        *note, text = driver.render(decision).splitlines()
        shown.append(text)
        notes += note
        assert not machine.execute(decision)
        driver.execute(decision)
        driver.execute(WakeAt(0.0, "", "carry it out"))
        machine.apply(*next(events))
    events.close()
    bundle, first, second = {"CPU": 2, "GPU": 1}, "0" * 8, "1" * 8
    assert ray.asked["make"] == [
        ("hemiola:raysubmit_1:1", [bundle] * 3, [second, second, first]),
        ("hemiola:raysubmit_1:3", [bundle] * 2, [first] * 2),
        ("hemiola:raysubmit_1:5", [bundle] * 2, [second] * 2),
    ]
    assert [text.partition("] * ")[2][:1] for text in shown] == ["3", "2", "2"]
    assert all(f"name='{name}'" in text for text, (name, *_) in zip(shown, ray.asked["make"], strict=True))
    told = [value for key, value in ray.asked["put"] if key == "place:raysubmit_1"]
    assert all(f"'{value}'" in text for text, value in zip(notes, told, strict=True))


@pytest.mark.parametrize(
    ("words", "nodes"), [("gpus=8 gpu_type=other", ("0" * 8,) * 8), ("gpus=9", ("2" * 8,) + ("0" * 8,) * 8)]
)
def test_gpus_that_ray_gave_to_a_job_that_cannot_be_taken_up_are_not_given_again(
    words: str, nodes: tuple[str, ...]
):
    ray, machine = Asked(words), CheckedMachine(two_hosts())
    full, free = ray.answer.nodes
    ray.answer = msgspec.structs.replace(
        ray.answer, groups=(GroupRow("hemiola:raysubmit_1:0", "CREATED", "ab" * 18, nodes),),
        notes={"wrapper:raysubmit_1": '{"token": "t", "state": "runs"}', "wrapper:other": NESTED},
        nodes=(msgspec.structs.replace(full, free_gpus=0.0), free),
    )  # fmt: skip
    events = RayDriver(ray, machine, profile=no_profile).events()
    machine.apply(*next(events))
    assert machine.view.inventory.blocked == {0: 0xFF}
    events.close()


def alone(job: str, gpus: int) -> GroupRow:
    """On the first node, by Ray."""
    return GroupRow(f"hemiola:{job}:0", "CREATED", "ab" * 18, ("0" * 8,) * gpus)


def test_gpus_that_ray_gave_beyond_those_of_the_topology_are_not_given_again():
    ray, machine = Asked("gpus=8"), CheckedMachine(ClusterView(cluster([4, 8]), estimates=None))  # type: ignore[arg-type]
    full, free = ray.answer.nodes
    ray.answer = msgspec.structs.replace(
        ray.answer, groups=(alone("raysubmit_1", 8),), notes={"wrapper:raysubmit_1": '{"token": "t", "state": "runs"}'},
        nodes=(msgspec.structs.replace(full, free_gpus=0.0), free),
    )  # fmt: skip
    events = RayDriver(ray, machine, acts=False, profile=no_profile).events()
    machine.apply(*next(events))
    assert machine.view.inventory.blocked == {0: 0xF}
    assert not machine.view.running
    events.close()


def test_of_two_jobs_that_ray_put_where_the_topology_has_room_for_one_the_first_stays():
    ray, machine = Asked("gpus=4"), CheckedMachine(ClusterView(cluster([4, 8]), estimates=None))  # type: ignore[arg-type]
    runs = '{"token": "t", "state": "runs"}'
    first, second = ray.answer.jobs[0], msgspec.structs.replace(ray.answer.jobs[0], id="a_later_one")
    full, free = ray.answer.nodes
    ray.answer = msgspec.structs.replace(
        ray.answer, groups=(alone(first.id, 4),), notes={f"wrapper:{first.id}": runs},
        nodes=(msgspec.structs.replace(full, free_gpus=4.0), free),
    )  # fmt: skip
    events = RayDriver(ray, machine, acts=False, profile=no_profile).events()
    machine.apply(*next(events))
    (job,) = machine.view.running
    ray.answer = msgspec.structs.replace(
        ray.answer, jobs=(first, second), groups=(alone(second.id, 4), alone(first.id, 4)),
        notes={f"wrapper:{row.id}": runs for row in (first, second)},
        nodes=(msgspec.structs.replace(full, free_gpus=0.0), free),
    )  # fmt: skip
    machine.apply(*next(events))
    assert list(machine.view.running) == [job] and len(machine.view.jobs) == 2
    assert not machine.view.waiting, "where Ray has put it, the other one goes on"
    ray.answer = msgspec.structs.replace(
        ray.answer, jobs=(msgspec.structs.replace(first, status="SUCCEEDED"), second), groups=(alone(second.id, 4),),
        nodes=(msgspec.structs.replace(full, free_gpus=4.0), free),
    )  # fmt: skip
    machine.apply(*next(events))
    (other,) = machine.view.running
    assert other != job
    events.close()


def test_what_is_left_of_a_job_that_is_no_more_takes_no_place_of_one_that_lives():
    ray, machine = Asked("gpus=8"), CheckedMachine(two_hosts())
    full, free = ray.answer.nodes
    ray.answer = msgspec.structs.replace(
        ray.answer, groups=(alone("ended", 1), alone("raysubmit_1", 8)),
        notes={"wrapper:raysubmit_1": '{"token": "t", "state": "runs"}'},
        nodes=(msgspec.structs.replace(full, free_gpus=0.0), free),
    )  # fmt: skip
    events = RayDriver(ray, machine, acts=False, profile=no_profile).events()
    machine.apply(*next(events))
    assert [job.placement for job in machine.view.running.values()] == [Placement((0,), (0xFF,))]
    events.close()


@pytest.mark.parametrize(
    ("now_s", "waits"), [(61.0, True), (200.0, False)], ids=["within its grace", "long after"]
)
def test_a_job_waits_while_one_that_ray_placed_leaves_its_gpus(now_s: float, waits: bool):
    job, _ = job_of(row("gpus=8"), "b", 60.0, no_profile)
    machine = CheckedMachine(two_hosts())
    machine.apply(Arrived(0.0, job))
    assert not machine.execute(Start("b", Placement((0,), (0xFF,)), "it fits"))
    known = RayTrackedJob(
        job, row("gpus=8"), "t", group="hemiola:raysubmit_1:1", wanted=Placement((0,), (0xFF,))
    )
    leaves = RayTrackedJob(job, msgspec.structs.replace(known.row, id="a"), "t", left_s=1.0)
    pending = GroupRow(known.group, "PENDING", "ab" * 18, ("",) * 8)
    wrappers = {
        "a": Wrapper(token="t", state="leaves", grace_s=100.0),
        known.row.id: Wrapper(token="t", state="waits"),
    }
    groups = {group.name: group for group in (alone("a", 8), pending)}
    look = RaySnapshot({}, wrappers, {"a": JobPlace(token="t", number=1)}, groups, ["0" * 8, "1" * 8], {})
    changes = RayDiff(machine.view, look, now_s, {"a": leaves, known.row.id: known})
    assert changes.job(known, known.row)
    assert (changes.failed == []) is waits


THERE = JobPlace(token="t", number=2, group="hemiola:raysubmit_1:2")
OTHERS = msgspec.structs.replace(THERE, token="of another one")
NOWHERE = JobPlace(token="t", number=3)


@pytest.mark.parametrize("told", [None, THERE], ids=["by Ray", "by Hemiola"])
def test_a_command_that_runs_outside_the_topology_is_left_alone(told: JobPlace | None):
    ray, machine = Asked("gpus=8"), CheckedMachine(two_hosts())
    number = told.number if told is not None else ALONE
    place = {"place:raysubmit_1": msgspec.json.encode(told).decode()} if told is not None else {}
    stranger = msgspec.structs.replace(ray.answer.nodes[0], id="2" * 8, names=("n2",), free_gpus=0.0)
    ray.answer = msgspec.structs.replace(
        ray.answer, nodes=(*ray.answer.nodes, stranger),
        groups=(GroupRow(f"hemiola:raysubmit_1:{number}", "CREATED", "ab" * 18, (stranger.id,) * 8),),
        notes={"wrapper:raysubmit_1": f'{{"token": "t", "state": "runs", "number": {number}}}', **place},
    )  # fmt: skip
    driver = RayDriver(ray, machine, profile=no_profile)
    events = driver.events()
    machine.apply(*next(events))
    (job,) = machine.view.jobs
    assert driver.tracked[job].why_not == "it runs outside the topology"
    assert machine.execute(Start(job, Placement((0,), (0xFF,)), "it fits")) == "it is not waiting"
    ray.answer = msgspec.structs.replace(ray.answer, nodes=ray.answer.nodes[:2])
    machine.apply(*next(events))
    assert list(machine.view.waiting) == [job], "its node has died"
    events.close()
    assert {key for key, _ in ray.asked["put"]} == {HOLDS}
    assert "make" not in ray.asked and "remove" not in ray.asked


@pytest.mark.parametrize(
    ("told", "wrapper", "handed", "removed"),
    [
        (THERE, '{"token": "t", "state": "runs"}', [], False),
        (THERE, None, [], True),
        (THERE, NESTED, [], True),
        (OTHERS, '{"token": "t", "state": "waits"}', ["raysubmit_1"], True),
        (NOWHERE, '{"token": "t", "state": "runs", "number": 2}', [], False),
        (NOWHERE, '{"token": "t", "state": "leaves", "number": 2}', [], False),
        (NOWHERE, '{"token": "t", "state": "waits", "number": 2}', ["raysubmit_1"], True),
        (NOWHERE, '{"token": "t", "state": "leaves", "number": 1}', [], True),
    ],
    ids=[
        "it runs there", "it has left", "its note is damaged", "it waits for another", "it is to leave", "it saves",
        "it waits again", "it leaves another",
    ],
)  # fmt: skip
def test_of_what_is_handed_back_no_group_is_left_that_nobody_removes(
    told: JobPlace, wrapper: str | None, handed: list[str], removed: bool
):
    ray, name = Asked("gpus=8"), THERE.group
    notes = {"place:raysubmit_1": msgspec.json.encode(told).decode()}
    ray.answer = msgspec.structs.replace(
        ray.answer, groups=(GroupRow(name, "CREATED", "ab" * 18, ("0" * 8,) * 8),),
        notes={**notes, "wrapper:raysubmit_1": wrapper} if wrapper else notes,
    )  # fmt: skip
    assert hand_back(ray) == handed
    assert list(ray.asked)[:2] == ["delete", "look"], "whoever leaves from now on removes its own"
    assert ray.asked.get("remove", []) == [(name,)] * removed
    assert hand_back(ray) == [], "they wait for Ray, and are released no more"


def test_what_was_advised_is_taken_away_with_its_job():
    ray, machine = Asked("gpus=2"), CheckedMachine(two_hosts())
    driver = RayDriver(ray, machine, acts=False, profile=no_profile)
    events = driver.events()
    machine.apply(*next(events))
    (job,) = machine.view.waiting
    driver.advise(Start(job, Placement((1,), (0b11,)), "it fits"))
    ended = msgspec.structs.replace(ray.answer.jobs[0], status="SUCCEEDED")
    ray.answer = msgspec.structs.replace(ray.answer, jobs=(ended,))
    machine.apply(*next(events))
    events.close()
    assert ray.asked["delete"] == [("advice:raysubmit_1",)]


def test_a_resize_is_advised_with_its_size_once():
    ray, machine = Asked("gpus=2 min_gpus=1"), CheckedMachine(two_hosts())
    driver = RayDriver(ray, machine, acts=False, profile=no_profile)
    events = driver.events()
    machine.apply(*next(events))
    (job,) = machine.view.waiting
    for _ in range(2):
        driver.advise(Resize(job, Placement((1,), (0b1,)), "less"))
    driver.advise(Stop(job, "nothing"))
    events.close()
    assert ray.asked["put"] == [("advice:raysubmit_1", "1 GPU of n1 (less)")]


def test_words_that_are_not_understood_are_told_and_left_out():
    job, note = job_of(row("gpus=8 colour=red model=unheard-of runtime=long"), "uuid", 60.0, no_profile)
    assert job.duration_s == 60.0 and job.profile is None
    assert "its metadata says 'colour=red': write one of gpus, hosts" in note and "'long'" in note


def test_an_answer_that_cannot_be_is_refused_as_a_whole():
    assert read_answer(msgspec.Raw(NONE)).jobs == ()
    for wrong in (
        b'[["a; rm -rf /", "RUNNING", 1, null, "gpus=1"]]',
        b'[{"id": "a b", "status": "RUNNING", "start_ms": 1, "exit_code": null, "words": "gpus=1"}]',
        b'[{"id": "a", "status": "DREAMING", "start_ms": 1, "exit_code": null, "words": "gpus=1"}]',
    ):
        with pytest.raises(EngineError, match="not understood"):
            read_answer(msgspec.Raw(NONE.replace(b'"jobs": []', b'"jobs": ' + wrong)))


def test_a_group_is_where_its_bundles_are_in_their_order():
    group = GroupRow("hemiola:j:1", "CREATED", "ab" * 18, ("cc" * 8, "cc" * 8, "aa" * 8))
    look = RaySnapshot({}, {}, {}, {group.name: group}, ["aa" * 8, "", "cc" * 8], {})
    assert look.placement(group.name) == Placement((2, 0), (0b11, 0b1))
    elsewhere = GroupRow("hemiola:j:2", "CREATED", "ab" * 18, ("dd" * 8,))
    pending = GroupRow("hemiola:j:3", "PENDING", "ab" * 18, ("",))
    look.groups.update({elsewhere.name: elsewhere, pending.name: pending})
    assert [look.placement(name) for name in (elsewhere.name, pending.name, "none")] == [None] * 3


def test_an_id_that_is_used_again_is_another_job():
    memory = RecoveredJob(
        uuid="u", engine_id="raysubmit_1", recovery_key=RayRecoveryKey(5000), running=True, since_s=10.0
    )
    assert memory.recovery_key.is_same(row("gpus=1")) and not memory.recovery_key.is_same(
        row("gpus=1", start_ms=6000)
    )
    assert memory.history(15.0, running=True)["since_s"] == 10.0
    assert memory.history(15.0, running=False)["served_s"] == 5.0


def test_the_wrapper_finds_its_job_and_says_what_is_missing():
    around = {
        "RAY_ADDRESS": "10.0.0.1:6379",
        "RAY_JOB_CONFIG_JSON_ENV_VAR": '{"metadata": {"job_submission_id": "j", "hemiola": "gpus=2"}}',
    }
    assert job_around(around) == ("10.0.0.1:6379", "j", Wish(2))
    with pytest.raises(InputError, match="no Ray job"):
        job_around({})
    for metadata, problem in (
        ('{"job_submission_id": "j"}', "says nothing for Hemiola"),
        ('{"job_submission_id": "j", "hemiola": "gpus=two"}', "write a number from 1"),
        ('{"job_submission_id": "j k", "hemiola": "gpus=2"}', "other signs"),
    ):
        with pytest.raises(InputError, match=problem):
            job_around({**around, "RAY_JOB_CONFIG_JSON_ENV_VAR": f'{{"metadata": {metadata}}}'})


def test_what_a_shell_has_started_has_its_grace_too(tmp_path: Path):
    begun, saved = tmp_path / "begun", tmp_path / "saved"
    os.mkfifo(begun)
    script = tmp_path / "train.sh"
    saves = f"trap 'sleep 0.3; echo all > {saved}; exit' TERM; sleep 60 & echo > {begun}; wait"
    script.write_text(f"({saves}) & wait", encoding="utf-8")
    command = Command(["bash", str(script)], dict(os.environ))
    begun.read_text()
    assert command.end(30.0) == 128 + signal.SIGTERM
    command.close()
    assert saved.read_text() == "all\n"


def test_a_place_survives_being_written():
    place = JobPlace(token="t", number=3, group="hemiola:j:3", group_id="ab", nodes=("h0", "h1"))
    assert msgspec.json.decode(msgspec.json.encode(place), type=JobPlace) == place
