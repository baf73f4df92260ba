"""The campaign's results as a page of tables."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from chaos_checks import KINDS
from chaos_runs import Result
from chaos_scenarios import SCENARIOS, Outcome

from hemiola.lab.slurm.config import program

HEAD = """# Killed anywhere

What becomes of jobs when `hemiola serve` is killed, when another instance takes over, and when Slurm, a node, a disk or a clock fails. On a real Slurm of 8 nodes with 8 GPUs each in 2 racks ({slurm}, [made on one machine](../guides/lab-slurm.md); {cores} cores, Python {python}). Jobs write down themselves when and where they run; that is compared with the journal and with what Slurm shows.

```sh
PYTHONPATH=tests/helpers python tests/system/chaos/campaign.py --runs 1000 --write docs/results/chaos.md
```
"""


TAIL = """## What this does not show

- "Started twice" counts starts that nobody decided. A job that is pre-empted in its last milliseconds has done all of its work, and does it again; so does one that a killed slurmctld has forgotten to have ended ("the engine ran again").
- A slurmctld that is asked to end may have given nodes to jobs and not have told those yet: squeue then shows them running, and no process ever began (five jobs in one of 196 `controller_restarts` on a busy machine). Slurm finds out when a node next reports all that it runs. Counted as "the engine lost"; `scontrol requeue` or `scancel` frees the nodes at once.
- A leader may be stopped between its last look at its lease and the arrival of that one request at Slurm: see [the design](../design/0009-live.md).
- The clock that steps is the daemon's as it sees it, not the machine's: Slurm's own stays right.
- All nodes are on one machine, and GPUs are stand-ins that Slurm counts. Jobs take from 0.1 to 3 s.
"""


def page(runs: Sequence[Result], scenes: Sequence[Outcome]) -> str:
    """All of it."""
    slurm = subprocess.run(
        [str(program("slurmctld")), "-V"], capture_output=True, text=True, check=False
    ).stdout.strip()
    head = HEAD.format(slurm=slurm, cores=os.cpu_count(), python=platform.python_version())
    parts = [head, *_kills(runs), *_recovery(scenes), *_scenes(scenes), TAIL]
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def _kills(runs: Sequence[Result]) -> Iterable[str]:
    kills = Counter(kill for run in runs for kill in run.kills)
    wrong = Counter(kind for run in runs for kind in {violation.kind for violation in run.violations})
    jobs, again = sum(run.jobs for run in runs), sum(run.restarts for run in runs)
    yield "## The daemon is killed\n"
    yield (
        f"{len(runs):,} runs with {sum(kills.values()):,} kills (SIGKILL) and {jobs:,} jobs of one to eight nodes, "
        f"which the policies pre-empted, moved or resized {again:,} times. Each run: a few jobs, one to three instances that die at a place "
        "drawn by the run's seed, and one that ends the work. A place lies right before or right after a durable write or a "
        "call of a Slurm command.\n"
    )
    yield _table(["after a run", "runs in which it was so"], [(kind, wrong[kind]) for kind in KINDS])
    yield _table(["killed at", "times"], sorted(kills.items()))


def _recovery(scenes: Sequence[Outcome]) -> Iterable[str]:
    times_s = sorted(time_s for scene in scenes if scene.name == "recovery" for time_s in scene.times_s)
    if len(times_s) > 1:
        cuts = statistics.quantiles(times_s, n=100, method="inclusive")
        yield "## How long a restart takes\n"
        yield (
            f"From the start of the process to the first decisions on disk, with 1,000 jobs in Slurm and the journal, "
            f"64 of them running; {len(times_s)} restarts, each after a SIGKILL.\n"
        )
        yield _table(
            ["median", "p90", "p99", "longest"],
            [[f"{cuts[at]:.2f} s" for at in (49, 89, 98)] + [f"{times_s[-1]:.2f} s"]],
        )


def _scenes(scenes: Sequence[Outcome]) -> Iterable[str]:
    by_name: dict[str, list[Outcome]] = defaultdict(list)
    for scene in scenes:
        by_name[scene.name].append(scene)
    yield "## What else goes wrong\n"
    rows = []
    for name, function in SCENARIOS.items():
        played = by_name[name]
        if played:
            wrong = sum(bool(scene.violations) for scene in played)
            what = " ".join((function.__doc__ or "").split())
            rows.append((f"`{name}`: {what}", len(played), wrong, "; ".join(_facts(played))))
    yield _table(["what", "times", "wrong", "measured: median (most)"], rows)


def _facts(played: Sequence[Outcome]) -> Iterable[str]:
    values: dict[str, list[float]] = defaultdict(list)
    for scene in played:
        for name, value in scene.facts.items():
            values[name].append(value)
    return [f"{name} {statistics.median(all_):.3g} ({max(all_):.3g})" for name, all_ in values.items()]
