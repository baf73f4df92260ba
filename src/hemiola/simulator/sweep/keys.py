"""What determines a run's result, as a digest: two tasks with equal keys have equal results."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import msgspec

from hemiola.simulator.scenario import Prepared
from hemiola.simulator.simulate import Recording
from hemiola.simulator.sweep.answers import encode_exactly
from hemiola.simulator.sweep.tasks import RunTask
from hemiola.core.errors import InputError
from hemiola.core.topology import Topology

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
