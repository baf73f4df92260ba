"""What Slurm is told, in `scontrol`'s words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hemiola.core.decisions import Placement
from hemiola.core.errors import InputError
from hemiola.core.hostlist import compress, expand
from hemiola.core.topology import Topology
from hemiola.live.engines.slurm.client import Slurm
from hemiola.live.engines.slurm.tracked_job import SlurmTrackedJob
from hemiola.live.engines.slurm.wire import PARKED_S, SlurmJobRow

__all__ = ["bind", "ranks", "shrink", "unbind", "unpark"]


TOP = 4294967280
"""The highest priority, but for some numbers that mean something else to Slurm."""


def nodes_of(placement: Placement, topology: Topology) -> str:
    """Its hosts as Slurm writes them, sorted: the order of ranks goes by another way."""
    return compress(sorted(topology.hosts.names[host] for host in placement.hosts))


def bind(known: SlurmTrackedJob, placement: Placement, topology: Topology) -> str:
    """Name its nodes. It stays held, and nothing happens, until it is released.

    A requeued job would wait for two minutes; `StartTime` spares it that. It may not be at once: a node refuses,
    and the job has failed, what starts within the second in which it was told to kill it.
    """
    count = len(placement.hosts)
    words = [f"update jobid={known.row.id}"]
    if not known.row.gpus_per_host or known.job.is_elastic:
        words.append(_sized(known.row, count, count) if known.job.is_elastic else f"NumNodes={count}-{count}")
    words.append(f"ReqNodeList={nodes_of(placement, topology)}")
    if known.row.restarts:
        words.append("StartTime=now+1")
    ranks = compress([topology.hosts.names[host] for host in placement.hosts])
    words.append(f"AdminComment={_mark(known, ranks)}")
    return " ".join(words)


def _sized(row: SlurmJobRow, least: int, most: int) -> str:
    """Let it have so many nodes. Slurm raises the tasks and processors of a job with its nodes, but does not lower them."""
    words = f"NumNodes={least}-{most}"
    if row.tasks_per_host:
        words += f" NumTasks={row.tasks_per_host * least} NumCPUs={row.cpus_per_host * least}"
    return words


def _mark(known: SlurmTrackedJob, ranks: str) -> str:
    """What its AdminComment says: whose it is, the order of its ranks, and what it was submitted for."""
    nodes = f":nodes={known.hosts[0]}-{known.hosts[1]}" if known.job.is_elastic else ""
    return f"hemiola:{known.job.id}:ranks={ranks}{nodes}"


def shrink(known: SlurmTrackedJob, placement: Placement, topology: Topology) -> str:
    """Take nodes from a job as it runs: those that it keeps are named. It stays bound to all of them, should it wait again."""
    ranks = compress([topology.hosts.names[host] for host in placement.hosts])
    bound = f":bound={known.row.bound_to}" if known.row.bound_to else ""
    return f"update jobid={known.row.id} NodeList={nodes_of(placement, topology)} AdminComment={_mark(known, ranks + bound)}"


def advise(known: SlurmTrackedJob, placement: Placement, topology: Topology) -> str:
    """Say where it would run, for people to read."""
    return f"update jobid={known.row.id} AdminComment=hemiola:advice:nodes={nodes_of(placement, topology)}"


def release(ids: Sequence[str]) -> str:
    """Let Slurm start them, on the nodes they are bound to."""
    return f"release {','.join(ids)}"


def go_first(ids: Sequence[str]) -> str:
    """Let Slurm look at released ones before all others: it goes no further in a partition than to the first that waits for nodes."""
    return f"update jobid={','.join(ids)} Priority={TOP}"


def hold(ids: Sequence[str]) -> str:
    """Keep Slurm from starting them. A plain `hold` of an operator counts as an administrator's, which is not ours to lift."""
    return f"uhold {','.join(ids)}"


def unbind(row: SlurmJobRow, hosts: tuple[int, int]) -> str:
    """Name no nodes any more, and let it have as many as it was submitted for."""
    return f"update jobid={row.id} ReqNodeList=" + (f" {_sized(row, *hosts)}" if hosts[0] < hosts[1] else "")


def give_back(row: SlurmJobRow, hosts: tuple[int, int]) -> list[str]:
    """Let a job that waits have any nodes, and go before nobody. Whoever holds it holds it still."""
    unbound = [unbind(row, hosts)] if row.bound_to else []
    return [*unbound, release([row.id])] if row.priority == TOP else unbound


def park(known: SlurmTrackedJob) -> list[str]:
    """Leave its dependency to Slurm, but not its start: it begins in a year. When its user wants that is written down."""
    words = f"AdminComment={_mark(known, '')}:begin={round(known.begin_s)}"
    words = f"ReqNodeList= {words}" if known.row.bound_to else words
    return [f"update jobid={known.row.id} StartTime=now+{PARKED_S} {words}", release([known.row.id])]


def unpark(job_id: str, begin_s: float) -> list[str]:
    """Hold it again, to begin so many seconds from now."""
    return [hold([job_id]), begin(job_id, begin_s)]


def begin(job_id: str, begin_s: float) -> str:
    """Let it begin so many seconds from now at the earliest."""
    return f"update jobid={job_id} StartTime=now" + (f"+{round(begin_s)}" if begin_s > 0 else "")


def put_back(job_id: str) -> str:
    """Stop a running job and hold it in the queue."""
    return f"requeuehold {job_id}"


# The order of ranks that Hemiola chose, for `srun -m arbitrary`: Slurm itself sorts the nodes of a job.

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
