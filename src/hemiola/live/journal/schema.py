"""The schema of a journal: made, upgraded or refused. Each change is one file of `migrations/versions`.

A migration is never changed once it is released: what it made is out there. Revisions are numbers of four digits, one
after the other.
"""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from hemiola.live.journal.records import JournalError

__all__ = ["MIGRATIONS", "bring_up_to_date", "check_schema", "is_current"]

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
