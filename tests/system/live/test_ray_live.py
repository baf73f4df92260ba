"""Hemiola on a real Ray: jobs run where they were placed, and whatever Ray's users and nodes do is met."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from live_policies import want
from live_ray import NODES, LiveRay, until
from ray_cluster import RayCluster, RayNode
from replays import cluster

from hemiola.core.decisions import Move, Placement, Stop
from hemiola.core.topology import Topology
from hemiola.live.engines.ray.client import Ray
from hemiola.live.engines.ray.doctor import ray_checks
from hemiola.live.engines.ray.driver import RayDriver
from hemiola.live.engines.ray.kv_store import ADVICE, HOLDS, PLACE, WRAPPER, JobPlace
from hemiola.live.engines.ray.release import hand_back
from hemiola.live.journal import Journal
from hemiola.live.journal.replay import replay
from hemiola.live.query.health_checks import Check


@pytest.fixture
def live(ray_nodes: RayCluster, tmp_path: Path) -> Iterator[LiveRay]:
    one = LiveRay(ray_nodes, tmp_path / "journal.db")
    yield one
    one.clear()


def driver_of(live: LiveRay) -> RayDriver:
    """Of the present run, without what is around it."""
    assert live.service is not None
    driver = live.service.driver
    while not isinstance(driver, RayDriver):
        driver = driver._inner  # type: ignore[union-attr]
    return driver


def test_jobs_of_every_kind_run_once_where_they_were_placed_and_leave_nothing(live: LiveRay, tmp_path: Path):
    def says(name: str) -> str:
        return f"echo $HEMIOLA_NODES $HEMIOLA_GPUS >> {tmp_path}/{name}; sleep 1"

    with live.serving("dally"):
        jobs = [
            live.submit("gpus=16 hosts=2 required=rack model=resnet50 runtime=1h", says("a")),
            live.submit("gpus=2 cpus=0", says("b")),
            live.submit("gpus=12", says("c")),
        ]
        failing, impossible = live.submit("gpus=1", "exit 3"), live.submit("gpus=40")
        wrong = live.submit("gpus=some")
        assert [live.wait_outcome(job) for job in jobs] == ["finished"] * 3
        assert live.wait_outcome(failing) == "failed, exit code 3"
        live.wait_state(wrong, "FAILED")
        assert "its metadata says gpus='some': write a number from 1" in live.log(wrong)
        until(lambda: len(driver_of(live).tracked) == 1, "one is left")
        (known,) = driver_of(live).tracked.values()
        assert known.row.id == impossible and "more than the cluster has" in known.refused
        assert live.record(impossible).note.startswith("it can never run here: it wants 40 GPUs")
        live.jobs.stop_job(impossible)
        assert live.wait_outcome(impossible) == "cancelled"
        until(lambda: not live.groups(), "no group is left")
        until(lambda: live.board.keys(PLACE) == [], "nor a place")
    ranks = {name: (tmp_path / name).read_text().split() for name in "abc"}
    assert [count for _, count in ranks.values()] == ["16", "2", "12"], "each ran once"
    first = ranks["a"][0].split(",")
    assert len(first) == 16 and set(first) in ({"h0", "h1"}, {"h2", "h3"}) and first[:8] == first[:1] * 8
    with Journal.open(live.journal_path, read_only=True) as journal:
        (run,) = journal.runs()
        assert replay(journal, run.id).difference is None, "the journal's decisions come out again"
        assert not journal.open_jobs() and not journal.open_intents()


def test_a_job_goes_where_processors_are_left(live: LiveRay, tmp_path: Path):
    with live.serving("fifo-backfill"):
        greedy = live.submit("gpus=1 cpus=16", writes_down(tmp_path / "greedy", tmp_path / "end"))
        until(lambda: lines(tmp_path / "greedy"), "it has all processors of its host")
        small = [live.submit("gpus=1", f"echo $HEMIOLA_NODES >> {tmp_path}/small") for _ in range(2)]
        assert [live.wait_outcome(job) for job in small] == ["finished"] * 2
        assert all(live.record(job).binds_failed == 0 for job in small)
        (tmp_path / "end").touch()
        assert live.wait_outcome(greedy) == "finished"
    taken = lines(tmp_path / "greedy")[0].split()[1]
    assert taken not in lines(tmp_path / "small")


def whole_hosts(count: int, folder: Path) -> str:
    """The policy that gives so many; and from now on, if it runs already."""
    file = folder / "hosts"
    want(count, file)
    return f"live_policies:WholeHosts,file={file}"


def writes_down(log: Path, end: Path) -> str:
    """A command that says what it has at each begin, and goes on until there is a file."""
    return f"echo $HEMIOLA_GPUS $HEMIOLA_NODES >> {log}; while ! test -e {end}; do sleep 0.1; done"


def ranks_on(*hosts: str) -> str:
    """What it says on whole hosts."""
    return f"{8 * len(hosts)} {','.join(host for host in hosts for _ in range(8))}"


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def test_an_elastic_job_begins_again_with_what_it_has_each_time_it_is_resized(live: LiveRay, tmp_path: Path):
    log, end = tmp_path / "log", tmp_path / "end"
    with live.serving(whole_hosts(1, tmp_path)) as service:
        job = live.submit("gpus=16 hosts=2 min_gpus=8 max_gpus=32", writes_down(log, end))
        until(lambda: len(lines(log)) == 1, "it begins on one host")
        whole_hosts(4, tmp_path)
        until(lambda: len(lines(log)) == 2, "it begins again on all")
        whole_hosts(2, tmp_path)
        until(lambda: len(lines(log)) == 3, "and on two")
        assert len(live.groups()) == 1, "it has no place but that"
        assert service.view is not None
        (state,) = service.view.running.values()
        assert (state.migrations, state.preemptions, state.gpus) == (2, 0, 16)
        end.touch()
        assert live.wait_outcome(job) == "finished"
        until(lambda: not live.groups(), "no group is left")
    assert lines(log) == [ranks_on("h0"), ranks_on("h0", "h1", "h2", "h3"), ranks_on("h0", "h1")]
    with Journal.open(live.journal_path, read_only=True) as journal:
        assert not journal.open_jobs() and not journal.open_intents()


def test_a_restart_finds_an_elastic_job_at_the_size_it_has(live: LiveRay, tmp_path: Path):
    log, end = tmp_path / "log", tmp_path / "end"
    policy = whole_hosts(2, tmp_path)
    with live.serving(policy):
        job = live.submit("gpus=8 hosts=1 min_gpus=8 max_gpus=32", writes_down(log, end))
        until(lambda: len(lines(log)) == 1, "it begins on two hosts")
    with live.serving(policy) as service:
        until(lambda: service.view is not None and service.view.running, "it is found")
        assert service.view is not None
        (state,) = service.view.running.values()
        assert (state.gpus, state.asked_gpus, state.migrations) == (16, 8, 0)
        assert state.placement == Placement((0, 1), (0xFF, 0xFF)) and live.state(job) == "runs"
        whole_hosts(1, tmp_path)
        until(lambda: len(lines(log)) == 2, "it is resized as before")
        end.touch()
        assert live.wait_outcome(job) == "finished"
    assert lines(log) == [ranks_on("h0", "h1"), ranks_on("h0")]


def test_a_shorter_job_goes_first_and_the_longer_one_goes_on_after_it(live: LiveRay, tmp_path: Path):
    log = tmp_path / "log"
    stubborn = f"trap 'echo told >> {log}' TERM; echo began >> {log}; sleep 2 & wait; while test -e {log}.stay; do sleep 0.1; done"
    with live.serving("srtf"):
        Path(f"{log}.stay").touch()
        long = live.submit("gpus=32 runtime=1h", stubborn, hold="--grace 1s")
        until(lambda: log.exists(), "it runs")
        short = live.submit("gpus=32 runtime=1min", f"rm {log}.stay; echo short >> {log}")
        assert live.wait_outcome(short) == live.wait_outcome(long) == "finished"
    assert log.read_text().split() == ["began", "told", "short", "began"], "killed after its grace"
    assert live.record(long).preemptions == 1


def test_jobs_that_are_stopped_by_their_users_end_wherever_they_are(live: LiveRay, tmp_path: Path):
    with live.serving():
        running = live.submit("gpus=32", f"echo $$ > {tmp_path}/pid; sleep 600")
        live.wait_state(running, "runs")
        waiting = live.submit("gpus=8")
        live.wait_state(waiting, "waits")
        live.record(waiting)
        live.jobs.stop_job(waiting)
        assert live.wait_outcome(waiting).startswith("cancelled")
        live.jobs.stop_job(running)
        assert live.wait_outcome(running).startswith("cancelled")
        until(lambda: not live.groups(), "its group is removed")
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not Path(f"/proc/{pid}").exists(), "its command has ended")


def test_a_restart_goes_on_with_what_is_there(live: LiveRay, tmp_path: Path):
    ran = tmp_path / "ran"
    with live.serving():
        running = live.submit("gpus=32", f"echo running >> {ran}; sleep 8")
        live.wait_state(running, "runs")
        waiting = live.submit("gpus=32", f"echo waiting >> {ran}")
        before = [live.record(job).uuid for job in (running, waiting)]
    gone = live.submit("gpus=1", f"echo gone >> {ran}")
    live.wait_state(gone, "waits")
    nodes = live.names()
    live.ray.ask("make", "hemiola:ended-long-ago:3", [{"CPU": 1}], [next(iter(nodes))])
    live.board.put(WRAPPER + "ended-long-ago", b'{"token": "x", "state": "waits"}')
    live.board.put(ADVICE + "ended-long-ago", b"4 GPUs of h0")
    live.board.put(WRAPPER + "nonsense", b"no note \xff")
    with live.serving():
        assert [live.wait_outcome(job) for job in (running, waiting, gone)] == ["finished"] * 3
        until(lambda: not live.groups(), "the stray group is removed")
        assert live.board.get(WRAPPER + "ended-long-ago") is None
        assert live.board.get(ADVICE + "ended-long-ago") is None
    assert [live.record(job).uuid for job in (running, waiting)] == before
    assert sorted(ran.read_text().split()) == ["gone", "running", "waiting"], "each ran once"
    assert live.record(running).served_s >= 7, "what it had before the restart counts"


def test_what_ran_before_and_ends_while_nobody_watches_has_run_for_as_long_as_ray_says(
    live: LiveRay, tmp_path: Path
):
    may_end = tmp_path / "may-end"
    live.board.put(HOLDS, b"0")
    job = live.submit("gpus=8", f"until test -e {may_end}; do sleep 0.1; done", hold="--when-silent 0s")
    live.wait_state(job, "runs")
    time.sleep(1.5)
    with live.serving():
        until(lambda: live.known(job), "it is taken up")
    found = live.record(job)
    assert found.since_s == found.first_started_s == pytest.approx(live.wrapper(job).since_s, abs=0.1)
    may_end.touch()
    live.wait_state(job, "SUCCEEDED")
    time.sleep(2.0)
    with live.serving():
        assert live.wait_outcome(job) == "finished"
    with Journal.open(live.journal_path, read_only=True) as journal:
        began_s = journal.runs()[-1].began_s
    found = live.record(job)
    assert found.ended_s is not None and found.ended_s < began_s - 1.5 and not found.unwatched
    assert found.first_started_s is not None
    assert found.served_s == pytest.approx(found.ended_s - found.first_started_s)


def test_an_id_that_is_used_again_is_another_job(live: LiveRay):
    with live.serving():
        blocker = live.submit("gpus=32", "sleep 600")
        live.wait_state(blocker, "runs")
        job = live.submit("gpus=32")
        before = live.record(job).uuid
    live.submitted_again(job)
    with live.serving():
        until(lambda: live.record(job).uuid != before, "it is another one")
        with Journal.open(live.journal_path, read_only=True) as journal:
            old = journal.job(before)
        assert old is not None and (old.status, old.outcome) == ("ended", "it ended while nobody watched")
        live.jobs.stop_job(blocker)
        assert live.wait_outcome(job) == "finished"


def test_an_id_that_is_used_again_at_once_is_seen_and_its_note_is_there(live: LiveRay):
    live.board.put(HOLDS, b"0")
    ended, waiting = live.submit("gpus=8", hold="--when-silent 0s"), live.submit("gpus=8")
    live.wait_state(ended, "SUCCEEDED")
    assert live.rows()[ended].status == "SUCCEEDED", "the record of an ended one is not read again soon"
    live.submitted_again(ended, status="RUNNING")
    live.board.put(WRAPPER + ended, b'{"token": "x", "state": "waits"}')
    assert live.rows()[ended].status == "RUNNING"
    live.submitted_again(ended, status="FAILED")
    live.wait_state(waiting, "waits")
    before = live.wrapper(waiting)
    live.board.delete(WRAPPER + waiting)  # as that of an earlier one
    until(lambda: live.board.get(WRAPPER + waiting), "it says again that it waits")
    assert live.wrapper(waiting) == before


def test_when_it_is_handed_back_or_hemiola_is_silent_ray_places_what_waits(live: LiveRay, tmp_path: Path):
    live.board.put(HOLDS, b"1")
    patient = live.submit("gpus=4", f"echo $HEMIOLA_NODES > {tmp_path}/patient")
    silent = live.submit("gpus=4", "sleep 0.1", hold="--when-silent 1s")
    live.wait_state(patient, "waits")
    live.wait_state(silent, "SUCCEEDED")
    assert live.state(patient) == "waits"
    assert hand_back(live.ray) == [patient]
    assert hand_back(live.ray) == [], "it waits for Ray now"
    live.wait_state(patient, "SUCCEEDED")
    names = (tmp_path / "patient").read_text().strip().split(",")
    assert len(names) == 4 and set(names) <= {"h0", "h1", "h2", "h3"}
    until(lambda: all(group.state == "REMOVED" for group in live.look().groups), "their groups are gone")


def test_a_place_from_ray_has_the_hosts_and_the_type_of_gpus_that_were_asked_for(
    live: LiveRay, tmp_path: Path
):
    def ranks_of(name: str, words: str) -> list[str]:
        job = live.submit(words, f"echo $HEMIOLA_NODES > {tmp_path}/{name}")
        live.wait_state(job, "SUCCEEDED")
        return (tmp_path / name).read_text().strip().split(",")

    divided = ranks_of("divided", "gpus=6 hosts=2")
    assert divided[:3] == divided[:1] * 3 and divided[3:] == divided[3:4] * 3 and len(set(divided)) == 2
    assert len(set(ranks_of("together", "gpus=4 hosts=1"))) == 1
    assert len(set(ranks_of("apart", "gpus=3 hosts=3"))) == 3
    assert len(ranks_of("any", "gpus=2 gpu_type=A100")) == 2
    assert "gpu_type=A100 is left out" in live.log(live.submitted[-1])
    label = {"RAY_OVERRIDE_LABELS": '{"ray.io/accelerator-type": "A100"}'}
    live.cluster.add(RayNode("h4", num_cpus=16, num_gpus=16, environ=label))
    try:
        assert set(ranks_of("typed", "gpus=2 gpu_type=A100")) == {"h4"}
        other = live.submit("gpus=1 gpu_type=H100")
        until(lambda: "no node of Ray has GPUs of type H100" in live.log(other), "it says what it waits for")
        assert live.state(other) == "waits"
    finally:
        live.cluster.kill("h4")


def test_what_saves_as_it_is_handed_back_keeps_its_group_until_it_has_left(live: LiveRay, tmp_path: Path):
    saves, saved = tmp_path / "saves", tmp_path / "saved"
    live.board.put(HOLDS, b"1")
    command = f"trap 'touch {saves}; until test -e {saved}; do sleep 0.1; done; exit' TERM; test -e {saved} || sleep 600 & wait"
    job = live.submit("gpus=4", command, hold="--grace 1min")
    live.wait_state(job, "waits")
    name, node = f"hemiola:{job}:1", next(iter(live.names()))
    live.ray.ask("make", name, [{"GPU": 1}] * 4, [node] * 4)
    place = JobPlace(token=live.wrapper(job).token, number=1, group=name, nodes=(node,) * 4)
    live.board.put(PLACE + job, msgspec.json.encode(place))
    live.wait_state(job, "runs")
    live.board.put(PLACE + job, msgspec.json.encode(JobPlace(token=place.token, number=2)))
    until(saves.exists, "it saves")
    assert hand_back(live.ray) == []
    assert [group.state for group in live.look().groups] == ["CREATED"]
    saved.touch()
    live.wait_state(job, "SUCCEEDED")
    assert live.groups() <= {f"hemiola:{job}:0"}, (
        "it has removed the one that it had, and begun again where Ray put it"
    )


def test_observing_and_advising_change_nothing_and_say_what_they_would_do(live: LiveRay, tmp_path: Path):
    with live.serving("dally", mode="advise"):
        job = live.submit("gpus=16", f"while ! test -e {tmp_path}/end; do sleep 0.1; done")
        live.wait_state(job, "runs")
        until(lambda: live.record(job).placement is not None, "it is seen where Ray put it")
        assert live.board.get(PLACE + job) is None and live.board.get(HOLDS) is None
        driver = driver_of(live)
        (known,) = driver.tracked.values()
        place = Placement((3, 1), (0xFF, 0xFF))
        text = driver.render(Move(known.job.id, place, "better"))
        assert f"internal_kv_put('place:{job}'" in text.splitlines()[0]
        assert "placement_group([{'CPU': 1, 'GPU': 1}] * 16, strategy='PACK', " in text
        assert text.count("ray.io/node-id") == 2
        assert '"group":""' in driver.render(Stop(known.job.id, "enough"))
        driver.advise(Move(known.job.id, place, "better"))
        until(lambda: "would run on 16 GPUs of h3,h1 (better)" in live.log(job), "its log has the advice")
    with live.serving("srtf"):  # now it is Hemiola's to stop
        short = live.submit("gpus=32 runtime=1min", "true")
        assert live.wait_outcome(short) == "finished"
        live.wait_state(job, "runs")
        assert live.wrapper(job).number > 0 and live.nodes(job), "it has a place from Hemiola now"
        (tmp_path / "end").touch()
        assert live.wait_outcome(job) == "finished"


def test_gpus_of_others_are_left_alone(live: LiveRay, tmp_path: Path):
    theirs = {name: node for node, name in live.names().items()}
    for host in ("h0", "h1", "h2"):
        live.ray.ask("make", f"theirs-{host}", [{"GPU": 6}], [theirs[host]])
    try:
        with live.serving("fifo:placement=first-fit") as service:
            until(
                lambda: sum(m.bit_count() for m in service.view.inventory.blocked.values()) == 18,
                "they are seen",
            )
            job = live.submit("gpus=8 hosts=1", f"echo $HEMIOLA_NODES > {tmp_path}/where")
            assert live.wait_outcome(job) == "finished"
            assert set((tmp_path / "where").read_text().strip().split(",")) == {"h3"}
    finally:
        for host in ("h0", "h1", "h2"):
            live.ray.ask("remove", f"theirs-{host}")


def test_an_agent_that_hangs_or_dies_is_replaced_and_nothing_is_lost(
    live: LiveRay, caplog: pytest.LogCaptureFixture
):
    with live.serving() as service:
        job = live.submit("gpus=8", "sleep 4")
        live.wait_state(job, "runs")
        driver = driver_of(live)
        driver._ray._limit_s = 1.0
        assert driver._ray._agent is not None
        os.kill(driver._ray._agent.pid, signal.SIGSTOP)
        # a question that was under way has the longer limit
        until(lambda: "no answer within" in caplog.text, "it is away")
        until(lambda: driver._ray._agent is not None and not driver.away, "another one answers")
        driver._ray._limit_s = 15.0
        driver._ray._agent.kill()
        # by a look or by an order, whichever asks first
        until(lambda: "the connection to Ray has ended" in caplog.text, "it is away again")
        assert live.wait_outcome(job) == "finished"
        assert service.driver is not None and driver_of(live) is driver, "the run went on"


def test_a_node_that_dies_gives_its_job_back_and_it_runs_elsewhere(live: LiveRay, tmp_path: Path):
    where = tmp_path / "where"
    with live.serving("fifo:placement=first-fit") as service:
        blocker = live.submit("gpus=24", "sleep 600")  # h0, h1 and h2
        live.wait_state(blocker, "runs")
        job = live.submit("gpus=8", f"echo $HEMIOLA_NODES >> {where}; sleep 4")
        live.wait_state(job, "runs")
        live.cluster.kill("h3")
        try:
            until(lambda: service.view.inventory.down[3], "it is seen")
            live.wait_state(job, "waits")
            live.jobs.stop_job(blocker)
            assert live.wait_outcome(job) == "finished"
        finally:
            live.cluster.add(NODES[3])
        hosts = [set(line.split(",")) for line in where.read_text().split()]
        assert hosts == [{"h3"}, {"h0"}]
        until(lambda: not service.view.inventory.down[3], "it is back")
        again = live.submit("gpus=32")
        assert live.wait_outcome(again) == "finished"


def test_a_drained_node_gets_nothing_new_until_it_has_gone(live: LiveRay, tmp_path: Path):
    go = tmp_path / "go"
    (there,) = (node.id for node in live.look().nodes if "h3" in node.names)
    theirs = live.jobs.submit_job(
        entrypoint=f"while ! [ -e {go} ]; do sleep 0.1; done",
        entrypoint_label_selector={"ray.io/node-id": there},
    )  # an idle node would be gone at once
    until(lambda: live.state(theirs) == "RUNNING", "it runs there")
    with live.serving("fifo:placement=first-fit") as service:
        live.cluster.drain("h3")
        try:
            until(lambda: service.view.inventory.blocked.get(3, 0).bit_count() == 8, "it is seen")
            assert live.wait_outcome(live.submit("gpus=24")) == "finished"
            wide = live.submit("gpus=32")
            live.wait_state(wide, "waits")
            until(lambda: live.known(wide), "it is known")
            assert live.state(theirs) == "RUNNING" and not service.view.inventory.down[3]
        finally:
            go.touch()
            live.cluster.kill("h3")
            live.cluster.add(NODES[3])
        assert live.wait_outcome(wide) == "finished", "another node is there"


def test_doctor_tells_what_is_missing_and_who_waits_for_nobody(
    live: LiveRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    live.ray.ask("names")  # its agent has the token's setting that the cluster has
    monkeypatch.setenv("HOME", str(tmp_path))

    def checks(topology: Topology | None = None, mode: str = "enforce") -> dict[str, Check]:
        return {check.about: check for check in ray_checks(live.ray, topology, mode)}

    well = checks()
    assert (well["ray"].state, well["nodes"].state, well["jobs"].state) == ("OK", "OK", "OK")
    assert well["nodes"].what == "4 nodes in 2 racks, 32 GPUs, as Ray counts them"
    assert well["token"].state == "WARN"
    other = checks(cluster([8, 8], [4]))  # called n0, n1, n2
    assert other["nodes"].what == "h[0-3] is not in the topology, and is not used"
    live.board.put(HOLDS, b"0")
    live.board.put(WRAPPER + "ended-long-ago", b'{"token": "x", "state": "waits"}')
    job = live.submit("gpus=8")
    live.wait_state(job, "waits")
    waits = checks(mode="")["jobs"]
    assert waits.state == "WARN" and waits.what.startswith("1 of 1 jobs under hemiola hold wait for Hemiola")
    away = {check.about: check for check in ray_checks(Ray("127.0.0.1:9"), None, "")}
    assert away["ray"].state == "FAIL" and "nobody is at 127.0.0.1:9" in away["ray"].what
