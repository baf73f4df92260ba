"""`hemiola doctor` without a Slurm: the journal, the alive file, which `hemiola release` reads, too, and this host."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from filled_journal import BEGAN_S, fill, job, uuid_of

from hemiola.cli.live import doctor
from hemiola.cli.serve import release
from hemiola.core.errors import EngineError
from hemiola.core.events import Held, Requeued
from hemiola.live.journal import Journal
from hemiola.live.query.health_checks import Check, alive_checks, host_checks, journal_checks


def journal_states(path: Path, now_s: float) -> dict[str, Check]:
    with Journal.open(path, read_only=True) as journal:
        return {check.about: check for check in journal_checks(journal, now_s)}


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    fill(tmp_path / "j.db", [job(1, 0, 8, 600.0)], BEGAN_S + 50)
    return tmp_path / "j.db"


def test_a_journal_that_is_well(filled: Path) -> None:
    found = journal_states(filled, BEGAN_S + 51)
    assert {check.state for name, check in found.items() if name != "intents"} == {"OK"}
    assert found["daemon"].what == "n0 leads (epoch 1), heard 1.00 s ago; dally, mode enforce"


def test_a_leader_that_is_silent_fails_and_one_that_ended_warns(filled: Path, tmp_path: Path) -> None:
    silent = journal_states(filled, BEGAN_S + 350)["daemon"]
    assert silent.state == "FAIL" and "was last heard 5.00 min ago" in silent.what
    fill(tmp_path / "over.db", [job(1, 0, 8, 600.0)], BEGAN_S + 50, leads_s=None)
    over = journal_states(tmp_path / "over.db", BEGAN_S + 350)["daemon"]
    assert over.state == "WARN" and over.what == "it ended 5.00 min ago: it was asked to stop"
    Journal.open(tmp_path / "new.db").close()
    assert "never run" in journal_states(tmp_path / "new.db", BEGAN_S)["daemon"].what


def test_a_clock_that_was_set_back_is_seen(filled: Path) -> None:
    found = journal_states(filled, BEGAN_S - 3600)["clock steps"]
    assert found.state == "WARN" and "1.01 h from now" in found.what


def test_requests_without_an_answer_are_seen(tmp_path: Path) -> None:
    """The last decision's answer is written with the next instant; here there is none."""
    fill(tmp_path / "j.db", [job(1, 0, 8, 600.0), job(2, 40, 8, 600.0)], BEGAN_S + 50)
    assert journal_states(tmp_path / "j.db", BEGAN_S + 51)["intents"].state == "OK"
    late = journal_states(tmp_path / "j.db", BEGAN_S + 171)["intents"]
    assert late.state == "WARN" and late.what.startswith("1 requests to the engine have no answer")


def test_alive_files(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    assert alive_checks(alive, 1000.0).state == "FAIL"
    assert alive_checks(alive, 1000.0, mode="observe").state == "OK"
    alive.write_text("995\n")
    assert alive_checks(alive, 1000.0).state == "OK"
    assert alive_checks(alive, 1100.0).state == "FAIL"
    alive.write_text("yes")
    assert "not a time" in alive_checks(alive, 1000.0).what
    alive.write_text("9\u00b2")
    assert "not a time" in alive_checks(alive, 1000.0).what


def test_an_alive_file_that_cannot_be_read_ends_no_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alive = tmp_path / "alive"
    alive.write_bytes(b"\xff")
    watched = 0

    def sleep(seconds: float) -> None:
        nonlocal watched
        watched += 1
        if watched > 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    for path in (alive, tmp_path):
        found = alive_checks(path, 1000.0, mode="observe")
        assert found.state == "FAIL" and "cannot be read" in found.what
        with pytest.raises(EngineError, match="cannot be read"):
            release(alive=path, when_silent="60s")
        watched = 0
        with pytest.raises(KeyboardInterrupt):
            release(alive=path, when_silent="60s", watch=True)
        assert capsys.readouterr().out.count("cannot be read") == 3


def test_this_host_s_network_is_read() -> None:
    found = {check.about: check for check in host_checks()}
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    assert not control.exists() or f"TCP by {control.read_text().strip()}" in found["network"].what
    assert found["qdiscs"].state in ("OK", "WARN")


def test_without_slurm_it_fails_with_the_way_out(
    filled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(time, "time", lambda: BEGAN_S + 51)
    with pytest.raises(SystemExit) as end:
        doctor(journal=str(filled))
    assert end.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "FAIL  slurm       there is no squeue on this host"
    assert lines[1] == "                  install Slurm's clients: apt install slurm-client"
    assert any(line.startswith("OK    daemon      n0 leads") for line in lines)
    with pytest.raises(SystemExit):
        doctor(journal=str(filled), json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "hemiola.doctor/1" and told["ok"] is False
    assert told["checks"][0] == {
        "state": "FAIL", "about": "slurm", "what": "there is no squeue on this host",
        "remedy": "install Slurm's clients: apt install slurm-client",
    }  # fmt: skip


def test_a_journal_that_cannot_be_read_is_a_check_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "j.db").write_text("this is no database, whatever its name says")
    with pytest.raises(SystemExit):
        doctor(journal=str(tmp_path / "j.db"))
    assert "FAIL  journal" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        doctor(journal=str(tmp_path / "none.db"))
    assert "WARN  journal     there is no journal" in capsys.readouterr().out


def test_binds_that_fail_are_named(tmp_path: Path) -> None:
    others = [Requeued(BEGAN_S + 9, uuid_of(1), "no"), Held(BEGAN_S + 9, uuid_of(1), "no")]
    fill(tmp_path / "j.db", [job(1, 0, 8, 600.0), job(2, 10, 1, 60.0)], BEGAN_S + 20, others=others)
    with Journal.open(tmp_path / "j.db") as journal:
        (record,) = [r for r in journal.open_jobs() if r.engine_id == "101"]
        epoch = journal.lead("n0/1234-5/77/1/ab", BEGAN_S + 40, 10.0)
        assert epoch is not None
        import msgspec

        opening = journal.run(1).opening
        run = journal.begin_run(epoch, opening, BEGAN_S + 40)
        failing = msgspec.structs.replace(record, binds_failed=2)
        journal.record_events(run, 1, [Held(BEGAN_S + 40, uuid_of(1), "no")], [failing])
    found = journal_states(tmp_path / "j.db", BEGAN_S + 41)["binds"]
    assert found == Check(
        "WARN", "binds", "the engine does not take the nodes of 1 jobs: 101", "hemiola explain 101"
    )
