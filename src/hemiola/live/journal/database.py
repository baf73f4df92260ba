"""A database to write a journal to: connections, and transactions that are on disk when they end.

Knows nothing of what is in the tables.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR
from typing import Any, cast
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, NullPool, QueuePool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from hemiola.core.errors import InputError
from hemiola.live.failpoints import failpoint
from hemiola.live.journal.records import Deposed, JournalError

__all__ = ["Database", "Deposed", "JournalError"]


# What a database says when it cannot, in words that say what to do.

_FULL = "the disk is full", "free some space there; what was committed before is safe"
_READ_ONLY = "it may not be written to", "make the file and its folder writable for this user"
_LOCKED = "another process holds it", "stop that process, or wait for it, and try again"
_DAMAGED = "the file is damaged", "put a copy back, or move it away to begin a new journal"
_DISK = "the disk fails", "look at the disk and the system's log, then try again"
_AWAY = "there is no connection", "start PostgreSQL, check the address, database and user, and try again"
_UNKNOWN = "the database refuses", "please report it"

_SQLITE = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_IOERR: _DISK,
    sqlite3.SQLITE_IOERR_SHMSIZE: _FULL,  # no room for the log's index
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "check the path, and who may read and write there"),
    sqlite3.SQLITE_NOTADB: ("the file is no database", "name another file, or move this one away"),
}
_POSTGRESQL = {  # by SQLSTATE, the longest prefix first
    "53100": _FULL,
    "53": ("the server has no room", "look at the server's log"),
    "25006": _READ_ONLY,
    "55P03": _LOCKED,
    "25P03": ("this process was stopped within a transaction, which was undone", "try again"),
    "57P": _AWAY,
    "08": _AWAY,
    "42501": ("this user may not do that", "give the user all rights on the database"),
    "XX001": _DAMAGED,
    "XX002": _DAMAGED,
}


@contextmanager
def in_words(name: str) -> Iterator[None]:
    """Raise a database's error as a JournalError that names the database and the remedy."""
    try:
        yield
    except DBAPIError as error:
        raise _refusal(error.orig, name, error.connection_invalidated) from error
    except sqlite3.Error as error:
        raise _refusal(error, name, False) from error


def _refusal(error: BaseException | None, name: str, lost: bool) -> JournalError:
    what, remedy = _cause(error, lost)
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    return JournalError(f"the journal {name} cannot be used: {what} ({said})", remedy)


def _cause(error: BaseException | None, lost: bool) -> tuple[str, str]:
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0)  # an extended one has its kind in its lowest byte
        return _SQLITE.get(code) or _SQLITE.get(code & 0xFF) or _UNKNOWN
    state = getattr(error, "sqlstate", None) or ""
    for prefix, cause in _POSTGRESQL.items():
        if state.startswith(prefix):
            return cause
    # Where there never was a connection there is no state: the cause is in libpq's own words.
    return _AWAY if lost or not state else _UNKNOWN


_WAL_LEFT_BYTES = 64 << 20
_PAGES_AT_ONCE = 2000
_TRY_AGAIN_S = 0.02
_NETWORK = {  # a server that is gone is noticed within seconds; libpq would wait for hours
    "connect_timeout": 5, "tcp_user_timeout": 10_000, "keepalives_idle": 5, "keepalives_interval": 5,
    "keepalives_count": 2,
}  # fmt: skip
_SECRET = "password", "passfile", "sslpassword"


class Database:
    """SQLite or PostgreSQL.

    Args:
        where: a path, "sqlite:///PATH" or "postgresql://...".
        read_only: never write; an SQLite file must be there.
        patience_s: how long to wait for somebody else's lock.

    Attributes:
        name: what to call it in an error; without a password.
    """

    def __init__(self, where: str | Path, *, read_only: bool, patience_s: float) -> None:
        url = _url(where)
        self.read_only = read_only
        self._patience_s = patience_s
        if url is None or url.drivername == "sqlite":
            path = str(where) if url is None else url.database or ""
            self.name, self._engine = _sqlite(path, read_only, patience_s)
        else:
            self.name = url.difference_update_query(_SECRET).render_as_string(hide_password=True)
            self._engine = _postgresql(url, read_only, patience_s)

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file."""
        return self._engine.dialect.name == "sqlite"

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that reads one state; it blocks nobody."""
        with in_words(self.name), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self, what: str) -> Iterator[Connection]:
        """A transaction that holds SQLite's one write lock from its beginning; on disk at its end, or not at all."""
        with in_words(self.name), self._engine.connect() as connection:
            connection = connection.execution_options(hemiola_writes=True)
            with connection.begin():
                yield connection
                failpoint(f"journal.{what}.before")
            failpoint(f"journal.{what}.after")

    def keep_log(self) -> None:
        """Have SQLite write ahead into a log, so that readers and the writer do not wait for each other."""
        with self._by_itself() as sqlite:
            if _ask(sqlite, "journal_mode")[0][0] == "wal":
                return
            # It takes effect where the file is made now, and asks for the write lock.
            _ask(sqlite, "auto_vacuum=INCREMENTAL")
            if (mode := self._patiently(lambda: _ask(sqlite, "journal_mode=WAL"))[0][0]) != "wal":
                raise JournalError(
                    f"the journal {self.name} cannot have a write-ahead log there, only {mode!r}",
                    "put it on a disk of this machine",
                )

    def shrink(self, go_on: Callable[[], bool] = lambda: True) -> None:
        """Give the room of deleted rows back, in pieces between which `go_on` is asked.

        PostgreSQL's autovacuum does so by itself; SQLite's VACUUM would keep writers out until all is copied.
        """
        if not self.is_sqlite:
            return
        with self._by_itself() as sqlite:
            free = _ask(sqlite, "freelist_count")[0][0]
            while free and go_on():
                # It answers nothing, and `execute` would stop after the first page.
                sqlite.executescript(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})")
                left = _ask(sqlite, "freelist_count")[0][0]
                free = left if left < free else 0

    def _patiently(self, ask: Callable[[], list[Any]]) -> list[Any]:
        """What SQLite answers once nobody holds the file: to change its mode it does not wait by itself."""
        end_s = time.monotonic() + self._patience_s
        while True:
            try:
                return ask()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end_s:
                    raise
            time.sleep(_TRY_AGAIN_S)

    @contextmanager
    def _by_itself(self) -> Iterator[sqlite3.Connection]:
        """A connection of SQLite's own, outside of any transaction."""
        with in_words(self.name):
            raw = self._engine.raw_connection()
            try:
                yield cast(sqlite3.Connection, raw.driver_connection)
            finally:
                raw.close()


