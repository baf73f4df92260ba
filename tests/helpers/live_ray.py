"""A service on a real Ray, in a thread of the test's process."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from patience import patience, until
from ray_cluster import RayCluster, RayNode

from hemiola.live.engines.base import engine_service
from hemiola.live.engines.ray.agent import JOBS, JOBS_SPACE
from hemiola.live.engines.ray.client import Ray
from hemiola.live.engines.ray.engine import RAY
from hemiola.live.engines.ray.kv_store import GROUPS, PLACE, WRAPPER, RayStore, Wrapper
from hemiola.live.engines.ray.snapshot import ray_topology
from hemiola.live.engines.ray.wire import RayJobRow, RayReply, read_answer
from hemiola.live.journal import Journal, JournaledJob
from hemiola.live.service import LiveService, SessionSettings

HOLD = shlex.join([sys.executable, "-c", "from hemiola.cli import main; main()", "hold"])
NODES = [RayNode(f"h{i}", num_cpus=16, num_gpus=8, labels={"rack": f"r{i // 2}"}) for i in range(4)]
"""Four hosts with eight GPUs each, in two racks; the first one is the head."""


class LiveRay:
    """What tests do with a Ray and the service on it."""

    def __init__(self, cluster: RayCluster, journal: Path) -> None:
        from ray.job_submission import JobSubmissionClient

        self.cluster, self.journal_path = cluster, journal
        self.ray = Ray(cluster.address)
        self.board = RayStore(cluster.address)
        self.jobs: Any = JobSubmissionClient(cluster.dashboard_url)
        self.service: LiveService | None = None
        self.submitted: list[str] = []

    def submit(self, words: str, command: str = "sleep 1", hold: str = "--grace 2s", **more: Any) -> str:
        """The job's id."""
        entrypoint = f"{HOLD} {hold} -- /bin/sh -c {shlex.quote(command)}"
        job: str = self.jobs.submit_job(entrypoint=entrypoint, metadata={"hemiola": words}, **more)
        self.submitted.append(job)
        return job

    def submitted_again(self, job: str, **more: str) -> None:
        """As if it had been deleted and another one had its id; Ray itself takes a while for that."""
        key, space = JOBS + job, JOBS_SPACE
        info = json.loads(self.board.many([key], space)[key])
        text = json.dumps({**info, "start_time": info["start_time"] + 1000, **more}).encode()
        self.board._gcs.internal_kv_put(key.encode(), text, True, space.encode(), 5.0)

    def look(self, *jobs: str) -> RayReply:
        """Ray as it is."""
        return read_answer(self.ray.ask("look", list(jobs)))

    def names(self) -> dict[str, str]:
        """Of nodes, by id."""
        return msgspec.json.decode(self.ray.ask("names"), type=dict[str, str])

    def rows(self) -> dict[str, RayJobRow]:
        """Of the jobs that were submitted here."""
        return {row.id: row for row in self.look(*self.submitted).jobs}

    def state(self, job: str) -> str:
        """What its wrapper says that it does, or how it ended."""
        note = self.board.get(WRAPPER + job)
        status = str(self.jobs.get_job_status(job))
        if note is None or status not in ("PENDING", "RUNNING"):
            return status
        return json.loads(note)["state"]  # type: ignore[no-any-return]

    def wrapper(self, job: str) -> Wrapper:
        note = self.board.get(WRAPPER + job)
        assert note is not None
        return Wrapper(**json.loads(note))

    def wait_state(self, job: str, *states: str) -> None:
        until(lambda: self.state(job) in states, f"job {job} is {' or '.join(states)}: {self.log(job)}")

    def log(self, job: str) -> str:
        """What it printed."""
        text: str = self.jobs.get_job_logs(job)
        return text

    def nodes(self, job: str) -> list[str]:
        """Where it runs, by rank, as its wrapper was told."""
        note = self.board.get(PLACE + job)
        return json.loads(note)["nodes"] if note else []  # type: ignore[no-any-return]

    def groups(self) -> set[str]:
        """Names of all that are noted."""
        return {key.removeprefix(GROUPS) for key in self.board.keys(GROUPS)}

    def known(self, job: str) -> JournaledJob | None:
        """As the journal has it, if it has."""
        with Journal.open(self.journal_path, read_only=True) as journal:
            return journal.job(job)

    def record(self, job: str) -> JournaledJob:
        """As the journal has it; it is waited for."""
        until(lambda: self.known(job), f"the journal knows job {job}")
        found = self.known(job)
        assert found is not None
        return found

    def wait_outcome(self, job: str) -> str:
        """How it ended, as the journal says."""
        until(lambda: self.record(job).status == "ended", f"job {job} has ended in the journal")
        return self.record(job).outcome

    @contextmanager
    def serving(
        self, policy: str = "fifo-backfill", mode: str = "enforce", **more: object
    ) -> Iterator[LiveService]:
        """A service, until the block ends."""
        with Journal.open(self.journal_path) as journal:
            settings = SessionSettings(policy=policy, mode=mode, **more)  # type: ignore[arg-type]
            ray = Ray(self.cluster.address)
            self.service = engine_service(RAY, ray, settings, journal, ray_topology(ray))
            thread = threading.Thread(target=self.service.run)
            thread.start()
            try:
                until(lambda: self.service is not None and self.service.driver is not None, "it leads")
                yield self.service
            finally:
                self.service.stop()
                thread.join(patience(60))
                ray.close()
                assert not thread.is_alive(), "it does not stop"

    def clear(self) -> None:
        """No job, group or note is left for the next test."""
        for row in self.rows().values():
            if row.status in ("PENDING", "RUNNING"):
                self.jobs.stop_job(row.id)
        until(
            lambda: all(r.status not in ("PENDING", "RUNNING") for r in self.rows().values()),
            "no job is left",
        )
        for name in self.groups():
            self.ray.ask("remove", name)
        for key in self.board.keys(""):
            self.board.delete(key)
        self.ray.close()
