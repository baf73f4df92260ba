"""Forgetting what is old, in pieces so short that the run that goes on hardly waits."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Table, and_, delete, select

from hemiola.control.journal.database import Database
from hemiola.control.journal.tables import INSTANTS, INTENTS, JOBS, RUNS

__all__ = ["forget"]

_ROWS = 1000


def forget(database: Database, before_s: float) -> None:
    """Delete runs and jobs that ended before then, and settled intents made before then; give their room back."""
    with database.reading() as connection:
        over = select(RUNS.c.id).where(RUNS.c.ended_s < before_s)
        runs = [int(run) for run in connection.execute(over).scalars()]
    for run in runs:
        _delete(database, INSTANTS, INSTANTS.c.instant, INSTANTS.c.run == run)
        _delete(database, RUNS, RUNS.c.id, RUNS.c.id == run)
    _delete(database, JOBS, JOBS.c.uuid, and_(JOBS.c.status == "ended", JOBS.c.ended_s < before_s))
    _delete(database, INTENTS, INTENTS.c.id, and_(INTENTS.c.state != "open", INTENTS.c.made_s < before_s))
    database.shrink()


def _delete(database: Database, table: Table, key: Any, old: ColumnElement[bool]) -> None:
    some = select(key).where(old).limit(_ROWS)
    while True:
        with database.writing("forget") as connection:
            gone = connection.execute(delete(table).where(old, key.in_(some))).rowcount
        if gone < _ROWS:
            return
