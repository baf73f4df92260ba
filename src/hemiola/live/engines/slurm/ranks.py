"""The order of ranks that Hemiola chose, for `srun -m arbitrary`: Slurm itself sorts the nodes of a job."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hemiola.live.engines.slurm.client import Slurm
from hemiola.core.errors import InputError
from hemiola.core.hostlist import expand

__all__ = ["ranks"]

_MARK = re.compile(r"\bAdminComment=hemiola:[0-9a-f-]{36}:ranks=([\w.,\[\]-]+)")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def ranks(slurm: Slurm, environ: Mapping[str, str]) -> tuple[list[str], bool]:
    """One host per rank, and whether Hemiola chose their order (else it is Slurm's).

    Args:
        environ: of a process of the job: SLURM_JOB_ID, SLURM_JOB_NODELIST, SLURM_TASKS_PER_NODE; of an array's
            element also SLURM_ARRAY_JOB_ID and SLURM_ARRAY_TASK_ID.

    Raises:
        InputError: this is no process of a job.
        EngineError: Slurm cannot be asked.
    """
    job, listed = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_JOB_NODELIST", "")
    if not job.isdigit() or not listed:
        raise InputError(
            "this is no process of a Slurm job (SLURM_JOB_ID is not set)", "call it in a batch script"
        )
    hosts = expand(listed)
    tasks = dict(zip(hosts, _counts(environ.get("SLURM_TASKS_PER_NODE", ""), len(hosts)), strict=True))
    array, element = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    if array.isdigit() and element.isdigit():
        job = f"{array}_{element}"  # one element has the number of the whole array
    marks = _MARK.findall(slurm.ask("scontrol", "-o", "show", "job", job))
    chosen = expand(marks[-1]) if marks else []
    ours = sorted(chosen) == sorted(hosts)
    return [host for host in (chosen if ours else hosts) for _ in range(tasks[host])], ours


def _counts(text: str, hosts: int) -> list[int]:
    """2(x3),1: two tasks on each of three nodes, and one on the fourth."""
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        found = _COUNT.fullmatch(part)
        if found is None:
            raise InputError(f"SLURM_TASKS_PER_NODE is {text!r}", "call it in a batch script, not in a step")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts if len(counts) == hosts else [1] * hosts
