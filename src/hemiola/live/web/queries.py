"""Answers every question of the API, from any thread. Knows no HTTP."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hemiola.core.errors import HemiolaError, InputError
from hemiola.core.topology import Topology
from hemiola.live.journal import RunRecord
from hemiola.live.journal.journal import Journal
from hemiola.live.live_driver import Topologies
from hemiola.live.logging_setup import is_thrown
from hemiola.live.query.cluster import Following, Names, engine_ids
from hemiola.live.service import LiveService
from hemiola.live.web import responses, schema
from hemiola.live.web.responses import Frame, NotThereError, decided, ended_job
from hemiola.live.web.schema import VERSION, StatusView
from hemiola.live.web.shadow import Shadow
from hemiola.live.web.snapshots import (
    KEEP,
    THOUGHT_S,
    DecisionNote,
    JobSnapshot,
    Predictor,
    Snapshot,
    Snapshots,
)
from hemiola.trace.atomic import replacing

__all__ = ["CONTENT_TYPE", "Metrics", "NotYetError", "Queries"]

NO_RUN = "no run goes on, and the next one begins by itself"
STANDBY_S = 1.0
"""What only the journal knows is read at most so often."""


class NotYetError(HemiolaError):
    """No run has begun."""


class Queries:
    """What the routes ask.

    Args:
        kill_switch: the service's own; None if it has none.
    """

    def __init__(
        self, service: LiveService, journal: Journal, snapshots: Snapshots, *, kill_switch: Path | None = None,
        shadow: Shadow | None = None,
    ) -> None:  # fmt: skip
        self._service, self._journal, self.snapshots = service, journal, snapshots
        self._kill_switch, self._shadow = kill_switch, shadow
        self._lock = threading.Lock()
        self._frame: Frame | None = None
        self._mark = 0
        self._number = 0
        self._predictor: Predictor | None = None
        self._run: RunRecord | None = None
        self._topology: tuple[int, Topology] | None = None
        self._reading = threading.Lock()
        self._from_before: list[DecisionNote] = []
        self._last_notes, self._next_s = responses.LastNotes(KEEP), 0.0
        self._following, self._stale_s = Following(), 0.0

    # ---- the present picture

    def frame(self) -> Frame:
        """What is known now.

        Raises:
            NotYetError: no run has begun yet, here or elsewhere.
        """
        picture = self.snapshots.look() if self._service.view is not None else None
        with self._lock:
            if picture is None:
                now_s = time.monotonic()
                if self._frame is not None and self._frame.picture.masks is None and now_s < self._stale_s:
                    return self._frame
                picture, self._stale_s = self._from_journal(), now_s + STANDBY_S
            if self._frame is None or self._frame.picture is not picture:
                self._frame = self._framed(picture)
            return self._frame

    def _framed(self, picture: Snapshot) -> Frame:
        if self._predictor is None or self._predictor.topology is not picture.topology:
            self._predictor = Predictor(picture.topology)
        frame = Frame(self._number, picture, self._predictor)
        mark = _mark(frame)
        if mark != self._mark:
            self._mark, self._number = mark, self._number + 1
            frame.number = self._number
        return frame

    def _from_journal(self) -> Snapshot:
        run = responses.last_run(self._journal)
        if run is None:
            raise NotYetError(
                "no run has begun yet", "wait a moment, or look at the service's log for what it waits for"
            )
        if self._topology is None or self._topology[0] != run.id:
            self._topology = run.id, responses.run_topology(run)
        driver, leads = self._service.driver, self._service.leads_s is not None
        away = driver.away if driver is not None else NO_RUN if leads else ""
        told = self._following.read(self._journal, run.id)
        return responses.picture_of(self._journal, run, self._topology[1], told, leads=leads, away=away)

    def status(self) -> schema.StatusView:
        """How the service stands."""
        frame = self.frame()
        picture, leader = frame.picture, self._journal.leader()
        run = self._the_run(picture.run)
        opening = run.opening if run else None
        leads = picture.leads
        return schema.StatusView(
            version=schema.VERSION, now_s=time.time(), snapshot=frame.number, taken_s=picture.taken_s,
            turned_s=self._turned_s() if leads else None, leads=leads,
            leader=leader.holder if leader else "", leader_until_s=leader.until_s if leader else None,
            engine=opening.engine if opening else "", engine_away=picture.away, mode=opening.mode if opening else "",
            policy=opening.policy if opening else "", fallback=opening.fallback if opening else "",
            broken_policy=self._service.broken, kill_switch=self.kill_switch(), run=picture.run,
            run_began_s=run.began_s if run else None, topology=frame.topology.name, jobs=frame.counts, gpus=frame.gpus,
            wanted_gpus=frame.wanted_gpus,
        )  # fmt: skip

    def _turned_s(self) -> float | None:
        """When the loop last came around, or began to lead: one that always breaks before counts, too."""
        return max(filter(None, (self.snapshots.turned_s, self._service.leads_s)), default=None)

    def _the_run(self, number: int | None) -> RunRecord | None:
        if number is None:
            return None
        if self._run is None or self._run.id != number:
            self._run = self._journal.run(number)
        return self._run

    # ---- jobs

    def jobs(self, state: str, user: str | None, after: str | None, limit: int) -> schema.Jobs:
        """A page of jobs; state "open" for all that have not ended."""
        if state == "ended":
            records, following = responses.ended_page(self._journal, user, after, limit)
            topologies = self._topologies()
            names = Names(self._journal, engine_ids(records))
            found = (ended_job(topologies.at(record.ended_s), record) for record in records)
            return schema.Jobs(tuple(_named(view, names) for view in found), following, None)

        def wanted(seen: JobSnapshot) -> bool:
            return (state == "open" or seen.state == state) and (user is None or seen.user == user)

        frame = self.frame()
        names, page = self._names(frame), frame.jobs(wanted, after, limit, time.time())
        return msgspec.structs.replace(page, items=tuple(_named(view, names) for view in page.items))

    def job(self, name: str) -> schema.JobDetail:
        """A job by UUID or by the engine's id, with the last decisions about it."""
        frame = self.frame()
        index = frame.find(name)
        if index is not None:
            view = frame.job(index, time.time())
            if (record := self._journal.job(view.id)) is not None:
                view = msgspec.structs.replace(view, first_started_s=record.first_started_s)
        else:
            record = self._journal.job(name)
            if record is None:
                raise NotThereError(
                    f"no job is called {name!r}", "give its UUID, or the id that the engine shows"
                )
            view = ended_job(self._topologies().at(record.ended_s), record)
        about = [note for note in self.notes() if note.decision.job_id == view.id]
        view = _named(view, self._names(frame))
        return schema.JobDetail(job=view, decisions=tuple(self._told(reversed(about[-100:]))))

    # ---- decisions and runs

    def decisions(self, run: int | None, job: str | None, before: str | None, limit: int) -> schema.Decisions:
        """A page of decisions, newest first; of the last ones, or of one run of the journal."""
        if job is not None:
            job = self.job(job).job.id
        place = None if before is None else _place(before)
        if run is None:
            notes = [
                note for note in self.notes()
                if (job is None or note.decision.job_id == job) and (place is None or (note.run, note.number) < place)
            ]  # fmt: skip
        else:
            number = None if place is None or place[0] != run else place[1]
            notes = responses.notes_of_run(
                self._journal, self.run(run).id, before=number, job=job, limit=limit + 1
            )
        page = notes[-limit:]
        following = f"{page[0].run}-{page[0].number}" if len(notes) > limit else None
        return schema.Decisions(tuple(self._told(reversed(page))), following)

    def _told(self, notes: Iterable[DecisionNote]) -> list[schema.Decided]:
        known: dict[str, tuple[str, str]] = {}
        names = self._names(self.frame())
        found = [decided(self._topology_of(note.run), note, self._who(note, known)) for note in notes]
        return [
            msgspec.structs.replace(one, reason=names.told(one.reason), refused=names.told(one.refused))
            for one in found
        ]

    def _names(self, frame: Frame) -> Names:
        """What reasons call other jobs: as the engine does, not by UUID."""
        return Names(self._journal, frame.engine_ids)

    def _topologies(self) -> Topologies:
        return Topologies(self._journal.runs(), self._journal.name)

    def _topology_of(self, run: int) -> Topology | None:
        """What the numbers of hosts mean in a run's decisions; None where the journal has forgotten it."""
        frame = self.frame()
        if run == frame.picture.run:
            return frame.topology
        if self._topology is None or self._topology[0] != run:
            try:
                self._topology = run, responses.run_topology(self._journal.run(run))
            except InputError:
                return None
        return self._topology[1]

    def _who(self, note: DecisionNote, known: dict[str, tuple[str, str]]) -> tuple[str, str]:
        """The engine's id and the name of a decision's job."""
        name = note.decision.job_id
        if note.who is not None:
            return note.who.engine_id, note.who.name
        if name not in known:
            record = self._journal.job(name)
            known[name] = (record.engine_id, record.name) if record else ("", "")
        return known[name]

    def run(self, number: int) -> RunRecord:
        """One run of the journal."""
        try:
            return self._journal.run(number)
        except InputError as problem:
            raise NotThereError(problem.what, problem.remedy) from problem

    def runs(self, before: int | None, limit: int) -> schema.Runs:
        """A page of runs, newest first."""
        found = [run for run in reversed(self._journal.runs()) if before is None or run.id < before]
        items = tuple(
            schema.RunView(
                id=run.id, epoch=run.epoch, policy=run.opening.policy, fallback=run.opening.fallback,
                engine=run.opening.engine, mode=run.opening.mode, version=run.opening.version, began_s=run.began_s,
                ended_s=run.ended_s, reason=run.reason,
            )
            for run in found[:limit]
        )  # fmt: skip
        return schema.Runs(items, str(items[-1].id) if len(found) > limit else None)

    def notes(self) -> list[DecisionNote]:
        """The last decisions, oldest first: those made here, and from the journal those of others and of the time before."""
        own = self.snapshots.notes()
        with self._reading:
            has_all = self._service.view is not None and own and own[-1].run <= self._last_notes.run
            if not has_all and (now_s := time.monotonic()) >= self._next_s:
                self._from_before, self._next_s = self._last_notes.read(self._journal), now_s + STANDBY_S
            notes = {(note.run, note.number): note for note in (*self._from_before, *own)}
        return [notes[place] for place in sorted(notes)][-KEEP:]

    # ---- hosts and links

    def nodes(self, after: str | None, limit: int) -> schema.Nodes:
        """A page of hosts."""
        hosts = self.frame().hosts
        start = 0
        if after is not None:
            names = [host.name for host in hosts]
            if after not in names:
                raise NotThereError(f"no host is called {after!r}", "begin with the first page again")
            start = names.index(after) + 1
        items = hosts[start : start + limit]
        return schema.Nodes(items, items[-1].name if start + limit < len(hosts) else None, len(hosts))

    # ---- the rest

    def shadow(self) -> schema.ShadowView:
        """The comparison as it stands; a new one is begun if it is due."""
        if self._shadow is None:
            return schema.ShadowView(state="off", problem="no policies to compare were named")
        return self._shadow.look()

    def kill_switch(self) -> bool | None:
        """Whether it is thrown; None where there is none."""
        return None if self._kill_switch is None else is_thrown(self._kill_switch)

    def throw(self, thrown: bool) -> schema.KillSwitch:
        """Throw the kill switch, or take it back; the loop sees it at its next turn.

        Raises:
            HemiolaError: its file cannot be written, or not be removed.
        """
        if self._kill_switch is None:
            raise NotThereError("there is no kill switch", "start the service with a file for it")
        if thrown and not is_thrown(self._kill_switch):
            with replacing(self._kill_switch) as stream:
                stream.write(f"thrown through the API at Unix time {time.time():.0f}\n".encode())
        elif not thrown:
            try:
                self._kill_switch.unlink(missing_ok=True)
            except OSError as problem:
                raise HemiolaError(
                    f"cannot remove {str(self._kill_switch)!r}: {problem.strerror}",
                    "remove it as a user who may write to its folder",
                ) from problem
        return schema.KillSwitch(thrown)


