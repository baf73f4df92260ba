"""What squeue and sinfo print, read by a strict grammar: half an answer is refused as a whole.

A job of which a field cannot be read is left to Slurm, and refuses nothing else.

Only fields whose text Slurm itself makes are asked for here. A job's name and comment are its user's (`Words`): they
could hold separators and line ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from hemiola.core.errors import EngineError

__all__ = [
    "NODE_FORMAT",
    "NOTHING",
    "PARKED_S",
    "SPAN_FORMAT",
    "WHY_PART",
    "YEAR_S",
    "RunSpan",
    "SlurmJobRow",
    "SlurmNodeRow",
    "SlurmRules",
    "Words",
    "gpus_in",
    "job_format",
    "job_rows",
    "matching",
    "node_rows",
    "node_state",
    "read_dependency",
    "read_each",
    "read_gpus",
    "read_node_list",
    "read_reason",
    "read_tres",
    "read_word",
    "row_of",
    "rules_of",
    "spans_in",
]


PARKED_S = 365 * 86400
"""A job that waits for others is not held, but begins so much later: of held jobs Slurm looks after no dependency."""
_KEPT = {
    "JobHeldAdmin": "an administrator holds it",
    "SpecialExit": "it ended in a special exit, and is held",
    "ReservationDeleted": "its reservation is gone, and it is held",
}
"""Reasons for which a job is held by others than its user or Hemiola, in words."""
_UNLAUNCHED = (" requeued held", "JobHoldMaxRequeue")
"""How the reasons end for which Slurm holds a job that it could not launch: after a failed Prolog, or too many of them."""


MIB = 2**20
Tres = tuple[int, float]
"""(processors, bytes of memory)"""


class SlurmJobRow(msgspec.Struct, frozen=True, gc=False):
    """A job as Slurm has it now.

    Attributes:
        id: "12", or "12_3" for an element of an array.
        state: "PENDING", "RUNNING", "COMPLETING", ...
        reason: why it waits, in Slurm's word.
        hosts, most_hosts: how many it wants at least and at most (Slurm shows the same where it has no most).
        host_list: where it runs.
        gpus_per_host, gpus_per_job, gpus_per_task: as it asked for; 0 where it did not.
        tasks: how many.
        submit_s: Unix time; a requeued job has the time of that.
        uid: of its owner.
        priority: 0 while it is held.
        eligible_s: Unix time before which it may not start; None if there is none yet.
        array: the array's id, or its own.
        bound_to: the nodes that it was bound to.
        restarts: how often it was requeued.
        limit_s: its time limit; None for none.
        partition: one, or several with commas between.
        exit_code: as wait(2) has it: the code times 256, or a signal's number; 0 if it did not fail.
        dependency: what it waits for, in Slurm's words; "" for nothing. Of a held job Slurm never looks again.
        requeues: whether it may be put back into the queue.
        reservation: that it is to run in; "" for none. The nodes of reservations are not ours to give.
        tasks_per_host: if it says so; else 0.
        cpus_per_host: at least.
        exclusive: whether it has its nodes for itself (`--exclusive`, or its partition's OverSubscribe=EXCLUSIVE).
        gpu_type: of the GPUs that it asks for; "" for any.
        gpus_per_socket: as it asked for; 0 where it did not.
        batch: whether it has a script; what `salloc` or `srun` asked for is never put back into the queue.
        features: that its nodes are to have, in Slurm's words (`--constraint`); "" for none.
        strange: why it is Slurm's to run, whatever else it says, in words; "" for most.
        tres: processors and bytes of memory that it has in all, or wants; 0 where Slurm does not say. Of a job that waits
            Slurm shows what defaults for each GPU add only once it has looked at it, and all memory of nodes where it
            asks for none.
        cpus_per_gpu, memory_per_gpu_bytes: as it asked for; 0 where it did not.
        asks_memory: whether it says how much it wants of each node, or for each processor.
    """

    id: str
    state: str
    reason: str
    hosts: int
    most_hosts: int
    host_list: str
    gpus_per_host: int
    gpus_per_job: int
    gpus_per_task: int
    tasks: int
    submit_s: int
    uid: int
    priority: int
    eligible_s: int | None
    array: str
    bound_to: str
    restarts: int
    limit_s: float | None
    partition: str
    exit_code: int
    dependency: str
    requeues: bool
    reservation: str = ""
    tasks_per_host: int = 0
    cpus_per_host: int = 1
    exclusive: bool = False
    gpu_type: str = ""
    gpus_per_socket: int = 0
    batch: bool = True
    features: str = ""
    strange: str = ""
    tres: Tres = (0, 0.0)
    cpus_per_gpu: int = 0
    memory_per_gpu_bytes: float = 0.0
    asks_memory: bool = False

    @property
    def takes_gpus(self) -> bool:
        """Whether others cannot have some where it runs."""
        asked = self.gpus_per_host or self.gpus_per_job or self.gpus_per_task or self.gpus_per_socket
        return bool(asked or self.exclusive)

    @property
    def kept(self) -> str:
        """Why it is held by others than its user or Hemiola, until somebody releases it, in words; "" if it is not."""
        if not self.priority and self.reason.endswith(_UNLAUNCHED):
            return "Slurm could not launch it, and holds it"
        return _KEPT.get(self.reason, "")

    def begins_far(self, wall_s: float) -> bool:
        """Whether its begin time is, by the wall clock, so far away as that of a job that is parked."""
        return self.eligible_s is not None and self.eligible_s > wall_s + PARKED_S / 2

    def is_parked(self, wall_s: float) -> bool:
        """Whether it was given back to Slurm with a begin time far away, to have its dependency looked after."""
        return bool(self.priority) and self.begins_far(wall_s)


@dataclass(frozen=True)
class Words:
    """What is written of a job in free text.

    Attributes:
        comment: its user's.
        name: what its user calls it.
        admin: its AdminComment, which its user cannot write.
    """

    comment: str = ""
    name: str = ""
    admin: str = ""


class RunSpan(NamedTuple):
    """When a job began and ended, Unix time; None where Slurm does not say.

    Attributes:
        began_s: its present run, or its last one; of a job that waits, when Slurm expects it to.
        ended_s: of a job that has not, when its time limit is over.
    """

    began_s: int | None
    ended_s: int | None


class SlurmNodeRow(msgspec.Struct, frozen=True, gc=False):
    """A node as Slurm has it now.

    Attributes:
        state: "idle", "mixed", "down", "draining", ...; "maint" and "reserved" whatever runs there.
        silent: whether it does not answer.
        gpus: that it has.
        partition: one of those that it is in.
        features: that it has now.
        cpus, memory_bytes: that it has; None where Slurm does not say.
        cpus_taken, memory_taken_bytes: that jobs have of it.
    """

    name: str
    state: str
    silent: bool
    gpus: int
    partition: str
    features: frozenset[str]
    cpus: int | None = None
    cpus_taken: int = 0
    memory_bytes: float | None = None
    memory_taken_bytes: float = 0.0


class SlurmRules(msgspec.Struct, frozen=True, gc=False):
    """What of its nodes Slurm counts for the jobs of a partition, and what it gives them unasked.

    Attributes:
        cpus_per_gpu, memory_per_gpu_bytes: that a job gets which asks for none (DefCpuPerGPU, DefMemPerGPU); 0 for none.
        counts_cpus: False where several jobs may have the same (OverSubscribe).
        counts_memory: whether what jobs have of it is taken from others.
        preempts: whether Slurm stops jobs for others by itself; what they have may be had, then.
    """

    cpus_per_gpu: int = 0
    memory_per_gpu_bytes: float = 0.0
    counts_cpus: bool = True
    counts_memory: bool = False
    preempts: bool = False


def matching(pattern: str) -> Callable[[str], str]:
    """A reader of words that are of this form; it raises ValueError of others."""
    known = re.compile(pattern)

    def read(text: str) -> str:
        if not known.fullmatch(text):
            raise ValueError(text)
        return text

    return read


def _optional(text: str) -> int | None:
    return None if text in ("N/A", "NONE", "Unknown", "") else int(text)


def read_gpus(text: str) -> tuple[int, str]:
    """How many, and of which type.

    gres:gpu:4, gres:gpu:h100:4, gpu:8(S:0-1); since 23.02 gres/gpu:4 and gres/gpu:h100=4; several with commas.
    """
    if text in ("N/A", "(null)", "", "none"):
        return 0, ""
    total, kinds = 0, set[str]()
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        words = re.split("[:=]", re.sub("^gres[:/]", "", part))
        if words[0] == "gpu":
            total += int(words[-1]) if words[-1].isdigit() else 1
            kinds.update(word for word in words[1:] if not word.isdigit())
    return total, matching(r"[\w.-]{0,64}")(kinds.pop() if len(kinds) == 1 else "")


_TRES = re.compile(r"\b(cpu|mem)=(\d+(?:\.\d+)?)([KMGTPE]?)")


def read_tres(text: str) -> Tres:
    """Of cpu=3,mem=1500M,node=2,billing=3; N/A: nothing is known."""
    found = {name: float(number) * _factor(unit) for name, number, unit in _TRES.findall(text)}
    return int(found.get("cpu", 0)), found.get("mem", 0.0) * MIB


def _factor(unit: str) -> float:
    """Memory is in MiB unless it says otherwise."""
    return 1024.0 ** ("KMGTPE".index(unit) - 1) if unit else 1.0


def read_each(text: str) -> int:
    """For each GPU: 4 of gres:gpu:4, gpu:4 or gres/gpu:4; 0 for nothing."""
    return read_gpus(text)[0]


def _cpus(text: str) -> tuple[int, int]:
    """Taken and in all, of allocated/idle/other/total."""
    taken, _, _, total = text.split("/")
    return int(taken), int(total)


def _exit_code(text: str) -> int:
    """768; since 23.02 3:0, and 0:9 for a signal."""
    code, colon, signal = text.partition(":")
    return (int(code) << 8 | int(signal)) if colon else int(code)


_GPUS_THERE = re.compile(r"\bgpu(?::[\w.-]+)?:(\d{1,6})\(")
YEAR_S = 365 * 86400.0
"""The limit that Slurm shows of a job without one, once it has run."""


def _limit(text: str) -> float | None:
    """[days-]hours:minutes:seconds, minutes:seconds; UNLIMITED."""
    if text in ("UNLIMITED", "NOT_SET", "N/A", "INVALID"):
        return None
    days, _, clock = text.rpartition("-")
    seconds = 0
    for part in clock.split(":"):
        seconds = 60 * seconds + int(part)
    limit_s = float(86400 * int(days or 0) + seconds)
    return limit_s if limit_s < YEAR_S else None  # a job without a limit shows one of a year once it has run


def gpus_in(details: str) -> int:
    """How many GPUs a job has on a node, as in gpu:h100:4(IDX:0-3)."""
    return sum(int(count) for count in _GPUS_THERE.findall(details))


def read_dependency(text: str) -> str:
    """What a job waits for, as afterok:12(unfulfilled), cut off; "" for nothing."""
    return "" if text == "(null)" else _shown(text, 4096)


def read_reason(text: str) -> str:
    """Slurm's word, or its few words for some; shown to people, and compared with known ones."""
    return _shown(text, 256)


def _shown(text: str, most: int) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text[:most])


