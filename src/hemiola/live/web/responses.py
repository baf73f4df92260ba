"""From a picture to what the API answers: pure functions, and one object that does each piece of work once."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from math import isfinite

import msgspec

from hemiola.core.decisions import Placement, Start, Stop, asks_engine, placement_of
from hemiola.core.errors import InputError
from hemiola.core.topology import Topology
from hemiola.live.journal import Instant, JournaledJob, RunRecord
from hemiola.live.journal.journal import Journal
from hemiola.live.live_driver import fits
from hemiola.live.query.cluster import RunSoFar, estimate_from
from hemiola.live.web import schema
from hemiola.live.web.snapshots import (
    DecisionNote,
    JobSnapshot,
    Loads,
    Predictor,
    Snapshot,
    seen_impossible,
    seen_in_journal,
    seen_live,
)
from hemiola.trace.topologies.native import read_native

__all__ = [
    "Frame",
    "FreeCapacity",
    "LastNotes",
    "NotThereError",
    "decided",
    "ended_job",
    "ended_page",
    "last_run",
    "notes_of_run",
    "picture_of",
    "run_topology",
]


# What only the journal knows: jobs that have ended, runs, their decisions, and all of it where another
# one leads.


class NotThereError(InputError):
    """Nothing has this name, or not any more."""


def last_run(journal: Journal) -> RunRecord | None:
    """The run that goes on, or was last."""
    runs = journal.runs()
    return runs[-1] if runs else None


def run_topology(run: RunRecord) -> Topology:
    """The cluster of a run: what its placements' numbers mean."""
    return read_native(run.opening.topology, f"run {run.id}")


def picture_of(
    journal: Journal, run: RunRecord | None, topology: Topology, told: RunSoFar, *, leads: bool = False, away: str = ""
) -> Snapshot:  # fmt: skip
    """What the journal says of a cluster that somebody else schedules, or that has not been looked at yet; of hosts it
    knows only who runs there.

    Args:
        told: the run so far.
    """
    jobs = (_as_it_stands(job, topology, told) for job in journal.open_jobs())
    return Snapshot(
        run=run.id if run else None, taken_s=time.time(), topology=topology, jobs=tuple(jobs), masks=None,
        down=(False,) * len(topology.hosts), blocked={}, away=away, last={}, decided=0, leads=leads,
    )  # fmt: skip


def _as_it_stands(job: JournaledJob, topology: Topology, told: RunSoFar) -> JournaledJob:
    """Where it is by this topology, and why it waits or is held: the note that the journal has may be of its last start."""
    if job.placement is not None and not fits(job.placement, topology):
        job = msgspec.structs.replace(job, placement=None)
    if job.status == "held":
        return msgspec.structs.replace(job, note=told.why_held(job))
    if job.status == "waiting":
        return msgspec.structs.replace(job, note=told.put_back.get(job.uuid, ""))
    return job


def ended_page(
    journal: Journal, user: str | None, after: str | None, limit: int
) -> tuple[list[JournaledJob], str | None]:
    """Jobs that have ended, submitted last first; and what to give as `after` for the following ones.

    Args:
        after: UUID of the last job of the page before.
    """
    if after is None:
        found = journal.jobs(user=user, status="ended", limit=limit + 1)
    else:
        last = journal.job(after)
        if last is None:
            raise NotThereError(
                f"the journal has no job {after!r} any more", "begin with the first page again"
            )
        found = _before(journal, user, last, limit + 1)
    page = found[:limit]
    return page, page[-1].uuid if len(found) > limit else None


def _before(journal: Journal, user: str | None, last: JournaledJob, count: int) -> list[JournaledJob]:
    """Many jobs may have been submitted in one second: ask for more until there are enough behind the last one."""
    until_s, asked = math.nextafter(last.submitted_s, math.inf), count + 1
    while True:
        rows = journal.jobs(until_s=until_s, user=user, status="ended", limit=asked)
        rest = [row for row in rows if (row.submitted_s, row.uuid) < (last.submitted_s, last.uuid)]
        if len(rest) >= count or len(rows) < asked:
            return rest[:count]
        asked *= 2


