"""The page's server beside the loop on a real Slurm: what it shows is what Slurm says."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from patience import patience

pytest.importorskip("fastapi", reason="needs hemiola[serve]")
from live_slurm import Live, until
from web_helpers import EVIL, Scene

from hemiola.live.engines.base import engine_service
from hemiola.live.engines.slurm.engine import SLURM, SlurmPartition
from hemiola.live.engines.slurm.snapshot import slurm_topology
from hemiola.live.journal import Journal
from hemiola.live.service import SessionSettings
from hemiola.live.web.server import WebServer


@pytest.mark.slow
def test_the_api_shows_what_slurm_does(live: Live, tmp_path: Path):
    with Journal.open(live.journal_path) as journal:
        settings = SessionSettings(policy="fifo-backfill", mode="enforce", engine="slurm")
        partition = SlurmPartition(live.slurm, live.slurm)
        service = engine_service(SLURM, partition, settings, journal, slurm_topology(live.slurm))
        with WebServer(service, journal, address="127.0.0.1:0") as server:
            here = Scene(service, journal, tmp_path / "journal.db", None)  # type: ignore[arg-type]
            here.url = server.url
            thread = threading.Thread(target=service.run)
            thread.start()
            try:
                until(lambda: service.driver is not None, "it leads")
                wide = live.submit(f"-N2 --gpus-per-node=8 --job-name={EVIL}", "sleep 30")
                small = live.submit("--gres=gpu:4", "sleep 30")
                late = live.submit("-N3 --gpus-per-node=8", "sleep 30")
                live.wait_state(wide, "RUNNING")
                live.wait_state(small, "RUNNING")
                until(
                    lambda: here.get("status")["jobs"] == {"waiting": 1, "held": 0, "running": 2},
                    "the API knows all three",
                )
                found = here.get(f"jobs/{wide}")
                assert found["job"]["name"] == EVIL and found["job"]["state"] == "running"
                assert {part["host"] for part in found["job"]["placement"]} == set(
                    live.slurm.ask("scontrol", "show", "hostnames", live.hosts(wide)).split()
                )
                assert [each["kind"] for each in found["decisions"]] == ["start"]
                assert here.get(f"jobs/{late}")["job"]["why"] == "it wants 24 GPUs, and 12 are free: 12 short"
                assert here.get("status")["gpus"] == {"free": 12, "used": 20, "blocked": 0, "down": 0}
                never = live.submit("-N5 --gpus-per-node=8", "sleep 30")
                until(lambda: here.get("status")["jobs"]["held"] == 1, "a job that can never run is shown")
                (shown,) = here.get("jobs?state=held")["items"]
                assert shown["engine_id"] == never and shown["gpus"] == 40
                assert shown["why"].startswith(
                    "it can never run here: it wants 40 GPUs on 5 hosts, more than"
                )
                assert here.get(f"jobs/{never}")["job"]["id"] == shown["id"]
                live.command("scancel", never)
                until(lambda: here.get("status")["jobs"]["held"] == 0, "it is gone")
                live.command("scancel", small)
                until(lambda: here.get(f"jobs/{small}")["job"]["state"] == "ended", "its end is seen")
            finally:
                live.clear()
                service.stop()
                thread.join(patience(30))
            assert not thread.is_alive()
