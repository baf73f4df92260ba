"""Where the journal cannot be used it says why, changes nothing, and goes on once the cause is gone."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import journal_helpers
import pytest
from journal_helpers import file_of, fresh, record
from nobody import as_nobody
from patience import patience

from hemiola.core.errors import InputError
from hemiola.core.events import Arrived, Timer
from hemiola.live.journal import Journal, JournalError
from hemiola.live.journal.database import Database


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB."""
    if os.getuid() != 0:
        pytest.skip("needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]).returncode:
        pytest.skip("needs root that may mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def begun(journal: Journal, holder: str = "one") -> int:
    epoch = journal.lead(holder, 100.0, 10.0)
    assert epoch is not None
    return journal.begin_run(epoch, journal_helpers.OPENING, 100.0)


def test_a_full_disk_loses_nothing_and_is_named(small_disk: Path) -> None:
    path = small_disk / "journal.db"
    with Journal.open(path) as journal:
        run = begun(journal)
        written: list[str] = []
        with pytest.raises(
            JournalError, match=r"(?s)journal\.db cannot be used: the disk is full.*free some space"
        ):
            for i in range(1000):
                jobs = [record(f"{i}-{j}") for j in range(20)]
                journal.record_events(run, i, [Arrived(1.0, job.job) for job in jobs], jobs)
                written += [job.uuid for job in jobs]
        assert len(written) > 100
        assert sorted(job.uuid for job in journal.open_jobs()) == sorted(written), (
            "it can still be read, whole"
        )
        with pytest.raises(JournalError, match="the disk is full"):
            journal.record_events(run, i, [Arrived(1.0, job.job) for job in jobs], jobs)
        subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True)
        journal.record_events(run, i, [Arrived(1.0, job.job) for job in jobs], jobs)
    with Journal.open(path) as journal:
        assert len(journal.open_jobs()) == len(written) + 20
        assert len(list(journal.instants(run))) == i + 1


def test_a_journal_is_opened_on_a_disk_that_is_full(small_disk: Path) -> None:
    with Journal.open(small_disk / "journal.db") as journal:
        journal.lead("one", 1.0, 1.0)
    with (small_disk / "fill").open("wb", buffering=0) as fill, pytest.raises(OSError, match="No space left"):
        while True:
            fill.write(b"x" * 4096)
    for name, read_only in (("journal.db", False), ("journal.db", True), ("new.db", False)):
        with pytest.raises(JournalError, match=f"{name} cannot be used: the disk is full"):
            Journal.open(small_disk / name, read_only=read_only)
    (small_disk / "fill").unlink()
    for name, epoch in (("journal.db", 2), ("new.db", 1)):
        with Journal.open(small_disk / name) as journal:
            assert journal.lead("one", 2.0, 1.0) == epoch


def test_a_disk_that_became_read_only(small_disk: Path) -> None:
    with Journal.open(small_disk / "journal.db") as journal:
        run = begun(journal)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(JournalError, match=r"(?s)journal\.db cannot be used.*(writable|who may)"):
        Journal.open(small_disk / "journal.db")
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    with Journal.open(small_disk / "journal.db") as journal:
        journal.record_events(run, 1, [Timer(1.0, "")])


def test_who_may_not_write_is_told(tmp_path: Path) -> None:
    """Said by SQLite itself to a connection that may only read."""
    with Journal.open(tmp_path / "journal.db") as journal:
        begun(journal)
    with Journal.open(tmp_path / "journal.db", read_only=True) as reader:
        assert reader.leader() == ("one", 1, 110.0)
        with pytest.raises(JournalError, match=r"(?s)it may not be written to.*writable for this user"):
            reader.lead("two", 200.0, 10.0)


def test_who_may_only_read_reads_while_somebody_writes_and_after() -> None:
    (asks, asked), (answers, answer) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        path = Path(name) / "journal.db"

        def follow() -> None:
            with Journal.open(path, read_only=True) as journal:
                assert len(journal.runs()) == 1, "nobody writes"
                os.write(asked, b".")
                os.read(answers, 1)
                assert len(journal.runs()) == 2, "somebody does"
            with Journal.open(path, read_only=True) as journal:
                assert len(journal.runs()) == 2

        with Journal.open(path) as journal:
            begun(journal)
        if not (writer := os.fork()):
            os.close(asked)
            os.read(asks, 1)
            with Journal.open(path) as journal:
                begun(journal)
                os.write(answer, b".")
                os.read(asks, 1)
            os._exit(0)
        os.close(answer)
        said = as_nobody(follow)
        os.close(asked)
        os.waitpid(writer, 0)
        assert said == ""


def test_a_journal_in_a_folder_that_may_not_be_looked_into() -> None:
    with tempfile.TemporaryDirectory() as name:  # of mode 0700
        for read_only in (True, False):
            said = as_nobody(partial(Journal.open, Path(name) / "journal.db", read_only=read_only))
            assert said.startswith(
                f"InputError: the journal '{name}/journal.db' cannot be looked at: Permission"
            )


def test_a_journal_that_cannot_be_looked_at(tmp_path: Path) -> None:
    loop = tmp_path / "journal.db"
    loop.symlink_to(loop)
    with pytest.raises(InputError, match="cannot be looked at: Too many levels"):
        Journal.open(loop, read_only=True)


def test_a_lock_that_somebody_keeps(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db", patience_s=0.05) as journal:
        run = begun(journal)
        other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            JournalError, match=r"journal\.db cannot be used: another process holds it \(database is locked\)"
        ):
            journal.record_events(run, 1, [Timer(1.0, "")])
        assert list(journal.instants(run)) == [], "reading goes on meanwhile"
        other.execute("ROLLBACK")
        other.close()
        journal.record_events(run, 1, [Timer(1.0, "")])


def test_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with Journal.open(path) as journal:
        run = begun(journal)
        for i in range(300):
            journal.record_events(run, i, [Timer(1.0, "x" * 500)])
    content = bytearray(path.read_bytes())
    content[8192:-4096] = b"\xa5" * (len(content) - 12288)
    path.write_bytes(content)
    with (
        pytest.raises(JournalError, match=r"(?s)journal\.db.*damaged.*put a copy back"),
        Journal.open(path) as journal,
    ):
        list(journal.instants(run))


def test_what_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("a long text that is no database at all\n" * 100)
    foreign = tmp_path / "other.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE bookmarks (url)")
    connection.close()
    for path, words in ((text, "the file is no database"), (foreign, "no journal.*bookmarks")):
        before = path.read_bytes()
        for read_only in (False, True):
            with pytest.raises(JournalError, match=rf"{path.name}.*{words}"):
                Journal.open(path, read_only=read_only)
        assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["other.db", "text"]


