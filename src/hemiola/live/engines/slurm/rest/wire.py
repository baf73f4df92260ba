"""slurmrestd's answers as the same rows that squeue and sinfo give, by as strict a grammar.

Only what is asked for is read, of one type each; one field of another type, and nothing of the answer is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from hemiola.core.errors import EngineError
from hemiola.core.hostlist import expand
from hemiola.live.engines.slurm import wire
from hemiola.live.engines.slurm.wire import RunSpan, SlurmJobRow, SlurmNodeRow, Words

__all__ = [
    "MOST_ROWS",
    "Envelope",
    "Requeue",
    "RestJob",
    "RestJobs",
    "RestNodes",
    "Update",
    "elements_of",
    "job_row",
    "node_rows",
    "requests_of",
    "span_of",
    "words_of",
]


MOST_ROWS = 250_000
"""Of one answer, each element of an array counted."""
NOT_SET = 0xFFFFFFFE
"""What squeue prints as the tasks of a job that was cancelled before it ran."""
_CUT = "..."
"""At the end of a list of elements that slurmrestd did not write to its end."""
_ELEMENTS = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_FLAGS = (
    "COMPLETING", "STAGE_OUT", "CONFIGURING", "RESIZING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT",
    "STOPPED", "REVOKED", "RESV_DEL_HOLD", "SIGNALING",
)  # fmt: skip
"""Of a job's state: which of them squeue shows in its place."""
_LIVE = frozenset({"PENDING", "RUNNING", "SUSPENDED"})

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Number(msgspec.Struct, frozen=True):
    """As slurmrestd writes one that may be missing."""

    set: bool
    infinite: bool
    number: Count

    def __int__(self) -> int:
        if not self.set or self.infinite:
            raise ValueError("no number")
        return self.number

    def or_none(self) -> int | None:
        """Zero and missing are the same."""
        return self.number if self.set and not self.infinite and self.number else None


class _Signal(msgspec.Struct, frozen=True):
    id: Number


class _Exit(msgspec.Struct, frozen=True):
    return_code: Number
    signal: _Signal

    def __int__(self) -> int:
        return (self.return_code.or_none() or 0) << 8 | (self.signal.id.or_none() or 0)


_UNSET = Number(set=False, infinite=False, number=0)


class RestJob(msgspec.Struct, frozen=True):
    """A job's record: of an array that waits, one for all of its elements that were not touched yet."""

    job_id: Count
    array_job_id: Number
    array_task_id: Number
    array_task_string: str
    job_state: Annotated[list[str], msgspec.Meta(min_length=1)]
    state_reason: str
    state_description: str
    node_count: Number
    max_nodes: Number
    nodes: str
    tres_per_node: str
    tres_per_job: str
    tres_per_task: str
    tres_per_socket: str
    tasks: Number
    submit_time: Number
    user_id: Count
    priority: Number
    eligible_time: Number
    required_nodes: str
    excluded_nodes: str
    restart_cnt: Count
    time_limit: Number
    partition: str
    exit_code: _Exit
    batch_flag: bool
    dependency: str
    requeue: bool
    resv_name: str
    tasks_per_node: Number
    minimum_cpus_per_node: Number
    shared: list[str]
    features: str
    name: str
    comment: str
    admin_comment: str
    gres_detail: list[str]
    tres_req_str: str = ""
    tres_alloc_str: str = ""
    cpus_per_tres: str = ""
    memory_per_tres: str = ""
    memory_per_cpu: Number = _UNSET
    memory_per_node: Number = _UNSET
    het_job_id: Number = _UNSET
    start_time: Number = _UNSET
    end_time: Number = _UNSET

    @property
    def array(self) -> int:
        """The number of its array, or its own."""
        return self.array_job_id.or_none() or self.job_id

    @property
    def state(self) -> str:
        """As squeue shows it."""
        return next((flag for flag in _FLAGS if flag in self.job_state), self.job_state[0])

    @property
    def is_live(self) -> bool:
        """Whether squeue shows it unless told otherwise."""
        return self.job_state[0] in _LIVE or "COMPLETING" in self.job_state

    def shares(self) -> dict[str, int]:
        """How many GPUs it has on each node.

        Raises:
            EngineError: as many details as nodes are needed.
        """
        names = expand(self.nodes)
        if self.gres_detail and len(names) != len(self.gres_detail):
            raise EngineError(
                f"slurmrestd says of {len(self.gres_detail)} of {len(names)} nodes what job {self.job_id} has there",
                "half an answer is not used; it is asked again",
            )
        return {name: wire.gpus_in(detail) for name, detail in zip(names, self.gres_detail, strict=False)}


