"""What a database says when it cannot, in words that say what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from hemiola.live.journal.errors import JournalError

__all__ = ["in_words"]

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
