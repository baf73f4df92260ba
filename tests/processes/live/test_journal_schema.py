"""A journal's schema: made as the code says, upgraded whole or not at all, refused where it is newer."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import journal_helpers
import pytest
from journal_helpers import KINDS, contents, record
from sqlalchemy import event, inspect, text

from hemiola.live.journal import Journal, JournalError
from hemiola.live.journal.database import Database
from hemiola.live.journal.tables import METADATA, MIGRATIONS, VERSION_TABLE

NEXT = '''
"""Schema 3 of the tests: one more column of jobs, and one more table."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0003", "0002"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("colour", sa.Text(), nullable=False, server_default="red"))
    op.create_table("more", sa.Column("id", sa.Integer(), primary_key=True))
'''


@pytest.fixture(params=KINDS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return journal_helpers.fresh(request.param, tmp_path)


def newer(folder: Path, script: str = NEXT) -> Path:
    """The migrations with one more of the test's own."""
    migrations = folder / "newer migrations, 100%"
    shutil.copytree(MIGRATIONS, migrations, ignore=shutil.ignore_patterns("__pycache__"))
    (migrations / "versions" / "schema_0003.py").write_text(script)
    return migrations


def shape(where: str) -> dict[str, object]:
    """Columns, keys and indexes of all tables."""
    database = Database(where, read_only=True, patience_s=30.0)
    with database.reading() as connection:
        tables = inspect(connection)
        found = {
            name: (
                [(c["name"], str(c["type"]), c["nullable"]) for c in tables.get_columns(name)],
                tables.get_pk_constraint(name)["constrained_columns"],
                sorted((i["name"], tuple(i["column_names"])) for i in tables.get_indexes(name)),
                [(f["constrained_columns"], f["referred_table"]) for f in tables.get_foreign_keys(name)],
            )
            for name in tables.get_table_names()
            if name != VERSION_TABLE
        }
    database.close()
    return found  # type: ignore[return-value]


def test_the_migrations_make_the_tables_that_the_code_uses(where: str, tmp_path: Path) -> None:
    Journal.open(where).close()
    plain = journal_helpers.fresh("sqlite" if where.startswith("sqlite") else "postgresql", tmp_path)
    database = Database(plain, read_only=False, patience_s=30.0)
    with database.writing("schema") as connection:
        METADATA.create_all(connection)
    database.close()
    assert shape(where) == shape(plain)


def test_a_journal_of_the_first_schema_becomes_the_same_as_a_new_one(where: str, tmp_path: Path) -> None:
    first = tmp_path / "first"
    shutil.copytree(MIGRATIONS, first, ignore=shutil.ignore_patterns("__pycache__", "schema_0002.py"))
    with Journal.open(where, migrations=first) as journal:
        journal_helpers.session(journal)
    before = contents(where)
    with Journal.open(where) as journal:
        assert [job.uuid for job in journal.open_jobs()] == ["b"] and not journal.open_intents()
    assert contents(where) == before
    new = journal_helpers.fresh("sqlite" if where.startswith("sqlite") else "postgresql", tmp_path)
    Journal.open(new).close()
    assert shape(where) == shape(new)


def test_what_is_open_and_what_is_a_users_is_found_by_an_index(where: str) -> None:
    """PostgreSQL reads a table as small as this one whole, unless it is told not to."""
    asked: list[str] = []
    with Journal.open(where) as journal:
        database = journal._database

        @event.listens_for(database._engine, "before_cursor_execute")
        def see(connection, cursor, statement, parameters, context, many):  # type: ignore[no-untyped-def]
            if not statement.startswith("SELECT"):
                return
            if database.is_sqlite:
                cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            else:
                cursor.execute("SET LOCAL enable_seqscan = off")
                cursor.execute(f"EXPLAIN {statement}", parameters)
            asked.append(str(cursor.fetchall()))

        journal.open_jobs()
        journal.jobs(user="ada", limit=10)
        journal.open_intents()
    for plan, index in zip(asked, ("jobs_open", "jobs_by_owner", "intents_open"), strict=True):
        assert index in plan and "TEMP B-TREE" not in plan, plan


def test_an_older_journal_is_upgraded_with_all_that_it_has(where: str, tmp_path: Path) -> None:
    with Journal.open(where) as journal:
        journal_helpers.session(journal)
        epoch = journal.lead("one", 300.0, 10.0)
        assert epoch is not None
        journal.record_events(journal.begin_run(epoch, journal_helpers.OPENING, 300.0), 1, [], [record("z")])
    before, migrations = contents(where), newer(tmp_path)
    with pytest.raises(JournalError, match=r"(?s)older schema 0002, not 0003.*hemiola serve"):
        Journal.open(where, read_only=True, migrations=migrations)
    for _ in range(2):
        with Journal.open(where, migrations=migrations) as journal:
            assert [job.uuid for job in journal.open_jobs()] == ["z", "b"]
    assert contents(where) == before
    assert "more" in shape(where) and "colour" in str(shape(where)["jobs"])


def test_a_newer_journal_is_refused_and_left_alone(where: str, tmp_path: Path) -> None:
    with Journal.open(where, migrations=newer(tmp_path)) as journal:
        journal.lead("one", 1.0, 1.0)
    before = contents(where)
    for read_only in (False, True):
        with pytest.raises(
            JournalError, match=r"(?s)has schema 0003, and this Hemiola knows only 0001, 0002.*newer one"
        ):
            Journal.open(where, read_only=read_only)
    assert contents(where) == before


def test_an_upgrade_that_fails_changes_nothing(where: str, tmp_path: Path) -> None:
    Journal.open(where).close()
    before, rows = shape(where), contents(where)
    with pytest.raises(ZeroDivisionError):
        Journal.open(where, migrations=newer(tmp_path, NEXT + "    1 / 0\n"))
    assert shape(where) == before and contents(where) == rows
    with Journal.open(where) as journal:
        assert journal.lead("one", 1.0, 1.0) == 1


def test_daemons_that_open_a_new_journal_at_once_all_get_it(where: str) -> None:
    begin = threading.Barrier(5)
    epochs: list[int | None] = []

    def run(number: int) -> None:
        begin.wait()
        with Journal.open(where, patience_s=60.0) as journal:  # five schemas on a slow disk
            epochs.append(journal.lead(f"holder {number}", 1.0, 1.0))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(epochs, key=str) == [1] + [None] * 4


def test_daemons_that_turn_one_file_to_a_log_at_once_wait_for_each_other(tmp_path: Path) -> None:
    """SQLite waits for nobody while it changes a file's mode; one round in twenty met that here."""
    for number in range(20):
        databases = [Database(tmp_path / f"{number}.db", read_only=False, patience_s=60.0) for _ in range(8)]
        with ThreadPoolExecutor(len(databases)) as threads:
            for _ in threads.map(Database.keep_log, databases):
                pass
        for database in databases:
            database.close()


def test_a_file_gives_room_back_and_commits_are_for_good(tmp_path: Path) -> None:
    """What SQLite was told, as it says itself, and what comes of it."""
    where = journal_helpers.fresh("sqlite", tmp_path)
    with Journal.open(where) as journal:
        with journal._database.reading() as connection:
            told = {
                name: connection.execute(text(f"PRAGMA {name}")).scalar()
                for name in ("journal_mode", "synchronous", "auto_vacuum", "foreign_keys")
            }
        assert told == {"journal_mode": "wal", "synchronous": 2, "auto_vacuum": 2, "foreign_keys": 1}
        epoch = journal.lead("one", 1.0, 1.0)
        assert epoch is not None
        run = journal.begin_run(epoch, journal_helpers.OPENING, 1.0)
        jobs = [journal_helpers.ended(f"u{i}", note="x" * 1000) for i in range(2000)]
        journal.record_events(run, 1, [], jobs)
    full = journal_helpers.file_of(where).stat().st_size
    pieces = []
    with Journal.open(where) as journal:
        journal.forget(1e9, lambda: not pieces.append(None))
    assert len(pieces) < 10, "not page by page"
    assert journal_helpers.file_of(where).stat().st_size < full / 10