def notes_of_run(
    journal: Journal, run: int, *, before: int | None = None, job: str | None = None, limit: int
) -> list[DecisionNote]:
    """The last decisions of a run, oldest first. It is read from its beginning.

    Args:
        before: only those with a smaller number.
        job: only those about it, by UUID.
    """
    kept: deque[DecisionNote] = deque(maxlen=limit)
    for note in _notes(journal, run):
        if before is not None and note.number >= before:
            break
        if job is None or note.decision.job_id == job:
            kept.append(note)
    return list(kept)


class LastNotes:
    """The last decisions that the journal has: each reading takes up where the one before has ended.

    Attributes:
        run: the last that was read; -1 before the first.
    """

    def __init__(self, most: int) -> None:
        self.run, self._since, self._number = -1, 0, 0
        self._notes: deque[DecisionNote] = deque(maxlen=most)

    def read(self, journal: Journal) -> list[DecisionNote]:
        """Oldest first; of the runs before the first reading only those of the last one."""
        runs = [run.id for run in journal.runs()]
        for run in runs[-1:] if self.run < 0 else [run for run in runs if run >= self.run]:
            if run != self.run:
                self.run, self._since, self._number = run, 0, 0
            for instant in journal.instants(run, since=self._since):
                if instant.decisions is None:  # perhaps not yet
                    self._since = instant.instant
                    continue
                found = list(_noted(run, self._number, instant))
                self._notes += found
                self._number += len(found)
                self._since = instant.instant + 1
        return list(self._notes)


def _notes(journal: Journal, run: int) -> Iterator[DecisionNote]:
    number = 0
    for instant in journal.instants(run):
        for note in _noted(run, number, instant):
            yield note
            number += 1


def _noted(run: int, number: int, instant: Instant) -> Iterator[DecisionNote]:
    """An instant's decisions, timers left out; `number` is that of the first."""
    made = [(decision, refused) for decision, refused in instant.decisions or () if asks_engine(decision)]
    time_s = instant.events[0].time_s if instant.events else 0.0
    for place, (decision, refused) in enumerate(made, number):
        yield DecisionNote(run, place, time_s, decision, refused, None)


# Why a job waits, in one sentence, from what a picture shows. Knows no policy.


class FreeCapacity:
    """What is free in a picture, for the question whether a job would fit.

    Args:
        free: per host the free GPUs that can be used.
    """

    def __init__(self, topology: Topology, free: Sequence[int]) -> None:
        self._topology, self._free = topology, free
        self._answers: dict[tuple[int, str, str, int], str] = {}

    def why(self, seen: JobSnapshot, last: DecisionNote | None, ahead: int) -> str:
        """The engine's own word, or the policy's last one about it, or what it lacks; and what its user seems not to know.

        Args:
            ahead: how many waiting jobs arrived before it.
        """
        why = self._why(seen, last, ahead)
        return f"{why}; {seen.misread}" if seen.misread else why

    def _why(self, seen: JobSnapshot, last: DecisionNote | None, ahead: int) -> str:
        if seen.note:
            return seen.note
        if last is not None and isinstance(last.decision, Stop) and not last.refused:
            return f"stopped: {last.decision.reason}"
        if last is not None and isinstance(last.decision, Start) and last.refused:
            return f"its start was refused: {last.refused}"
        return (
            self._lack(seen)
            or seen.shortage
            or (
                f"it would fit, and the policy has it wait; {ahead:,} arrived before it"
                if ahead
                else "it would fit, and the policy has it wait"
            )
        )

    def _lack(self, seen: JobSnapshot) -> str:
        job = seen.job
        key = job.gpus, job.gpu_type, job.required, job.hosts
        if key not in self._answers:
            self._answers[key] = self._work_out(*key)
        return self._answers[key]

    def _work_out(self, gpus: int, gpu_type: str, required: str, hosts: int) -> str:
        """What is missing, or ""."""
        names = self._topology.hosts.gpu_types
        kinds = [gpu_type] if gpu_type else list(self._topology.gpu_types)
        free = {kind: sum(n for n, k in zip(self._free, names, strict=True) if k == kind) for kind in kinds}
        most = max(free.values(), default=0)
        of_type = f" of type {gpu_type}" if gpu_type else ""
        if most < gpus:
            return f"it wants {_count(gpus)}{of_type}, and {_are_free(most)}: {gpus - most} short"
        fits = [self._fullest(kind, required, gpus, hosts) for kind in kinds if free[kind] >= gpus]
        best = max(fits)
        if best >= gpus:
            return ""
        per_host = f", {gpus // hosts} on each of {hosts} hosts" if hosts > 1 else ""
        where = f"one {required}" if required and required != "cluster" else "one host" if hosts == 1 else ""
        within = f" within {where}" if where else ""
        return (
            f"it wants {_count(gpus)}{of_type}{per_host}{within}; {_are_free(most)}, but only {best} that way"
        )

    def _fullest(self, kind: str, required: str, gpus: int, hosts: int) -> int:
        """The most such GPUs that one domain could give it."""
        each = gpus // hosts if hosts else 0
        totals: dict[int, list[int]] = {}
        for host, (free, its) in enumerate(zip(self._free, self._topology.hosts.gpu_types, strict=True)):
            if its == kind and free:
                totals.setdefault(self._domain(host, required, hosts), []).append(free)
        if not hosts:
            return max((sum(found) for found in totals.values()), default=0)
        able = [sorted((min(free, each) for free in found), reverse=True) for found in totals.values()]
        return max((sum(found[:hosts]) for found in able), default=0)

    def _domain(self, host: int, required: str, hosts: int) -> int:
        tier = 0 if hosts == 1 else self._topology.tier_index(required or "cluster")
        if tier == 0:
            return host
        levels = self._topology.levels
        return int(levels[tier - 1].domain_of_host[host]) if tier <= len(levels) else 0


