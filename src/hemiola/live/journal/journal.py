"""The journal: one object, one method for each thing that is written, read or asked. See `docs/design/0009-live.md`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from hemiola.core.decisions import Decision
from hemiola.core.errors import InputError
from hemiola.core.events import Event
from hemiola.live.journal.records import (
    Instant,
    Intent,
    IntentState,
    JournaledJob,
    Leader,
    Opening,
    RunRecord,
    Status,
)

try:
    from hemiola.live.journal import reading, writing
    from hemiola.live.journal.database import Database
    from hemiola.live.journal.tables import MIGRATIONS, bring_up_to_date, check_schema, is_current

    if find_spec("alembic") is None:  # imported where a schema is to be changed
        raise ModuleNotFoundError(name="alembic")
except ModuleNotFoundError as missing:
    raise InputError(
        f"the journal needs {missing.name}, which is not installed", "pip install 'hemiola[serve]'"
    ) from missing

__all__ = ["Journal"]


class Journal:
    """What `hemiola serve` remembers, on disk before a method returns.

    Any thread may call any method at any time. Readers see one committed state each time they ask, never wait for
    a writer, and never keep one waiting: with SQLite that is its write-ahead log, in PostgreSQL its row versions.
    Writers go one after the other, in all threads and processes. An iterator belongs to the thread that made it.
    A journal does not outlive a fork: open it anew in the child.

    An SQLite journal lies on a disk of this machine, not on a network's; daemons on several hosts share PostgreSQL.

    Every method raises JournalError where the database fails (full, locked, damaged, away). Nothing of that call
    is then written, unless the connection broke just at the commit; so the same call may be made again.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(
        cls,
        where: str | Path,
        *,
        read_only: bool = False,
        patience_s: float = 5.0,
        migrations: Path = MIGRATIONS,
    ) -> Journal:
        """Open a journal; make it where there is none, upgrade it where it is older.

        Args:
            where: a path, "sqlite:///PATH" or "postgresql://user@host/name".
            read_only: refuse one that is not there or is older, and never write.
            patience_s: how long to wait for another process's lock.
            migrations: the folder of the schema's changes.

        Raises:
            JournalError: it is no journal, one of a newer Hemiola, or cannot be used; nothing is changed then.
            InputError: an address of something else; a missing extra.
        """
        database = Database(where, read_only=read_only, patience_s=patience_s)
        try:
            _prepare(database, migrations)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The file or address, without a password."""
        return self._database.name

    def lead(self, holder: str, now_s: float, ttl_s: float) -> int | None:
        """Take the lease until `now_s + ttl_s`: the new epoch, or None while somebody else's holds.

        The same holder gets a new epoch too: it may be another process by now.
        """
        if not holder or not ttl_s > 0:
            raise InputError(f"{holder!r} cannot lead for {ttl_s} s", "give a name and a time above 0")
        with self._database.writing("lead") as connection:
            return writing.lead(connection, holder, now_s, ttl_s)

    def renew(self, epoch: int, now_s: float, ttl_s: float) -> bool:
        """Hold the lease until `now_s + ttl_s`; False once somebody else has led, or it was given back."""
        with self._database.writing("renew") as connection:
            return writing.renew(connection, epoch, now_s, ttl_s)

    def resign(self, epoch: int) -> None:
        """Give the lease back, if it is still this epoch's."""
        with self._database.writing("resign") as connection:
            writing.resign(connection, epoch)

    def leader(self) -> Leader | None:
        """Who took the lease last and did not give it back; it may be over."""
        with self._database.reading() as connection:
            return writing.leader(connection)

    def begin_run(self, epoch: int, opening: Opening, now_s: float, jobs: Iterable[JournaledJob] = ()) -> int:
        """Begin a run; one that never ended ends. Its number.

        Args:
            jobs: those that have not ended, where they stand otherwise by this run's topology.

        Raises:
            Deposed: this epoch no longer leads.
        """
        with self._database.writing("begin_run") as connection:
            return writing.begin_run(connection, epoch, opening, now_s, jobs)

    def end_run(self, run: int, reason: str, now_s: float) -> None:
        """End a run, unless it has ended."""
        with self._database.writing("end_run") as connection:
            writing.end_run(connection, run, reason, now_s)

    def record_events(
        self, run: int, instant: int, events: Sequence[Event], jobs: Iterable[JournaledJob] = ()
    ) -> None:
        """Write an instant's events, and what is known of the jobs after them.

        Args:
            instant: ascending in a run.

        Raises:
            Deposed: the run's epoch no longer leads.
            InternalError: the run has ended, or the instant is written already with other events.
        """
        with self._database.writing("events") as connection:
            writing.add_events(connection, run, instant, events, jobs)

    def record_decisions(
        self,
        run: int,
        instant: int,
        decisions: Sequence[tuple[Decision, str]],
        jobs: Iterable[JournaledJob] = (),
        *,
        intents: bool,
        now_s: float,
    ) -> list[Intent]:
        """Write an instant's decisions, each with why it was refused ("" if not), and the jobs after them.

        Args:
            intents: write down, too, that the engine is to carry out those that were not refused; not timers.

        Returns:
            The intents, in the order of their decisions.

        Raises:
            Deposed: the run's epoch no longer leads: the engine must not be asked.
            InternalError: the instant has no events yet, or was decided already, and otherwise.
        """
        with self._database.writing("decisions") as connection:
            return writing.add_decisions(
                connection, run, instant, decisions, jobs, intents=intents, now_s=now_s
            )

    def settle(self, outcomes: Iterable[tuple[int, IntentState, str]], *, epoch: int | None = None) -> None:
        """Write how open intents ended: (id, state, the engine's words). Settled ones stay as they are.

        Args:
            epoch: of who settles somebody else's intents, too.

        Raises:
            Deposed: that epoch no longer leads.
        """
        if told := list(outcomes):
            with self._database.writing("settle") as connection:
                writing.settle(connection, told, epoch)

    def forget(self, before_s: float, go_on: Callable[[], bool] = lambda: True) -> None:
        """Delete runs and jobs that ended before then, with settled intents as old, and give their room back.

        Args:
            go_on: asked between two short pieces. It should rest for a tenth of a second where others write: SQLite lets
                them in only if they happen to ask then, and they ask that often.
        """
        writing.forget(self._database, before_s, go_on)

    def open_jobs(self) -> list[JournaledJob]:
        """Every job that has not ended, in order of submission."""
        return reading.open_jobs(self._database)

    def jobs(
        self,
        since_s: float | None = None,
        until_s: float | None = None,
        *,
        ended_since_s: float | None = None,
        user: str | None = None,
        status: Status | None = None,
        limit: int | None = None,
    ) -> list[JournaledJob]:
        """Jobs submitted at `since_s` or later and before `until_s`, newest first.

        Args:
            ended_since_s: only those that have ended, then or later.
        """
        return reading.jobs(self._database, since_s, until_s, ended_since_s, user, status, limit)

    def jobs_by_submission(
        self, since_s: float | None = None, until_s: float | None = None
    ) -> Iterator[JournaledJob]:
        """The same jobs, oldest first, without having all at once in memory."""
        return reading.jobs_by_submission(self._database, since_s, until_s)

    def job(
        self, name: str, *, engine_submit_s: float | None = None, user: str | None = None
    ) -> JournaledJob | None:
        """A job by UUID or engine id; of several that had this engine id the one submitted last."""
        return reading.job(self._database, name, engine_submit_s, user)

    def open_intents(self) -> list[Intent]:
        """Intents whose outcome is not known, oldest first."""
        return reading.open_intents(self._database)

    def runs(self) -> list[RunRecord]:
        """All runs, oldest first."""
        return reading.runs(self._database)

    def run(self, number: int) -> RunRecord:
        """One run."""
        return reading.run(self._database, number)

    def instants(self, run: int, *, since: int = 0) -> Iterator[Instant]:
        """A run's instants in order, from number `since` on, read piece by piece.

        Raises:
            JournalError: an instant holds what this version of Hemiola does not know.
        """
        return reading.instants(self._database, run, since)


def _prepare(database: Database, migrations: Path) -> None:
    """Look before anything is changed, then see to the schema."""
    if database.read_only:
        with database.reading() as connection:
            check_schema(connection, database.name, migrations)
        return
    with database.reading() as connection:
        current = is_current(connection, database.name, migrations)
    if database.is_sqlite:
        database.keep_log()
    if not current:
        with database.writing("schema") as connection:
            bring_up_to_date(connection, database.name, migrations)
