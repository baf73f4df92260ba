"""What a sweep is made of: one policy on one seed of one scenario. Runs the same in any process of any machine."""

from __future__ import annotations

import errno
import hashlib
import inspect
import os
import pickle
import sys
import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec

from hemiola.core.errors import HemiolaError, InputError
from hemiola.core.topology import Topology
from hemiola.sched.policy import Policy
from hemiola.simulator.scenario import Prepared
from hemiola.simulator.simulate import Progress, Recording, policies_by_text, simulate
from hemiola.simulator.sweep.answers import RunAnswer, answer_of, encode_exactly
from hemiola.trace.atomic import replacing

__all__ = [
    "Answers",
    "Executor",
    "Packed",
    "PickledError",
    "RunStore",
    "RunTask",
    "Work",
    "compute",
    "compute_packed",
    "hemiola_digest",
    "program_of",
    "scenario_digest",
    "task_key",
    "tasks_of",
]


# The program of a policy that is none of Hemiola's, as a digest: it can be edited while a sweep runs.

NOT_FROM_OUTSIDE = frozenset({"hemiola", "abc", *sys.builtin_module_names})
"""Packages whose classes are no program of a user's; what is built into Python has no file to read either."""


def program_of(policy: Policy) -> str | None:
    """Of the files in which its class and their bases stand now, whatever they are encoded in.

    Returns:
        None where one cannot be read: it is gone, or was typed in.
    """
    digest = hashlib.sha256()
    try:
        for kind in type(policy).__mro__:
            if kind.__module__.partition(".")[0] not in NOT_FROM_OUTSIDE:
                digest.update(Path(inspect.getfile(kind)).read_bytes() + b"\0")
    except (OSError, TypeError):
        return None
    return digest.hexdigest()


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


def compute(
    prepared: Prepared, task: RunTask, recording: Recording, progress: Progress | None = None
) -> RunAnswer:
    """Replay the task's workload under its policy."""
    done = simulate(
        prepared.workload, prepared.topology, [task.policy], semantics=prepared.rules, seeds=[task.seed],
        node_events=prepared.node_events, recorded_on=prepared.recorded_on, recording=recording,
        progress=progress and _under(task.name, progress), clusters=prepared.clusters, serving=prepared.serving,
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


# Finished runs in a folder, so that a sweep that was killed goes on where it was. Knows files, not
# simulations.

MAGIC = b"hemiola.run/1\n"
DIGEST_BYTES = 32


class RunStore:
    """A file per run, named by the key of what determines it; each appears whole or not at all.

    Args:
        folder: made if it is not there. Several sweeps may share it, also at the same time.

    Raises:
        InputError: it can be neither made nor written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):  # it was there before
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise InputError(
                f"cannot keep runs in {str(folder)!r}: {error.strerror}", "name a folder that can be written"
            ) from error

    def get(self, key: str) -> RunAnswer | None:
        """A run that was kept; None if there is none.

        Raises:
            ValueError: there is a file, but it is damaged.
        """
        try:
            content = self._file(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValueError(error.strerror) from error
        digest, packed = content[len(MAGIC) :][:DIGEST_BYTES], content[len(MAGIC) + DIGEST_BYTES :]
        if not content.startswith(MAGIC) or hashlib.sha256(packed).digest() != digest:
            raise ValueError("it is damaged")
        return msgspec.msgpack.decode(zlib.decompress(packed), type=RunAnswer)

    def put(self, key: str, answer: RunAnswer) -> None:
        """Keep a run."""
        packed = zlib.compress(msgspec.msgpack.encode(answer), level=1)
        with replacing(self._file(key)) as stream:
            stream.write(MAGIC + hashlib.sha256(packed).digest() + packed)

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.run"


# What determines a run's result, as a digest: two tasks with equal keys have equal results.

HOME = Path(__file__).parents[2]
ELSEWHERE = (
    "policies",
    "baseline",
    "seeds",
    "workload",
    "journal",
    "cluster",
    "profiles",
    "recorded_on",
    "failures",
)
"""Keys of a scenario whose content counts, or that belong to the task, rather than what is written there."""


@cache
def hemiola_digest() -> str:
    """Of Hemiola's programs and data, its version among them."""
    digest = hashlib.sha256()
    for file in sorted(HOME.rglob("*")):
        if file.suffix in (".py", ".json") and file.is_file():
            digest.update(file.relative_to(HOME).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def scenario_digest(prepared: Prepared) -> bytes:
    """Of all that was read for a scenario, wherever it was read from."""
    scenario, read, library = prepared.scenario, prepared.read, prepared.library
    rules = {name: value for name, value in msgspec.structs.asdict(scenario).items() if name not in ELSEWHERE}
    jobs = (read.jobs, read.format, read.notes) if read is not None else scenario.workload
    parts = (
        rules, jobs, _of_cluster(prepared.topology), library.profiles, library.aliases, library.mixes, prepared.mix,
        prepared.node_events, _of_cluster(prepared.recorded_on), prepared.clusters,
        [(one.requests, one.arrivals) if one else None for one in prepared.traces],
    )  # fmt: skip
    return hashlib.sha256(encode_exactly(parts)).digest()


def _of_cluster(topology: Topology | None) -> object:
    if topology is None:
        return None
    return topology.name, topology.hosts, topology.levels, topology.measured, topology.left_out


def task_key(scenario: bytes, task: RunTask, recording: Recording) -> str:
    """Of one run.

    Args:
        scenario: the `scenario_digest`.

    Raises:
        InputError: nobody knows which program the policy is.
    """
    if task.program is None:
        raise InputError(
            f"the file of the policy {task.name} cannot be read, and runs are kept by it",
            "leave --resume out",
        )
    digest = hashlib.sha256(scenario)
    for part in (hemiola_digest(), task.name, str(task.seed), repr(recording), task.program):
        digest.update(part.encode(errors="surrogateescape") + b"\0")
    return digest.hexdigest()
