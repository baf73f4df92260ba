"""One run of a campaign: some jobs, a daemon that is killed at places drawn by a seed, and what became of it all."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from chaos_checks import Violation, check
from chaos_daemon import Daemon
from chaos_jobs import Batch, Wish
from patience import patience

from hemiola.lab.slurm import SlurmLab
from hemiola.live.journal import Journal

LIMIT_S = 90.0
POLICIES = ("fifo", "fifo-backfill", "dally", "tiresias", "srtf", "gittins")
RESTLESS = "chaos_policies:Restless"
NAMES = (  # with how often a run passes each of them before its jobs have ended, at least
    ("journal.schema", 1), ("journal.lead", 1), ("journal.begin_run", 1), ("journal.events", 6), ("journal.decisions", 6),
    ("journal.settle", 2), ("journal.renew", 1), ("slurm.squeue", 8), ("slurm.sinfo", 6), ("slurm.scontrol", 6),
)  # fmt: skip


class Cluster:
    """A lab, and a place for what runs on it leave behind.

    Args:
        folder: that jobs of any user can reach.
    """

    def __init__(self, lab: SlurmLab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "HEMIOLA_"))
        }
        self.environ = {**kept, **lab.environ, "LC_ALL": "C"}

    def daemon(
        self, run: Run, *, failpoint: str = "", environ: Mapping[str, str] | None = None, **options: Any
    ) -> Daemon:
        """An instance on a run's journal."""
        own = {
            **self.lab.environ, "HEMIOLA_FAILPOINT": failpoint, "HEMIOLA_FAILPOINT_LOG": str(run.passed),
            **(environ or {}),
        }  # fmt: skip
        run.passed.unlink(missing_ok=True)
        given: dict[str, Any] = {
            "policy": run.policy,
            "mode": "enforce",
            "journal": str(run.journal),
            **options,
        }
        daemon = Daemon(run.said, own, **given)
        run.daemons.append(daemon)
        return daemon

    def squeue(self, what: str = "%i") -> list[str]:
        """What Slurm has; nothing while it is away."""
        words = ["squeue", "-h", "-r", "-o", what]
        done = subprocess.run(words, env=self.environ, capture_output=True, text=True, check=False)
        return done.stdout.split("\n")[:-1] if not done.returncode else ["?"]

    def clear(self) -> None:
        """Cancel what a run that went wrong has left."""
        subprocess.run(["scancel", "-p", "hemiola"], env=self.environ, check=False)
        subprocess.run(["scancel", "-p", "other"], env=self.environ, check=False)
        wait_until(lambda: not self.squeue(), 30.0)
        self.resume_nodes()

    def resume_nodes(self) -> None:
        """Open those that the controller has drained."""
        nodes = f"nodename={','.join(self.lab.nodes)}"
        subprocess.run(
            ["scontrol", "update", nodes, "state=resume"], env=self.environ, capture_output=True, check=False
        )


@dataclass
class Run:
    """Files and processes of one run."""

    folder: Path
    policy: str = "fifo"
    daemons: list[Daemon] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.batch = Batch(self.folder / "jobs")
        self.journal = self.folder / "journal.db"
        self.said = self.folder / "said.txt"
        self.passed = self.folder / "passed.txt"

    def last_passed(self) -> str:
        """The place that the latest instance passed last."""
        lines = self.passed.read_text().split() if self.passed.exists() else []
        return lines[-1] if lines else ""

    def has_passed(self, place: str) -> bool:
        """Whether the latest instance has come there."""
        return self.passed.exists() and place in self.passed.read_text()

    def end(self) -> None:
        """Leave no process behind."""
        for daemon in self.daemons:
            daemon.signal(signal.SIGCONT)
            daemon.kill()


class Result(msgspec.Struct, kw_only=True):
    """What became of a run.

    Attributes:
        kills: the place or time of each.
        restarts: jobs that were started anew: pre-empted.
        missed: kills that were planned at places that the instance never came to.
    """

    seed: int
    policy: str
    jobs: int = 0
    kills: list[str] = []
    missed: int = 0
    restarts: int = 0
    violations: list[Violation] = []
    took_s: float = 0.0


def wait_until(condition: Callable[[], bool], limit_s: float = LIMIT_S, every_s: float = 0.03) -> bool:
    """Whether it became so."""
    end_s = time.monotonic() + patience(limit_s)
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(every_s)
    return True


def draw_jobs(chance: random.Random) -> list[Wish]:
    """A few short ones; some wait for others."""
    wishes = []
    for _ in range(chance.randint(2, 5)):
        kind, sleep_s = chance.random(), chance.choice([0.1, 0.3, 0.6])
        if kind < 0.5:
            wishes.append(Wish(chance.choice([1, 2, 4, 8]), sleep_s))
        elif kind < 0.85:
            wishes.append(Wish(chance.choice([4, 8]), sleep_s, hosts=chance.choice([2, 2, 3])))
        else:
            wishes.append(Wish(chance.choice([1, 4]), sleep_s, elements=chance.choice([2, 3])))
    return wishes


def draw_kill(chance: random.Random) -> tuple[str, float | None]:
    """A place, or a time: ("journal.events.after:2", None), ("17", None), ("", 0.4)."""
    kind = chance.random()
    if kind < 0.65:
        name, often = chance.choice(NAMES)
        return f"{name}.{chance.choice(['before', 'after'])}:{chance.randint(1, often)}", None
    if kind < 0.7:
        return chance.choice(["journal.end_run", "journal.resign"]) + chance.choice(
            [".before:1", ".after:1"]
        ), None
    if kind < 0.85:
        return str(chance.randint(1, 70)), None
    return "", chance.uniform(0.0, 2.0)


