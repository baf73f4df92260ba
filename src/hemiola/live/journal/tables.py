"""The journal's tables as they are at the newest schema; `migrations` makes them so.

Values stand as JSON text (`records`); the columns beside them are there to find them by.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeDecorator

__all__ = ["INSTANTS", "INTENTS", "INTENT_IS_OPEN", "JOBS", "JOB_IS_OPEN", "LEASE", "METADATA", "RUNS"]


class _Words(TypeDecorator[str]):
    """Text from outside. PostgreSQL takes no NUL, and neither database takes what is no Unicode."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if not isinstance(value, str):
            return value
        return value.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


_NUMBER = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only in an INTEGER
METADATA = MetaData()

LEASE = Table(
    "lease", METADATA,
    Column("id", Integer, primary_key=True),
    Column("holder", _Words, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("until_s", Double, nullable=False),
)  # fmt: skip

RUNS = Table(
    "runs", METADATA,
    Column("id", _NUMBER, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("opening", Text, nullable=False),
    Column("began_s", Double, nullable=False),
    Column("ended_s", Double),
    Column("reason", _Words, nullable=False),
    sqlite_autoincrement=True,
)  # fmt: skip

INSTANTS = Table(
    "instants", METADATA,
    Column("run", _NUMBER, ForeignKey("runs.id"), nullable=False),
    Column("instant", BigInteger, nullable=False),
    Column("events", Text, nullable=False),
    Column("decisions", Text),
    PrimaryKeyConstraint("run", "instant"),
)  # fmt: skip

JOB_IS_OPEN, INTENT_IS_OPEN = text("status <> 'ended'"), text("state = 'open'")
"""As partial indexes have them, word for word: who plans before a parameter is known would not see that it is the same."""

JOBS = Table(
    "jobs", METADATA,
    Column("uuid", _Words, primary_key=True),
    Column("engine_id", _Words, nullable=False),
    Column("engine_submit_s", Double, nullable=False),
    Column("owner", _Words, nullable=False),
    Column("status", Text, nullable=False),
    Column("submitted_s", Double, nullable=False),
    Column("ended_s", Double),
    Column("record", Text, nullable=False),
    Index("jobs_by_engine_id", "engine_id"),
    Index("jobs_by_submission", "submitted_s", "uuid"),
    Index("jobs_by_end", "ended_s"),
    Index("jobs_by_owner", "owner", "submitted_s", "uuid"),
    Index("jobs_open", "submitted_s", "uuid", sqlite_where=JOB_IS_OPEN, postgresql_where=JOB_IS_OPEN),
)  # fmt: skip

INTENTS = Table(
    "intents", METADATA,
    Column("id", _NUMBER, primary_key=True),
    Column("run", BigInteger, nullable=False),
    Column("instant", BigInteger, nullable=False),
    Column("job", _Words, nullable=False),
    Column("decision", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("made_s", Double, nullable=False),
    Column("outcome", _Words, nullable=False),
    Index("intents_by_instant", "run", "instant"),
    Index("intents_open", "id", sqlite_where=INTENT_IS_OPEN, postgresql_where=INTENT_IS_OPEN),
    sqlite_autoincrement=True,
)  # fmt: skip
