"""What goes wrong beside the daemon's own death, one function each: what was found wrong, and what was measured.

Each takes a cluster, a run and a seed's chance; `long` asks for the lengths of the issue's text rather than CI's.
"""

from __future__ import annotations

import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
from chaos_checks import Violation
from chaos_daemon import Daemon
from chaos_jobs import Wish
from chaos_runs import Cluster, Run, draw_jobs, has_ended, settle, wait_until
from patience import slowly

from hemiola.cli.serve import release
from hemiola.live.journal import Journal

TAKES_OVER_S = 15.0
LAUNCHES_S = 10.0
"""Slurm's own BatchStartTimeout."""
FIRST_LOOK_S = 2.0
"""Within that of its start an instance has looked at the queue, on a machine that does much else."""


class Outcome(msgspec.Struct, kw_only=True):
    """Of a scenario.

    Attributes:
        facts: counts and seconds.
        times_s: of which the distribution is asked for.
    """

    name: str
    seed: int = 0
    violations: list[Violation] = []
    facts: dict[str, float] = {}
    times_s: list[float] = []


def scenario(name: str, cluster: Cluster, folder: Path, seed: int = 1, *, long: bool = False) -> Outcome:
    """Play one, and leave nothing of it running."""
    run = Run(folder, "fifo-backfill")
    out = Outcome(name=name, seed=seed)
    try:
        SCENARIOS[name](cluster, run, random.Random(seed), out, long)
    finally:
        run.end()
        if out.violations or cluster.squeue():
            cluster.clear()
    return out


def _busy(run: Run) -> bool:
    """A job has started."""
    return any(run.batch.said(job) for job in run.batch.accepted)


def _epoch(run: Run) -> int:
    try:
        with Journal.open(run.journal, read_only=True) as journal:
            runs = journal.runs()
            return runs[-1].epoch if runs else 0
    except Exception:
        return 0


def two_instances(cluster: Cluster, run: Run, chance: random.Random, out: Outcome, long: bool) -> None:
    """The leader is stopped for longer than its lease; the other takes over; the woken one binds nothing."""
    lease_s, asleep_s = (None, 30.0) if long else (1.5, 3.0)
    log = run.folder / "leader.txt"
    place = f"journal.decisions.after:{chance.randint(1, 4)}"
    leader = cluster.daemon(
        run, lease_s=lease_s, failpoint=place, environ={"HEMIOLA_FAILPOINT_SIGNAL": "STOP", "HEMIOLA_FAILPOINT_LOG": str(log)}
    )  # fmt: skip
    wait_until(lambda: _epoch(run) == 1, 10.0)
    other = cluster.daemon(run, lease_s=lease_s)
    run.batch.submit(cluster.environ, draw_jobs(chance) + draw_jobs(chance))
    if not wait_until(lambda: _is_stopped(leader), 5.0):
        leader.signal(signal.SIGSTOP)
    stopped_s = time.monotonic()
    asked = _orders(log)
    if not wait_until(lambda: _epoch(run) > 1, TAKES_OVER_S):
        out.violations.append(Violation("left behind", "nobody took over"))
    out.facts["taken over after, s"] = time.monotonic() - stopped_s
    run.batch.submit(cluster.environ, draw_jobs(chance))
    time.sleep(max(0.0, asleep_s - (time.monotonic() - stopped_s)))
    leader.signal(signal.SIGCONT)
    time.sleep(1.0)
    out.facts["orders of the woken one"] = _orders(log) - asked
    if _orders(log) > asked:
        out.violations.append(Violation("two live placements", "the woken leader gave orders"))
    out.violations += settle(cluster, run, other)
    leader.kill()


def _is_stopped(daemon: Daemon) -> bool:
    return Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _orders(log: Path) -> int:
    return log.read_text().count("slurm.scontrol.before") if log.exists() else 0


