"""What a sweep is made of: one policy on one seed of one scenario. Runs the same in any process of any machine."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from hemiola.simulator.scenario import Prepared
from hemiola.simulator.simulate import Progress, Recording, policies_by_text, simulate
from hemiola.simulator.sweep.answers import RunAnswer, answer_of
from hemiola.simulator.sweep.programs import program_of
from hemiola.core.errors import HemiolaError
from hemiola.sched.policy import Policy

__all__ = [
    "Answers",
    "Executor",
    "Packed",
    "PickledError",
    "RunTask",
    "Work",
    "compute",
    "compute_packed",
    "tasks_of",
]


@dataclass(frozen=True, eq=False)
class RunTask:
    """One run.

    Attributes:
        scenario: which of the sweep's scenarios.
        name: the policy as it was asked for.
        program: the policy's, as it was when the sweep began (`program_of`).
    """

    scenario: int
    name: str
    policy: Policy
    seed: int
    program: str | None


@dataclass(frozen=True, eq=False)
class Work:
    """Tasks, and what they need.

    Attributes:
        scenarios: what `RunTask.scenario` counts.
        progress: called now and then by whoever runs a task in this process.
    """

    scenarios: Sequence[Prepared]
    tasks: Sequence[RunTask]
    recording: Recording
    progress: Progress | None = None


Answers = Generator[tuple[RunTask, RunAnswer], None, None]


class Executor(Protocol):
    """Where tasks run."""

    def answers(self, work: Work) -> Answers:
        """Each task with its answer, as they end; closing the iterator ends whatever runs.

        After Ctrl-C: what ends at once, marked as interrupted, and no more.
        """


def tasks_of(scenarios: Sequence[Prepared]) -> list[RunTask]:
    """Every run of these scenarios: for each, seeds in order, and on each its policies in order.

    Raises:
        InputError, PolicyError, TopologyError: before anything runs.
    """
    tasks = []
    for number, prepared in enumerate(scenarios):
        prepared.topology.check()
        asked = prepared.scenario
        named = policies_by_text(prepared.policies, prepared.rules, baseline=asked.baseline or None)
        programs = {name: program_of(policy) for name, policy in named.items()}
        for seed in range(asked.seeds):
            tasks += [RunTask(number, name, policy, seed, programs[name]) for name, policy in named.items()]
    return tasks


def compute(prepared: Prepared, task: RunTask, recording: Recording, progress: Progress | None = None) -> RunAnswer:
    """Replay the task's workload under its policy."""
    done = simulate(
        prepared.workload, prepared.topology, [task.policy], semantics=prepared.rules, seeds=[task.seed],
        node_events=prepared.node_events, recorded_on=prepared.recorded_on, recording=recording,
        progress=progress and _under(task.name, progress),
    )  # fmt: skip
    run = msgspec.structs.replace(done.runs[0], policy=task.name)
    return answer_of(run, done.notes)


def _under(name: str, progress: Progress) -> Progress:
    return lambda _, seed, ended, jobs: progress(name, seed, ended, jobs)


@dataclass(frozen=True)
class Packed:
    """A scenario on its way to other processes.

    Attributes:
        content: a pickled `Prepared`.
        digest: of the content: a process that has it does not read it again.
    """

    content: bytes
    digest: str

    @classmethod
    def of(cls, prepared: Prepared) -> Packed:
        """For sending."""
        content = pickle.dumps(prepared, protocol=5)
        return cls(content, hashlib.sha256(content).hexdigest())


class PickledError(msgspec.Struct, frozen=True):
    """An error on purpose, on its way home: pickling an exception would lose its remedy."""

    kind: type[HemiolaError]
    what: str
    remedy: str

    def error(self) -> HemiolaError:
        """The error as it was raised."""
        error = self.kind.__new__(self.kind, self.what)
        HemiolaError.__init__(error, self.what, self.remedy)
        return error


def compute_packed(packed: Packed, task: RunTask, recording: Recording) -> RunAnswer | PickledError:
    """What other processes do: `compute`, with errors on purpose as values."""
    try:
        return compute(_unpacked(packed), task, recording)
    except HemiolaError as error:
        return PickledError(type(error), error.what, error.remedy)


_held: dict[str, Prepared] = {}


def _unpacked(packed: Packed) -> Prepared:
    """The last one is kept: a sweep's tasks come scenario by scenario."""
    if packed.digest not in _held:
        _held.clear()
        _held[packed.digest] = pickle.loads(packed.content)
    return _held[packed.digest]
