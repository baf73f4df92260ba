"""What the API answers of a service that runs, and whether it keeps to its own description."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from math import log2
from pathlib import Path
from typing import Any

import msgspec
import pytest
from patience import patience
from repository import DOCS

pytest.importorskip("fastapi", reason="needs hemiola[serve]")
schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from journal_helpers import OPENING, record
from prometheus_client.parser import text_string_to_metric_families
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig
from web_helpers import GPT, Scene, busy, job, scene, topology, wait_until

from hemiola.core.decisions import Placement
from hemiola.core.events import Adopted, Arrived, Blocked, Finished, Held, Requeued, Timer
from hemiola.live.journal import Journal
from hemiola.live.service import LiveService, SessionSettings
from hemiola.live.web.app import make_app
from hemiola.live.web.queries import Queries
from hemiola.live.web.security import Rates, Tokens
from hemiola.live.web.server import WebServer
from hemiola.live.web.snapshots import Snapshots
from hemiola.trace.reports import HostReport, JobReport, write_report
from hemiola.trace.topologies.native import topology_text


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("web")) as found:
        busy(found)
        wait_until(lambda: found.get("status")["jobs"]["held"] == 1)
        yield found


def test_status_counts_every_gpu_and_every_job_once(here: Scene):
    status = here.get("status")
    assert status["gpus"] == {"free": 2, "used": 50, "blocked": 4, "down": 8}
    assert status["jobs"] == {"waiting": 3, "held": 1, "running": 5}
    assert (status["mode"], status["policy"], status["leads"], status["run"]) == (
        "enforce",
        "fifo-backfill",
        True,
        1,
    )
    assert status["engine"] == "test 1.0" and status["engine_away"] == "" and status["kill_switch"] is None


def test_the_cluster_says_of_each_gpu_who_has_it(here: Scene):
    groups = here.get("cluster")["groups"]
    assert [(group["level"], group["name"], len(group["hosts"])) for group in groups] == [
        ("rack", "r0", 4),
        ("rack", "r1", 4),
    ]
    hosts = {host["name"]: host for group in groups for host in group["hosts"]}
    on_n3 = {on["engine_id"]: on["gpus"] for on in hosts["n3"]["jobs"]}
    assert on_n3 == {"1002": [0, 1, 2, 3], "1004": [4, 5]} and hosts["n3"]["free"] == [6, 7]
    assert hosts["n5"]["blocked"] == [4, 5, 6, 7] and hosts["n5"]["free"] == []
    assert hosts["n7"]["down"] and not hosts["n7"]["free"] and not hosts["n0"]["down"]


def test_every_waiting_job_says_why(here: Scene):
    why = {found["name"]: found["why"] for found in here.get("jobs?state=waiting")["items"]}
    assert why["resnet sweep 8"] == "it wants 8 GPUs, and 2 are free: 6 short"
    assert why["needs one rack"] == "it wants 16 GPUs, and 2 are free: 14 short"
    (held,) = here.get("jobs?state=held")["items"]
    assert held["why"] == "held by its user"


def test_uplinks_carry_what_the_cost_model_predicts(here: Scene):
    """Both jobs cross both uplinks with equal rings: 12.5 GB/s hold two of them at their own pace, or less."""
    answer = here.get("links")
    assert answer["predicted"] is True and answer["unknown_jobs"] == 0
    links = {link["name"]: link for link in answer["items"]}
    uplink = links["rack r0 uplink"]
    assert {on["engine_id"] for on in uplink["jobs"]} == {"1000", "1001"}
    running = {found["engine_id"]: found for found in here.get("jobs?state=running")["items"]}
    for engine_id, gpus in (("1000", 24), ("1001", 16)):
        traffic_bytes = 5.4e9 + 0.6e9 * log2(gpus / 8) / 3
        (sent,) = [on["bytes_per_s"] for on in uplink["jobs"] if on["engine_id"] == engine_id]
        assert sent == pytest.approx(traffic_bytes / running[engine_id]["predicted_iteration_s"])
        assert running[engine_id]["predicted_slowdown"] > 1.0
    assert uplink["predicted_bytes_per_s"] == pytest.approx(sum(on["bytes_per_s"] for on in uplink["jobs"]))
    assert uplink["predicted_bytes_per_s"] <= uplink["capacity_bytes_per_s"]
    assert links["n3 nic"]["predicted_bytes_per_s"] == 0
    assert running["1003"]["predicted_iteration_s"] is None, "it named no model"


def test_a_job_is_found_by_either_id_and_after_it_ended(here: Scene):
    assert here.get("jobs/1004")["job"] == {**here.get("jobs/e")["job"], "served_s": pytest.approx(0, abs=60)}
    found = here.get("jobs/e")
    assert [each["kind"] for each in found["decisions"]] == ["start"] and found["decisions"][0]["placement"][
        0
    ]["host"] == "n3"
    ended = here.get("jobs/k")["job"]
    assert (ended["state"], ended["outcome"], ended["engine_id"]) == ("ended", "failed: exit code 1", "1006")
    missing = here.ask("/api/v1/jobs/nobody")
    assert missing.status == 404 and set(missing.json) == {"what", "remedy"}


def pages(here: Scene, path: str, cursor: str) -> list[Any]:
    found, following = [], ""
    while True:
        page = here.get(f"{path}{following}")
        found.append(page["items"])
        if page["next"] is None:
            return found
        following = f"&{cursor}={page['next']}"


def test_pages_hold_everything_once(here: Scene):
    jobs = [found["id"] for page in pages(here, "jobs?limit=2", "after") for found in page]
    assert jobs == [found["id"] for found in here.get("jobs")["items"]] and len(set(jobs)) == 9
    nodes = [host["name"] for page in pages(here, "nodes?limit=3", "after") for host in page]
    assert nodes == [f"n{i}" for i in range(8)]
    assert [found["id"] for page in pages(here, "jobs?state=ended&limit=1", "after") for found in page] == [
        "k",
        "g",
    ]
    several = pages(here, "decisions?limit=1", "before")
    assert [found["job"] for (found,) in several] == ["k", "g", "e"]
    assert [found["job"] for (found,) in pages(here, "decisions?limit=1&run=1", "before")] == ["k", "g", "e"]


def test_users_and_jobs_are_told_apart(here: Scene):
    assert {found["user"] for found in here.get("jobs?user=ada")["items"]} == {"ada"}
    assert [found["job"] for found in here.get("decisions?job=1005")["items"]] == ["g"]
    assert [found["job"] for found in here.get("decisions?run=1&job=g")["items"]] == ["g"]
    assert here.ask("/api/v1/decisions?run=99").status == 404
    assert [run["id"] for run in here.get("runs")["items"]] == [1]


def test_metrics_are_prometheus_text_and_agree_with_the_api(here: Scene):
    answer = here.ask("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
    values = {
        (s.name, *sorted(s.labels.items())): s.value for family in families.values() for s in family.samples
    }
    status = here.get("status")
    for state, count in status["gpus"].items():
        assert values["hemiola_gpus", ("state", state)] == count
    for state, count in status["jobs"].items():
        assert values["hemiola_jobs", ("state", state)] == count
    assert values["hemiola_queue_wanted_gpus",] == status["wanted_gpus"] == 8 + 24 + 16
    assert values["hemiola_decisions_total", ("kind", "start"), ("refused", "false")] == 3
    assert values["hemiola_decision_seconds_count",] >= 3
    assert (
        values["hemiola_decision_seconds_bucket", ("le", "+Inf")] == values["hemiola_decision_seconds_count",]
    )
    assert values["hemiola_decision_seconds_sum",] > 0
    assert values["hemiola_leader",] == values["hemiola_engine_up",] == 1
    assert 0.5 < values["hemiola_uplink_predicted_load_ratio", ("level", "rack"), ("switch", "r0")] <= 1
    assert all(family.documentation for family in families.values())


def test_every_metric_is_documented(here: Scene):
    page = (DOCS / "reference/api.md").read_text()
    names = {
        sample.name
        for family in text_string_to_metric_families(here.ask("/metrics").body.decode())
        for sample in family.samples
    }
    assert [name for name in sorted(names) if f"`{name}" not in page] == []


def test_every_route_is_documented(here: Scene):
    page = (DOCS / "reference/api.md").read_text()
    paths = here.ask("/openapi.json").json["paths"]
    assert [
        path for path in paths if f"`{path.removeprefix('/api/v1')}`" not in page and f"`{path}`" not in page
    ] == []


def test_a_change_is_told_and_only_a_change(tmp_path: Path):
    with scene(tmp_path) as here:
        first = here.get("status")["snapshot"]
        assert here.get("status")["snapshot"] == first
        here.happen(Arrived(time.time(), job("new", 2)))
        wait_until(lambda: here.get("status")["snapshot"] > first)
        second = here.get("status")["snapshot"]
        time.sleep(0.6)  # longer than pictures are apart
        assert here.get("status")["snapshot"] == second


def test_events_are_streamed_as_they_happen_and_end_with_the_server(tmp_path: Path):
    from http.client import HTTPConnection
    from urllib.parse import urlsplit

    with scene(tmp_path) as here:
        to = urlsplit(here.url)
        connection = HTTPConnection(to.hostname or "", to.port, timeout=patience(10))
        connection.request("GET", "/api/v1/events")
        stream = connection.getresponse()
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.readline() == b"event: snapshot\n"
        before = stream.readline()
        stream.readline()
        here.happen(Arrived(time.time(), job("new", 2)))
        assert stream.readline() == b"event: snapshot\n" and stream.readline() != before
    assert stream.read() in (b"\n", b"")
    connection.close()


def test_what_waits_for_another_leader_shows_the_journal(tmp_path: Path):
    with scene(tmp_path) as here:
        here.happen(Arrived(time.time(), job("a", 8)), Arrived(time.time(), job("b", 128 - 64)))
        wait_until(lambda: here.journal.job("a").status == "running")
        other = LiveService(
            SessionSettings(policy="fifo"),
            here.journal,
            topology(),
            lambda run: pytest.fail("it must not lead"),
        )
        with WebServer(other, here.journal, address="127.0.0.1:0") as second:
            waiting = Scene(other, here.journal, tmp_path, None)  # type: ignore[arg-type]
            waiting.url = second.url
            status = waiting.get("status")
            assert status["leads"] is False and status["leader"] == here.service.holder
            assert status["jobs"] == {"waiting": 1, "held": 0, "running": 1}
            assert status["gpus"]["used"] == 8 and status["turned_s"] is None
            assert [found["id"] for found in waiting.get("jobs?state=waiting")["items"]] == ["b"]
            assert {each["job"] for each in waiting.get("decisions")["items"]} == {"a"}, (
                "of the run that goes on"
            )
            here.happen(Finished(time.time(), "a"))
            wait_until(lambda: {each["job"] for each in waiting.get("decisions")["items"]} == {"a", "b"})
            assert [each["id"] for each in waiting.get("decisions")["items"]] == ["1-1", "1-0"]


def test_a_leader_whose_loop_breaks_again_and_again_still_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("hemiola.live.service.AGAIN_S", 60.0)
    with scene(tmp_path) as here:
        here.break_loop()
        wait_until(lambda: here.service.view is None)
        status = here.get("status")
        assert status["leads"] is True and status["leader"] == here.service.holder
        assert status["engine_away"] == "no run goes on, and the next one begins by itself"
        assert 0 <= time.time() - status["turned_s"] < 30.0
        said = here.ask("/metrics").body.decode()
        assert "hemiola_leader 1.0" in said and "hemiola_engine_up 0.0" in said
        assert "hemiola_loop_turn_age_seconds" in said


def test_a_standby_says_why_a_job_waits_and_not_why_it_ran(tmp_path: Path):
    with scene(tmp_path) as here:
        here.happen(Arrived(time.time(), job("a", 64)))
        other = LiveService(
            SessionSettings(policy="fifo"),
            here.journal,
            topology(),
            lambda run: pytest.fail("it must not lead"),
        )
        with WebServer(other, here.journal, address="127.0.0.1:0") as second:
            standby = Scene(other, here.journal, tmp_path, None)  # type: ignore[arg-type]
            standby.url = second.url
            now_s = time.time()
            here.happen(Requeued(now_s, "a", "the engine put it back"), Blocked(now_s, 0, 1))
            (found,) = standby.get("jobs?state=waiting")["items"]
            assert found["why"] == "the engine put it back"
            here.happen(Held(time.time(), "a", "its user holds it"))
            wait_until(lambda: standby.get("jobs?state=held")["items"])
            (found,) = standby.get("jobs?state=held")["items"]
            assert found["why"] == "its user holds it"


def test_a_clock_that_is_set_back_stops_no_standby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hemiola.live.web.queries.STANDBY_S", 0.0)
    with Journal.open(tmp_path / "j.db") as journal:
        service = LiveService(
            SessionSettings(policy="fifo"), journal, topology(), lambda run: pytest.fail("it must not lead")
        )
        wall_s, began_s = time.time, time.time()
        epoch = journal.lead("another", began_s, 10.0)
        assert epoch is not None
        opening = msgspec.structs.replace(OPENING, topology=topology_text(topology()))
        run = journal.begin_run(epoch, opening, began_s)
        queries = Queries(service, journal, Snapshots())
        assert queries.frame().counts.waiting == 0
        monkeypatch.setattr(time, "time", lambda: wall_s() - 3600.0)
        journal.record_events(run, 1, [Timer(began_s, "")], [record("a")])
        assert queries.frame().counts.waiting == 1


def test_before_the_first_run_there_is_no_picture(tmp_path: Path):
    with Journal.open(tmp_path / "j.db") as journal:
        service = LiveService(
            SessionSettings(policy="fifo"), journal, topology(), lambda run: pytest.fail("nobody runs it")
        )
        with WebServer(service, journal, address="127.0.0.1:0") as server:
            here = Scene(service, journal, tmp_path, None)  # type: ignore[arg-type]
            here.url = server.url
            answer = here.ask("/api/v1/status")
            assert answer.status == 503 and answer.json["what"] == "no run has begun yet"
            assert here.ask("/metrics").status == 503
            assert here.ask("/").status == 200


def test_restart_brings_the_last_decisions_back(tmp_path: Path):
    with scene(tmp_path) as here:
        here.happen(Arrived(time.time(), job("a", 8)))
        here.happen(Finished(time.time(), "a"))
    with scene(tmp_path) as here:
        wait_until(lambda: here.get("decisions")["items"])
        (found,) = here.get("decisions")["items"]
        assert (found["job"], found["engine_id"], found["id"]) == ("a", "1000", "1-0")


def test_why_a_job_runs_there_outlives_a_restart(tmp_path: Path):
    with scene(tmp_path) as here:
        here.happen(Arrived(time.time(), job("a", 8)))
        wait_until(lambda: here.get("status")["jobs"]["running"] == 1)
        before = here.get("jobs/a")["job"]
        assert before["why"]
    with scene(tmp_path) as here:
        place = Placement((int(before["placement"][0]["host"].removeprefix("n")),), (0xFF,))
        now_s = time.time()
        here.happen(Adopted(now_s, job("a", 8), place, before["since_s"]), Blocked(now_s, 5, 4))
        wait_until(lambda: here.get("status")["gpus"]["blocked"] == 4)
        assert here.get("jobs/a")["job"]["why"] == before["why"]


def test_reasons_call_other_jobs_as_the_engine_does(tmp_path: Path):
    long, short = str(uuid.uuid4()), str(uuid.uuid4())
    with scene(tmp_path, settings=SessionSettings(policy="srtf", mode="enforce", engine="test 1.0")) as here:
        here.happen(Arrived(time.time(), job(long, 64)))
        here.happen(Arrived(time.time(), job(short, 64, hours=0.1)))
        wait_until(lambda: here.get("jobs?state=waiting")["items"])
        (waits,) = here.get("jobs?state=waiting")["items"]
        assert waits["id"] == long and waits["why"].startswith("stopped: job 1001 goes first"), waits["why"]
        detail = here.get(f"jobs/{long}")
        assert detail["job"]["why"] == waits["why"]
        told = [made["reason"] for made in detail["decisions"] + here.get("decisions")["items"]]
        assert any(reason.startswith("job 1001 goes first") for reason in told)
        (runs,) = here.get("jobs?state=running")["items"]
        assert "in place of job 1000" in runs["why"], runs["why"]
        assert not any(short in reason or long in reason for reason in [*told, runs["why"]])
        here.happen(Finished(time.time(), short))
        wait_until(lambda: not here.get("jobs?state=waiting")["items"])
        assert "in place of job 1000" in here.get("jobs?state=ended")["items"][0]["why"]


def test_a_service_that_begins_while_the_engine_is_away_shows_what_was_last(tmp_path: Path):
    with scene(tmp_path) as here:
        here.happen(Arrived(time.time(), job("a", 8)))
    with scene(tmp_path) as here:
        here.engines[0].away = "no answer"
        wait_until(lambda: here.get("status")["engine_away"] == "no answer")
        status = here.get("status")
        assert status["leads"] and status["jobs"]["running"] == 1 and status["gpus"]["used"] == 8
        here.happen(Timer(time.time(), ""))
        wait_until(lambda: here.get("status")["jobs"]["running"] == 0)


def test_what_jobs_and_hosts_report_stands_beside_what_was_predicted(tmp_path: Path):
    (folder := tmp_path / "reports").mkdir()
    serving = SessionSettings(policy="fifo-backfill", mode="enforce", engine="test 1.0", reports=folder)
    with scene(tmp_path, settings=serving) as here:
        full = (Placement((0, 1), (0xFF, 0xFF)), time.time())
        here.happen(Adopted(time.time(), job("a", 16, user="ada", profile=GPT, model="gpt2-xl"), *full))
        name = topology().hosts.names[0]
        assert here.get("links")["items"][0]["measured_bytes_per_s"] is None
        write_report(
            folder, HostReport(host=name, time_s=time.time(), sent_bytes_per_s=3e9, received_bytes_per_s=4e9)
        )
        report = JobReport(
            job="1000", time_s=time.time() + 1, gpus=16, iterations=9, iteration_s=2.0, compute_s=0.6, traffic_bytes=5.5e9
        )  # fmt: skip
        write_report(folder, report)
        (engine,) = here.engines
        wait_until(lambda: engine.reported)
        wait_until(lambda: here.get("jobs")["items"][0]["measured_iteration_s"] == 2.0)
        wait_until(lambda: here.get("links")["items"][0]["measured_bytes_per_s"] == 4e9)
        first, second = here.get("links")["items"][:2]
        assert second["measured_bytes_per_s"] is None
        assert first["predicted_bytes_per_s"] == pytest.approx(5.5e9 / 2.0)


def test_a_loop_that_hangs_is_still_shown(tmp_path: Path):
    """The picture grows old; answers do not wait for another one, and say how old it is."""
    with scene(tmp_path) as here:
        here.happen(Arrived(time.time(), job("a", 8)))
        wait_until(lambda: here.get("status")["jobs"]["running"] == 1)
        (engine,) = here.engines
        engine.hangs_until = goes_on = threading.Event()
        try:
            wait_until(lambda: engine.hangs)
            wait_until(lambda: (status := here.get("status"))["now_s"] - status["turned_s"] > 2)
            assert here.get("status")["jobs"]["running"] == 1
            assert engine.hangs_until is not None, "no answer waited for the loop"
        finally:
            goes_on.set()


@pytest.fixture(scope="module")
def description(here: Scene) -> Any:
    """The API under test by its own description, with the right to do everything."""
    queries = Queries(
        here.service, here.journal, here.service.watcher, kill_switch=here.where.with_name("stop")
    )  # type: ignore[arg-type]
    app = make_app(
        queries, hosts=frozenset({"localhost", "testserver"}), tokens=Tokens([("operate", "o" * 20)]), rates=Rates(1e9, 1e9),
        failures=Rates(1e9, 1e9),
    )  # fmt: skip
    config = SchemathesisConfig.from_dict({"headers": {"Authorization": "Bearer " + "o" * 20}, "seed": 1})
    return schemathesis.openapi.from_asgi("/openapi.json", app, config=config)


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_the_api_keeps_to_its_description(description: Any, mode: Any):
    """Requests that fit and such that do not, for every route but the stream, which never ends."""
    tried = set()
    for found in description.exclude(path="/api/v1/events").get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=25,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def keeps(case: Any) -> None:
            tried.add(operation.label)  # noqa: B023
            case.call_and_validate()

        try:
            keeps()
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE, "it takes no parameter: nothing about it can be wrong"
    assert {"GET /api/v1/jobs", "GET /api/v1/jobs/{id}", "GET /api/v1/decisions"} <= tried
    assert mode is GenerationMode.NEGATIVE or len(tried) == 12
