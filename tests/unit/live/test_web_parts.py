"""Pieces of the web package by themselves: why jobs wait, what links carry, the dashboard's file, the camera."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import msgspec
import pytest
from repository import DOCS

pytest.importorskip("fastapi", reason="needs hemiola[serve]")
from hypothesis import given
from hypothesis import strategies as st
from journal_helpers import ended, record
from web_helpers import GPT, RESNET, topology

from hemiola.core.decisions import Placement, Start, Stop, WakeAt
from hemiola.core.events import Arrived, Blocked, Finished, Held, NodeLost
from hemiola.core.job import Job, Profile, batch_job
from hemiola.cost.iteration import IterationModel
from hemiola.live.live_driver import Identity
from hemiola.live.polling_driver import USUAL_S
from hemiola.live.web.responses import Frame, FreeCapacity, ended_job
from hemiola.live.web.snapshots import DecisionNote, JobSnapshot, Predictor, Snapshots, seen_in_journal
from hemiola.sched.machine import StateMachine
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import Costs, SimulatedEstimates
from hemiola.trace.reports import HostReport

CLUSTER = topology()  # two racks of four hosts of eight GPUs
WAITS = "it would fit, and the policy has it wait"


def seen(
    gpus: int, *, note: str = "", place: Placement | None = None, profile: Profile | None = None, **more: Any
) -> JobSnapshot:
    return JobSnapshot(
        job=batch_job(id="x", submit_s=0.0, gpus=gpus, duration_s=1.0, profile=profile, **more), engine_id="7", user="ada", name="", state="waiting",
        since_s=0.0, placement=place, served_s=0.0, queued_s=0.0, preemptions=0, binds_failed=0, note=note, submitted_s=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("free", "wanted", "why"),
    [
        ([0] * 8, {"gpus": 1}, "it wants 1 GPU, and none is free: 1 short"),
        ([2] * 8, {"gpus": 16}, WAITS),
        ([2] * 8, {"gpus": 17}, "it wants 17 GPUs, and 16 are free: 1 short"),
        ([2] * 8, {"gpus": 12, "required": "rack"}, "it wants 12 GPUs within one rack; 16 are free, but only 8 that way"),
        ([2] * 8, {"gpus": 4, "hosts": 1}, "it wants 4 GPUs within one host; 16 are free, but only 2 that way"),
        ([4, 4, 4, 0, 4, 0, 0, 0], {"gpus": 16, "hosts": 4, "required": "rack"},
         "it wants 16 GPUs, 4 on each of 4 hosts within one rack; 16 are free, but only 12 that way"),
        ([4, 4, 4, 0, 4, 0, 0, 0], {"gpus": 16, "hosts": 4}, WAITS),
        ([8, 3, 3, 3, 0, 0, 0, 0], {"gpus": 16, "hosts": 2}, "it wants 16 GPUs, 8 on each of 2 hosts; 17 are free, but only 11 that way"),
        ([8] * 8, {"gpus": 8, "gpu_type": "H100"}, "it wants 8 GPUs of type H100, and none is free: 8 short"),
    ],
)  # fmt: skip
def test_what_a_waiting_job_lacks(free: list[int], wanted: dict[str, Any], why: str):
    assert FreeCapacity(CLUSTER, free).why(seen(**wanted), None, 0) == why


def test_the_engines_word_goes_before_the_policys_and_that_before_ours():
    room = FreeCapacity(CLUSTER, [8] * 8)
    place = Placement((0,), (1,))
    assert room.why(seen(1, note="held"), None, 0) == "held"
    assert (
        room.why(seen(1), DecisionNote(1, 0, 0.0, Stop("x", "a shorter one came"), "", None), 0)
        == "stopped: a shorter one came"
    )
    assert (
        room.why(seen(1), DecisionNote(1, 0, 0.0, Start("x", place, "y"), "occupied", None), 0)
        == "its start was refused: occupied"
    )
    assert room.why(seen(1), None, 1200) == f"{WAITS}; 1,200 arrived before it"
    misread = msgspec.structs.replace(seen(65), misread="its comment says 'modle=gpt2'")
    assert room.why(misread, None, 0) == (
        "it wants 65 GPUs, and 64 are free: 1 short; its comment says 'modle=gpt2'"
    )


@given(
    st.lists(st.integers(0, 8), min_size=8, max_size=8),
    st.integers(1, 64),
    st.sampled_from(["", "rack", "host"]),
    st.integers(0, 8),
)
def test_a_lack_is_named_exactly_when_the_state_machine_would_refuse_every_place(
    free: list[int], gpus: int, required: str, hosts: int
):
    """Against the inventory's own word, by trying: take what is not free, and place greedily in each domain."""
    if hosts and gpus % hosts:
        return
    tier = 0 if hosts == 1 else {"": 2, "rack": 1, "host": 0}[required]
    domains = {0: [[h] for h in range(8)], 1: [[0, 1, 2, 3], [4, 5, 6, 7]], 2: [list(range(8))]}[tier]
    if hosts:
        fits = any(sum(free[h] >= gpus // hosts for h in domain) >= hosts for domain in domains)
    else:
        fits = any(sum(free[h] for h in domain) >= gpus for domain in domains)
    assert (
        FreeCapacity(CLUSTER, free).why(seen(gpus, required=required, hosts=hosts), None, 0) == WAITS
    ) == fits


def test_one_job_alone_sends_its_traffic_once_an_iteration():
    """16 GPUs on two hosts of one rack: 5.6 GB an iteration over each NIC, at most 12.5 GB/s, behind 0.6 s of computing."""
    loads = Predictor(CLUSTER).predict([seen(16, place=Placement((0, 1), (0xFF, 0xFF)), profile=GPT)])
    assert set(loads.sent) == {0, 1} and loads.unknown == 0
    traffic_bytes = 5.4e9 + 0.6e9 / 3
    latency_s = loads.speeds[0].iteration_s - 0.6 - traffic_bytes / 12.5e9
    assert 0 <= latency_s < 1e-3
    assert loads.sent[0] == [(0, pytest.approx(traffic_bytes / loads.speeds[0].iteration_s))]
    assert loads.speeds[0].slowdown == pytest.approx(1.0)


def test_no_link_carries_more_than_it_can_and_jobs_that_share_are_slower():
    places = [
        Placement((0, 4), (0xFF, 0xFF)),
        Placement((1, 5), (0xFF, 0xFF)),
        Placement((2, 6), (0xFF, 0xFF)),
        Placement((3,), (0xF,)),
    ]
    predictor = Predictor(CLUSTER)
    loads = predictor.predict([seen(place.gpus, place=place, profile=GPT) for place in places])
    for link, sent in loads.sent.items():
        assert sum(rate for _, rate in sent) <= predictor.capacities_bytes_per_s[link] * (1 + 1e-9)
    assert len(loads.sent[8]) == len(loads.sent[9]) == 3, "three cross both racks' uplinks"
    assert min(loads.speeds[i].slowdown for i in range(3)) > 1.2 and loads.speeds[
        3
    ].slowdown == pytest.approx(1.0)


def test_jobs_of_unknown_traffic_are_counted():
    loads = Predictor(CLUSTER).predict(
        [seen(16, place=Placement((0, 1), (0xFF, 0xFF))), seen(2, place=Placement((2,), (3,)))]
    )
    assert loads.unknown == 1 and not loads.sent and not loads.speeds


class Named:
    """Of a driver the part that a camera uses."""

    away = ""

    def identity(self, job_id: str) -> Identity:
        return Identity(engine_id=f"e{job_id}", submit_s=0.0, user="ada")

    def counters(self) -> dict[str, HostReport]:
        return {}

    def impossible(self) -> list[Job]:
        return []


def watched() -> tuple[ClusterView, StateMachine, Snapshots]:
    view = ClusterView(CLUSTER, SimulatedEstimates(IterationModel(CLUSTER), Costs()))
    return view, StateMachine(view), Snapshots()


def take(snapshots: Snapshots, view: ClusterView) -> Frame:
    """A picture of now."""
    picture = snapshots._take(view, Named(), 1)  # type: ignore[arg-type]
    return Frame(1, picture, Predictor(picture.topology))


events = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "start", "end", "lose", "block", "hold"]),
        st.integers(0, 7),
        st.integers(1, 8),
    ),
    max_size=25,
)


