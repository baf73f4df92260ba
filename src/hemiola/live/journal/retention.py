"""Forgetting what is old, in pieces so short that the run that goes on hardly waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, delete, select

from hemiola.live.journal.database import Database
from hemiola.live.journal.tables import INSTANTS, INTENTS, JOBS, RUNS

__all__ = ["forget"]

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