def _count(gpus: int) -> str:
    return "1 GPU" if gpus == 1 else f"{gpus} GPUs"


def _are_free(gpus: int) -> str:
    return {0: "none is free", 1: "1 is free"}.get(gpus, f"{gpus} are free")


OLD_S = 60.0
"""Counters that were told so long ago tell nothing of now."""


def bits(mask: int) -> tuple[int, ...]:
    """GPUs by number.

    Example:
        >>> bits(0b101)
        (0, 2)
    """
    return tuple(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)


def _parts(topology: Topology | None, placement: object) -> tuple[schema.JobPart, ...]:
    if topology is None or not isinstance(placement, Placement):
        return ()
    names = topology.hosts.names
    return tuple(
        schema.JobPart(names[host] if host < len(names) else f"host {host}", bits(mask))
        for host, mask in zip(placement.hosts, placement.masks, strict=True)
    )


def decided(topology: Topology | None, note: DecisionNote, who: tuple[str, str]) -> schema.Decided:
    """A decision as the API tells it; `who` has the engine's id and the name of its job."""
    decision = note.decision
    return schema.Decided(
        id=f"{note.run}-{note.number}", time_s=note.time_s, kind=type(decision).__name__.lower(),
        job=decision.job_id, engine_id=who[0], name=who[1],
        placement=_parts(topology, placement_of(decision)), reason=decision.reason, refused=note.refused,
    )  # fmt: skip


def _job(
    topology: Topology | None,
    seen: JobSnapshot,
    now_s: float,
    why: str,
    speed: tuple[float | None, float | None],
) -> schema.JobView:
    since_s, lasts_s = seen.since_s, max(0.0, now_s - seen.since_s)
    running, ended = seen.state == "running", seen.state == "ended"
    declared_s = None if estimate_from(seen.job) == "default" else seen.job.duration_s
    return schema.JobView(
        id=seen.job.id, engine_id=seen.engine_id, user=seen.user, name=seen.name, model=seen.job.model,
        state=seen.state, gpus=seen.job.gpus, required=seen.job.required, submitted_s=seen.submitted_s,  # type: ignore[arg-type]
        since_s=since_s, first_started_s=seen.first_started_s, ended_s=seen.ended_s, outcome=seen.outcome, why=why,
        placement=_parts(topology, seen.placement), served_s=seen.served_s + (lasts_s if running else 0.0),
        queued_s=seen.queued_s + seen.withheld_s + (0.0 if running or ended else lasts_s), declared_s=declared_s,
        preemptions=seen.preemptions, migrations=seen.migrations, binds_failed=seen.binds_failed,
        predicted_iteration_s=speed[0], predicted_slowdown=speed[1], measured_iteration_s=seen.iteration_s,
    )  # fmt: skip