read_node_list = matching(r"[\w.,\[\]-]{0,65536}")
read_word = matching(r"\w{1,64}")
_PART = re.compile(r"\d+\+\d+")
"""The id of a part of a heterogeneous job: Slurm starts all of them together, or none."""
WHY_PART = "it is part of a heterogeneous job"
_WHY_SOCKET = "it asks for GPUs by socket"
NOTHING: dict[str, Any] = {
    "id": "", "hosts": 1, "most_hosts": 1, "gpus_per_host": (0, ""), "gpus_per_job": (0, ""), "gpus_per_task": (0, ""),
    "tasks": 1, "submit_s": 0, "uid": 0, "priority": 0, "eligible_s": None, "array": "0", "bound_to": "", "restarts": 0,
    "limit_s": None, "partition": "", "exit_code": 0, "requeues": False, "reservation": "", "tasks_per_host": 0,
    "cpus_per_host": 1, "exclusive": "NO", "gpus_per_socket": (0, ""), "batch": True, "features": "", "tres": (0, 0.0),
    "cpus_per_gpu": 0, "memory_per_gpu_bytes": 0.0, "asks_memory": False,
}  # fmt: skip
"""What stands for what cannot be read of a job. Without its state or its nodes nothing of the answer is used."""
_ID = ("JobArrayID", matching(r"\d+(_\d+|_\[[\d,%-]+\]|\+\d+)?"))
_JOB: tuple[tuple[str, Callable[[str], Any]], ...] = (
    _ID, ("State", read_word), ("Reason", read_reason), ("NumNodes", int),
    ("MaxNodes", int), ("NodeList", read_node_list), ("tres-per-node", read_gpus), ("tres-per-job", read_gpus),
    ("tres-per-task", read_gpus), ("NumTasks", int), ("SubmitTime", int), ("UserID", int), ("PriorityLong", int),
    ("EligibleTime", _optional), ("ArrayJobID", matching(r"\d+")), ("ReqNodes", read_node_list), ("restartcnt", int),
    ("TimeLimit", _limit), ("Partition", matching(r"[\w.,-]{1,1024}")), ("exit_code", _exit_code), ("Dependency", read_dependency),
    ("Requeue", lambda text: text == "1"),
    ("Reservation", lambda text: "" if text == "(null)" else matching(r"[\w.,-]{0,1024}")(text)),
    ("ntpernode", lambda text: _optional(text) or 0), ("MinCpus", int), ("OverSubscribe", read_word),
    ("tres-per-socket", read_gpus), ("BatchFlag", lambda text: text == "1"), ("tres-alloc", read_tres),
    ("cpus-per-tres", read_each), ("mem-per-tres", lambda text: float(MIB * read_each(text))),
    ("MinMemory", lambda text: re.search("[1-9]", text) is not None),
    ("Feature", lambda text: "" if text == "(null)" else matching(r"(?!.*null)[\w.:=&|*,()\[\]-]{1,1024}")(text)),
)  # fmt: skip
_SPAN = (_ID, ("StartTime", _optional), ("EndTime", _optional))
_NODE = (
    ("NodeList", matching(r"[\w.-]{1,255}")),
    ("StateComplete", matching(r"\w[\w+?]{0,255}")),
    ("Gres", str),
    ("PartitionName", matching(r"[\w.-]{1,255}")),
    ("CPUsState", _cpus),
    ("Memory", lambda text: float(MIB * int(text))),
    ("AllocMem", lambda text: float(MIB * int(text))),
    ("Features_act", lambda text: frozenset(() if text == "(null)" else text.split(","))),
)
_BUSY = frozenset({"ALLOCATED", "MIXED"})
EXCLUSIVE_COLUMN = (26, 5)
"""Since then squeue has a column for whole nodes, and OverSubscribe says "NO" of jobs that share theirs, too."""
NODE_FORMAT, SPAN_FORMAT = (",".join(f"{name}:|" for name, _ in fields) for fields in (_NODE, _SPAN))


