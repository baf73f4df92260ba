"""Databases for the journal's tests, values to put in, and one session of a daemon in which every write is made.

Run as a program, it plays that session once for each number of a failpoint, each time in a process that dies there.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hemiola.core.decisions import Move, Placement, Start, Stop, WakeAt
from hemiola.core.events import Arrived, Finished, Requeued, Timer
from hemiola.core.job import batch_job
from hemiola.live.journal import Intent, Journal, JournaledJob, Opening
from hemiola.live.journal.database import Database
from hemiola.live.journal.tables import METADATA

KINDS = ("sqlite", "postgresql")
OPENING = Opening(policy="fifo", engine="slurm 22.05", mode="enforce", topology="", version="0.1.0")
_NUMBERS = itertools.count(1)


def fresh(kind: str, folder: Path) -> str:
    """An address at which there is no journal yet."""
    number = next(_NUMBERS)
    if kind == "sqlite":
        return f"sqlite:///{folder}/journal-{number}.db"
    import psycopg

    host, schema = server(), f"journal_{os.getpid()}_{number}"
    with psycopg.connect(host=host, user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return f"postgresql://postgres@/postgres?host={host}&options=-csearch_path%3D{schema}"


def file_of(where: str) -> Path:
    """The file of an SQLite journal."""
    return Path(where.removeprefix("sqlite:///"))


def programs() -> Path:
    """PostgreSQL's folder, or the test is skipped."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found or shutil.which("setpriv") is None:
        pytest.skip("needs postgresql and setpriv")
    return found[-1].parent


@functools.cache
def server() -> str:
    """The folder of the socket of a PostgreSQL server of our own; it ends with this process, however that ends."""
    folder = Path(tempfile.mkdtemp(prefix="hemiola-pg-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    bin_, as_user = programs(), ["setpriv", "--pdeathsig=QUIT"]
    if os.getuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
        as_user += ["--reuid=postgres", "--regid=postgres", "--init-groups"]
    data, silent = folder / "data", {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(
        [*as_user, bin_ / "initdb", "--no-sync", "-U", "postgres", "-A", "trust", "-D", data],
        check=True, cwd=folder, **silent,
    )  # fmt: skip
    settings = {
        "listen_addresses": "", "unix_socket_directories": folder, "fsync": "off", "shared_buffers": "8MB",
        "max_connections": "60", "log_min_messages": "panic",
    }  # fmt: skip
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    process = subprocess.Popen([*as_user, bin_ / "postgres", "-D", data, *options], cwd=folder, **silent)
    atexit.register(process.wait)
    atexit.register(process.send_signal, signal.SIGQUIT)
    _wait_for(folder, process)
    return str(folder)


def _wait_for(folder: Path, process: subprocess.Popen[bytes]) -> None:
    import psycopg

    while True:
        assert process.poll() is None, "PostgreSQL did not start"
        try:
            psycopg.connect(host=str(folder), user="postgres", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            time.sleep(0.02)  # it says by nothing else that it is ready


def record(name: str, submit_s: float = 100.0, **more: Any) -> JournaledJob:
    """A job that waits, or whatever `more` says."""
    values: dict[str, Any] = {
        "uuid": name, "engine_id": f"7{name}", "engine_submit_s": submit_s, "user": "ada",
        "job": batch_job(id=name, submit_s=submit_s, gpus=2, duration_s=50.0), "status": "waiting", "since_s": submit_s,
        "submitted_s": submit_s,
    }  # fmt: skip
    return JournaledJob(**{**values, **more})


def ended(name: str, submit_s: float = 100.0, **more: Any) -> JournaledJob:
    """A job that ran for 40 s and finished."""
    values: dict[str, Any] = {
        "status": "ended", "since_s": submit_s + 50, "served_s": 40.0, "first_started_s": submit_s + 10,
        "ended_s": submit_s + 50, "outcome": "finished",
    }  # fmt: skip
    return record(name, submit_s, **{**values, **more})


HERE = Placement((0,), (0b11,))


def session(journal: Journal, pause: Callable[[], None] = lambda: None) -> None:
    """What a daemon writes in its life, every kind of write once; `pause` is called between them."""
    epoch = journal.lead("one", 100.0, 10.0)
    assert epoch is not None
    pause()
    journal.renew(epoch, 101.0, 10.0)
    run = journal.begin_run(epoch, OPENING, 101.0)
    a, b = record("a"), record("b", 100.5)
    journal.record_events(run, 1, [Arrived(101.0, a.job), Arrived(101.0, b.job)], [a, b])
    decisions = [
        (Start("a", HERE, "first"), ""),
        (Start("b", HERE, "next"), "occupied"),
        (WakeAt(110.0, "", "w"), ""),
    ]
    (first,) = journal.record_decisions(run, 1, decisions, [a], intents=True, now_s=101.5)
    journal.settle([(first.id, "done", "")])
    journal.record_events(
        run, 2, [Requeued(102.0, "a", "prolog"), Timer(102.0, "")], [record("a", binds_failed=1)]
    )
    pause()
    both = [(Move("b", HERE, "x"), ""), (Stop("a", "y"), "")]
    intents = journal.record_decisions(run, 2, both, [], intents=True, now_s=102.0)
    journal.settle([(intents[0].id, "failed", "no such job"), (intents[1].id, "dropped", "")])
    journal.record_events(run, 3, [Finished(150.0, "a")], [ended("a")])
    journal.end_run(run, "asked to stop", 151.0)
    journal.resign(epoch)
    journal.forget(200.0)


def contents(where: str) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables; none of a table that is not there."""
    from sqlalchemy import inspect, select

    database = Database(where, read_only=False, patience_s=5.0)
    try:
        with database.reading() as connection:
            there = inspect(connection).get_table_names()
            return {
                table.name: [
                    tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))
                ]
                for table in METADATA.sorted_tables
                if table.name in there
            }
    finally:
        database.close()


def numbers_of(intents: list[Intent]) -> list[int]:
    return [intent.id for intent in intents]


def main(wheres: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Play the session at each address in a process that is to die at the failpoint of that number; how each ended."""
    for number, where in wheres.items():
        child = os.fork()
        if child == 0:
            os.environ["HEMIOLA_FAILPOINT"] = number
            with Journal.open(where) as journal:
                session(journal)
            os._exit(0)
        yield number, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    print(json.dumps(dict(main(json.loads(sys.argv[1])))))
