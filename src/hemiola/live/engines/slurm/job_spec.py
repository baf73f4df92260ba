"""A job of Slurm's as policies see it: what it wants, and what its user says of it.

Users say more in the comment: `sbatch --comment="hemiola model=resnet50 runtime=2h required=rack"`. A job that is
submitted for two to four nodes (`-N 2-4`) is elastic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Set

import msgspec

from hemiola.core.hostlist import expand
from hemiola.core.job import Batch, Profile, batch_job
from hemiola.live.engines.slurm.wire import SlurmJobRow, Words
from hemiola.live.job_labels import KEYS, JobLabels, read_words, user_name

__all__ = [
    "asks_otherwise",
    "begin_of",
    "hosts_of",
    "is_alike",
    "is_marked",
    "is_slurms",
    "is_user_held",
    "job_of",
    "names_nodes",
    "nodes_in",
    "shape",
    "shrinks_live",
    "unnamed",
    "wants_features",
]

LABEL = "hemiola"
HELD = "hemiola:held-by-its-user"
"""What job_submit.lua writes before the comment of a job that its own user holds; users cannot, past it."""
_OWN = "hemiola:"
"""How all begins that it writes there."""
SHRINK = {"live": True, "restart": False}
"""How an elastic job gives up nodes: they are taken from it as it runs, or it begins again on the others."""
_MARK = re.compile(r"hemiola:[0-9a-f-]{36}:ranks=([\w.,\[\]-]*)(?::bound=([\w.,\[\]-]*))?")
_NODES = re.compile(_MARK.pattern + r":nodes=(?P<least>\d{1,6})-(?P<most>\d{1,6})(?::begin=\d{1,12})?")
_BEGIN = re.compile(_MARK.pattern + r"(?::nodes=[\d-]{3,13})?:begin=(?P<begin>\d{1,12})")


def is_user_held(words: Words) -> bool:
    """Whether its own user holds it: to Slurm that looks like our hold."""
    return words.comment.partition(" ")[0] == HELD


def nodes_in(hostlist: str) -> frozenset[str]:
    """The nodes of a list, in whichever order."""
    return frozenset(expand(hostlist))


def names_nodes(row: SlurmJobRow, words: Words) -> bool:
    """Whether its user names the nodes that it is to have: they are not those to which Hemiola has bound it.

    Nothing that users can write is asked: not the comment, but the list itself, and the AdminComment.
    """
    mark = _MARK.match(words.admin)
    ours = (mark[2] or mark[1]) if mark else ""
    return bool(row.bound_to) and nodes_in(row.bound_to) != nodes_in(ours)


def unnamed(row: SlurmJobRow) -> SlurmJobRow:
    """A job as if it named no nodes: what its user named is not to be taken off it."""
    return msgspec.structs.replace(row, bound_to="")


def wants_features(row: SlurmJobRow, everywhere: Set[str]) -> bool:
    """Whether its nodes are to have other features than those that all nodes have."""
    return not set(filter(None, row.features.split("&"))) <= everywhere


def is_slurms(
    row: SlurmJobRow, words: Words, everywhere: Set[str] = frozenset(), *, excludes: bool = False
) -> bool:
    """Whether a job says on which nodes it may run or not, or of which features: then policies have no choice.

    Args:
        everywhere: features that all nodes have.
        excludes: whether it names nodes that it must not have; its row does not show them.
    """
    return excludes or wants_features(row, everywhere) or names_nodes(row, words)


def is_marked(words: Words) -> bool:
    """Whether Hemiola has bound or parked it."""
    return _MARK.match(words.admin) is not None


def begin_of(words: Words) -> float | None:
    """When its user wants a job to begin that was parked, Unix time, 0 for any time; None if it was not."""
    mark = _BEGIN.fullmatch(words.admin)
    return float(mark["begin"]) if mark else None


def per_host(row: SlurmJobRow, most: int) -> int:
    """How many GPUs a job has on each node of so many; 0 where it does not say."""
    if row.exclusive and (row.gpus_per_host or row.gpus_per_job or row.gpus_per_task):
        return most
    return row.gpus_per_host


def shape(row: SlurmJobRow, most_gpus: int) -> tuple[int, int]:
    """(GPUs, hosts) of a job on hosts of so many GPUs; (0, 0) if it wants none.

    Slurm may divide `--gpus=12` among two nodes as 8 + 4, as it likes. Hemiola asks for equal parts, on as few
    hosts as possible.
    """
    if row.gpus_per_host:
        return per_host(row, most_gpus) * row.hosts, row.hosts
    gpus, unit = (
        (row.gpus_per_job, 1) if row.gpus_per_job else (row.gpus_per_task * row.tasks, row.gpus_per_task)
    )
    if not gpus:
        return 0, 0
    for hosts in range(max(row.hosts, math.ceil(gpus / max(1, most_gpus))), gpus + 1):
        if gpus % hosts == 0 and gpus // hosts % unit == 0:
            return (hosts * most_gpus if row.exclusive else gpus), hosts
    return gpus, row.hosts


def hosts_of(row: SlurmJobRow, words: Words) -> tuple[int, int]:
    """The fewest and the most nodes that a job was submitted for; equal for most jobs.

    One that has been bound shows what it was bound to, and its AdminComment what it was submitted for.
    """
    if not row.gpus_per_host:
        return row.hosts, row.hosts
    if mark := _NODES.fullmatch(words.admin):
        return int(mark["least"]), int(mark["most"])
    return row.hosts, max(row.hosts, row.most_hosts) if row.state == "PENDING" else row.hosts


def shrinks_live(words: Words) -> bool:
    """Whether nodes may be taken from a job as it runs."""
    return SHRINK.get(dict(w.partition("=")[::2] for w in words.comment.split()).get("shrink", ""), False)


def job_of(
    row: SlurmJobRow,
    uuid: str,
    words: Words,
    most_gpus: Mapping[str, int],
    usual_s: float,
    profile: Callable[[str], Profile],
) -> tuple[Batch, str]:
    """The job, and what of its comment was not understood.

    Args:
        most_gpus: on a host of each type; of "", on any. A type that is not there is called otherwise in the topology,
            as Slurm knows the types of its jobs, and cannot be heeded.
        usual_s: how long a job is taken to run that says nothing and has no limit.
        profile: of a model by its name.

    The run time is what its user says, or else its time limit: what policies that go by it have to go by.
    """
    kind = next((known for known in most_gpus if known.lower() == row.gpu_type.lower()), "")
    largest = most_gpus[kind]
    gpus, hosts = shape(row, largest)
    least, most = hosts_of(row, words)
    each = per_host(row, largest)
    if least < most:
        gpus, hosts = each * least, least
    said = _labels(words.comment, profile)
    if said.words.get("shrink", "live") not in SHRINK:
        said.problems.append(
            f"its comment says shrink={said.words['shrink'][:40]!r}: write one of {', '.join(SHRINK)}"
        )
    job = batch_job(
        id=uuid, submit_s=float(row.submit_s), gpus=gpus, duration_s=said.runtime_s or row.limit_s or usual_s,
        profile=said.profile, model=said.words.get("model", ""), user=user_name(row.uid), queue=row.partition,
        hosts=hosts, gpu_type=kind, required=said.words.get("required", ""), preferred=said.words.get("preferred", ""),
        estimate_s=row.limit_s, pinned=not (row.requeues and row.batch), gpus_max=each * most if least < most else 0,
    )  # fmt: skip
    return job, "; ".join(said.problems)


def asks_otherwise(before: SlurmJobRow, row: SlurmJobRow, job: Batch, *, tried: bool = False) -> bool:
    """Whether a job that waits shows other wishes than before. How many nodes a job shows that was bound may be our doing.

    Args:
        tried: whether it was bound in vain, of which half may be left.
    """
    if _wishes(before) != _wishes(row):
        return True
    is_fixed = bool(row.gpus_per_host) and not job.is_elastic
    sized = is_fixed or not (tried or before.bound_to or row.bound_to)
    return sized and (before.hosts, before.most_hosts) != (row.hosts, row.most_hosts)


def _wishes(row: SlurmJobRow) -> tuple[object, ...]:
    return (
        row.gpus_per_host, row.gpus_per_job, row.gpus_per_task, row.gpu_type, row.exclusive, row.limit_s, row.requeues,
    )  # fmt: skip


def is_alike(job: Batch, other: Batch) -> bool:
    """Whether policies would see the same wishes."""
    names = (
        "gpus", "hosts", "sizes", "gpu_type", "duration_s", "estimate_s", "pinned", "model", "required", "preferred",
    )  # fmt: skip
    return all(getattr(job, name) == getattr(other, name) for name in names)


def _labels(comment: str, profile: Callable[[str], Profile]) -> JobLabels:
    words = comment.split()
    while words and words[0].startswith(_OWN):  # job_submit.lua's
        words = words[1:]
    return (
        read_words(words[1:], "its comment", profile, (*KEYS, "shrink"))
        if words and words[0] == LABEL
        else JobLabels()
    )