def job_format(version: tuple[int, int]) -> str:
    """What to ask of a squeue of this version."""
    names = ",".join(f"{name}:|" for name, _ in _JOB)
    return names.replace("OverSubscribe", "Exclusive") if version >= EXCLUSIVE_COLUMN else names


def job_rows(text: str, version: tuple[int, int]) -> list[SlurmJobRow]:
    """Of `squeue -r -O` with the `job_format` of its version, below its header.

    Raises:
        EngineError: a line that cannot be, or a job that may have any nodes; then nothing of the answer is used.
    """
    whole = "NODE" if version >= EXCLUSIVE_COLUMN else "NO"
    return [_job(words, number, whole) for number, words in _lines(text, len(_JOB), "squeue")]


_NAMES = [n for n in SlurmJobRow.__struct_fields__ if n not in ("gpu_type", "strange", "features")] + [
    "features"
]
"""What the columns are to us."""
_ASKED = ("gpus_per_host", "gpus_per_job", "gpus_per_task", "gpus_per_socket")


def _job(words: list[str], number: int, whole: str) -> SlurmJobRow:
    """A row.

    Args:
        whole: what the column of OverSubscribe or Exclusive says of jobs that have whole nodes.
    """
    fields: dict[str, Any] = {}
    strange = ""
    for ours, word, (name, read) in zip(_NAMES, words, _JOB, strict=True):
        try:
            fields[ours] = read(word)
        except ValueError:
            if ours not in NOTHING or "|" in words[-1]:  # the separators may stand elsewhere
                raise _unknown("squeue", word, name, number) from None
            fields[ours] = NOTHING[ours]
            strange = strange or f"squeue printed {word[:200]!r} as {name}"
    fields["exclusive"] = fields["exclusive"] == whole
    return row_of(fields, strange)


