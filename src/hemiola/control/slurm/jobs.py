"""A job of Slurm's as policies see it: what it wants, and what its user says of it.

Users say more in the comment: `sbatch --comment="hemiola model=resnet50 runtime=2h required=rack"`.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence

from hemiola.control.live.labels import Said, read_words
from hemiola.control.live.users import user_name
from hemiola.control.slurm.client import UNKNOWN, Slurm
from hemiola.control.slurm.rows import JobRow
from hemiola.core.errors import EngineError
from hemiola.core.job import Job, Profile

__all__ = ["Words", "is_user_held", "job_of", "shape", "words_of"]

LABEL = "hemiola"
HELD = "hemiola:held-by-its-user"
"""What job_submit.lua writes before the comment of a job that its own user holds."""
Words = tuple[str, str]
"""A job's comment and its name."""


def words_of(slurm: Slurm, ids: Sequence[str]) -> dict[str, Words]:
    """What users call their jobs, and say of them, by job.

    They may write separators and line ends there. So what separates them is drawn anew each time: nobody can
    write a name that looks like another job.
    """
    if not ids:
        return {}
    end, between = "|" + secrets.token_hex(16), "|" + secrets.token_hex(16)
    try:
        text = slurm.ask(
            "squeue", "-h", "-r", "-t", "all", "-j", ",".join(ids), "-O",
            f"JobArrayID:{between},comment:{between},name:{end}",
        )  # fmt: skip
    except EngineError as problem:
        if UNKNOWN in problem.what:
            return {}  # they are gone
        raise
    found = {}
    for record in text.split(end)[:-1]:
        job_id, comment, name = record.removeprefix("\n").split(between)
        found[job_id] = ("" if comment == "(null)" else comment, name)
    return found


def is_user_held(words: Words) -> bool:
    """Whether its own user holds it: to Slurm that looks like our hold."""
    return words[0].startswith(HELD)


def shape(row: JobRow, most_gpus: int) -> tuple[int, int]:
    """(GPUs, hosts) of a job on hosts of so many GPUs; (0, 0) if it wants none.

    Slurm may divide `--gpus=12` among two nodes as 8 + 4, as it likes. Hemiola asks for equal parts, on as few
    hosts as possible.
    """
    if row.gpus_per_host:
        return row.gpus_per_host * row.hosts, row.hosts
    gpus, unit = (
        (row.gpus_per_job, 1) if row.gpus_per_job else (row.gpus_per_task * row.tasks, row.gpus_per_task)
    )
    if not gpus:
        return 0, 0
    for hosts in range(max(row.hosts, math.ceil(gpus / max(1, most_gpus))), gpus + 1):
        if gpus % hosts == 0 and gpus // hosts % unit == 0:
            return gpus, hosts
    return gpus, row.hosts


def job_of(
    row: JobRow, uuid: str, words: Words, most_gpus: int, usual_s: float, profile: Callable[[str], Profile]
) -> tuple[Job, str]:
    """The job, and what of its comment was not understood.

    Args:
        usual_s: how long a job is taken to run that says nothing and has no limit.
        profile: of a model by its name.

    The run time is what its user says, or else its time limit: what policies that go by it have to go by.
    """
    gpus, hosts = shape(row, most_gpus)
    said = _labels(words[0], profile)
    job = Job(
        id=uuid, submit_s=float(row.submit_s), gpus=gpus, duration_s=said.runtime_s or row.limit_s or usual_s,
        profile=said.profile, model=said.words.get("model", ""), user=user_name(row.uid), queue=row.partition,
        hosts=hosts, required=said.words.get("required", ""), preferred=said.words.get("preferred", ""),
        estimate_s=row.limit_s, pinned=not row.requeues,
    )  # fmt: skip
    return job, "; ".join(said.problems)


def _labels(comment: str, profile: Callable[[str], Profile]) -> Said:
    words = comment.removeprefix(HELD).split()
    return read_words(words[1:], "its comment", profile) if words and words[0] == LABEL else Said()