def _ask(sqlite: sqlite3.Connection, pragma: str) -> list[Any]:
    return sqlite.execute(f"PRAGMA {pragma}").fetchall()


def _url(where: str | Path) -> URL | None:
    """None: it is a path."""
    if isinstance(where, Path) or "://" not in where:
        return None
    try:
        url = make_url(where)
    except (ArgumentError, ValueError):  # both have the address in their words, and a password may be in it
        raise InputError(
            "the journal's address is no address of a database", "write postgresql://user@host:port/name"
        ) from None
    if url.drivername in ("sqlite", "postgresql"):
        return url
    raise InputError(
        f"no journal is kept in {url.drivername!r}",
        "name a file, sqlite:///FILE or postgresql://user@host/name",
    )


def _sqlite(path: str, read_only: bool, patience_s: float) -> tuple[str, Engine]:
    file = Path(path).absolute()
    try:
        mode = file.stat().st_mode  # Path.exists says of all errors, since Python 3.14, that it is not there
    except (FileNotFoundError, NotADirectoryError):
        mode = 0
    except OSError as error:
        raise InputError(
            f"the journal {path!r} cannot be looked at: {error.strerror}",
            "check who may look into its folder",
        ) from error
    if not path or path == ":memory:" or S_ISDIR(mode):
        raise InputError(f"{path!r} is no file to keep a journal in", "name a file")
    if read_only and not mode:
        raise InputError(f"there is no journal {path!r}", "name the file that `hemiola serve` writes")
    uri = f"file:{quote(str(file))}?mode={'ro' if read_only else 'rwc'}"
    # To read, SQLite wants a log beside the file: where this user cannot make one, a writer's, or nobody may write.
    needs_log = read_only and not os.access(file.parent, os.W_OK, effective_ids=True)

    def connect() -> sqlite3.Connection:
        try:
            return _connected(uri, patience_s, reads=needs_log)
        except sqlite3.OperationalError:
            if not needs_log or file.with_name(f"{file.name}-wal").exists():
                raise
        return _connected(f"{uri}&immutable=1", patience_s)

    if needs_log:  # each reading asks anew whether somebody writes
        engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)
    else:
        engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, max_overflow=-1)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that reads first could not become one that writes once somebody else has written.
        writes = connection.get_execution_options().get("hemiola_writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return str(file), engine


def _connected(uri: str, patience_s: float, *, reads: bool = False) -> sqlite3.Connection:
    """A connection; `reads`: that can read, and keeps the log that it reads from being taken away."""
    # A pooled connection is used by one thread at a time, but not always by the same.
    connection = sqlite3.connect(
        uri, uri=True, timeout=patience_s, isolation_level=None, check_same_thread=False
    )
    try:
        for pragma in ("synchronous=FULL", "foreign_keys=ON", f"journal_size_limit={_WAL_LEFT_BYTES}"):
            connection.execute(f"PRAGMA {pragma}")
        if reads:
            _ask(connection, "schema_version")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _postgresql(url: URL, read_only: bool, patience_s: float) -> Engine:
    patience_ms = max(1, round(patience_s * 1000))
    settings = [
        f"lock_timeout = {patience_ms}",
        # A leader that is stopped within a transaction must not keep the next one from leading.
        f"idle_in_transaction_session_timeout = {max(1, patience_ms // 2)}",
        f"default_transaction_read_only = {'on' if read_only else 'off'}",
    ]
    try:
        engine = create_engine(
            url.set(drivername="postgresql+psycopg"), pool_pre_ping=True, max_overflow=-1,
            connect_args={name: value for name, value in _NETWORK.items() if name not in url.query},
        )  # fmt: skip
    except ImportError as error:
        raise InputError(
            "a journal in PostgreSQL needs psycopg", "pip install 'hemiola[postgres]'"
        ) from error

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:
        with connection.cursor() as cursor:
            for setting in settings:
                cursor.execute(f"SET {setting}")
            cursor.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
            )
        connection.commit()

    return engine
