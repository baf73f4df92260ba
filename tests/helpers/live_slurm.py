"""A service on a real Slurm, in a thread of the test's process."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import patience, until

from hemiola.lab.slurm import SlurmLab, config
from hemiola.live.engines.base import engine_service
from hemiola.live.engines.slurm.client import Slurm, SlurmInterface
from hemiola.live.engines.slurm.engine import SLURM, SlurmPartition
from hemiola.live.engines.slurm.snapshot import slurm_topology
from hemiola.live.engines.slurm.wire import SlurmJobRow
from hemiola.live.journal import Journal, JournaledJob
from hemiola.live.service import LiveService, SessionSettings

WAIT_S = 40.0


def need_slurm() -> None:
    if any(config.program(name) is None for name in config.NEEDED):
        pytest.skip(f"needs Slurm: apt-get install {' '.join(config.PACKAGES)}")
    if os.geteuid() != 0:
        pytest.skip("needs root")


class Live:
    """What tests do with a Slurm and the service on it."""

    def __init__(self, lab: SlurmLab, journal: Path) -> None:
        self.lab, self.journal_path = lab, journal
        self.slurm = Slurm(Path(lab.environ["SLURM_CONF"]))
        self.service: LiveService | None = None

    def submit(
        self, options: str, script: str = "sleep 1", partition: str = "hemiola", comment: str = ""
    ) -> str:
        """The job's id."""
        words = [
            "sbatch",
            "--parsable",
            "-p",
            partition,
            "-o",
            "/dev/null",
            f"--comment={comment}",
            *options.split(),
            "--wrap",
            script,
        ]
        done = subprocess.run(
            words, env=self.slurm.environ, capture_output=True, text=True, check=True, cwd="/tmp"
        )
        return done.stdout.strip()

    def command(self, *words: str) -> None:
        """One of Slurm's commands, as its administrator; newer ones want some to be given again (EAGAIN)."""
        end_s = time.monotonic() + patience(WAIT_S)
        while True:
            done = subprocess.run(words, env=self.slurm.environ, capture_output=True, text=True)
            if "temporarily unavailable" not in done.stderr or time.monotonic() > end_s:
                break
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"

    def rows(self, ended: bool = False) -> dict[str, SlurmJobRow]:
        """Jobs as Slurm has them."""
        return {row.id: row for row in self.slurm.jobs(states="all" if ended else "")}

    def state(self, job_id: str) -> str:
        row = self.rows(ended=True).get(job_id)
        return row.state if row is not None else ""

    def hosts(self, job_id: str) -> str:
        return self.rows()[job_id].host_list

    def known(self, job_id: str) -> JournaledJob | None:
        """As the journal has it, if it has."""
        with Journal.open(self.journal_path, read_only=True) as journal:
            return journal.job(job_id)

    def record(self, job_id: str) -> JournaledJob:
        """As the journal has it; it is waited for."""
        until(lambda: self.known(job_id), f"the journal knows job {job_id}")
        found = self.known(job_id)
        assert found is not None
        return found

    def reason(self, job_id: str) -> str:
        """Why the driver says that it waits."""
        assert self.service is not None and self.service.driver is not None
        who = self.service.driver.identity(self.record(job_id).uuid)
        return who.note if who is not None else ""

    def wait_state(self, job_id: str, *states: str) -> None:
        until(
            lambda: self.state(job_id) in states,
            f"job {job_id} is {' or '.join(states)}, not {self.state(job_id)}",
        )

    def wait_outcome(self, job_id: str) -> str:
        """How it ended, as the journal says."""
        until(lambda: self.record(job_id).status == "ended", f"job {job_id} has ended in the journal")
        return self.record(job_id).outcome

    @contextmanager
    def serving(
        self, policy: str = "fifo-backfill", mode: str = "enforce", wake: Path | None = None, **more: object
    ) -> Iterator[LiveService]:
        """A service, until the block ends; it must not have said anything was wrong."""
        with Journal.open(self.journal_path) as journal:
            settings = SessionSettings(policy=policy, mode=mode, **more)  # type: ignore[arg-type]
            partition = SlurmPartition(self.engine(), self.slurm, wake=wake)
            self.service = engine_service(SLURM, partition, settings, journal, slurm_topology(self.slurm))
            thread = threading.Thread(target=self.service.run)
            thread.start()
            try:
                until(lambda: self.service is not None and self.service.driver is not None, "it leads")
                yield self.service
            finally:
                self.service.stop()
                thread.join(patience(30))
                assert not thread.is_alive(), "it does not stop"

    def engine(self) -> SlurmInterface:
        """What the service speaks to it through."""
        return self.slurm

    def clear(self) -> None:
        """No job and no drained node is left for the next test."""
        subprocess.run(["scancel", "-u", "root"], env=self.slurm.environ, check=False)
        for job_id in self.rows():
            subprocess.run(["scancel", job_id], env=self.slurm.environ, check=False)
        until(lambda: not self.rows(), "no job is left")