def leader_elsewhere_dies(
    cluster: Cluster, run: Run, chance: random.Random, out: Outcome, long: bool
) -> None:
    """On two hosts whose clocks differ: nobody can see that the leader is gone, and its lease seems to last longer."""
    lease_s = None if long else 1.5
    behind = run.folder / "clock"
    behind.write_text(str(chance.choice([-40.0, 0.0, 3.0]) if long else -40.0))
    leader = cluster.daemon(run, lease_s=lease_s, elsewhere=True)
    run.batch.submit(cluster.environ, draw_jobs(chance))
    wait_until(lambda: _epoch(run) == 1 and _busy(run), 10.0)
    other = cluster.daemon(run, lease_s=lease_s, elsewhere=True, clock=behind)
    time.sleep(0.5)
    leader.kill()
    killed_s = time.monotonic()
    if not wait_until(lambda: _epoch(run) >= 2, TAKES_OVER_S):
        out.violations.append(Violation("left behind", "nobody took over"))
    out.facts["taken over after, s"] = time.monotonic() - killed_s
    run.batch.submit(cluster.environ, draw_jobs(chance))
    out.violations += settle(cluster, run, other, timed=False)


def clock_steps(cluster: Cluster, run: Run, chance: random.Random, out: Outcome, long: bool) -> None:
    """The daemon's wall clock is an hour off, is set right while it runs, and is off again after its death."""
    clock = run.folder / "clock"
    for offset_s in (-3600.0, 3600.0):
        clock.write_text(str(offset_s))
        daemon = cluster.daemon(run, clock=clock)
        run.batch.submit(cluster.environ, draw_jobs(chance))
        time.sleep(0.7)
        clock.write_text("0")
        run.batch.submit(cluster.environ, draw_jobs(chance)[:2])
        time.sleep(0.7)
        daemon.kill()
    out.violations += settle(cluster, run, cluster.daemon(run), timed=False)


def controller_restarts(cluster: Cluster, run: Run, chance: random.Random, out: Outcome, long: bool) -> None:
    """slurmctld is asked to end (SIGTERM) and started again, amid work; the daemon dies once, too."""
    daemon, lost = cluster.daemon(run), Unlaunched(cluster, run)
    run.batch.submit(cluster.environ, draw_jobs(chance) + draw_jobs(chance))
    for _ in range(3 if long else 1):
        time.sleep(chance.uniform(0.1, 0.8))
        cluster.lab.restart_controller()
        if chance.random() < 0.5:
            daemon.kill()
            daemon = cluster.daemon(run)
        run.batch.submit(cluster.environ, draw_jobs(chance))
    out.violations += settle(cluster, run, daemon, meanwhile=lost.cancel, excused=lost.jobs)
    out.facts |= {
        "jobs": len(run.batch.accepted), "the engine lost": len(lost.jobs), "the engine ran again": _reruns(run),
    }  # fmt: skip


class Unlaunched:
    """Jobs that run by what Slurm says, and of which no process began: its controller ended after it had given
    them nodes and before it had told those. It finds out by itself, but only when a node next reports all it runs.

    Attributes:
        jobs: those found; they are cancelled, as an operator would.
    """

    def __init__(self, cluster: Cluster, run: Run) -> None:
        self._cluster, self._run = cluster, run
        self._seen_s: dict[str, float] = {}
        self.jobs: set[str] = set()

    def cancel(self) -> None:
        """Those that have been seen without a process for LAUNCHES_S."""
        now, accepted = time.monotonic(), self._run.batch.accepted
        shown = (line.partition(" ") for line in self._cluster.squeue("%i %T"))
        running = accepted.keys() & {job for job, _, state in shown if state == "RUNNING"}
        silent = {job for job in running if not self._run.batch.said(job)}
        self._seen_s = {job: self._seen_s.get(job, now) for job in silent}
        lost = [job for job, seen_s in self._seen_s.items() if now - seen_s > slowly(LAUNCHES_S)]
        if lost:
            self.jobs.update(lost)
            subprocess.run(["scancel", *lost], env=self._cluster.environ, check=False)