class RestProblem(msgspec.Struct, frozen=True):
    """One of slurmrestd's complaints."""

    description: str = ""
    error_number: int = 0
    error: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.description, self.error))) or f"error {self.error_number}"


class Envelope(msgspec.Struct, frozen=True):
    """What stands in every answer."""

    errors: list[RestProblem]
    warnings: list[RestProblem]


class RestJobs(Envelope, frozen=True):
    """An answer about jobs; one that nothing has changed has neither jobs nor the time of the last change."""

    jobs: list[RestJob]
    last_update: Number


class RestNode(msgspec.Struct, frozen=True):
    """A node's record."""

    name: str
    state: Annotated[list[str], msgspec.Meta(min_length=1)]
    gres: str
    partitions: list[str]
    active_features: list[str]
    cpus: Count | None = None
    alloc_cpus: Count = 0
    real_memory: Count | None = None
    alloc_memory: Count = 0


class RestNodes(Envelope, frozen=True):
    """An answer about nodes."""

    nodes: list[RestNode]


def elements_of(job: RestJob) -> list[str] | None:
    """The ids of the rows that a record stands for; None where slurmrestd has cut them off.

    Raises:
        EngineError: its elements are no list of numbers, or too many.
    """
    if not job.array_job_id.or_none():
        return [str(job.job_id)]
    if job.array_task_id.set:
        return [f"{job.array}_{int(job.array_task_id)}"]
    text = job.array_task_string.partition("%")[0]
    if text.endswith(_CUT):
        return None
    return [f"{job.array}_{number}" for number in _numbers(job, text)] if text else [str(job.job_id)]


def _numbers(job: RestJob, text: str) -> Iterator[int]:
    left = MOST_ROWS
    for part in text.split(","):
        match = _ELEMENTS.fullmatch(part)
        if match is None:
            raise _strange(job, "array_task_string", job.array_task_string)
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1) or MOST_ROWS)
        left -= len(numbers)
        if left < 0:
            raise EngineError(
                f"the array {job.array} stands for more than {MOST_ROWS:,} jobs",
                "set MaxArraySize lower in slurm.conf",
            )
        yield from numbers


def job_row(job: RestJob, job_id: str) -> SlurmJobRow:
    """One row of a record.

    Raises:
        EngineError: its state or its nodes cannot be read.
    """
    fields: dict[str, Any] = {"id": job_id}
    strange = ""
    for ours, (theirs, read) in _FIELDS.items():
        try:
            fields[ours] = read(job)
        except ValueError:
            problem = _strange(job, theirs, getattr(job, theirs))
            if ours not in wire.NOTHING:
                raise problem from None
            fields[ours], strange = wire.NOTHING[ours], strange or problem.what
    row = wire.row_of(fields, strange)
    is_part = not strange and job.het_job_id.or_none()
    return msgspec.structs.replace(row, strange=wire.WHY_PART) if is_part else row


def _most_hosts(job: RestJob) -> int:
    """Of one that runs, those that it has."""
    most = job.max_nodes.or_none() if job.job_state[0] == "PENDING" else None
    return most or int(job.node_count)


