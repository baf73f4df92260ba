"""What a decisions file holds, and reading it. Knows nothing of simulations or of how it is told.

The first line is the header: the cluster, and for each run its rules and what became of its
jobs. Every other line is one decision, in the order in which it was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from hemiola.core.errors import DAMAGED, InputError
from hemiola.trace.reading import read_bytes, wrong_schema

__all__ = [
    "DECISIONS_SCHEMA",
    "ClusterLine",
    "DecisionLog",
    "LogHeader",
    "JobFacts",
    "DecisionLine",
    "HostGpus",
    "RunFacts",
    "HeldSpan",
    "read_decisions",
]

DECISIONS_SCHEMA = "hemiola.decisions/1"


class HostGpus(msgspec.Struct, frozen=True):
    """GPUs of one host, by name and number."""

    host: str
    gpus: tuple[int, ...]


class DecisionLine(msgspec.Struct, frozen=True, kw_only=True):
    """One decision.

    Attributes:
        kind: "start", "stop", "move", "resize", "pace" or "wake".
        placement: hosts and GPUs in rank order, for start, move and resize.
        wake_s: when the timer is due, for wake.
        weight: share of contended links, for pace.
        refused: why it was not carried out; "" if it was.
    """

    policy: str
    seed: int
    time_s: float
    kind: str
    job: str
    reason: str
    free_gpus: int
    waiting: int
    refused: str
    placement: tuple[HostGpus, ...] = ()
    wake_s: float | None = None
    weight: float | None = None


class HeldSpan(msgspec.Struct, frozen=True, array_like=True):
    """A while in which the job held GPUs: from, work from, to, GPUs, tier's name, how it ended."""

    start_s: float
    resume_s: float
    end_s: float
    gpus: int
    tier: str
    outcome: str


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a job asked for and what became of it; see `JobRecord` for the figures."""

    id: str
    gpus: int
    submit_s: float
    status: str
    why: str
    finish_s: float | None
    queueing_s: float
    run_s: float
    useful_s: float
    exposed_communication_s: float
    checkpoint_s: float
    lost_s: float
    ideal_s: float
    model: str
    user: str
    queue: str
    gpu_type: str | None
    required: str | None
    preferred: str | None
    spans: tuple[HeldSpan, ...]


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its rules and its jobs in order of arrival."""

    policy: str
    seed: int
    semantics: dict[str, str]
    origin_s: float
    end_s: float
    interrupted: bool
    jobs: tuple[JobFacts, ...]


class ClusterLine(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster: hosts in order of their index, and for each level each host's domain."""

    name: str
    hosts: tuple[str, ...]
    gpus: tuple[int, ...]
    gpu_types: tuple[str, ...]
    tiers: tuple[str, ...]
    levels: dict[str, tuple[str, ...]]


class LogHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line."""

    schema: str
    workload: str
    topology: ClusterLine
    runs: tuple[RunFacts, ...]


class DecisionLog(msgspec.Struct, frozen=True):
    """A decisions file."""

    header: LogHeader
    lines: tuple[DecisionLine, ...]


def read_decisions(path: Path) -> DecisionLog:
    """Read a file of `write_decisions` back.

    Raises:
        InputError: if it is missing, not such a file, or broken; names the line.
    """
    rows = read_bytes(path).splitlines()
    try:
        header = msgspec.json.decode(rows[0] if rows else b"", type=LogHeader)
    except DAMAGED as error:
        raise wrong_schema(path, DECISIONS_SCHEMA, str(error)) from error
    if header.schema != DECISIONS_SCHEMA:
        raise wrong_schema(path, DECISIONS_SCHEMA, f"its schema is {header.schema!r}")
    return DecisionLog(header, tuple(_lines(rows[1:], path)))


def _lines(rows: list[bytes], path: Path) -> Iterator[DecisionLine]:
    decode = msgspec.json.Decoder(DecisionLine).decode
    for number, row in enumerate(rows, start=2):
        try:
            yield decode(row)
        except DAMAGED as error:
            raise InputError(
                f"{path}:{number}: not a decision: {error}", "write the file again; it may have been cut off"
            ) from error
