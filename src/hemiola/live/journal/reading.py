"""What a journal tells. Each piece is read in a short transaction of its own, so that nobody waits for a reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Row, Select, select, tuple_

from hemiola.core.errors import InputError
from hemiola.live.journal.database import Database
from hemiola.live.journal.records import (
    DECISION,
    DECISIONS,
    EVENTS,
    JOB,
    OPENING,
    Instant,
    Intent,
    JournaledJob,
    RunRecord,
    Status,
)
from hemiola.live.journal.tables import INSTANTS, INTENT_IS_OPEN, INTENTS, JOB_IS_OPEN, JOBS, RUNS

__all__ = ["instants", "job", "jobs", "jobs_by_submission", "open_intents", "open_jobs", "run", "runs"]

_PAGE = 256


def open_jobs(database: Database) -> list[JournaledJob]:
    """Every job that has not ended, in order of submission."""
    return _records(database, select(JOBS).where(JOB_IS_OPEN).order_by(JOBS.c.submitted_s, JOBS.c.uuid))


def jobs(
    database: Database,
    since_s: float | None,
    until_s: float | None,
    ended_since_s: float | None,
    user: str | None,
    status: Status | None,
    limit: int | None,
) -> list[JournaledJob]:
    """Jobs by submission, newest first."""
    wanted = select(JOBS).order_by(JOBS.c.submitted_s.desc(), JOBS.c.uuid.desc()).limit(limit)
    if since_s is not None:
        wanted = wanted.where(JOBS.c.submitted_s >= since_s)
    if until_s is not None:
        wanted = wanted.where(JOBS.c.submitted_s < until_s)
    if ended_since_s is not None:
        wanted = wanted.where(JOBS.c.ended_s >= ended_since_s)
    if user is not None:
        wanted = wanted.where(JOBS.c.owner == user)
    if status is not None:
        wanted = wanted.where(JOBS.c.status == status)
    return _records(database, wanted)


def jobs_by_submission(
    database: Database, since_s: float | None, until_s: float | None
) -> Iterator[JournaledJob]:
    """Jobs in order of submission, page by page."""
    wanted = select(JOBS).order_by(JOBS.c.submitted_s, JOBS.c.uuid).limit(_PAGE)
    if since_s is not None:
        wanted = wanted.where(JOBS.c.submitted_s >= since_s)
    if until_s is not None:
        wanted = wanted.where(JOBS.c.submitted_s < until_s)
    page = _records(database, wanted)
    while page:
        yield from page
        after = tuple_(JOBS.c.submitted_s, JOBS.c.uuid) > (page[-1].submitted_s, page[-1].uuid)
        page = _records(database, wanted.where(after))


def job(
    database: Database, name: str, engine_submit_s: float | None, user: str | None
) -> JournaledJob | None:
    """A job by UUID or engine id; of several with that engine id the one submitted last, and that has not ended."""
    if found := _records(database, select(JOBS).where(JOBS.c.uuid == name)):
        return found[0]
    has_ended = JOBS.c.ended_s.is_not(
        None
    )  # one that its user has changed is a new job of the same submission
    newest = JOBS.c.engine_submit_s.desc(), JOBS.c.submitted_s.desc(), has_ended, JOBS.c.uuid
    wanted = select(JOBS).where(JOBS.c.engine_id == name).order_by(*newest).limit(1)
    if engine_submit_s is not None:
        wanted = wanted.where(JOBS.c.engine_submit_s == engine_submit_s)
    if user is not None:
        wanted = wanted.where(JOBS.c.owner == user)
    found = _records(database, wanted)
    return found[0] if found else None


def open_intents(database: Database) -> list[Intent]:
    """Intents whose outcome is not known, in the order in which they were made."""
    wanted = select(INTENTS).where(INTENT_IS_OPEN).order_by(INTENTS.c.id)
    return [
        Intent(
            row.id, row.job, DECISION.decode(row.decision, f"intent {row.id} of {database.name}"), row.state,
            row.epoch, row.made_s, row.outcome,
        )
        for row in _rows(database, wanted)
    ]  # fmt: skip


def runs(database: Database) -> list[RunRecord]:
    """All runs, oldest first."""
    return [_run(database, row) for row in _rows(database, select(RUNS).order_by(RUNS.c.id))]


def run(database: Database, number: int) -> RunRecord:
    """One run."""
    rows = _rows(database, select(RUNS).where(RUNS.c.id == number))
    if not rows:
        raise InputError(f"{database.name} has no run {number}", "look at its runs first")
    return _run(database, rows[0])


def instants(database: Database, number: int, since: int) -> Iterator[Instant]:
    """A run's instants in order, page by page."""
    version = run(database, number).opening.version
    later = (INSTANTS.c.run == number) & (INSTANTS.c.instant >= since)
    wanted = select(INSTANTS).where(later).order_by(INSTANTS.c.instant).limit(_PAGE)
    page = _rows(database, wanted)
    while page:
        for row in page:
            yield _instant(row, f"instant {row.instant} of run {number} of {database.name}", version)
        page = _rows(database, wanted.where(INSTANTS.c.instant > page[-1].instant))


def _instant(row: Row[Any], where: str, version: str) -> Instant:
    decided = row.decisions
    return Instant(
        row.instant,
        EVENTS.decode(row.events, where, version),
        None if decided is None else DECISIONS.decode(decided, where, version),
    )


def _run(database: Database, row: Row[Any]) -> RunRecord:
    opening = OPENING.decode(row.opening, f"run {row.id} of {database.name}")
    return RunRecord(row.id, row.epoch, opening, row.began_s, row.ended_s, row.reason)


def _records(database: Database, wanted: Select[Any]) -> list[JournaledJob]:
    rows = _rows(database, wanted)
    return [JOB.decode(row.record, f"job {row.uuid} of {database.name}") for row in rows]


def _rows(database: Database, wanted: Select[Any]) -> list[Row[Any]]:
    with database.reading() as connection:
        return list(connection.execute(wanted).all())
