"""A real slurmrestd: it says what squeue and sinfo say, does what it is told, and may die in the middle."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from live_slurm import Live, until
from patience import patience
from rest_server import answer

from hemiola.core.errors import EngineError
from hemiola.core.hostlist import expand
from hemiola.core.job import batch_job
from hemiola.lab.slurm import SlurmLab, config
from hemiola.live.engines.slurm import requests
from hemiola.live.engines.slurm.rest import client
from hemiola.live.engines.slurm.rest.client import RestSlurm, rest_slurm
from hemiola.live.engines.slurm.rest.http import Address, Http, Token
from hemiola.live.engines.slurm.tracked_job import SlurmTrackedJob
from hemiola.live.engines.slurm.wire import SlurmJobRow
from hemiola.live.journal import Journal
from hemiola.live.journal.replay import replay

TAKES_LISTS = (23, 11)


FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "an error": lambda body: answer(
        b'{"errors": [{"error": "Unable to contact slurm controller"}], "warnings": []}', 500
    ),
    "half": lambda body: answer(body)[: -len(body) // 2],
    "a page": lambda body: answer(b"<html>Bad Gateway</html>", 502, "text/html"),
    "garbage": lambda body: answer(body[::-1]),
    "nothing": lambda body: b"",
    "another's": lambda body: answer(b'{"jobs": {}, "errors": [], "warnings": []}'),
}
"""Instead of what slurmrestd said, after it has done what it was asked for."""


@contextmanager
def faulty(url: str) -> Iterator[tuple[str, Counter[str]]]:
    """A proxy before slurmrestd that passes on seven answers of eight; its address, and which faults it has played."""
    played: Counter[str] = Counter()
    begun: set[str] = set()
    chance, names, lock = random.Random(7), itertools.cycle(FAULTS), threading.Lock()

    class Proxy(BaseHTTPRequestHandler):
        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
            heads = {
                key: value
                for key, value in self.headers.items()
                if key.startswith("X-SLURM") or key == "Content-Type"
            }
            there = http.client.HTTPConnection(url.removeprefix("http://"), timeout=patience(60))
            there.request(self.command, self.path, body, heads)
            said = there.getresponse()
            text, kind = said.read(), said.headers["Content-Type"]
            there.close()
            whole = answer(text, said.status, kind)
            with lock:
                begun.update([self.path] if "/jobs/" in self.path else [])  # it could not start otherwise
                if begun and chance.random() < 1 / 8:
                    name = next(names)
                    played[name] += 1
                    whole = FAULTS[name](text)
            with contextlib.suppress(ConnectionError):
                self.wfile.write(whole)

        do_GET = do_POST = _pass_on  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", played
        finally:
            server.shutdown()
            thread.join()


class RestLive(Live):
    """What tests do with a Slurm and the service on its slurmrestd; they themselves look and submit by commands."""

    url = ""

    def over_rest(self, token: str = "") -> RestSlurm:
        address = Address.of(self.url or self.lab.rest_url)
        return RestSlurm(Http(address, Token(text=token or self.lab.token())), self.slurm)

    def engine(self) -> RestSlurm:
        return self.over_rest()


@pytest.fixture
def live(lab: SlurmLab, tmp_path: Path) -> Iterator[RestLive]:
    if config.rest_version() == (0, 0):
        pytest.skip(f"needs slurmrestd: apt-get install {' '.join(config.REST_PACKAGES)}")
    one = RestLive(lab, tmp_path / "journal.db")
    yield one
    if not lab.processes() or not any(role.kind == "slurmrestd" for role in lab.processes().values()):
        lab.start_rest()
    one.clear()


def test_what_is_offered_is_taken_or_refused(live: RestLive, monkeypatch: pytest.MonkeyPatch):
    if config.rest_version() < TAKES_LISTS:
        with pytest.raises(EngineError, match="which takes no list of nodes for a job"):
            live.over_rest()
        return
    slurm = live.over_rest()
    assert slurm.offer.slurm.startswith("{}.{:02}".format(*config.rest_version()))
    assert bool(slurm.offer.requeue) is (config.rest_version() >= (26, 5))
    monkeypatch.setenv("SLURM_JWT", live.lab.token())
    assert rest_slurm(live.lab.rest_url, None, live.slurm, acts=True).lacks == ""


def test_every_version_says_what_squeue_and_sinfo_say(live: RestLive, monkeypatch: pytest.MonkeyPatch):
    kinds = (
        "-N2 --gpus-per-node=4", "--array=0-9%2 --gres=gpu:1", "--array=1,3,5-7 --gpus=1", "--gpus=3 -N2 -t 1-02:03:04",
        "--ntasks=4 --gpus-per-task=1 --no-requeue", "--exclusive --gpus=3", "--begin=now+3600 --gpus=2", "-x h1 --gpus=1",
        "-N2-3 --gpus-per-node=2 --ntasks-per-node=2 -c2", "-w h1,h2 -N2 --gpus=2", "-H --gpus=1",
        "--array=" + ",".join(str(n * n) for n in range(30)) + " --gpus=1",
    )  # fmt: skip
    for partition in ("hemiola", "other"):
        for kind in kinds:
            live.submit(kind, "sleep 60", partition=partition)
    ended = [live.submit("-n1", script, partition="other") for script in ("exit 3", "true", "kill -9 $$")]
    for job in ended:
        live.wait_state(job, "COMPLETED", "FAILED")
    live.command("scontrol", "hold", live.submit("--gpus=1"))
    live.command("scontrol", "update", "nodename=h3", "state=drain", "reason=test")
    offered = [known for known in client.KNOWN if _takes(live, known, monkeypatch)]
    assert len(offered) >= 3
    for known in offered:
        assert _takes(live, known, monkeypatch)
        _compare(live, live.over_rest())
    live.command("scontrol", "update", "nodename=h3", "state=resume")


def _takes(live: RestLive, version: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(client, "KNOWN", (version,))
    try:
        return live.over_rest().offer.version == version
    except EngineError:
        return False


def _by_id(rows: list[SlurmJobRow]) -> dict[str, SlurmJobRow]:
    return {row.id: row for row in rows}


def _compare(live: RestLive, rest: RestSlurm) -> None:
    """Jobs change meanwhile: what squeue says before and after counts."""

    def both() -> tuple[list[SlurmJobRow], list[SlurmJobRow]] | None:
        before = live.slurm.jobs(states="all")
        ours = rest.jobs(states="all")
        return (before, ours) if live.slurm.jobs(states="all") == before else None

    end_s = time.monotonic() + patience(60.0)
    while (found := both()) is None:
        assert time.monotonic() < end_s, "squeue never says the same twice"
    theirs, ours = map(_by_id, found)
    assert ours == theirs and len(ours) > 80
    ids = list(ours)
    assert {job: (words.name, words.comment) for job, words in rest.words(ids).items()} == {
        job: (words.name, words.comment) for job, words in live.slurm.words(ids).items()
    }
    assert {row.id for row in rest.jobs()} == {row.id for row in live.slurm.jobs()}
    for row in ours.values():
        if row.state == "RUNNING" and row.takes_gpus:
            assert rest.shares(row.id) == live.slurm.shares(row.id)
    lasted = rest.spans(ids), live.slurm.spans(ids)
    for name in (row.id for row in ours.values() if row.state in ("RUNNING", "COMPLETED", "FAILED")):
        began, ended = zip(lasted[0][name], lasted[1][name], strict=True)
        assert len(set(began)) == 1 and began[0], name
        assert ours[name].state == "RUNNING" or (len(set(ended)) == 1 and ended[0]), name
    nodes = [
        sorted(slurm.nodes(), key=lambda node: (node.name, node.partition)) for slurm in (live.slurm, rest)
    ]
    assert nodes[0] == nodes[1]


def test_orders_do_what_scontrol_does(live: RestLive):
    rest = live.over_rest()
    job = live.submit("--gpus=2", "sleep 60")
    array = live.submit("--gpus=2 --array=1-3", "sleep 60")
    ids = [job, f"{array}_1"]
    assert rest.tell([f"update jobid={one} ReqNodeList=h2 AdminComment=hemiola:mine" for one in ids]) == ""
    both = rest.jobs_and_words(ids)
    assert {row.bound_to for row, _ in both.values()} == {"h2"} and not any(
        row.priority for row, _ in both.values()
    )
    assert {words.admin for _, words in both.values()} == {"hemiola:mine"}
    assert live.rows()[f"{array}_2"].bound_to == "", "the other elements are as they were"
    assert rest.tell([requests.release(ids)]) == ""
    for one in ids:
        live.wait_state(one, "RUNNING")
        assert live.hosts(one) == "h2"
    rest.jobs()  # which tells it the element's own number
    assert rest.tell([requests.put_back(one) for one in ids]) == ""
    for one in ids:
        live.wait_state(one, "PENDING")
        until(
            lambda one=one: not live.rows()[one].priority and live.rows()[one].restarts == 1,
            "it is held again",
        )
    assert rest.tell([f"update jobid={one} ReqNodeList=" for one in ids]) == ""
    assert {live.rows()[one].bound_to for one in ids} == {""}
    wanted = batch_job(id="u", submit_s=0.0, gpus=2, duration_s=60.0)
    known = [SlurmTrackedJob(wanted, row, begin_s=60.0) for row in rest.jobs(ids=ids)]
    assert rest.tell([order for one in known for order in requests.park(one)]) == ""
    assert {words.admin for words in rest.words(ids).values()} == {"hemiola:u:ranks=:begin=60"}
    assert all(live.rows()[one].is_parked(time.time()) and live.rows()[one].priority for one in ids)
    assert rest.tell([order for one in ids for order in requests.unpark(one, 0.0)]) == ""
    assert {live.rows()[one].reason for one in ids} == {"JobHeldUser"}, "as its own user holds it"
    assert not any(live.rows()[one].is_parked(time.time()) for one in ids)


def test_elastic_jobs_are_sized_and_shrink(live: RestLive):
    rest, job = live.over_rest(), live.submit("-N2-4 --gpus-per-node=2 --ntasks-per-node=2", "sleep 60")
    assert (
        rest.tell(
            [f"update jobid={job} NumNodes=3-3 NumTasks=6 NumCPUs=6 ReqNodeList=h[0-2]", f"release {job}"]
        )
        == ""
    )
    live.wait_state(job, "RUNNING")
    row = live.rows()[job]
    assert (expand(row.host_list), row.tasks) == (["h0", "h1", "h2"], 6)
    assert rest.tell([f"update jobid={job} NodeList=h[0-1] AdminComment=x"]) == ""
    assert live.hosts(job) == "h[0-1]"


def test_refusals_come_back_with_the_job(live: RestLive):
    rest, job = live.over_rest(), live.submit("--gpus=1")
    said = rest.tell([f"update jobid={job} ReqNodeList=nowhere", "release 99999", f"release {job}"])
    assert [line.partition(":")[0] for line in said.splitlines()] == [job, "99999"]
    live.wait_state(job, "RUNNING", "COMPLETED")
    with pytest.raises(EngineError, match=r"refuses jobs/: .*[Aa]uthentication") as caught:
        live.over_rest(f"{live.lab.token()}x").jobs()
    assert "scontrol token" in caught.value.remedy


def test_jobs_of_every_kind_run_once_where_they_were_placed(live: RestLive):
    with live.serving("dally"):
        first = live.submit("-N2 --gpus-per-node=8")
        jobs = [
            first, live.submit("--gres=gpu:2"), live.submit("--gpus=12 --ntasks=12"),
            live.submit("--ntasks=2 --gpus-per-task=3"), live.submit(f"--gpus=4 --dependency=afterok:{first}"),
        ]  # fmt: skip
        array = live.submit("--gres=gpu:4 --array=1-5%2")
        jobs += [f"{array}_{element}" for element in range(1, 6)]
        assert [live.wait_outcome(job) for job in jobs] == ["finished"] * 10
        long = live.submit("--gpus=2", "sleep 60")
        live.wait_state(long, "RUNNING")
        live.command("scontrol", "requeue", long)
        until(lambda: live.rows()[long].restarts and live.rows()[long].state == "RUNNING", "it runs again")
        live.command("scancel", long)
        assert live.wait_outcome(long).startswith("cancelled")
    rows = live.rows(ended=True)
    for job in jobs:
        assert rows[job].state == "COMPLETED" and rows[job].restarts == 0, rows[job]
        assert rows[job].host_list == rows[job].bound_to, "it ran where it was bound to"
    with Journal.open(live.journal_path, read_only=True) as journal:
        (run,) = journal.runs()
        assert replay(journal, run.id).difference is None, "the journal's decisions come out again"
        assert not journal.open_jobs() and not journal.open_intents()


def test_a_slurmrestd_that_dies_again_and_again_loses_nothing(live: RestLive):
    """Each job says that it ran: twice, or not at all, would be seen."""
    ran = live.journal_path.with_name("ran")
    ran.touch(mode=0o666)
    with live.serving("fifo-backfill"):
        jobs = [live.submit("--gpus=8", f"echo $SLURM_JOB_ID >> {ran}; sleep 0.5") for _ in range(12)]
        for _ in range(4):
            until(lambda: any(row.state == "RUNNING" for row in live.rows().values()), "some run")
            live.lab.kill_rest()
            jobs.append(live.submit("-N2 --gpus-per-node=4", f"echo $SLURM_JOB_ID >> {ran}; sleep 0.5"))
            live.lab.start_rest()
        assert [live.wait_outcome(job) for job in jobs] == ["finished"] * 16
    assert sorted(map(int, ran.read_text().split())) == sorted(map(int, jobs))
    rows = live.rows(ended=True)
    assert all(rows[job].host_list == rows[job].bound_to for job in jobs)


def test_one_answer_in_eight_is_an_error_half_or_garbage_and_nothing_is_lost(live: RestLive):
    """Also those of orders that slurmrestd has carried out."""
    ran = live.journal_path.with_name("ran")
    ran.touch(mode=0o666)
    with faulty(live.lab.rest_url) as (url, played):
        live.url = url
        with live.serving("fifo-backfill"):
            jobs = [live.submit("-N2 --gpus-per-node=8", f"echo $SLURM_JOB_ID >> {ran}") for _ in range(6)]
            jobs += [live.submit("--gpus=4", f"echo $SLURM_JOB_ID >> {ran}; sleep 0.5") for _ in range(10)]
            until(lambda: all(live.state(job) == "COMPLETED" for job in jobs), "all have run", limit_s=240.0)
            assert [live.wait_outcome(job) for job in jobs] == ["finished"] * 16
    assert set(played) == set(FAULTS), "each was played"
    assert sorted(map(int, ran.read_text().split())) == sorted(map(int, jobs)), "each ran once"
    rows = live.rows(ended=True)
    assert all(rows[job].host_list == rows[job].bound_to for job in jobs)


def test_a_controller_that_is_away_is_said(live: RestLive):
    rest = live.over_rest()
    live.lab.kill_controller()
    try:
        with pytest.raises(EngineError, match=r"slurmrestd at http://127.0.0.1:.* (refuses|gave no)"):
            rest.jobs()
    finally:
        live.lab.start_controller()
        live.lab.wait_ready()
    until(lambda: _by_id(rest.jobs()) == _by_id(live.slurm.jobs()), "it says again what squeue says")


if (
    config.rest_version() < TAKES_LISTS
):  # then there is nothing but its refusal, and no slurmrestd at all is a skip
    for _name in [name for name in globals() if name.startswith("test_") and "offered" not in name]:
        del globals()[_name]
