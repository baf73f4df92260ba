"""The lab's slurmrestd: beside the controller only if it was asked for, tokens and all, and gone with it."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from patience import patience
from slurm_helpers import cli, left_of

from hemiola.core.errors import LabError
from hemiola.lab.slurm import SlurmLab, config

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture
def own() -> str:
    """A Slurm's name of this test's own."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if any(config.program(name) is None for name in (*config.NEEDED, "slurmrestd")):
        pytest.skip(f"needs Slurm: apt-get install {' '.join((*config.PACKAGES, *config.REST_PACKAGES))}")
    return f"test-{secrets.token_hex(4)}"


def status(url: str, token: str = "") -> int:
    """Of HTTP, to the question what it offers."""
    names = {"X-SLURM-USER-NAME": "root", "X-SLURM-USER-TOKEN": token} if token else {}
    try:
        with OPENER.open(
            urllib.request.Request(f"{url}/openapi/v3", headers=names), timeout=patience(60)
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_it_answers_who_has_a_token_dies_and_comes_back(own: str) -> None:
    with SlurmLab(1, name=own, rest=True) as lab:
        assert status(lab.rest_url, lab.token()) == 200
        assert status(lab.rest_url) == 401
        (pid,) = (pid for pid, role in lab.processes().items() if role.kind == "slurmrestd")
        assert Path(f"/proc/{pid}").stat().st_uid == 65534, "neither root nor SlurmUser"
        key = lab.base / "etc/jwt.key"
        assert key.stat().st_mode & 0o777 == 0o600 and len(key.read_bytes()) == 32
        with pytest.raises(LabError, match="slurmrestd runs already"):
            lab.start_rest()
        lab.kill_rest()
        with pytest.raises(urllib.error.URLError):
            status(lab.rest_url)
        lab.start_rest()
        assert status(lab.rest_url, lab.token("root", life_s=60)) == 200
    assert left_of(own) == []


def test_without_being_asked_for_there_is_none(own: str) -> None:
    with SlurmLab(1, name=own) as lab:
        assert lab.rest_url == "" and not (lab.base / "etc/jwt.key").exists()
        assert "slurmrestd" not in {role.kind for role in lab.processes().values()}
        with pytest.raises(LabError):
            lab.token()


def test_from_up_to_down_as_it_is_typed(own: str) -> None:
    up = subprocess.run(
        cli("up", "--nodes", "1", "--name", own, "--rest"), capture_output=True, text=True, check=True
    )
    try:
        found = re.search(r"slurmrestd listens at (http://127\.0\.0\.1:\d+)\n", up.stdout)
        assert found is not None and "scontrol token username=root" in up.stdout
        assert status(found[1]) == 401, "it wants a token"
        told = subprocess.run(cli("status", "--name", own), capture_output=True, text=True, check=True)
        assert "1 slurmrestd" in told.stdout
    finally:
        subprocess.run(cli("down", "--name", own), check=True, capture_output=True)
    assert left_of(own) == []


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "program", lambda name: None if name == "slurmrestd" else Path("/bin/true"))
    with pytest.raises(LabError, match="no slurmrestd here") as caught:
        SlurmLab(1, rest=True).up()
    assert "apt-get install -y --no-install-recommends slurmrestd slurm-wlm-jwt-plugin" in caught.value.remedy
