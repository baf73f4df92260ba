"""What the tests of sweeps share: small scenarios, policies of a user's own, and the command in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from patience import patience
from repository import EXAMPLES

from hemiola.simulator.scenario import Prepared, Scenario, prepare
from hemiola.simulator.simulate import Recording
from hemiola.simulator.sweep import Executor
from hemiola.simulator.sweep.answers import RunAnswer
from hemiola.simulator.sweep.tasks import Work, tasks_of

JOBS = str(EXAMPLES / "jobs.csv")
RACKS = "leaf-spine:hosts=8,gpus_per_host=4,hosts_per_rack=4,oversubscription=4"
EVERYTHING = Recording(timeline=True, decisions=True, traffic=True)
WAIT_S = 90.0

OWN = '''
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from hemiola import Policy
from hemiola.core.decisions import WakeAt
from hemiola.core.errors import PolicyError
from hemiola.sched.policies import POLICIES


class Own(Policy):
    def decide(self, view):
        return POLICIES["fifo"]().decide(view)


@dataclass(frozen=True)
class KillsItsProcess(Own):
    """Once, in the middle; or each time where nothing remembers."""
    memory: str = ""

    def decide(self, view):
        if view.ended == 5 and not Path(self.memory or "nowhere").exists():
            if self.memory:
                Path(self.memory).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().decide(view)


@dataclass(frozen=True)
class Waits(Own):
    """For a file "go", once two runs are kept in this folder."""
    folder: str = ""

    def decide(self, view):
        folder, end_s = Path(self.folder), time.monotonic() + 600
        while len(list(folder.glob("*.run"))) >= 2 and not (folder / "go").exists() and time.monotonic() < end_s:
            time.sleep(0.01)
        return super().decide(view)


class Slow(Own):
    def decide(self, view):
        time.sleep(0.5)
        return super().decide(view)


class NeverWakes(Own):
    def decide(self, view):
        yield from super().decide(view)
        yield WakeAt(float("inf"), "", "never")
        yield WakeAt(float("nan"), "", "who knows when")


class Refuses(Own):
    def decide(self, view):
        raise PolicyError("this policy refuses", "take another")


class Fails(Own):
    def decide(self, view):
        return [][1]
'''


def small(**changes: Any) -> Prepared:
    """Twenty jobs on 32 GPUs in two racks, or what is asked for instead."""
    given = {"workload": JOBS, "cluster": RACKS, "policies": ("fifo", "dally"), "seeds": 2}
    return prepare(Scenario(**{**given, **changes}))


def answers(
    executor: Executor, scenarios: Sequence[Prepared], recording: Recording = EVERYTHING
) -> dict[tuple[int, str, int], RunAnswer]:
    """What each task gives, by scenario, policy and seed."""
    work = Work(scenarios, tasks_of(scenarios), recording)
    return {(task.scenario, task.name, task.seed): answer for task, answer in executor.answers(work)}


def results(
    executor: Executor, scenarios: Sequence[Prepared], recording: Recording = EVERYTHING
) -> dict[tuple[int, str, int], bytes]:
    """The bytes that depend on nothing but the task."""
    return {key: answer.result for key, answer in answers(executor, scenarios, recording).items()}


def command(*arguments: object, folder: Path) -> subprocess.Popen[str]:
    """`hemiola simulate` in a process group of its own, with policies of this folder."""
    return subprocess.Popen(
        [sys.executable, "-c", "from hemiola.cli import main; main()", "simulate", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Status, output and errors of a command, once it has ended."""
    out, err = process.communicate(timeout=patience(WAIT_S))
    return process.returncode, out, err


def kept(folder: Path) -> int:
    """How many runs are kept there."""
    return len(list(folder.glob("*.run")))


def figures(path: Path) -> Any:
    """A comparison's figures without what the clock says."""
    value = json.loads(path.read_text(encoding="utf-8"))
    for run in value["runs"]:
        for name in ("simulation_wall_s", "simulation_cpu_s", "decision_p50_s", "decision_p99_s"):
            del run[name]
    return value
