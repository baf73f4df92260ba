"""What happened to one job, from its submission on, as the journal's events and decisions have it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

import msgspec

from hemiola.core.decisions import (
    Align,
    Decision,
    Lend,
    Move,
    Pace,
    Placement,
    Reallocate,
    Reclaim,
    Resize,
    Scale,
    Start,
    Stop,
    WakeAt,
    parts,
)  # fmt: skip
from hemiola.core.events import (
    Adopted,
    Arrived,
    Blocked,
    Event,
    Failed,
    Finished,
    Held,
    LinkFeedback,
    Load,
    Measured,
    NodeBack,
    NodeLost,
    Profiled,
    Released,
    ReplicaLost,
    ReplicaReady,
    Requeued,
    ResourcesOffered,
    ResourcesRequested,
    Started,
    Timer,
    Undone,
    job_of,
)
from hemiola.core.hostlist import compress
from hemiola.core.job import Elastic
from hemiola.core.topology import Topology
from hemiola.live.journal import Instant, Journal, JournaledJob, RunRecord
from hemiola.live.live_driver import is_same_place, renumbered
from hemiola.live.query.cluster import Names, host_names
from hemiola.trace.topologies.native import read_native

__all__ = ["Moment", "place_text", "story"]


class Moment(msgspec.Struct, frozen=True):
    """Something that happened to a job.

    Attributes:
        time_s: Unix time.
        text: a sentence, with jobs by the engine's ids.
        times: how often it was said in a row.
        due_s: when it will be looked at again.
    """

    time_s: float
    text: str
    times: int = 1
    due_s: float | None = None


def story(journal: Journal, record: JournaledJob, names: Names) -> list[Moment]:
    """In order of time.

    Raises:
        JournalError: the journal cannot be read, or another version wrote it.
    """
    moments: list[Moment] = []
    until_s = float("inf") if record.ended_s is None else record.ended_s
    where: Placement | None = None
    before: Topology | None = None
    for run in journal.runs():
        ended_s = float("inf") if run.ended_s is None else run.ended_s
        if ended_s < record.submitted_s or run.began_s > until_s:
            continue
        topology = read_native(run.opening.topology, journal.name)
        where = renumbered(where, before or topology, topology)
        chapter = _Chapter(record, run, topology, names, where)
        for instant in journal.instants(run.id):
            for moment in chapter.instant(instant):
                _add(moments, moment)
        where, before = chapter.where, topology
    return moments


def place_text(placement: Placement, topology: Topology) -> str:
    """ "h[0-1], 8 GPUs each, within rack rack0"."""
    hosts = host_names(placement, topology)
    counts = {gpus for _, gpus in hosts}
    text = compress([name for name, _ in hosts])
    each = f"{counts.pop()} GPU" if len(counts) == 1 else f"{placement.gpus} GPU"
    each += "" if each.startswith("1 ") else "s"
    if len(hosts) == 1:
        return f"{text} ({each})"
    tier = topology.span(placement.hosts)
    name = topology.tiers[tier]
    inside = "the cluster" if tier > len(topology.levels) else f"one {name}"
    return f"{text} ({each}{' each' if len({g for _, g in hosts}) == 1 else ''}, within {inside})"


def _add(moments: list[Moment], moment: Moment) -> None:
    """What was said last is counted, not repeated."""
    if moments and moments[-1].text == moment.text:
        last = moments[-1]
        moments[-1] = Moment(last.time_s, last.text, last.times + 1, moment.due_s)
    else:
        moments.append(moment)


class _Chapter:
    """One run's part of it."""

    def __init__(
        self, record: JournaledJob, run: RunRecord, topology: Topology, names: Names, where: Placement | None
    ) -> None:
        self._record, self._topology, self._names = record, topology, names
        self._observes = run.opening.mode != "enforce"
        self._policy = run.opening.policy
        self.where = where

    def instant(self, instant: Instant) -> Iterator[Moment]:
        """What of it is about the job."""
        for event in instant.events:
            if text := self._event(event):
                yield Moment(event.time_s, self._names.told(text))
        now_s = instant.events[0].time_s
        made = tuple((part, why) for whole, why in instant.decisions or () for part in parts(whole))
        where = self.where
        for decision, refused in made:
            if decision.job_id == self._record.uuid:
                for text in self._decision(decision, refused, made):
                    due_s = decision.time_s if isinstance(decision, WakeAt) else None
                    yield Moment(now_s, self._names.told(text), due_s=due_s)
        if self._observes:
            self.where = where  # nothing of it was carried out

    def _event(self, event: Event) -> str:
        if isinstance(event, NodeLost):
            if self.where is None or event.host not in self.where.hosts:
                return ""
            self.where = None
            return f"lost host {self._topology.hosts.names[event.host]}, and went back to the queue"
        return self._own(event) if job_of(event) == self._record.uuid else ""

    def _appears(self, event: Arrived | Adopted) -> str:
        if isinstance(event, Arrived):
            job = event.job
            on = f" on {job.hosts} host{'s' * (job.hosts != 1)}" if job.hosts else ""
            limits = f", within one {job.required}" if job.required else ""
            sizes = f", could run on {job.sizes[0]} to {job.sizes[-1]}" if isinstance(job, Elastic) else ""
            return f"submitted: wants {job.gpus} GPU{'s' * (job.gpus != 1)}{on}{sizes}{limits}"
        before, self.where = self.where, event.placement
        if event.placement is None:
            return "was found waiting when Hemiola began anew" if before else ""
        if is_same_place(before, event.placement):
            return ""
        return f"was found running on {self._place(event.placement)} when Hemiola began anew"

    def _own(self, event: Event) -> str:
        match event:
            case Arrived() | Adopted():
                return self._appears(event)
            case Started():
                return self._starts(event)
            case Requeued():
                self.where = None
                return f"went back to the queue: {event.reason}"
            case Held():
                return f"may not start for now: {event.reason}"
            case Released():
                return "may start again"
            case Measured():
                return "was suspended" if event.speed == 0 else ""
            case Failed():
                self.where = None
                return f"ended: {event.reason}"
            case Finished():
                self.where = None
                return "finished"
            case (
                Timer() | Profiled() | Undone() | NodeLost() | NodeBack() | Blocked() | ResourcesOffered() | ResourcesRequested()
                | ReplicaReady() | ReplicaLost() | Load() | LinkFeedback()
            ):  # fmt: skip
                return ""
            case _:
                assert_never(event)

    def _starts(self, event: Started) -> str:
        if event.placement is None:
            return "runs there: the engine has confirmed it"
        self.where = event.placement
        return f"was started on {self._place(event.placement)} by the engine itself"

    def _decision(
        self, decision: Decision, refused: str, made: tuple[tuple[Decision, str], ...]
    ) -> Iterator[str]:
        would = f"{self._policy}, which only looks on, would have " if self._observes else ""
        if refused:
            kind = type(decision).__name__.lower()
            yield f"a {kind} was refused: {refused} (the policy's reason was: {decision.reason})"
            return
        match decision:
            case Start():
                yield self._goes(f"{would}started on", decision)
            case Move():
                yield self._goes(f"{would}moved to", decision)
            case Resize():
                yield self._goes(f"{would}resized to", decision)
            case Stop():
                it = " it" if would else ""
                yield f"{would or 'was '}pre-empted{it}: {decision.reason}{self._takers(made)}"
                if not self._observes:
                    self.where = None
            case WakeAt():
                if self.where is None:
                    yield f"kept waiting, to be looked at again: {decision.reason}"
            case Align():
                yield f"sends {decision.offset_s:g} s later on link {decision.link}: {decision.reason}"
            case Scale() | Lend() | Reclaim() | Reallocate():
                pass  # about no job of this kind, or taken apart before
            case Pace():
                yield f"got weight {decision.weight:g} on the links it shares: {decision.reason}"
            case _:
                assert_never(decision)

    def _goes(self, verb: str, decision: Start | Move | Resize) -> str:
        self.where = decision.placement
        return f"{verb} {self._place(decision.placement)}: {decision.reason}"

    def _takers(self, made: tuple[tuple[Decision, str], ...]) -> str:
        """Who started at that moment on the hosts that it left."""
        if self.where is None:
            return ""
        left = set(self.where.hosts)
        took = [
            self._names.of(decision.job_id)
            for decision, refused in made
            if isinstance(decision, Start | Move) and not refused and decision.job_id != self._record.uuid
            and left & set(decision.placement.hosts)
        ]  # fmt: skip
        return f"; job {', '.join(took)} started there at that moment" if took else ""

    def _place(self, placement: Placement) -> str:
        return place_text(placement, self._topology)