def row_of(fields: dict[str, Any], strange: str) -> SlurmJobRow:
    """Of its fields, GPUs with their types; one that is strange is taken to have its nodes for itself."""
    if fields["state"] == "SPECIAL_EXIT":  # it is back in the queue, and held; no other reason is given
        fields |= {"state": "PENDING", "reason": "SpecialExit"}
    elif fields["state"] == "RESV_DEL_HOLD":  # so is this one, and so it is called still when it was released
        is_held = fields["reason"].startswith("Reservation ")
        fields |= {"state": "PENDING", "reason": "ReservationDeleted" if is_held else fields["reason"]}
    elif fields["state"] == "REQUEUE_HOLD":  # and this one, that could not be launched again and again
        fields |= {"state": "PENDING"}
    asked = {name: fields[name] for name in _ASKED}
    fields |= {name: count for name, (count, _) in asked.items()}
    fields["exclusive"] = fields["exclusive"] or strange != ""
    strange = strange or (WHY_PART if _PART.fullmatch(fields["id"]) else "")
    strange = strange or (_WHY_SOCKET if fields["gpus_per_socket"] else "")
    return SlurmJobRow(
        gpu_type=next((kind for _, kind in asked.values() if kind), ""), strange=strange, **fields
    )


def node_rows(text: str) -> list[SlurmNodeRow]:
    """Of `sinfo -N -O NODE_FORMAT`, below its header."""
    return [
        SlurmNodeRow(
            name,
            *node_state(state.upper().split("+")),
            read_gpus(gres)[0],
            partition,
            features,
            cpus[1],
            cpus[0],
            memory_bytes,
            memory_taken_bytes,
        )
        for name, state, gres, partition, cpus, memory_bytes, memory_taken_bytes, features in _read(
            text, _NODE, "sinfo"
        )
    ]


