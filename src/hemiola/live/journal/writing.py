"""What a run writes: its opening, events, decisions, intents and jobs. Functions of a connection in a transaction.

Only who leads writes, and each write may be made again after an error that left open whether it was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Table, and_, bindparam, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from hemiola.core.decisions import Decision, asks_engine, parts
from hemiola.core.errors import InternalError
from hemiola.core.events import Event
from hemiola.live.journal.database import Database
from hemiola.live.journal.records import (
    DECISION,
    DECISIONS,
    EVENTS,
    JOB,
    OPENING,
    Deposed,
    Intent,
    IntentState,
    JournaledJob,
    Leader,
    Opening,
)
from hemiola.live.journal.tables import INSTANTS, INTENTS, JOBS, LEASE, RUNS

__all__ = [
    "add_decisions",
    "add_events",
    "begin_run",
    "check_leads",
    "end_run",
    "forget",
    "lead",
    "leader",
    "renew",
    "resign",
    "settle",
]


# Who leads: one row, whose epoch grows with each new leader. Functions of a connection in a transaction.


def lead(connection: Connection, holder: str, now_s: float, ttl_s: float) -> int | None:
    """Take the lease unless somebody else's holds; the new epoch."""
    row = _lease(connection)
    if row.holder not in ("", holder) and row.until_s > now_s:
        return None
    connection.execute(update(LEASE).values(holder=holder, epoch=row.epoch + 1, until_s=now_s + ttl_s))
    return int(row.epoch) + 1


def renew(connection: Connection, epoch: int, now_s: float, ttl_s: float) -> bool:
    """Hold the lease longer; whether it is still this epoch's."""
    row = _lease(connection)
    if not row.holder or row.epoch != epoch:
        return False
    connection.execute(update(LEASE).values(until_s=now_s + ttl_s))
    return True


def resign(connection: Connection, epoch: int) -> None:
    """Give the lease back, if it is this epoch's."""
    connection.execute(update(LEASE).where(LEASE.c.epoch == epoch).values(holder="", until_s=0.0))


def leader(connection: Connection) -> Leader | None:
    """Who has the lease; it may be over."""
    row = connection.execute(select(LEASE)).one()
    return Leader(row.holder, row.epoch, row.until_s) if row.holder else None


def check_leads(connection: Connection, epoch: int) -> None:
    """Raise Deposed unless this epoch leads; nobody else can lead before the transaction ends."""
    row = _lease(connection)
    if not row.holder or row.epoch != epoch:
        raise Deposed(epoch, row.holder, row.epoch)


def _lease(connection: Connection) -> Row[int, str, int, float]:
    return connection.execute(select(LEASE).with_for_update()).one()


CUT_OFF = "its daemon stopped without a word"
Answered = Sequence[tuple[Decision, str]]


def begin_run(
    connection: Connection, epoch: int, opening: Opening, now_s: float, jobs: Iterable[JournaledJob]
) -> int:
    """A new run, and the jobs as it has them; one that was never ended ends now."""
    check_leads(connection, epoch)
    _end(connection, None, CUT_OFF, now_s)
    _upsert_jobs(connection, jobs)
    values = {"epoch": epoch, "opening": OPENING.encode(opening), "began_s": now_s, "reason": ""}
    return int(connection.execute(insert(RUNS).values(values).returning(RUNS.c.id)).scalar_one())


def end_run(connection: Connection, run: int, reason: str, now_s: float) -> None:
    """End a run, unless it has ended."""
    _end(connection, run, reason, now_s)


def _end(connection: Connection, run: int | None, reason: str, now_s: float) -> None:
    ending = update(RUNS).where(RUNS.c.ended_s.is_(None))
    if run is not None:
        ending = ending.where(RUNS.c.id == run)
    connection.execute(ending.values(ended_s=now_s, reason=reason))


def _check_run(connection: Connection, run: int) -> int:
    """The epoch of a run that goes on and may be written to."""
    row = connection.execute(select(RUNS.c.epoch, RUNS.c.ended_s).where(RUNS.c.id == run)).one_or_none()
    if row is None:
        raise InternalError(f"the journal has no run {run}", "begin one first")
    check_leads(connection, row.epoch)
    if row.ended_s is not None:
        raise InternalError(f"run {run} of the journal has ended", "begin another")
    return int(row.epoch)


def add_events(
    connection: Connection, run: int, instant: int, events: Sequence[Event], jobs: Iterable[JournaledJob]
) -> None:
    """An instant's events, and the jobs as they are after them."""
    _check_run(connection, run)
    told = EVENTS.encode(tuple(events))
    values = {"run": run, "instant": instant, "events": told}
    adding = _insert(connection, INSTANTS).on_conflict_do_nothing().returning(INSTANTS.c.instant)
    if connection.execute(adding, values).first() is None:
        found = connection.execute(_at(select(INSTANTS.c.events), run, instant)).scalar_one()
        _check_same(found, told, run, instant)
    _upsert_jobs(connection, jobs)


