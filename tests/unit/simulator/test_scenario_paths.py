"""Paths in a scenario file are relative to it, however they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from hemiola.simulator.scenario import load_scenario


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files beside the scenario; another one is where we are."""
    (tmp_path / "there").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name in ("jobs.csv", "topo.csv", "j.db", "a,b.csv", "k.yaml"):
        (tmp_path / "there" / name).touch()
    return tmp_path / "there"


@pytest.mark.parametrize(
    ("key", "given", "found"),
    [
        ("workload", "jobs.csv", "{}/jobs.csv"),
        ("workload", "native-csv:jobs.csv", "native-csv:{}/jobs.csv"),
        ("workload", "a,b.csv", "{}/a,b.csv"),
        ("workload", "missing.csv", "missing.csv"),
        ("workload", "generated:jobs=10,models=" + "+".join(["bert"] * 90), None),
        ("cluster", "topo.csv,nic=400gbit", "{}/topo.csv,nic=400gbit"),
        ("cluster", "flat:hosts=2,gpus_per_host=4", None),
        ("cluster", "topo.csv,kueue=k.yaml,nic=400gbit", "{0}/topo.csv,kueue={0}/k.yaml,nic=400gbit"),
        ("cluster", "nodes:missing.json,kueue=k.yaml", "nodes:missing.json,kueue={}/k.yaml"),
        ("cluster", "topo.csv,kueue=missing.yaml", "{}/topo.csv,kueue=missing.yaml"),
        ("recorded_on", "lingjun:topo.csv,nic=400gbit", "lingjun:{}/topo.csv,nic=400gbit"),
        ("journal", "j.db", "{}/j.db"),
        ("journal", "postgresql://hemiola@db/hemiola", None),
        ("journal", "sqlite:///j.db", "sqlite:///{}/j.db"),
        ("journal", "sqlite:///missing.db", None),
        ("journal", "sqlite:///{}/j.db", "sqlite:///{}/j.db"),
        ("journal", "postgresql:///j.db", None),
    ],
)
def test_what_is_there_is_found_beside_the_file(
    folder: Path, key: str, given: str, found: str | None
) -> None:
    file = folder / "scenario.toml"
    given = given.replace("{}", str(folder))
    file.write_text(f'{key} = "{given}"\npolicies = ["fifo"]\n')
    expected = given if found is None else found.format(folder)
    assert getattr(load_scenario(file), key) == expected