@given(events)
def test_a_picture_counts_every_gpu_once_whatever_happens_and_does_not_change(
    steps: list[tuple[str, int, int]],
):
    view, machine, snapshots = watched()
    for number, (what, host, gpus) in enumerate(steps):
        now = float(number)
        if what == "arrive":
            machine.apply(
                Arrived(
                    now, batch_job(id=f"{number}", submit_s=now, gpus=gpus, duration_s=9.0, profile=RESNET)
                )
            )
        elif what == "start" and view.waiting:
            job = next(iter(view.waiting.values()))
            free = view.inventory.masks[host]
            found = [bit for bit in range(8) if free >> bit & 1][: job.gpus]
            machine.execute(Start(job.id, Placement((host,), (sum(1 << bit for bit in found),)), "r"))
        elif what == "end" and view.running:
            machine.apply(Finished(now, next(iter(view.running))))
        elif what == "hold" and view.waiting:
            machine.apply(Held(now, next(iter(view.waiting)), "why"))
        elif what == "lose" and not view.inventory.down[host]:
            machine.apply(NodeLost(now, host))
        elif what == "block":
            machine.apply(Blocked(now, host, gpus))
    frame = take(snapshots, view)
    counts = frame.gpus
    assert counts.free == view.free
    assert (
        counts.free + counts.used + counts.blocked + counts.down == 64
        and min(counts.free, counts.used, counts.blocked, counts.down) >= 0
    )
    assert counts.used == sum(job.gpus for job in view.running.values())
    assert (frame.counts.waiting, frame.counts.running) == (len(view.waiting), len(view.running))
    before = [frame.job(index, 99.0) for index in range(len(frame.seen))]
    for name in list(view.running):
        machine.apply(Finished(100.0, name))
    assert [frame.job(index, 99.0) for index in range(len(frame.seen))] == before, (
        "what happens later is not in it"
    )


