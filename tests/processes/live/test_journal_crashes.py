"""A daemon is killed before and after each of its writes: what it had written is there, whole, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import journal_helpers
import pytest
from journal_helpers import KINDS, contents, record
from patience import patience

from hemiola.core.events import Timer
from hemiola.live.journal import Journal, database

Rows = dict[str, list[tuple[Any, ...]]]


def places_of_a_session(where: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Rows]]:
    """Each failpoint of the session that is played undisturbed, and what another process sees at it."""
    places: list[tuple[str, Rows]] = []
    with monkeypatch.context() as patched:
        patched.setattr(database, "failpoint", lambda name: places.append((name, contents(where))))
        with Journal.open(where) as journal:
            journal_helpers.session(journal)
    return places


def test_the_session_writes_in_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no kind of write is left out of the test below; and each is seen only after its commit."""
    places = places_of_a_session(journal_helpers.fresh("sqlite", tmp_path), monkeypatch)
    source = Path(database.__file__).parent
    written = {
        line.split('.writing("')[1].split('"')[0]
        for file in source.glob("*.py")
        for line in file.read_text().splitlines()
        if '.writing("' in line
    }
    assert {name for name, _ in places} == {
        f"journal.{what}.{when}" for what in written for when in ("before", "after")
    }
    for (before, seen), (after, left) in zip(places[::2], places[1::2], strict=True):
        assert before.removesuffix("before") == after.removesuffix("after")
        assert seen != left or "forget" in before, (
            f"{after}: seen before it was committed, or nothing was written"
        )
    for (_, left), (_, seen) in zip(places[1::2], places[2::2], strict=False):
        assert left == seen


@pytest.mark.parametrize("kind", KINDS)
def test_killed_anywhere(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = places_of_a_session(journal_helpers.fresh(kind, tmp_path), monkeypatch)
    wheres = {str(n): journal_helpers.fresh(kind, tmp_path) for n in range(1, len(places) + 2)}
    program = [sys.executable, str(Path(journal_helpers.__file__)), json.dumps(wheres)]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=patience(100))
    how = json.loads(done.stdout)
    assert how.pop(str(len(places) + 1)) == 0, "past its last failpoint the session ends by itself"
    assert set(how.values()) == {-signal.SIGKILL}
    for number, (name, expected) in enumerate(places, start=1):
        where = wheres[str(number)]
        assert contents(where) == expected, f"killed at {name}"
        with Journal.open(where) as journal:
            epoch = journal.lead("two", 1000.0, 10.0)
            assert epoch == (expected["lease"][0][2] if expected else 0) + 1
            run = journal.begin_run(epoch, journal_helpers.OPENING, 1000.0)
            journal.record_events(run, 1, [Timer(1000.0, "")], [record("c")])
            assert "c" in {job.uuid for job in journal.open_jobs()}


def test_the_environment_names_the_failpoint(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import sys; from hemiola.live.journal import Journal\n"
        "journal = Journal.open(sys.argv[1]); journal.lead('one', 1.0, 1.0); journal.lead('one', 1.0, 1.0)"
    )
    environment = {**os.environ, "HEMIOLA_FAILPOINT": "4", "HEMIOLA_FAILPOINT_LOG": str(log)}
    where = journal_helpers.fresh("sqlite", tmp_path)
    ended = subprocess.run([sys.executable, "-c", code, where], env=environment, timeout=patience(60))
    assert ended.returncode == -signal.SIGKILL
    assert log.read_text().split() == [
        "1", "journal.schema.before", "2", "journal.schema.after", "3", "journal.lead.before", "4", "journal.lead.after",
    ]  # fmt: skip
    with Journal.open(where) as journal:
        assert journal.leader() == ("one", 1, 2.0)