def ended_job(topology: Topology | None, record: JournaledJob) -> schema.JobView:
    """A job that only the journal knows any more; `topology` is that of the run in which it ended, None if that is unknown."""
    return _job(topology, seen_in_journal(record), record.since_s, record.note, (None, None))


class Frame:
    """All that can be said of one picture, each part worked out at the first question."""

    def __init__(self, number: int, picture: Snapshot, predictor: Predictor) -> None:
        self.number, self.picture = number, picture
        self._predictor = predictor
        self.topology = picture.topology

    @cached_property
    def seen(self) -> list[JobSnapshot]:
        """Jobs that have not ended, in order of arrival; then those that could never run."""
        seen = [
            seen_in_journal(job)
            if isinstance(job, JournaledJob)
            else seen_live(*job, self.picture.shortages.get(job[0].id, ""))
            for job in self.picture.jobs
        ]
        return seen + [seen_impossible(*job) for job in self.picture.impossible]

    @cached_property
    def _index(self) -> dict[str, int]:
        by_engine = {seen.engine_id: index for index, seen in enumerate(self.seen)}
        return {**by_engine, **{seen.job.id: index for index, seen in enumerate(self.seen)}}

    @cached_property
    def engine_ids(self) -> dict[str, str]:
        """By UUID, of jobs whose id the engine has told."""
        return {seen.job.id: seen.engine_id for seen in self.seen if seen.engine_id}

    @cached_property
    def _running(self) -> list[int]:
        return [index for index, seen in enumerate(self.seen) if seen.state == "running"]

    @cached_property
    def loads(self) -> Loads:
        """What the cost model predicts."""
        return self._predictor.predict([self.seen[index] for index in self._running])

    @cached_property
    def _speeds(self) -> dict[int, tuple[float | None, float | None]]:
        found = self.loads.speeds.items()
        return {self._running[index]: (speed.iteration_s, speed.slowdown) for index, speed in found}

    @cached_property
    def _free_masks(self) -> list[int]:
        """Per host the GPUs that can be given away."""
        if self.picture.masks is not None:
            return [
                0 if down else mask for mask, down in zip(self.picture.masks, self.picture.down, strict=True)
            ]
        masks = [(1 << int(count)) - 1 for count in self.topology.hosts.gpus]
        for index in self._running:
            if isinstance(place := self.seen[index].placement, Placement):
                for host, mask in zip(place.hosts, place.masks, strict=True):
                    masks[host] &= ~mask
        return masks

    @cached_property
    def _room(self) -> FreeCapacity:
        return FreeCapacity(self.topology, [mask.bit_count() for mask in self._free_masks])

    @cached_property
    def _ahead(self) -> dict[int, int]:
        waiting = [index for index, seen in enumerate(self.seen) if seen.state == "waiting"]
        return {index: ahead for ahead, index in enumerate(waiting)}

    # ---- jobs

    def find(self, name: str) -> int | None:
        """A job by UUID or by the engine's id."""
        return self._index.get(name)

    def job(self, index: int, now_s: float) -> schema.JobView:
        """One of `seen`."""
        seen = self.seen[index]
        last = self.picture.last.get(seen.job.id)
        if seen.state == "waiting":
            why = self._room.why(seen, last, self._ahead[index])
        else:
            why = seen.note or (last.decision.reason if last is not None else "")
        return _job(self.topology, seen, now_s, why, self._speeds.get(index, (None, None)))

    def jobs(
        self, wanted: Callable[[JobSnapshot], bool], after: str | None, limit: int, now_s: float
    ) -> schema.Jobs:
        """A page of those that are wanted, in order of arrival."""
        all_of_them = [index for index, seen in enumerate(self.seen) if wanted(seen)]
        start = 0
        if after is not None:
            if after not in self._index:
                raise NotThereError(f"the job {after!r} has ended since", "begin with the first page again")
            start = self._index[after] + 1
        rest = [index for index in all_of_them if index >= start]
        items = tuple(self.job(index, now_s) for index in islice(rest, limit))
        return schema.Jobs(items, items[-1].id if len(rest) > limit else None, len(all_of_them))

    # ---- hosts

    @cached_property
    def hosts(self) -> tuple[schema.Host, ...]:
        """In the topology's order."""
        on: dict[int, list[schema.JobOnHost]] = {}
        for index in self._running:
            seen = self.seen[index]
            if isinstance(place := seen.placement, Placement):
                for host, mask in zip(place.hosts, place.masks, strict=True):
                    on.setdefault(host, []).append(schema.JobOnHost(seen.job.id, seen.engine_id, bits(mask)))
        hosts = self.topology.hosts
        groups = self._group_names
        return tuple(
            schema.Host(
                name=name, gpu_type=hosts.gpu_types[host], gpus=int(hosts.gpus[host]), free=bits(self._free_masks[host]),
                blocked=bits(self.picture.blocked.get(host, 0)), down=bool(self.picture.down[host]),
                jobs=tuple(on.get(host, ())), group=groups[host],
            )
            for host, name in enumerate(hosts.names)
        )  # fmt: skip

    @cached_property
    def _group_names(self) -> list[str]:
        if not self.topology.levels:
            return [self.topology.name] * len(self.topology.hosts)
        level = self.topology.levels[0]
        return [level.domains[int(domain)] for domain in level.domain_of_host]

    @cached_property
    def cluster(self) -> schema.Cluster:
        """Hosts by the narrowest switch above them."""
        levels, members = self.topology.levels, _grouped(self._group_names)
        groups = [
            schema.Group(
                name=name, level=levels[0].name if levels else "cluster",
                within=tuple(level.domains[int(level.domain_of_host[hosts[0]])] for level in levels[1:]),
                hosts=tuple(self.hosts[host] for host in hosts),
            )
            for name, hosts in members.items()
        ]  # fmt: skip
        return schema.Cluster(snapshot=self.number, name=self.topology.name, groups=tuple(groups))

    @cached_property
    def gpus(self) -> schema.GpuCounts:
        """GPUs by what they do."""
        free = blocked = down = 0
        for host in self.hosts:
            free += len(host.free)
            if host.down:
                down += host.gpus
            else:
                blocked += len(host.blocked)
        return schema.GpuCounts(free, self.topology.gpus - free - blocked - down, blocked, down)

    @cached_property
    def counts(self) -> schema.JobCounts:
        """Jobs by state."""
        found = Counter(seen.state for seen in self.seen)
        return schema.JobCounts(found["waiting"], found["held"], found["running"])

    @cached_property
    def wanted_gpus(self) -> int:
        """What all waiting jobs want."""
        return sum(seen.job.gpus for seen in self.seen if seen.state == "waiting")

    # ---- links

    @cached_property
    def links(self) -> schema.Links:
        """Predicted loads of all links."""
        loads, names, capacities = self.loads, self._predictor.names, self._predictor.capacities_bytes_per_s
        items = []
        for link, (level, of) in enumerate(_places(self.topology)):
            on = sorted(loads.sent.get(link, ()), key=lambda sent: -sent[1])
            whose = [(self.seen[self._running[index]], rate) for index, rate in on]
            items.append(
                schema.Link(
                    name=names[link], kind="nic" if level == "host" else "uplink", level=level, of=of,
                    capacity_bytes_per_s=capacities[link] if isfinite(capacities[link]) else None,
                    predicted_bytes_per_s=sum(rate for _, rate in whose),
                    measured_bytes_per_s=self._counted(of) if level == "host" else None,
                    jobs=tuple(schema.JobOnLink(seen.job.id, seen.engine_id, rate) for seen, rate in whose),
                )
            )  # fmt: skip
        return schema.Links(
            snapshot=self.number, predicted=True, unknown_jobs=loads.unknown, items=tuple(items)
        )

    def _counted(self, host: str) -> float | None:
        report = self.picture.counters.get(host)
        if report is None or abs(self.picture.taken_s - report.time_s) > OLD_S:
            return None
        return max(report.sent_bytes_per_s, report.received_bytes_per_s)


def _places(topology: Topology) -> Iterable[tuple[str, str]]:
    """(level, name) of each link, in the cost model's order."""
    yield from (("host", name) for name in topology.hosts.names)
    for level in topology.levels:
        yield from ((level.name, domain) for domain in level.domains)


def _grouped(names: Sequence[str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for host, name in enumerate(names):
        groups.setdefault(name, []).append(host)
    return groups