def _limit_s(job: RestJob) -> float | None:
    minutes = job.time_limit.or_none()
    limit_s = 60.0 * minutes if minutes else wire.YEAR_S
    return limit_s if limit_s < wire.YEAR_S else None


_PARTITIONS = wire.matching(r"[\w.,-]{1,1024}")
_RESERVATION = wire.matching(r"[\w.,-]{0,1024}")
_FEATURES = wire.matching(r"(?!.*null)[\w.:=&|*,()\[\]-]{0,1024}")
_FIELDS: dict[str, tuple[str, Callable[[RestJob], Any]]] = {
    "state": ("job_state", lambda job: wire.read_word(job.state)),
    "reason": ("state_description", lambda job: wire.read_reason(job.state_description or job.state_reason)),
    "hosts": ("node_count", lambda job: int(job.node_count)),
    "most_hosts": ("max_nodes", _most_hosts),
    "host_list": ("nodes", lambda job: wire.read_node_list(job.nodes)),
    "gpus_per_host": ("tres_per_node", lambda job: wire.read_gpus(job.tres_per_node)),
    "gpus_per_job": ("tres_per_job", lambda job: wire.read_gpus(job.tres_per_job)),
    "gpus_per_task": ("tres_per_task", lambda job: wire.read_gpus(job.tres_per_task)),
    "tasks": ("tasks", lambda job: job.tasks.number if job.tasks.set else NOT_SET),
    "submit_s": ("submit_time", lambda job: int(job.submit_time)),
    "uid": ("user_id", lambda job: job.user_id),
    "priority": ("priority", lambda job: int(job.priority)),
    "eligible_s": ("eligible_time", lambda job: job.eligible_time.or_none()),
    "array": ("array_job_id", lambda job: str(job.array)),
    "bound_to": ("required_nodes", lambda job: wire.read_node_list(job.required_nodes)),
    "restarts": ("restart_cnt", lambda job: job.restart_cnt),
    "limit_s": ("time_limit", _limit_s),
    "partition": ("partition", lambda job: _PARTITIONS(job.partition)),
    "exit_code": ("exit_code", lambda job: int(job.exit_code)),
    "dependency": ("dependency", lambda job: wire.read_dependency(job.dependency)),
    "requeues": ("requeue", lambda job: job.requeue),
    "reservation": ("resv_name", lambda job: _RESERVATION(job.resv_name)),
    "tasks_per_host": ("tasks_per_node", lambda job: job.tasks_per_node.or_none() or 0),
    "cpus_per_host": ("minimum_cpus_per_node", lambda job: int(job.minimum_cpus_per_node)),
    "exclusive": ("shared", lambda job: "none" in job.shared),
    "gpus_per_socket": ("tres_per_socket", lambda job: wire.read_gpus(job.tres_per_socket)),
    "batch": ("batch_flag", lambda job: job.batch_flag),
    "features": ("features", lambda job: _FEATURES(job.features)),
    "tres": ("tres_req_str", lambda job: wire.read_tres(job.tres_alloc_str or job.tres_req_str)),
    "cpus_per_gpu": ("cpus_per_tres", lambda job: wire.read_each(job.cpus_per_tres)),
    "memory_per_gpu_bytes": (
        "memory_per_tres",
        lambda job: float(wire.MIB * wire.read_each(job.memory_per_tres)),
    ),
    "asks_memory": (
        "memory_per_node",
        lambda job: bool(job.memory_per_node.or_none() or job.memory_per_cpu.or_none()),
    ),
}
"""Of a row: which field of the record it is read from, and how."""


def words_of(job: RestJob) -> Words:
    """What is written of it in free text."""
    return Words(job.comment, job.name, job.admin_comment)


def span_of(job: RestJob) -> RunSpan:
    """When it began and ended."""
    return RunSpan(job.start_time.or_none(), job.end_time.or_none())


_NAME = wire.matching(r"[\w.-]{1,255}")