def _named(view: schema.JobView, names: Names) -> schema.JobView:
    why = names.told(view.why)
    return view if why == view.why else msgspec.structs.replace(view, why=why)


def _mark(frame: Frame) -> int:
    """A number that is the same as long as nothing but time has changed."""
    picture = frame.picture
    jobs = tuple((s.job.id, s.state, s.since_s, s.placement, s.note) for s in frame.seen)
    return hash(
        (
            jobs,
            picture.run,
            picture.masks,
            picture.down,
            tuple(picture.blocked.items()),
            picture.away,
            picture.decided,
        )
    )


def _place(text: str) -> tuple[int, int]:
    """A decision's run and number, by its id."""
    run, _, number = text.partition("-")
    return int(run), int(number)


# What `/metrics` says, in Prometheus' text format. Names are documented in docs/reference/api.md.

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics(Collector):
    """Reads what the API answers whenever it is asked.

    Args:
        read: the status, and the frame it was made from.
    """

    def __init__(self, read: Callable[[], tuple[StatusView, Frame]], snapshots: Snapshots) -> None:
        self._read, self._snapshots = read, snapshots
        self._lock = threading.Lock()
        self._refused: Counter[str] = Counter(dict.fromkeys(("host", "origin", "rate", "role", "token"), 0))
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def refused(self, reason: str) -> None:
        """A request was not answered."""
        with self._lock:
            self._refused[reason] += 1

    def text(self) -> bytes:
        """All metrics."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing in advance: all depends on the picture."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now."""
        status, frame = self._read()
        yield from _service(status)
        yield from _cluster(status, frame)
        yield from self._counted()

    def _counted(self) -> Iterator[Metric]:
        decisions = CounterMetricFamily(
            "hemiola_decisions", "Decisions of this process's policies.", labels=("kind", "refused")
        )
        for (kind, refused), count in sorted(dict(self._snapshots.counts).items()):
            decisions.add_metric((kind, str(refused).lower()), count)
        yield decisions
        counts = list(accumulate(self._snapshots.thoughts))
        yield HistogramMetricFamily(
            "hemiola_decision_seconds", "How long the policy computed at each instant.",
            buckets=list(zip([*map(str, THOUGHT_S), "+Inf"], counts, strict=True)), sum_value=self._snapshots.thought_s,
        )  # fmt: skip
        requests = CounterMetricFamily(
            "hemiola_http_refused", "Requests that were not answered, by reason.", labels=("reason",)
        )
        with self._lock:
            refusals = dict(self._refused)
        for reason, count in sorted(refusals.items()):
            requests.add_metric((reason,), count)
        yield requests


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"hemiola_{name}", what, value=value)


