"""Verbs and options by the names they had: they work as before, and say their new names on stderr."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest

from hemiola import cli
from hemiola.cli import renamed

SPEC = "flat:hosts=4,gpus_per_host=1,nic=10gbit"


def printed(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[str, str]:
    monkeypatch.setattr(cli, "app", partial(cli.app, words))
    with contextlib.suppress(SystemExit):
        cli.main()
    monkeypatch.undo()
    return capsys.readouterr()


def test_strategy_is_collective_and_says_so_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = printed(["collective", SPEC], capsys, monkeypatch)
    after = printed(["strategy", SPEC], capsys, monkeypatch)
    assert after[0] == before[0] and "76.83 ms" in after[0] and before[1] == ""
    assert (
        after[1]
        == "note: hemiola strategy is now hemiola collective; the old name works until the next release\n"
    )


def test_help_lists_the_new_name_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = printed(["--help"], capsys, monkeypatch)
    assert "collective" in out and "strategy" not in out.replace("strategy.json", "")


@pytest.mark.parametrize(
    ("words", "now", "lines"),
    [
        (["predict", "g.json", "--strategy", "fsdp"], ["predict", "g.json", "--parallelism", "fsdp"], 1),
        (["predict", "g.json", "--strategy=ddp", "--strategies=auto"], ["predict", "g.json", "--parallelism=ddp", "--schedules=auto"], 2),
        (["run", "train.py", "--strategy", "x"], ["run", "train.py", "--strategy", "x"], 0),
        ([], [], 0),
    ],
)  # fmt: skip
def test_options_of_predict_have_new_names_and_nobody_elses_are_touched(
    words: list[str], now: list[str], lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert renamed(words) == now
    assert capsys.readouterr().err.count("\n") == lines