def controller_killed(cluster: Cluster, run: Run, chance: random.Random, out: Outcome, long: bool) -> None:
    """slurmctld is killed and away for a while. What it loses by that is its own loss, and is counted apart."""
    daemon = cluster.daemon(run)
    if long:
        run.batch.submit(cluster.environ, draw_jobs(chance))
        time.sleep(chance.uniform(4.0, 8.0))
        run.batch.submit(cluster.environ, draw_jobs(chance))
        time.sleep(chance.uniform(0.0, 1.0))
    else:
        later = [replace(wish, options=("--begin=now+7",)) for wish in draw_jobs(chance)]
        run.batch.submit(cluster.environ, later)
        time.sleep(5.5)  # the controller saves its state every 5 s: it knows all jobs, and none has begun
    cluster.lab.kill_controller()
    time.sleep(10.0 if long else 1.5)
    cluster.lab.start_controller()
    cluster.lab.wait_ready()
    there = set(cluster.squeue())
    lost = {job for job in run.batch.accepted if job not in there and not run.batch.is_finished(job)}
    unseen = lost - {job for job in run.batch.accepted if run.batch.said(job)}
    run.batch.submit(cluster.environ, draw_jobs(chance))
    again = {job for job in run.batch.accepted if "~" in job}
    # It drains nodes over jobs that it has forgotten, for an operator to open.
    out.violations += settle(
        cluster,
        run,
        daemon,
        meanwhile=cluster.resume_nodes,
        limit_s=240.0,
        excused=lost | again,
        reruns=True,
        timed=False,
    )
    out.facts |= {
        "jobs": len(run.batch.accepted), "the engine lost": len(lost), "before they ran": len(unseen),
        "the engine ran again": _reruns(run), "numbers used again": len(again),
    }  # fmt: skip


def _reruns(run: Run) -> int:
    return sum(max(0, len(run.batch.said(job)) - 1) for job in run.batch.accepted)


LIES = {
    "slow": 'sleep "$(cat "$0.s")"; exec "$real" "$@"',
    "half": '"$real" "$@" | head -c "$(($(date +%N | cut -c7-9 | sed s/^0*//) * 5 + 1))"',
    "garbage": "head -c 2000 /dev/urandom; exit 0",
    "words": "echo 'slurm_load_jobs error: Unable to contact slurm controller'; exit 0",
    "fails": "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
    "nothing": "exit 0",
}
"""What squeue, sinfo or scontrol does instead of answering."""


class Liar:
    """Commands that stand before Slurm's own on a PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir()
        self.environ = {"PATH": f"{self.folder}:/usr/bin:/bin"}

    def lie(self, how: str, *commands: str) -> None:
        """From now on."""
        for command in commands:
            self.write(command, LIES[how])
            (self.folder / f"{command}.s").write_text("0.7")

    def write(self, command: str, code: str) -> None:
        """A command of one's own; `$real` is Slurm's."""
        draft = self.folder / f"{command}.new"
        draft.write_text(f"#!/bin/sh\nreal=/usr/bin/{command}\n{code}\n")
        draft.chmod(0o755)
        draft.rename(self.folder / command)

    def stop(self) -> None:
        """Slurm's own again."""
        for path in self.folder.iterdir():
            path.unlink()


def engine_lies(cluster: Cluster, run: Run, chance: random.Random, out: Outcome, long: bool) -> None:
    """Slurm's commands are slow, answer by halves, with rubbish or with nothing, or fail, while jobs come and go."""
    liar = Liar(run.folder)
    daemon = cluster.daemon(run, environ=liar.environ)
    for how in LIES if long else ("half", "garbage", "nothing"):
        run.batch.submit(cluster.environ, draw_jobs(chance)[:3])
        time.sleep(chance.uniform(0.0, 0.4))
        liar.lie(how, *chance.sample(["squeue", "sinfo", "scontrol"], chance.choice([1, 1, 2, 3])))
        time.sleep(3.0 if long else 1.0)
        liar.stop()
        time.sleep(0.5)
    out.violations += settle(cluster, run, daemon)
    out.facts["jobs"] = len(run.batch.accepted)


def node_dies(cluster: Cluster, run: Run, chance: random.Random, out: Outcome, long: bool) -> None:
    """A node goes with the job on it: Slurm puts the job back, and it runs elsewhere. The daemon dies meanwhile."""
    daemon = cluster.daemon(run)
    run.batch.submit(cluster.environ, [Wish(8, 1.5, hosts=2), Wish(8, 1.5), *draw_jobs(chance)])
    wait_until(lambda: bool(run.batch.said(next(iter(run.batch.accepted)))), 10.0)
    node = run.batch.said(next(iter(run.batch.accepted)))[0].nodes[chance.randint(0, 1)]
    cluster.lab.kill_node(node)
    died_s = time.monotonic()
    time.sleep(chance.uniform(0.0, 2.0))
    daemon.kill()
    daemon = cluster.daemon(run)
    run.batch.submit(cluster.environ, draw_jobs(chance))
    out.violations += settle(cluster, run, daemon, reruns=True)
    out.facts |= {"all done after, s": time.monotonic() - died_s, "the engine ran again": _reruns(run)}
    cluster.lab.start_node(node)


