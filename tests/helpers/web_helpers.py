"""A service to look at: the real loop, journal and policy; the engine is a queue that a test puts events into."""

from __future__ import annotations

import json
import queue
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from patience import patience

from hemiola.core.decisions import Decision, Placement, WakeAt
from hemiola.core.events import Adopted, Arrived, Blocked, Event, Failed, Finished, Held, NodeLost
from hemiola.core.job import Demand, Job, Profile, batch_job
from hemiola.core.topology import Topology
from hemiola.live.journal.journal import Journal
from hemiola.live.live_driver import Identity, LiveDriver, Vanished
from hemiola.live.service import LiveService, Session, SessionSettings
from hemiola.live.web.server import WebServer
from hemiola.trace.topologies.read import read_topology

EVIL = "<script>alert(1)</script>"
RESNET = Profile(
    name="resnet50", demands=(Demand(1, 0.2, 0.0), Demand(8, 0.2, 1.8e8), Demand(64, 0.2, 2e8)), overlap=0.1
)
GPT = Profile(name="gpt2-xl", demands=(Demand(1, 0.6, 0.0), Demand(8, 0.6, 5.4e9), Demand(64, 0.6, 6e9)))


def topology(racks: int = 2, hosts_per_rack: int = 4) -> Topology:
    return read_topology(
        f"leaf-spine:hosts={racks * hosts_per_rack},gpus_per_host=8,hosts_per_rack={hosts_per_rack},nic=100gbit,oversubscription=4"
    )


class Engine(LiveDriver):
    """Hands on what a test says, and does what it is told at once."""

    def __init__(self, run: Session, names: dict[str, str], events: queue.Queue[list[Event] | None]) -> None:
        self._run, self._names, self._events = run, names, events
        self._answers: list[tuple[str, bool, str]] = []
        self.away, self.hangs, self.reported = "", False, False
        self.hangs_until: threading.Event | None = None

    def events(self) -> Iterator[list[Event]]:
        while True:
            self._run.turned()
            if self.hangs_until is not None:
                self.hangs = True
                self.hangs_until.wait()
                self.hangs_until = None
            try:
                found = self._events.get(timeout=0.02)
            except queue.Empty:
                continue
            if found is None:
                return
            if found:
                yield found

    def execute(self, decision: Decision) -> None:
        if not isinstance(decision, WakeAt):
            self._answers.append((decision.job_id, True, ""))

    def render(self, decision: Decision) -> str:
        return str(decision)

    def add(self, events: Sequence[Event]) -> None:
        self.reported = True
        self._events.put(list(events))

    def identity(self, job_id: str) -> Identity | None:
        state = self._run.machine.view.jobs.get(job_id)
        if state is None:
            return None
        number = str(1000 + state.index)
        user = state.job.user or "ada"
        note = "held by its user" if state.status == 3 else ""
        return Identity(
            engine_id=number, submit_s=state.submit_s, user=user, name=self._names.get(job_id, ""), note=note
        )

    def vanished(self) -> list[Vanished]:
        return []

    def answers(self) -> list[tuple[str, bool, str]]:
        answers, self._answers = self._answers, []
        return answers

    def hand_back(self) -> None:
        pass

    def advise(self, decision: Decision) -> None:
        pass

    def stop(self) -> None:
        self._events.put(None)


class Scene:
    """A service that runs, its server, and the engine's queue.

    Attributes:
        url: of the page.
        where: the journal's file.
    """

    def __init__(
        self, service: LiveService, journal: Journal, where: Path, events: queue.Queue[list[Event] | None]
    ) -> None:
        self.service, self.journal, self.where, self._events = service, journal, where, events
        self.names: dict[str, str] = {}
        self.engines: list[Engine] = []
        self.url = ""

    def happen(self, *events: Event) -> None:
        """Let this happen in one instant, and wait until the policy has decided on it."""
        before = self._seen()
        self._events.put(list(events))
        wait_until(lambda: self._seen() > before)

    def break_loop(self) -> None:
        """Let happen what does not fit the view: a job on GPUs that another one has."""
        now_s = time.time()
        twice = [Adopted(now_s, job(name, 8), Placement((0,), (0xFF,)), now_s) for name in ("x", "y")]
        self._events.put(list(twice))

    def _seen(self) -> int:
        view = self.service.view
        runs = self.journal.runs()
        if view is None or not runs:
            return -1
        return sum(instant.decisions is not None for instant in self.journal.instants(runs[-1].id))

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """One request; header names with underscores."""
        return ask(self.url, path, method, **headers)

    def get(self, path: str) -> Any:
        """An answer of the API."""
        answer = self.ask(f"/api/v1/{path}")
        assert answer.status == 200, answer.body
        return answer.json


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    url: str, path: str, method: str = "GET", context: ssl.SSLContext | None = None, **headers: str
) -> Answer:
    """One request to a real server."""
    to = urlsplit(url)
    connection = (
        HTTPSConnection(to.hostname or "", to.port, timeout=patience(10), context=context) if to.scheme == "https"
        else HTTPConnection(to.hostname or "", to.port, timeout=patience(10))
    )  # fmt: skip
    try:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.putrequest(method, path, skip_host="Host" in sent)
        for name, value in sent.items():
            connection.putheader(name, value)
        connection.endheaders()
        found = connection.getresponse()
        return Answer(found.status, {n.lower(): v for n, v in found.getheaders()}, found.read())
    finally:
        connection.close()