def test_a_standby_shows_elastic_jobs_at_the_size_they_run_at():
    job = batch_job(id="e", submit_s=0.0, gpus=4, duration_s=60.0, gpus_min=2, gpus_max=8)
    runs = record("e", job=job, status="running", placement=Placement((0, 1), (0b1111, 0b1111)))
    assert seen_in_journal(runs).job.gpus == 8
    assert seen_in_journal(msgspec.structs.replace(runs, status="waiting")).job.gpus == 4


def test_what_nobody_declared_is_not_known():
    silent = batch_job(id="e", submit_s=0.0, gpus=1, duration_s=USUAL_S)
    assert ended_job(None, ended("e", job=silent)).declared_s is None
    assert ended_job(None, ended("e")).declared_s == 50.0


def test_decisions_are_counted_once_refused_or_not():
    view, _, snapshots = watched()
    snapshots.turned(view, Named(), 3)  # type: ignore[arg-type]
    place = Placement((0,), (1,))
    for refused in ("", "occupied"):
        snapshots.decided(1.0, Start("a", place, "r"), refused)
    snapshots.decided(1.0, Start("b", place, "r"), "")
    snapshots.decided(1.0, WakeAt(2.0, "", "r"), "")
    snapshots.turned(view, Named(), 3)  # type: ignore[arg-type]
    assert snapshots.counts == {("start", True): 1, ("start", False): 1, ("timer", False): 1}
    assert [(note.run, note.number, note.decision.job_id, note.refused) for note in snapshots.notes()] == [
        (3, 0, "a", "occupied"),
        (3, 1, "b", ""),
    ]
    assert snapshots.notes()[0].who == Identity(engine_id="ea", submit_s=0.0, user="ada")