def disk_full(cluster: Cluster, run: Run, chance: random.Random, out: Outcome, long: bool) -> None:
    """The journal's disk fills up and is freed again: nothing is bound in between, and nothing is lost."""
    lease_s = None if long else 0.8
    disk = run.folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "chaos", str(disk)], check=True)
    try:
        run.journal = disk / "journal.db"
        daemon = cluster.daemon(run, lease_s=lease_s)
        run.batch.submit(cluster.environ, draw_jobs(chance)[:2])
        wait_until(lambda: _busy(run), 10.0)
        ballast = disk / "ballast"
        _fill(ballast)
        time.sleep(0.3)
        before = set(run.batch.accepted)
        run.batch.submit(cluster.environ, draw_jobs(chance))
        time.sleep(14.0 if long else 3.0)
        started = [job for job in set(run.batch.accepted) - before if run.batch.said(job)]
        out.facts["started while it was full"] = len(started)
        if not long and chance.random() < 0.5:
            daemon.kill()
            daemon = cluster.daemon(run, lease_s=lease_s)
            time.sleep(1.0)
        ballast.unlink()
        if not daemon.runs:
            out.facts["ended, and was started again"] = 1
            daemon = cluster.daemon(run, lease_s=lease_s)
        out.violations += settle(cluster, run, daemon)
    finally:
        run.end()
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError:
            return


REFUSE = """if [ $# -gt 0 ]; then exec "$real" "$@"; fi
awk -v ids="$(cat "$0.poison")" 'BEGIN {n = split(ids, list, ","); for (i = 1; i <= n; i++) bad["jobid=" list[i]] = 1}
{ if ($1 == "update" && ($2 in bad)) print "slurm_update error: Requested node configuration is not available for job " $2 > "/dev/stderr"; else print }' | "$real"
"""
"""A scontrol that does not take the orders for some jobs, and passes the others on."""


def bind_always_fails(cluster: Cluster, run: Run, chance: random.Random, out: Outcome, long: bool) -> None:
    """Two jobs cannot be bound, ever: they back off, and the others wait no longer than without them."""
    waits = {}
    for poisoned in (False, True) * (4 if long else 1):
        own = Run(run.folder / f"{poisoned}{len(waits)}{time.monotonic()}", "fifo-backfill")
        waits.setdefault(poisoned, []).append(
            _with_poison(cluster, own, out, poisoned=poisoned, count=24 if long else 8)
        )
    plain, poisoned = (statistics.median(waits[which]) for which in (False, True))
    out.facts |= {
        "mean wait, s": plain,
        "with two that fail, s": poisoned,
        "longer, %": 100 * (poisoned / plain - 1),
    }


def _with_poison(cluster: Cluster, run: Run, out: Outcome, *, poisoned: bool, count: int) -> float:
    """The others' mean wait."""
    liar = Liar(run.folder)
    bad = run.batch.submit(cluster.environ, [Wish(4, 0.1)] * 2) if poisoned else []
    (liar.folder / "scontrol.poison").write_text(",".join(bad))
    liar.write("scontrol", REFUSE)
    daemon = cluster.daemon(run, environ=liar.environ)
    try:
        chance = random.Random(5)  # the same jobs each time
        sent = {}
        for _ in range(count):
            sent |= dict.fromkeys(
                run.batch.submit(cluster.environ, [Wish(8, 0.5, hosts=chance.choice([1, 2, 4]))]), time.time()
            )
        if not wait_until(lambda: all(map(run.batch.is_finished, sent)), 90.0):
            out.violations.append(
                Violation("lost", f"others wait behind {bad}: {run.said.read_text()[-1500:]}")
            )
        if any(run.batch.said(job) for job in bad):
            out.violations.append(Violation("ran where nobody decided", f"{bad} ran all the same"))
        tries = run.said.read_text().count("is left alone")
        if poisoned and not 1 <= tries <= 12:
            out.violations.append(Violation("left behind", f"{tries} failed binds were said"))
        if bad:
            subprocess.run(["scancel", *bad], env=cluster.environ, check=True)
        for job in bad:
            run.batch.accepted.pop(job)
        out.violations += settle(cluster, run, daemon)
        return statistics.mean(run.batch.said(job)[0].start_s - at_s for job, at_s in sent.items())
    finally:
        run.end()


