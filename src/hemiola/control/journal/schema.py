"""The schema of a journal: made, upgraded or refused. Each change is one file of `migrations/versions`.

A migration is never changed once it is released: what it made is out there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from hemiola.control.journal.errors import JournalError

__all__ = ["MIGRATIONS", "bring_up_to_date", "check_schema", "is_current"]

MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "hemiola_journal"
_LOCK = 0x68656D696F6C61  # "hemiola": two daemons that begin at once make the tables one after the other


def bring_up_to_date(connection: Connection, name: str, migrations: Path = MIGRATIONS) -> None:
    """Make the tables in an empty database, or bring older ones to the newest schema; in the transaction given.

    Raises:
        JournalError: a newer schema, or a database of something else.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    if not is_current(connection, name, migrations):
        command.upgrade(_config(connection, migrations), "head")


def is_current(connection: Connection, name: str, migrations: Path = MIGRATIONS) -> bool:
    """Whether this is a journal of the newest schema; False for an older one and an empty database.

    Raises:
        JournalError: a newer schema, or a database of something else.
    """
    config = _config(connection, migrations)
    return _schema(connection, name, config) == _newest(config)


def check_schema(connection: Connection, name: str, migrations: Path = MIGRATIONS) -> None:
    """Raise JournalError unless this is a journal of the newest schema."""
    config = _config(connection, migrations)
    found = _schema(connection, name, config)
    if found is None:
        raise JournalError(f"{name} is empty, no journal", "name the journal of `hemiola serve`")
    if found != (newest := _newest(config)):
        raise JournalError(
            f"the journal {name} has the older schema {found}, not {newest}",
            "start `hemiola serve` on it once: that upgrades it",
        )


def _config(connection: Connection, migrations: Path) -> Config:
    config = Config(attributes={"connection": connection, "version_table": VERSION_TABLE})
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    return config


def _newest(config: Config) -> str | None:
    return ScriptDirectory.from_config(config).get_current_head()


def _schema(connection: Connection, name: str, config: Config) -> str | None:
    """The schema that the database has; None if it is empty."""
    tables = inspect(connection).get_table_names()
    if VERSION_TABLE not in tables:
        if tables:
            raise JournalError(
                f"{name} is no journal: it is a database with the tables {', '.join(sorted(tables)[:5])}",
                "name a file that is not there yet, or an empty database",
            )
        return None
    options: dict[str, Any] = {"version_table": VERSION_TABLE}
    found = MigrationContext.configure(connection, opts=options).get_current_revision()
    known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    if found not in known:
        raise JournalError(
            f"the journal {name} has schema {found}, and this Hemiola knows only {', '.join(sorted(known))}",
            "use the Hemiola that wrote it, or a newer one; nothing was changed",
        )
    return found