def wait_until(true: Callable[[], Any], most_s: float = 10.0) -> None:
    """Asked ever more rarely: the server lets nobody ask more than some twenty times a second for long."""
    until_s, pause_s = time.monotonic() + patience(most_s), 0.005
    while not true():
        assert time.monotonic() < until_s, "it did not happen in time"
        time.sleep(pause_s)
        pause_s = min(0.1, 1.1 * pause_s)


@contextmanager
def scene(
    folder: Path, *, cluster: Topology | None = None, settings: SessionSettings | None = None, **web: Any
) -> Iterator[Scene]:
    """A service on a cluster with its page on a free port of loopback."""
    events: queue.Queue[list[Event] | None] = queue.Queue()
    where = folder / "journal.db"
    with Journal.open(where) as journal:
        names: dict[str, str] = {}
        settings = settings or SessionSettings(policy="fifo-backfill", mode="enforce", engine="test 1.0")
        engines: list[Engine] = []

        def make(run: Session) -> Engine:
            engines.append(Engine(run, names, events))
            return engines[-1]

        service = LiveService(settings, journal, cluster or topology(), make)
        found = Scene(service, journal, where, events)
        found.names, found.engines = names, engines
        with WebServer(service, journal, address="127.0.0.1:0", **web) as server:
            found.url = server.url
            thread = threading.Thread(target=service.run, daemon=True)
            thread.start()
            try:
                wait_until(lambda: service.driver is not None)
                yield found
            finally:
                service.stop()
                thread.join(patience(10))


def job(name: str, gpus: int, *, age_s: float = 0.0, hours: float = 2.0, **more: Any) -> Job:
    return batch_job(id=name, submit_s=time.time() - age_s, gpus=gpus, duration_s=hours * 3600, **more)


def busy(found: Scene) -> None:
    """Jobs that run within and across racks, wait, are held and have ended; a host is down, GPUs are not ours."""
    now = time.time
    found.names.update(
        a="gpt-pretrain", b="resnet sweep 7", c=EVIL, d="gpt-ablation", e="debug", f="resnet sweep 8", g="quick",
        h="llm eval", i="needs one rack", j="after the other", k="broken",
    )  # fmt: skip
    full = 0xFF
    gpt: dict[str, Any] = {"profile": GPT, "model": "gpt2-xl"}
    resnet: dict[str, Any] = {"profile": RESNET, "model": "resnet50"}
    runs = (
        (job("a", 24, user="ada", age_s=2800, **gpt), Placement((0, 1, 4), (full, full, full)), 2700),
        (job("d", 16, user="ada", age_s=1900, **gpt), Placement((2, 6), (full, full)), 1300),
        (job("b", 4, user="bob", age_s=900, **resnet), Placement((3,), (0x0F,)), 890),
        (job("c", 4, user="cyd", age_s=500), Placement((5,), (0x0F,)), 480),
    )
    found.happen(
        *(Adopted(now(), each, place, now() - since_s) for each, place, since_s in runs), Blocked(now(), 5, 4), NodeLost(now(), 7)
    )  # fmt: skip
    found.happen(
        Arrived(now(), job("e", 2, user="eve", age_s=60, **resnet)), Arrived(now(), job("g", 1, user="eve", age_s=50)),
        Arrived(now(), job("k", 1, user="cyd", age_s=40)),
    )  # fmt: skip
    found.happen(Finished(now(), "g"), Failed(now(), "k", "failed: exit code 1"))
    found.happen(
        Arrived(now(), job("f", 8, user="bob", age_s=30, **resnet)), Arrived(now(), job("h", 24, user="cyd", age_s=20, **gpt)),
        Arrived(now(), job("i", 16, user="bob", age_s=10, required="rack", **resnet)),
        Adopted(now(), job("j", 8, user="ada", age_s=5), None, now()), Held(now(), "j", "held by its user"),
    )  # fmt: skip
