"""What `hemiola io`, `hemiola lab store` and `hemiola predict --store` refuse, with what to do instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from hemiola.cli import app
from hemiola.core.errors import HemiolaError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["io", "probe", "/none"], "No such file"),
        (["io", "probe", "/none", "--seconds", "0"], "--seconds 0"),
        (["io", "probe", "/none", "--budget", "7"], "'7' has no unit"),
        (["io", "probe", "nothing://x"], "nothing://x"),
        (["lab", "store"], "no folder"),
        (["lab", "store", "/none"], "there is no folder /none"),
        (["lab", "store", ".", "--failing", "2"], "--failing 2"),
        (["lab", "store", "--seaweed"], "--seaweed without a host"),
        (["lab", "store", "--at", "/none", "--latency", "1ms"], "no store listens at /none"),
    ],
)
def test_bad_words_are_named(words: list[str], said: str) -> None:
    with pytest.raises(HemiolaError, match=said) as raised:
        app(words)
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--input", "8MB"], "go together"),
        (["--input", "8MB", "--store", "/none"], "No such file"),
        (["--input", "8MB", "--store", "damaged"], "is no probe of a store"),
    ],
)
def test_predict_names_a_store_that_cannot_be(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("damaged").write_text("{}")
    usual = [
        "predict",
        "g.json",
        "--hardware",
        "h100",
        "--ranks",
        "2",
        "--topology",
        "flat:hosts=1,gpus_per_host=2",
    ]
    with pytest.raises(HemiolaError, match=said):
        app([*usual, *words])
