"""What other policies would have made of the journal's jobs, beside what really happened.

Simulated in a process of its own, at low priority, never more often than asked for: the loop shares nothing with
it but the journal's file. `python -m hemiola.live.web.shadow` is that process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence, Set
from pathlib import Path

import msgspec
import numpy as np

from hemiola.analysis.cluster_metrics import summary
from hemiola.core.decisions import JOB_KINDS
from hemiola.core.errors import HemiolaError, InputError
from hemiola.core.job import Workload
from hemiola.core.topology import Topology
from hemiola.live.journal.journal import Journal
from hemiola.live.journal.replay import workload
from hemiola.live.web.responses import last_run, run_topology
from hemiola.live.web.schema import PolicyFigures, ShadowView
from hemiola.sched.policies import policy_from_text
from hemiola.simulator.rules import Semantics
from hemiola.simulator.simulate import Recording, simulate

__all__ = ["Shadow", "compare"]

LIMIT_S = 1800.0
NOTES = (
    "the simulator begins with an empty cluster, and with the jobs that were submitted in this time and have ended",
    "what really happened has the engine's own delays in it, jobs from before, hosts that failed, and users' holds",
    "run times are those that the jobs really had; they are scaled where another placement is faster or slower",
)


class _Request(msgspec.Struct, frozen=True):
    where: str
    since_s: float
    until_s: float
    policies: tuple[str, ...]
    path: tuple[str, ...]


class _Answer(msgspec.Struct, frozen=True):
    figures: tuple[PolicyFigures, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""


class Shadow:
    """Comparisons, each begun when somebody asks and the last one is old.

    Args:
        where: the journal's address, as `Journal.open` takes it.
        policies: as `hemiola simulate --policy` takes them.
        every_s: a comparison is not made anew before it is so old.
        window_s: of the past, so much is looked at.

    Raises:
        InputError, PolicyError: no policy, or an unknown one.
    """

    def __init__(
        self, where: str | Path, policies: Sequence[str], *, every_s: float = 1800.0, window_s: float = 86_400.0
    ) -> None:  # fmt: skip
        if not policies:
            raise InputError(
                "no policy was named to compare with", "name at least one, such as fifo-backfill"
            )
        for text in policies:
            policy_from_text(text)
        self._where, self._policies = str(where), tuple(policies)
        self._every_s, self._window_s = every_s, window_s
        self._lock = threading.Lock()
        self._view = ShadowView(state="running", problem="the first comparison is being made")
        self._begun_s: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def look(self) -> ShadowView:
        """The last comparison; another one is begun if it is due."""
        now_s = time.monotonic()
        with self._lock:
            idle = self._process is None
            due = self._begun_s is None or now_s - self._begun_s >= self._every_s
            if idle and due and not self._closed:
                self._begun_s = now_s
                self._process = self._start()
                threading.Thread(
                    target=self._wait, args=(self._process,), name="hemiola-shadow", daemon=True
                ).start()
                self._view = msgspec.structs.replace(self._view, state="running")
            return self._view

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._closed = True
            process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "hemiola.live.web.shadow"]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        until_s = time.time()
        request = _Request(self._where, until_s - self._window_s, until_s, self._policies, tuple(sys.path))
        try:
            out, _ = process.communicate(
                msgspec.json.encode(request), timeout=LIMIT_S
            )  # the address has a password
            answer = msgspec.json.decode(out, type=_Answer)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            answer = _Answer(problem=f"the comparison took longer than {LIMIT_S:.0f} s and was stopped")
        except msgspec.DecodeError:
            answer = _Answer(problem=f"the comparison's process ended with status {process.returncode}")
        with self._lock:
            self._process = None
            if answer.problem:
                self._view = msgspec.structs.replace(self._view, state="failed", problem=answer.problem)
            else:
                self._view = ShadowView(
                    state="ready", made_s=time.time(), took_s=time.time() - until_s, since_s=request.since_s,
                    until_s=until_s, figures=answer.figures, notes=answer.notes,
                )  # fmt: skip


def compare(
    journal: Journal, since_s: float, until_s: float, policies: Sequence[str]
) -> tuple[tuple[PolicyFigures, ...], tuple[str, ...]]:
    """What really happened, and what each policy makes of it; and what that assumes.

    Raises:
        InputError: no run, or no job that has ended.
    """
    run = last_run(journal)
    if run is None:
        raise InputError("the journal has no run", "wait until jobs have ended")
    load = workload(journal, since_s, until_s)
    topology = run_topology(run)
    supported = run.opening.supported
    comparison = simulate(
        load, topology, list(policies), semantics=Semantics(supports=supported), recording=Recording(timeline=False)
    )  # fmt: skip
    figures = [_really(journal, load, topology)]
    for found in comparison.runs:
        its = summary(found, topology)
        figures.append(
            PolicyFigures(
                policy=found.policy, jobs=its.jobs_finished, jct_mean_s=its.jct_mean_s, jct_p50_s=its.jct_p50_s,
                jct_p95_s=its.jct_p95_s, queueing_mean_s=its.queueing_mean_s, makespan_s=its.makespan_s,
                gpu_utilization=its.gpu_utilization, preemptions=its.preemptions,
            )
        )  # fmt: skip
    return tuple(figures), (*NOTES, *_refused(JOB_KINDS - supported), *load.notes, *comparison.notes)


def _refused(kinds: Set[type]) -> list[str]:
    """What policies do without, in words."""
    names = ", ".join(sorted(kind.__name__.lower() for kind in kinds))
    return (
        [f"the engine has no way to {names} jobs: policies do without in the simulator, too"] if names else []
    )


def _really(journal: Journal, load: Workload, topology: Topology) -> PolicyFigures:
    """The same figures of the same jobs, from the journal."""
    records = [record for job in load.jobs if (record := journal.job(job.id)) is not None]
    jct_s = np.array([r.ended_s - r.submitted_s for r in records if r.ended_s is not None])
    ends = [record.ended_s for record in records if record.ended_s is not None]
    began_s = min(record.submitted_s for record in records)
    makespan_s = max(ends) - began_s
    gpu_s = sum(
        record.served_s * record.job.gpus if record.service_gpu_s is None else record.service_gpu_s
        for record in records
    )
    return PolicyFigures(
        policy="", jobs=len(records), jct_mean_s=float(jct_s.mean()), jct_p50_s=float(np.percentile(jct_s, 50)),
        jct_p95_s=float(np.percentile(jct_s, 95)), queueing_mean_s=float(np.mean([r.queued_s for r in records])),
        makespan_s=makespan_s, gpu_utilization=gpu_s / (topology.gpus * makespan_s) if makespan_s > 0 else None,
        preemptions=sum(record.preemptions for record in records),
    )  # fmt: skip


def main() -> None:
    """Read a request, write an answer."""
    os.nice(10)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=_Request)
    sys.path += request.path  # behind what is there: policies are found that the service has found
    try:
        with Journal.open(request.where, read_only=True) as journal:
            found = compare(journal, request.since_s, request.until_s, request.policies)
        answer = _Answer(*found)
    except HemiolaError as problem:
        answer = _Answer(problem=problem.what)
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