def _by(name: str, what: str, label: str, found: dict[str, float]) -> Metric:
    family = GaugeMetricFamily(f"hemiola_{name}", what, labels=(label,))
    for key, value in found.items():
        family.add_metric((key,), value)
    return family


def _service(status: StatusView) -> Iterator[Metric]:
    yield _by("build_info", "Always 1; the version as a label.", "version", {VERSION: 1})
    run = GaugeMetricFamily(
        "hemiola_run_info",
        "Always 1; what decides as labels.",
        labels=("policy", "fallback", "mode", "engine"),
    )
    run.add_metric((status.policy, status.fallback, status.mode, status.engine), 1)
    yield run
    yield _gauge("leader", "Whether this instance leads.", status.leads)
    yield _gauge("enforcing", "Whether decisions are carried out.", status.mode == "enforce")
    yield _gauge(
        "policy_broken", "Whether the fallback decides as the policy broke.", bool(status.broken_policy)
    )
    if status.kill_switch is not None:
        yield _gauge("kill_switch", "Whether the kill switch is thrown.", status.kill_switch)
    if status.leads:
        yield _gauge("engine_up", "Whether the engine answers.", not status.engine_away)
        if status.turned_s is not None:
            age_s = max(0.0, time.time() - status.turned_s)
            yield _gauge("loop_turn_age_seconds", "Time since the loop last came around.", age_s)