def draw_preempting(chance: random.Random) -> tuple[list[Wish], list[Wish]]:
    """Long jobs on all nodes, and short ones that come later and push them out."""
    hosts = chance.choice([4, 8])
    long = Wish(8, chance.choice([1.5, 2.5]), hosts=hosts, says="hemiola runtime=1h")
    short = [Wish(8, 0.2, hosts=chance.choice([1, 5]), says="hemiola runtime=10s") for _ in range(2)]
    return [long] * (8 // hosts), short


def draw_elastic(chance: random.Random) -> tuple[list[Wish], list[Wish]]:
    """Some that run on one to three or four nodes, and some later on that do not."""
    elastic = [
        Wish(8, chance.choice([0.5, 1.0]), hosts=chance.choice([1, 2]), most=chance.choice([3, 4]))
        for _ in range(chance.randint(1, 3))
    ]
    return elastic, [Wish(8, 0.3, hosts=chance.choice([1, 2])), Wish(4, 0.2)]


def kill_once(
    cluster: Cluster,
    run: Run,
    result: Result,
    chance: random.Random,
    done: Callable[[], bool],
    later: list[Wish],
) -> None:
    """Start an instance that dies; some jobs come while it lives."""
    place, after_s = draw_kill(chance)
    daemon = cluster.daemon(run, failpoint=place)
    if later:
        wait_until(lambda: bool(run.batch.said(next(iter(run.batch.accepted)))), 2.0)
        run.batch.submit(cluster.environ, later)
    if after_s is not None:
        time.sleep(after_s)
        daemon.kill()
        result.kills.append("at any time")
        return
    if "end_run" in place or "resign" in place:  # it comes to these when it is asked to end
        time.sleep(chance.uniform(0.2, 1.5))
        daemon.signal(signal.SIGTERM)
    wait_until(lambda: not daemon.runs or done())
    if daemon.runs:
        daemon.kill()  # its place never came: this is a kill all the same, in an idle moment
        result.missed += 1
        result.kills.append("at any time")
    elif daemon.status in (-signal.SIGTERM, 0):
        result.missed += 1  # asked to end before it could listen, or after all was done
    elif daemon.status == -signal.SIGKILL:
        result.kills.append(run.last_passed())
    else:
        result.violations.append(
            Violation("left behind", f"the daemon ended by itself: {run.said.read_text()[-2000:]}")
        )


def one_run(cluster: Cluster, seed: int) -> Result:
    """Jobs, kills, and an instance that ends the work."""
    began_s = time.monotonic()
    chance = random.Random(seed)
    kind = chance.random()
    preempts, resizes = kind < 0.25, kind > 0.8
    policy = "srtf" if preempts else RESTLESS if resizes else chance.choice(POLICIES)
    result = Result(seed=seed, policy=policy)
    run = Run(cluster.folder / str(seed), result.policy)
    try:
        if preempts or resizes:
            first, more = draw_preempting(chance) if preempts else draw_elastic(chance)
        else:
            first, more = draw_jobs(chance), draw_jobs(chance)[:2]
        at = chance.randint(0, 1)
        run.batch.submit(cluster.environ, first)

        def all_finished() -> bool:
            return all(map(run.batch.is_finished, run.batch.accepted))

        for number in range(chance.choice([1, 1, 1, 2, 2, 3])):
            kill_once(cluster, run, result, chance, all_finished, more if number == at else [])
        result.violations += finish(cluster, run)
    finally:
        run.end()
    result.jobs = len(run.batch.accepted)
    result.restarts = sum(max(0, len(run.batch.said(job)) - 1) for job in run.batch.accepted)
    result.took_s = time.monotonic() - began_s
    if result.violations:
        cluster.clear()
    else:
        shutil.rmtree(run.folder)
    return result


def finish(cluster: Cluster, run: Run, **checked: Any) -> list[Violation]:
    """Let an undisturbed instance end the work, and check all; `checked` as `check` takes it."""
    return settle(cluster, run, cluster.daemon(run), **checked)


def settle(
    cluster: Cluster,
    run: Run,
    daemon: Daemon,
    *,
    meanwhile: Callable[[], None] | None = None,
    written: Callable[[Run], bool] | None = None,
    limit_s: float | None = None,
    **checked: Any,
) -> list[Violation]:
    """Wait until all jobs have ended, end the instance, and check."""
    found = []

    def done() -> bool:
        if meanwhile is not None:
            meanwhile()
        return not cluster.squeue() and (written or is_written)(run)

    if not wait_until(done, limit_s or LIMIT_S):
        left = cluster.squeue("%i %T %r %Y %N")
        found.append(Violation("left behind", f"{left}; {run.said.read_text()[-2000:]}"))
    status = daemon.end()
    if status not in (0, -signal.SIGTERM):  # it may not have come to listen yet
        found.append(
            Violation("left behind", f"the daemon ended with {status}: {run.said.read_text()[-2000:]}")
        )
    return found + check(run.batch, run.journal, **checked)


def is_written(run: Run) -> bool:
    """Whether the journal knows of no job that has not ended, and of as many as were accepted."""
    with Journal.open(run.journal, read_only=True) as journal:
        return not journal.open_jobs() and len(journal.jobs()) >= len(run.batch.accepted)


def has_ended(run: Run) -> bool:
    """Whether the journal knows of no job that has not ended: the last one is written a look after Slurm shows it no more."""
    with Journal.open(run.journal, read_only=True) as journal:
        return not journal.open_jobs()
