"""The journal that other tests of this room read replays as a real one does."""

from __future__ import annotations

from pathlib import Path

from filled_journal import BEGAN_S, fill, job, uuid_of

from hemiola.core.events import Blocked, Event, Held
from hemiola.live.journal import Journal
from hemiola.live.journal.replay import replay


def test_a_filled_journal_replays(tmp_path: Path) -> None:
    jobs = [job(1, 0, 16, 600.0), job(2, 1, 16, 900.0), job(3, 2, 8, 300.0)]
    others: list[Event] = [Blocked(BEGAN_S + 3, 3, 2), Held(BEGAN_S + 3, uuid_of(3), "a user holds it")]
    run = fill(tmp_path / "j.db", jobs, BEGAN_S + 100, others=others)
    with Journal.open(tmp_path / "j.db", read_only=True) as journal:
        assert replay(journal, run).difference is None
        assert [record.engine_id for record in journal.open_jobs()] == ["101", "102", "103"]