def node_rows(nodes: Iterable[RestNode]) -> list[SlurmNodeRow]:
    """A row for each node in each of its partitions.

    Raises:
        EngineError: a field that cannot be.
    """
    found = []
    for node in nodes:
        try:
            state, silent = wire.node_state(node.state)
            row = SlurmNodeRow(
                _NAME(node.name), wire.read_word(state), silent, wire.read_gpus(node.gres)[0], "",
                frozenset(node.active_features), node.cpus, node.alloc_cpus, _bytes(node.real_memory),
                float(wire.MIB * node.alloc_memory),
            )  # fmt: skip
            found += [msgspec.structs.replace(row, partition=_NAME(name)) for name in node.partitions]
        except ValueError as error:
            raise EngineError(
                f"slurmrestd says {str(error)[:200]!r} of the node {node.name[:255]!r}",
                "this version of Slurm is not understood; please report its version",
            ) from None
    return found


def _bytes(mib: int | None) -> float | None:
    return None if mib is None else float(wire.MIB * mib)


def _strange(job: RestJob, name: str, value: object) -> EngineError:
    return EngineError(
        f"slurmrestd says {str(value)[:200]!r} as {name} of job {job.job_id}",
        "this version of Slurm is not understood; please report its version",
    )


# The orders of `orders.py`, which are written in scontrol's words, as what slurmrestd is sent.

_ID = r"\d{1,10}(?:_\d{1,9})?"
_IDS = rf"{_ID}(?:,{_ID})*"
_UPDATE = re.compile(rf"update jobid=({_IDS}) (\S+=\S*(?: \S+=\S*)*)", re.ASCII)
_SEVERAL = re.compile(rf"(release|requeuehold) ({_IDS})", re.ASCII)
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)
_NUMBERS = {"NumTasks": "tasks", "NumCPUs": "minimum_cpus"}
_TIME = re.compile(r"now(\+\d{1,10})?", re.ASCII)


@dataclass(frozen=True)
class Update:
    """Change a job.

    Attributes:
        fields: what, as in the body of the request.
        order: the same for scontrol.
    """

    job_id: str
    fields: dict[str, Any]
    order: str


@dataclass(frozen=True)
class Requeue:
    """Stop running jobs and hold them in the queue."""

    job_ids: tuple[str, ...]
    order: str


def requests_of(order: str) -> list[Update | Requeue | str]:
    """What to send, in this order; what REST has no words for stays as it is, for scontrol.

    Holding is such: over REST an operator's hold is an administrator's, which is not Hemiola's to lift.
    """
    if match := _UPDATE.fullmatch(order):
        fields: dict[str, Any] = {}
        for word in match[2].split(" "):
            field = _field(*word.split("=", 1))
            if field is None:
                return [order]
            fields |= field
        return [Update(job_id, fields, f"update jobid={job_id} {match[2]}") for job_id in match[1].split(",")]
    match = _SEVERAL.fullmatch(order)
    if match is None:
        return [order]
    ids = tuple(match[2].split(","))
    if match[1] == "requeuehold":
        return [Requeue(ids, order)]
    return [Update(job_id, {"hold": False}, f"release {job_id}") for job_id in ids]


def _field(key: str, value: str) -> dict[str, Any] | None:
    """Of an update's body; None where it has no such field."""
    if key in ("ReqNodeList", "NodeList"):
        return {"required_nodes": [value]}  # [] would change nothing
    if key == "AdminComment":
        return {"admin_comment": value}
    if key == "StartTime" and _TIME.fullmatch(value):
        return {"begin_time": value}
    if key in _NUMBERS and value.isdecimal():
        return {_NUMBERS[key]: int(value)}
    if key == "Priority" and value.isdecimal():
        return {"priority": {"set": True, "infinite": False, "number": int(value)}}
    if key == "NumNodes" and (counts := _RANGE.fullmatch(value)):
        return {"minimum_nodes": int(counts[1]), "maximum_nodes": int(counts[2])}
    return None