def test_a_postgresql_database_of_something_else(tmp_path: Path) -> None:
    import psycopg

    where = fresh("postgresql", tmp_path)
    address = where.replace("%3D", "%3d")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE TABLE bookmarks (url text)")
    with pytest.raises(JournalError, match=r"no journal.*bookmarks"):
        Journal.open(where)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("mysql://host/name", "no journal is kept in 'mysql'"),
        ("://name", "no address of a database"),
        ("sqlite://", "no file to keep a journal in"),
        ("sqlite:///:memory:", "no file to keep a journal in"),
        ("", "no file to keep a journal in"),
        ("/", "no file to keep a journal in"),
    ],
)
def test_addresses_that_cannot_be(where: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        Journal.open(where)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(InputError, match="no address of a database") as caught:
        Journal.open("postgresql://ada:secret@host:54x2/name")
    assert "secret" not in f"{caught.value} {caught.value.__cause__}"
    database = Database("postgresql://host/name?password=secret&user=ada", read_only=True, patience_s=1.0)
    assert database.name == "postgresql://host/name?user=ada"
    database.close()


def test_a_journal_to_read_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no journal"):
        Journal.open(tmp_path / "typo.db", read_only=True)
    (tmp_path / "empty").touch()
    with pytest.raises(JournalError, match="is empty, no journal"):
        Journal.open(tmp_path / "empty", read_only=True)
    with pytest.raises(JournalError, match=r"(?s)nowhere/journal\.db.*cannot be opened.*check the path"):
        Journal.open(tmp_path / "nowhere" / "journal.db")
    assert [file.name for file in tmp_path.iterdir()] == ["empty"]


def test_a_server_that_is_away_is_named_without_the_password(tmp_path: Path) -> None:
    journal_helpers.programs()
    with pytest.raises(JournalError, match=r"(?s)no connection.*start PostgreSQL") as caught:
        Journal.open(f"postgresql://ada:secret@/journal?host={tmp_path}")
    assert "secret" not in str(caught.value)
    with pytest.raises(
        JournalError, match=r"(?s)no connection.*\"nothing\" does not exist.*check the address, database"
    ):
        Journal.open(fresh("postgresql", tmp_path).replace("@/postgres?", "@/nothing?"))


def test_connections_that_the_server_closed_are_made_anew(tmp_path: Path) -> None:
    where = fresh("postgresql", tmp_path)
    with Journal.open(where) as journal, Journal.open(where) as other:
        run = begun(journal)
        with other._database.reading() as connection:
            from sqlalchemy import text

            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            connection.execute(text(others + " AND backend_type = 'client backend'"))
        journal.record_events(run, 1, [Timer(1.0, "")])


def test_a_server_that_would_not_wait_for_its_disk_is_told_to(tmp_path: Path) -> None:
    from sqlalchemy import text

    where = fresh("postgresql", tmp_path) + "%20-csynchronous_commit%3Doff"
    with Journal.open(where) as journal, journal._database.reading() as connection:
        assert connection.execute(text("SHOW synchronous_commit")).scalar() == "on"
        assert connection.execute(text("SHOW search_path")).scalar() in where, (
            "the address's own options hold"
        )


def test_a_leader_stopped_within_its_transaction_keeps_nobody_from_leading(tmp_path: Path) -> None:
    """PostgreSQL ends the session that idles in a transaction; what it had begun is undone, and it learns of it."""
    where = fresh("postgresql", tmp_path)
    with Journal.open(where, patience_s=0.4) as stopped, Journal.open(where, patience_s=5.0) as other:
        run = begun(stopped)
        within, led = threading.Event(), threading.Event()
        errors: list[Exception] = []

        def stop_halfway() -> None:
            from hemiola.live.journal import writing

            try:
                with stopped._database.writing("events") as connection:
                    writing.add_events(connection, run, 1, [Timer(1.0, "")], [record("a")])
                    within.set()
                    led.wait(patience(20))
            except JournalError as error:
                errors.append(error)

        thread = threading.Thread(target=stop_halfway)
        thread.start()
        try:
            assert within.wait(patience(20))
            assert other.lead("two", 111.0, 10.0) == 2
        finally:
            led.set()
            thread.join()
        assert len(errors) == 1 and other.open_jobs() == []


def test_a_process_that_is_stopped_keeps_readers_going(tmp_path: Path) -> None:
    """Frozen within a transaction on SQLite: readers go on; killed, the next one leads at once."""
    where = fresh("sqlite", tmp_path)
    code = (
        "import sys; from hemiola.live.journal import database; from hemiola.live.journal import Journal\n"
        "journal = Journal.open(sys.argv[1]); journal.lead('one', 100.0, 10.0)\n"
        "import os, signal; database.failpoint = lambda name: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "journal.lead('one', 101.0, 10.0)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, where])
    try:
        assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
        with Journal.open(where, patience_s=0.05) as journal:
            assert journal.leader() == ("one", 1, 110.0)
            with pytest.raises(JournalError, match="another process holds it"):
                journal.lead("two", 111.0, 10.0)
            child.send_signal(signal.SIGKILL)
            child.wait()
            assert journal.lead("two", 111.0, 10.0) == 2
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("missing", "extra"), [("sqlalchemy", "serve"), ("alembic", "serve"), ("psycopg", "postgres")]
)
def test_a_missing_extra_is_named(missing: str, extra: str, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules[sys.argv[1]] = None\n"
        "from hemiola.core.errors import InputError\n"
        "try:\n"
        "    from hemiola.live.journal import Journal; Journal.open('postgresql:///x')\n"
        "except InputError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code, missing], capture_output=True, text=True, check=True)
    assert f"pip install 'hemiola[{extra}]'" in said.stdout


def test_a_file_that_was_copied_is_a_journal(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db") as journal:
        run = begun(journal)
        journal.record_events(run, 1, [Timer(1.0, "")], [record("a")])
    shutil.copy(tmp_path / "journal.db", file_of(fresh("sqlite", tmp_path)))
    with Journal.open(tmp_path / "journal.db", read_only=True) as copy:
        assert [job.uuid for job in copy.open_jobs()] == ["a"]