def _cluster(status: StatusView, frame: Frame) -> Iterator[Metric]:
    jobs, gpus = status.jobs, status.gpus
    states: dict[str, float] = {"waiting": jobs.waiting, "held": jobs.held, "running": jobs.running}
    yield _by("jobs", "Jobs that have not ended, by state.", "state", states)
    states = {"free": gpus.free, "used": gpus.used, "blocked": gpus.blocked, "down": gpus.down}
    yield _by("gpus", "GPUs by what they do.", "state", states)
    down = sum(host.down for host in frame.hosts)
    yield _by("hosts", "Hosts by state.", "state", {"up": len(frame.hosts) - down, "down": down})
    waiting = [seen for seen in frame.seen if seen.state == "waiting"]
    yield _gauge("queue_wanted_gpus", "GPUs that all waiting jobs want.", status.wanted_gpus)
    longest_s = max((time.time() - seen.since_s for seen in waiting), default=0.0)
    yield _gauge("queue_longest_wait_seconds", "Present wait of who has waited longest.", max(0.0, longest_s))
    failing = sum(seen.binds_failed > 0 for seen in frame.seen)
    yield _gauge("jobs_bind_failing", "Jobs whose last placement the engine did not take.", failing)
    uplinks = GaugeMetricFamily(
        "hemiola_uplink_predicted_load_ratio", "Predicted load of a switch's uplink over its capacity.",
        labels=("level", "switch"),
    )  # fmt: skip
    for link in frame.links.items:
        if link.kind == "uplink":
            capacity = link.capacity_bytes_per_s
            uplinks.add_metric(
                (link.level, link.of), link.predicted_bytes_per_s / capacity if capacity else 0.0
            )
    yield uplinks
