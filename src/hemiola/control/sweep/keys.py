"""What determines a run's result, as a digest: two tasks with equal keys have equal results."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from hemiola.control.scenario import Prepared
from hemiola.control.simulate import Recording
from hemiola.control.sweep.answers import encode_exactly
from hemiola.control.sweep.tasks import Task
from hemiola.core.topology import Topology
from hemiola.sched.policy import Policy

__all__ = ["hemiola_digest", "scenario_digest", "task_key"]

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
NOT_FROM_OUTSIDE = frozenset({"hemiola", "abc", *sys.builtin_module_names})
"""Packages whose classes are no program of a user's; what is built into Python has no file to read either."""


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
        prepared.node_events, _of_cluster(prepared.recorded_on),
    )  # fmt: skip
    return hashlib.sha256(encode_exactly(parts)).digest()


def _of_cluster(topology: Topology | None) -> object:
    if topology is None:
        return None
    return topology.name, topology.hosts, topology.levels, topology.measured


def task_key(scenario: bytes, task: Task, recording: Recording) -> str:
    """Of one run.

    Args:
        scenario: the `scenario_digest`.
    """
    digest = hashlib.sha256(scenario)
    for part in (hemiola_digest(), task.name, str(task.seed), repr(recording), *_from_outside(task.policy)):
        digest.update(part.encode(errors="surrogateescape") + b"\0")
    return digest.hexdigest()


def _from_outside(policy: Policy) -> Iterator[str]:
    """The program of a policy that is none of Hemiola's, whatever it is encoded in."""
    for kind in type(policy).__mro__:
        if kind.__module__.partition(".")[0] not in NOT_FROM_OUTSIDE:
            file = Path(inspect.getfile(kind))
            yield file.read_text(encoding="utf-8", errors="surrogateescape")
