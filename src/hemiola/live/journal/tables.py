"""The journal's tables as they are at the newest schema; `migrations` makes them so.

Values stand as JSON text (`records`); the columns beside them are there to find them by.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    inspect,
    text,
)
from sqlalchemy.types import TypeDecorator

from hemiola.live.journal.records import JournalError

__all__ = [
    "INSTANTS",
    "INTENTS",
    "INTENT_IS_OPEN",
    "JOBS",
    "JOB_IS_OPEN",
    "LEASE",
    "METADATA",
    "MIGRATIONS",
    "RUNS",
    "bring_up_to_date",
    "check_schema",
    "is_current",
]


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


# The schema of a journal: made, upgraded or refused. Each change is one file of `migrations/versions`.
#
# A migration is never changed once it is released: what it made is out there. Revisions are numbers of four digits, one
# after the other.

MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "hemiola_journal"
_REVISION = re.compile(r'^revision\b[^"]*"(\d{4})"', re.MULTILINE)
_LOCK = 0x68656D696F6C61  # "hemiola": two daemons that begin at once make the tables one after the other


def bring_up_to_date(connection: Connection, name: str, migrations: Path = MIGRATIONS) -> None:
    """Make the tables in an empty database, or bring older ones to the newest schema; in the transaction given.

    Raises:
        JournalError: a newer schema, or a database of something else.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    if not is_current(connection, name, migrations):
        from alembic import command  # a tenth of a second, which each restart of a daemon would wait for
        from alembic.config import Config

        config = Config(attributes={"connection": connection, "version_table": VERSION_TABLE})
        config.set_main_option("script_location", str(migrations).replace("%", "%%"))
        config.set_main_option("path_separator", "newline")
        command.upgrade(config, "head")


def is_current(connection: Connection, name: str, migrations: Path = MIGRATIONS) -> bool:
    """Whether this is a journal of the newest schema; False for an older one and an empty database.

    Raises:
        JournalError: a newer schema, or a database of something else.
    """
    return _schema(connection, name, migrations) == _known(migrations)[-1]


def check_schema(connection: Connection, name: str, migrations: Path = MIGRATIONS) -> None:
    """Raise JournalError unless this is a journal of the newest schema."""
    found = _schema(connection, name, migrations)
    if found is None:
        raise JournalError(f"{name} is empty, no journal", "name the journal of `hemiola serve`")
    if found != (newest := _known(migrations)[-1]):
        raise JournalError(
            f"the journal {name} has the older schema {found}, not {newest}",
            "start `hemiola serve` on it once: that upgrades it",
        )


def _known(migrations: Path) -> list[str]:
    """The schemas that there are, the newest last: each migration's number."""
    texts = [file.read_text(encoding="utf-8") for file in (migrations / "versions").glob("*.py")]
    return sorted(_REVISION.findall("\n".join(texts)))


def _schema(connection: Connection, name: str, migrations: Path) -> str | None:
    """The schema that the database has; None if it is empty."""
    tables = inspect(connection).get_table_names()
    if VERSION_TABLE not in tables:
        if tables:
            raise JournalError(
                f"{name} is no journal: it is a database with the tables {', '.join(sorted(tables)[:5])}",
                "name a file that is not there yet, or an empty database",
            )
        return None
    found: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    known = _known(migrations)
    if found not in known:
        raise JournalError(
            f"the journal {name} has schema {found}, and this Hemiola knows only {', '.join(known)}",
            "use the Hemiola that wrote it, or a newer one; nothing was changed",
        )
    return found