_DEFAULT = re.compile(r"\b(DefCpuPerGPU|DefMemPerGPU)=(\d{1,12})")


def rules_of(settings: Mapping[str, str], partition: str) -> SlurmRules:
    """Of `scontrol show config`, and of `scontrol -o show partition` of one; where both say something, it is the partition's.

    Raises:
        EngineError: the second is no such answer.
    """
    own = dict(pair.partition("=")[::2] for pair in partition.split())
    if "PartitionName" not in own:
        raise EngineError(
            f"scontrol printed {partition[:200]!r} of a partition",
            "half an answer is not used; it is asked again",
        )
    defaults = [
        dict(_DEFAULT.findall(text)) for text in (settings.get("JobDefaults", ""), own.get("JobDefaults", ""))
    ]
    each = {name: int(count) for some in defaults for name, count in some.items()}
    shared, _, most = own.get("OverSubscribe", "").partition(":")
    return SlurmRules(
        cpus_per_gpu=each.get("DefCpuPerGPU", 0),
        memory_per_gpu_bytes=float(MIB * each.get("DefMemPerGPU", 0)),
        counts_cpus=not (shared in ("YES", "FORCE") and most != "1"),
        counts_memory="MEMORY" in settings.get("SelectTypeParameters", "").upper(),
        preempts=settings.get("PreemptType", "preempt/none") not in ("preempt/none", "(null)"),
    )


