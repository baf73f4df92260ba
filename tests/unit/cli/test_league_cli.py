"""`hemiola league` as a user meets it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from hemiola import cli

GENERATED = "mine=generated:jobs=16,mix=muri,largest=4"
APP = cli.app
SMALL = "flat:hosts=2,gpus_per_host=4"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(cli, "app", partial(APP, list(arguments)))
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_it_plays_prints_and_writes_and_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    played = (
        "league", GENERATED, "--cluster", SMALL, "--policy", "fifo", "srsf", "--load", "1.5", "--seeds", "1",
        "--workers", "1", "--keep", "kept", "--json", "l.json", "--report", "l.html", "--markdown", "l.md",
    )  # fmt: skip
    assert run(monkeypatch, *played) == 0
    told = capsys.readouterr()
    assert "Against the best other policy of each cell, hemiola is better in" in told.out
    assert "kept runs: 0 of 3" in told.err
    assert json.loads(Path("l.json").read_text())["cells"][0]["trace"] == "mine"
    assert "hemiola against the field" in Path("l.html").read_text()
    assert Path("l.md").read_text().count("mine;") == 1
    assert run(monkeypatch, *played) == 0
    assert "kept runs: 3 of 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--policy", "nobody"), "no policy is called 'nobody'"),
        (("--load", "much"), "the load 'much'"),
        (("--champion", "srsf", "--policy", "srsf"), "srsf has no rival"),
        (("--json", "/nowhere/l.json"), "there is no folder /nowhere"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code = run(
        monkeypatch, "league", GENERATED, "--cluster", SMALL, "--seeds", "1", "--workers", "1", *arguments
    )
    assert code == 2
    assert told in capsys.readouterr().err