def kill_switch(cluster: Cluster, run: Run, chance: random.Random, out: Outcome, long: bool) -> None:
    """It is thrown, Slurm's own scheduler goes on with all jobs; it is taken back, and Hemiola goes on. It dies in both."""
    switch = run.folder / "KILL"
    daemon = cluster.daemon(run, kill_switch=switch)
    run.batch.submit(cluster.environ, [*draw_jobs(chance), *[Wish(8, 0.5, hosts=4)] * 4])
    time.sleep(chance.uniform(0.2, 1.0))
    switch.touch()
    if chance.random() < 0.5:
        daemon.kill()
        daemon = cluster.daemon(run, kill_switch=switch)
    time.sleep(1.0)
    if held := [line for line in cluster.squeue("%i %r") if "Held" in line]:
        out.violations.append(Violation("left behind", f"held while the switch is thrown: {held}"))
    switch.unlink()
    run.batch.submit(cluster.environ, draw_jobs(chance))
    if chance.random() < 0.5:
        daemon.kill()
        daemon = cluster.daemon(run, kill_switch=switch)
    out.violations += settle(cluster, run, daemon, placed=False)


def released_without_daemon(
    cluster: Cluster, run: Run, chance: random.Random, out: Outcome, long: bool
) -> None:
    """`hemiola release` after a death: Slurm runs them all, and the next instance finds that they have ended."""
    daemon = cluster.daemon(run)
    run.batch.submit(cluster.environ, [*draw_jobs(chance), *[Wish(8, 0.3, hosts=4)] * 3])
    time.sleep(chance.uniform(0.1, 0.6))
    daemon.kill()
    run.batch.submit(cluster.environ, draw_jobs(chance))
    release(slurm_conf=Path(cluster.environ["SLURM_CONF"]))
    if chance.random() < 0.5:
        wait_until(lambda: not cluster.squeue(), 30.0)
        run.batch.submit(cluster.environ, draw_jobs(chance))
    led = _epoch(run)
    daemon = cluster.daemon(run)
    wait_until(lambda: _epoch(run) > led, TAKES_OVER_S)
    looks_s = time.time() + slowly(FIRST_LOOK_S)
    out.violations += settle(cluster, run, daemon, written=has_ended, placed=False, looked_s=looks_s)


def recovery(cluster: Cluster, folder: Path, *, jobs: int, times: int) -> list[float]:
    """Seconds from the start of `hemiola serve` (a new process) to its first decisions on disk, after a kill each time."""
    run = Run(folder, "dally")
    words = [
        "sbatch",
        "-p",
        "hemiola",
        "-o",
        "/dev/null",
        "--gres=gpu:1",
        f"--array=1-{jobs}",
        "--wrap=sleep 3600",
    ]
    subprocess.run(words, env=cluster.environ, check=True, stdout=subprocess.DEVNULL)
    took_s = []
    for _ in range(times + 1):
        run.passed.unlink(missing_ok=True)
        began_s = time.monotonic()
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("hemiola")), "serve", "--engine", "slurm", "--policy", "dally", "--mode", "enforce",
             "--journal", str(run.journal)],
            env={**cluster.environ, "HEMIOLA_FAILPOINT_LOG": str(run.passed)}, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            if not wait_until(lambda: run.has_passed("journal.decisions.after"), every_s=0.002):
                raise AssertionError("it decided nothing")
            took_s.append(time.monotonic() - began_s)
            time.sleep(0.2)
        finally:
            process.kill()
            process.wait()
    cluster.clear()
    return took_s[1:]  # the first of all finds no journal


SCENARIOS: dict[str, Callable[[Cluster, Run, random.Random, Outcome, bool], None]] = {
    function.__name__: function
    for function in (
        two_instances, leader_elsewhere_dies, clock_steps, controller_restarts, controller_killed, engine_lies, node_dies,
        disk_full, bind_always_fails, kill_switch, released_without_daemon,
    )
}  # fmt: skip