def test_a_loop_that_always_breaks_at_the_beginning_of_a_run_does_not_come_around():
    view, _, snapshots = watched()
    for _ in range(2):
        snapshots.turned(view, Named(), 1)  # type: ignore[arg-type]
    turned_s = snapshots.turned_s
    assert turned_s is not None
    for run in (2, 3):
        snapshots.turned(view, Named(), run, seen=False)  # type: ignore[arg-type]
    assert snapshots.turned_s == turned_s
    snapshots.turned(view, Named(), 3, seen=False)  # type: ignore[arg-type]
    assert snapshots.turned_s > turned_s


def test_no_picture_is_taken_that_nobody_asked_for():
    view, _, snapshots = watched()
    for _ in range(3):
        snapshots.turned(view, Named(), 1)  # type: ignore[arg-type]
    assert snapshots.pictures == 0
    snapshots.look(0.0)
    for _ in range(3):
        snapshots.turned(view, Named(), 1)  # type: ignore[arg-type]
    assert snapshots.pictures == 1


def test_a_view_that_was_told_nothing_yet_is_no_picture():
    view, machine, snapshots = watched()
    machine.apply(Arrived(0.0, batch_job(id="a", submit_s=0.0, gpus=1, duration_s=1.0)))
    snapshots.look(0.0)
    snapshots.turned(view, Named(), 1)  # type: ignore[arg-type]
    again, _, _ = watched()
    away = Named()
    away.away = "no answer"
    snapshots.look(0.0)
    snapshots.turned(again, away, 2, seen=False)  # type: ignore[arg-type]
    picture = snapshots.look(10.0)
    assert picture is not None and (picture.run, len(picture.jobs), picture.away) == (2, 1, "no answer")
    snapshots.turned(again, Named(), 2)  # type: ignore[arg-type]
    picture = snapshots.look(0.0)
    assert picture is not None and (picture.run, picture.jobs, picture.away) == (2, (), "")


def test_a_driver_that_fails_under_the_camera_does_not_end_the_loop(caplog: pytest.LogCaptureFixture):
    class Broken(Named):
        def identity(self, job_id: str) -> Identity:
            raise RuntimeError("gone")

    view, machine, snapshots = watched()
    machine.apply(Arrived(0.0, batch_job(id="a", submit_s=0.0, gpus=1, duration_s=1.0)))
    snapshots.look(0.0)
    snapshots.turned(view, Broken(), 1)  # type: ignore[arg-type]
    snapshots.decided(0.0, Start("a", Placement((0,), (1,)), "r"), "")
    snapshots.turned(view, Broken(), 1)  # type: ignore[arg-type]
    assert snapshots.pictures == 0 and "gone" in caplog.text


def test_the_dashboard_asks_only_for_metrics_that_there_are():
    board = json.loads(resources.files("hemiola.live.web").joinpath("grafana.json").read_text())
    documented = set(
        re.findall(
            r"^\| `(hemiola_\w+)",
            (DOCS / "reference/api.md").read_text(),
            flags=re.M,
        )
    )
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"hemiola_\w+", target["expr"])
    }
    assert asked <= documented and len(asked) >= 12
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    cells = [(x, y) for panel in board["panels"] for place in [panel["gridPos"]] for x in range(place["x"], place["x"] + place["w"])
             for y in range(place["y"], place["y"] + place["h"])]  # fmt: skip
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24, "no panel lies on another"
    assert {variable["name"] for variable in board["templating"]["list"]} == {"source", "instance"}
    assert all(
        panel["description"] and panel["datasource"]["uid"] == "${source}" for panel in board["panels"]
    )
