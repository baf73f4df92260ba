"""What only the journal knows: jobs that have ended, runs, their decisions, and all of it where another one leads."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator

import msgspec

from hemiola.live.journal import Instant, JournaledJob, RunRecord
from hemiola.live.journal.journal import Journal
from hemiola.live.placements import fits
from hemiola.live.query.run_state import RunSoFar
from hemiola.live.web.snapshots import DecisionNote, Picture
from hemiola.core.decisions import asks_engine
from hemiola.core.errors import InputError
from hemiola.core.topology import Topology
from hemiola.trace.topologies.native import read_native

__all__ = [
    "LastNotes",
    "NotThereError",
    "ended_page",
    "last_run",
    "notes_of_run",
    "picture_of",
    "run_topology",
]


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
) -> Picture:  # fmt: skip
    """What the journal says of a cluster that somebody else schedules, or that has not been looked at yet; of hosts it
    knows only who runs there.

    Args:
        told: the run so far.
    """
    jobs = (_as_it_stands(job, topology, told) for job in journal.open_jobs())
    return Picture(
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