def spans_in(text: str) -> dict[str, RunSpan]:
    """Of `squeue -r -O SPAN_FORMAT`, below its header."""
    return {
        job_id: RunSpan(began_s or None, ended_s or None)
        for job_id, began_s, ended_s in _read(text, _SPAN, "squeue")
    }


def node_state(words: list[str]) -> tuple[str, bool]:
    """As sinfo sums it up, and whether the node is silent.

    Where jobs run, sinfo says no more that a node is reserved or in maintenance; that it is counts here. A node whose
    power is off answers nobody, and is woken for jobs.

    Args:
        words: its state, and its flags.
    """
    base, flags = words[0], frozenset(words[1:])
    return _state(base, flags), "NOT_RESPONDING" in flags and "POWERED_DOWN" not in flags


def _state(base: str, flags: frozenset[str]) -> str:
    busy = base in _BUSY or "COMPLETING" in flags
    if "INVALID_REG" in flags:
        return "inval"
    if "DRAIN" in flags:
        return "error" if base == "ERROR" else "draining" if busy else "drained"
    if "FAIL" in flags:
        return "failing" if busy else "fail"
    if base != "DOWN":
        if "MAINTENANCE" in flags:
            return "maint"
        if "RESERVED" in flags and (busy or base == "IDLE"):
            return "reserved"
        if not busy and not flags.isdisjoint({"REBOOT_REQUESTED", "REBOOT_ISSUED"}):
            return "reboot"
    if base == "IDLE":
        shown = ("COMPLETING", "POWERING_DOWN", "POWERING_UP", "PLANNED")
        return next((flag for flag in shown if flag in flags), base).lower()
    return base.lower()


def _read(text: str, fields: tuple[tuple[str, Callable[[str], Any]], ...], command: str) -> list[list[Any]]:
    rows = []
    for number, words in _lines(text, len(fields), command):
        row = []
        for word, (name, read) in zip(words, fields, strict=True):
            try:
                row.append(read(word))
            except ValueError:
                raise _unknown(command, word, name, number) from None
        rows.append(row)
    return rows


def _lines(text: str, fields: int, command: str) -> Iterator[tuple[int, list[str]]]:
    """The words of each line, and its number."""
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), start=1):
        words = line.split("|")
        if len(words) > fields + 1:  # constraints may say "or", and stand at the end
            words[fields - 1 : -1] = ["|".join(words[fields - 1 : -1])]
        if len(words) != fields + 1 or words[-1]:
            raise EngineError(
                f"{command} printed {len(words) - 1} of {fields} fields in line {number}: {line[:200]!r}",
                "half an answer is not used; it is asked again",
            )
        yield number, words[:-1]


def _unknown(command: str, word: str, name: str, number: int) -> EngineError:
    return EngineError(
        f"{command} printed {word[:200]!r} as {name} in line {number}",
        "this version of Slurm is not understood; please report its version",
    )
