"""A job in a lab whose link is slowed while it runs: shares follow it, and the sums stay right."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import patience

from hemiola.lab import Lab


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_shares_follow_a_link_that_is_slowed_and_sums_stay_right(tmp_path: Path) -> None:
    until, said = tmp_path / "until", tmp_path / "said"
    with Lab(hosts=3, rate="200mbit") as lab, said.open("w") as told:
        places = lab.rendezvous()
        ranks = [
            lab.start(
                host,
                [sys.executable, str(Path(__file__).with_name("follows.py")), str(until)],
                env={**places[host], "HEMIOLA_STRATEGY": "follow"}, stdout=told,
            )
            for host in lab.hosts
        ]  # fmt: skip
        try:
            for rate in ("50mbit", "200mbit"):
                before = _collectives(said, ranks, 0)
                _collectives(said, ranks, before + 30)
                lab.set_rate("h2", rate)
            _collectives(said, ranks, _collectives(said, ranks, 0) + 30)
        finally:
            until.touch()
        assert [rank.wait(timeout=patience(60)) for rank in ranks] == [0, 0, 0]
    assert "balanced" in said.read_text().splitlines()[-1]


def _collectives(said: Path, ranks: list[subprocess.Popen[str]], at_least: int) -> int:
    """How many the first rank has told of, once there are so many."""
    while True:
        count = said.read_text().count("\n")
        if count >= max(1, at_least) or any(rank.poll() for rank in ranks):
            return count
        time.sleep(0.05)