def add_decisions(
    connection: Connection,
    run: int,
    instant: int,
    decisions: Answered,
    jobs: Iterable[JournaledJob],
    *,
    intents: bool,
    now_s: float,
) -> list[Intent]:
    """What was decided at an instant; with `intents` an open one for each decision that an engine carries out."""
    epoch = _check_run(connection, run)
    text = DECISIONS.encode(tuple(decisions))
    decided = _at(update(INSTANTS).where(INSTANTS.c.decisions.is_(None)), run, instant).values(decisions=text)
    again = not connection.execute(decided).rowcount
    if again:
        found = connection.execute(_at(select(INSTANTS.c.decisions), run, instant)).scalar_one_or_none()
        _check_same(found, text, run, instant)
    _upsert_jobs(connection, jobs)
    wanted = [
        part
        for whole, refused in decisions
        if intents and not refused
        for part in parts(whole)
        if asks_engine(part)
    ]
    if not wanted:
        return []
    rows = [
        {
            "run": run, "instant": instant, "job": decision.job_id, "decision": DECISION.encode(decision),
            "state": "open", "epoch": epoch, "made_s": now_s, "outcome": "",
        }
        for decision in wanted
    ]  # fmt: skip
    ids = _written(connection, run, instant) if again else _write(connection, rows)
    return [Intent(id, d.job_id, d, "open", epoch, now_s) for id, d in zip(ids, wanted, strict=True)]


def _write(connection: Connection, rows: list[dict[str, Any]]) -> Sequence[int]:
    adding = insert(INTENTS).returning(INTENTS.c.id, sort_by_parameter_order=True)
    return connection.execute(adding, rows).scalars().all()


def _written(connection: Connection, run: int, instant: int) -> Sequence[int]:
    return (
        connection.execute(_at(select(INTENTS.c.id), run, instant, INTENTS).order_by(INTENTS.c.id))
        .scalars()
        .all()
    )


def settle(
    connection: Connection, outcomes: Iterable[tuple[int, IntentState, str]], epoch: int | None
) -> None:
    """How open intents ended; what was settled before stays as it is."""
    if epoch is not None:
        check_leads(connection, epoch)
    answers = [{"number": number, "now": state, "words": words} for number, state, words in outcomes]
    this = update(INTENTS).where(INTENTS.c.id == bindparam("number"), INTENTS.c.state == "open")
    connection.execute(this.values(state=bindparam("now"), outcome=bindparam("words")), answers)


def _at(statement: Any, run: int, instant: int, table: Table = INSTANTS) -> Any:
    return statement.where(table.c.run == run, table.c.instant == instant)


def _check_same(found: str | None, text: str, run: int, instant: int) -> None:
    if found is None:
        raise InternalError(f"run {run} has no instant {instant}", "record its events first")
    if found != text:
        raise InternalError(f"instant {instant} of run {run} is written already, and otherwise", "count on")


def _insert(connection: Connection, table: Table) -> Any:
    return (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)


def _upsert_jobs(connection: Connection, jobs: Iterable[JournaledJob]) -> None:
    rows = [
        {
            "uuid": job.uuid, "engine_id": job.engine_id, "engine_submit_s": job.engine_submit_s,
            "owner": job.user, "status": job.status, "submitted_s": job.submitted_s,
            "ended_s": job.ended_s, "record": JOB.encode(job),
        }
        for job in jobs
    ]  # fmt: skip
    if rows:
        adding = _insert(connection, JOBS)
        new = {column.name: adding.excluded[column.name] for column in JOBS.c if column.name != "uuid"}
        connection.execute(adding.on_conflict_do_update(index_elements=["uuid"], set_=new), rows)


# Forgetting what is old, in pieces so short that the run that goes on hardly waits.

_ROWS = 1000


def forget(database: Database, before_s: float, go_on: Callable[[], bool]) -> None:
    """Delete runs and jobs that ended before then, and settled intents made before then; give their room back."""
    with database.reading() as connection:
        over = select(RUNS.c.id).where(RUNS.c.ended_s < before_s)
        runs = [int(run) for run in connection.execute(over).scalars()]
    old: list[tuple[Table, Any, ColumnElement[bool]]] = []
    for run in runs:
        old.append((INSTANTS, INSTANTS.c.instant, INSTANTS.c.run == run))
        old.append((RUNS, RUNS.c.id, RUNS.c.id == run))
    old.append((JOBS, JOBS.c.uuid, and_(JOBS.c.status == "ended", JOBS.c.ended_s < before_s)))
    old.append((INTENTS, INTENTS.c.id, and_(INTENTS.c.state != "open", INTENTS.c.made_s < before_s)))
    if all(_delete(database, *rows, go_on) for rows in old):
        database.shrink(go_on)


def _delete(
    database: Database, table: Table, key: Any, old: ColumnElement[bool], go_on: Callable[[], bool]
) -> bool:
    """All of these; False if it was not to go on."""
    some = select(key).where(old).limit(_ROWS)
    gone = _ROWS
    while gone == _ROWS:
        with database.writing("forget") as connection:
            gone = connection.execute(delete(table).where(old, key.in_(some))).rowcount
        if not go_on():
            return False
    return True
