"""What must hold after each run, whatever was killed: seen from what jobs wrote, what Slurm shows and what the journal says."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from chaos_jobs import Batch, Said
from patience import slowly

from hemiola.core.decisions import Move, Resize, Start, Stop
from hemiola.core.events import Requeued
from hemiola.live.journal import Journal, JournaledJob
from hemiola.live.journal.replay import replay
from hemiola.trace.topologies.native import read_native

GPUS = 8
BEGINS_WITHIN_S = 1.0
"""So long may pass from Slurm's start of a job to the first line of its script."""
KINDS = (
    "lost", "started twice", "two live placements", "GPUs double-booked", "ran where nobody decided",
    "replay differs", "left behind", "wrong in the journal",
)  # fmt: skip


@dataclass(frozen=True)
class Violation:
    """Something that may not be."""

    kind: str
    what: str


@dataclass(frozen=True)
class Told:
    """What the journal has of one of Slurm's jobs: where it was to run, from when on."""

    starts: list[tuple[float, frozenset[str]]]
    stops: int
    requeued: int


def check(
    batch: Batch,
    journal: Path,
    *,
    excused: Iterable[str] = (),
    placed: bool = True,
    reruns: bool = False,
    timed: bool = True,
    looked_s: float = -math.inf,
) -> list[Violation]:
    """All that is wrong.

    Args:
        excused: jobs that the engine itself has lost.
        placed: whether each job ran where Hemiola said; not where it was handed back.
        reruns: whether the engine may have started jobs anew by itself.
        timed: whether the journal's clock is the jobs' own, so that it is known which decision was the last.
        looked_s: jobs that ended earlier may have come and gone while nobody looked, unknown to the journal.
    """
    found: list[Violation] = []
    jobs = [job for job in batch.accepted if job not in set(excused)]
    said = {job: batch.said(job) for job in jobs}
    with Journal.open(journal, read_only=True) as opened:
        told = _told(opened)
        again = {job.partition("~")[0] for job in batch.accepted if "~" in job}
        gone = {job for job in jobs if any((one.end_s or math.inf) < looked_s for one in said[job][-1:])}
        found += _journal(opened, jobs, again, gone, reruns=reruns)
    for job in jobs:
        found += _one(job, said[job], told.get(job), placed=placed, reruns=reruns, timed=timed)
    found += _booked(batch, said)
    return found


def _one(
    job: str, starts: list[Said], told: Told | None, *, placed: bool, reruns: bool, timed: bool
) -> list[Violation]:
    found = []
    ends = sum(one.how == "end" for one in starts)
    if not ends:
        found.append(Violation("lost", f"{job} never ended: {starts}"))
    allowed = 1 + (told.stops + told.requeued if told else 0)
    if not reruns and (len(starts) > allowed or len({one.restarts for one in starts}) < len(starts)):
        found.append(Violation("started twice", f"{job}: {starts}, allowed {allowed}"))
    for one, after in pairwise(starts):
        if one.end_s is not None and one.end_s > after.start_s:
            found.append(Violation("two live placements", f"{job}: {one} and {after}"))
    if placed:
        for one in starts:
            meant = [hosts for _, hosts in told.starts] if told else []
            if frozenset(one.nodes) not in (_meant(told, one.start_s) if timed and told else meant):
                found.append(Violation("ran where nobody decided", f"{job}: {one}, decided {meant}"))
    return found


def _meant(told: Told, start_s: float) -> list[frozenset[str]]:
    """Where a job was to run that began then: also where it was before, if it was sent elsewhere only as it began."""
    before = [(time_s, hosts) for time_s, hosts in told.starts if time_s <= start_s]
    late = len(before) > 1 and start_s - before[-1][0] < slowly(BEGINS_WITHIN_S)
    return [hosts for _, hosts in before[-2 if late else -1 :]]


def _told(journal: Journal) -> dict[str, Told]:
    """By Slurm's number."""
    numbers = {record.uuid: record.engine_id for record in journal.jobs()}
    told: dict[str, Told] = defaultdict(lambda: Told([], 0, 0))
    stops: Counter[str] = Counter()
    requeued: Counter[str] = Counter()
    for run in journal.runs():
        names = read_native(run.opening.topology, "the run's topology").hosts.names
        for instant in journal.instants(run.id):
            for event in instant.events:
                if isinstance(event, Requeued):
                    requeued[numbers.get(event.job_id, "")] += 1
            for decision, refused in instant.decisions or ():
                if refused or decision.job_id not in numbers:
                    continue
                number = numbers[decision.job_id]
                stops[number] += isinstance(decision, Stop | Move | Resize)
                if isinstance(decision, Start | Move | Resize):
                    hosts = frozenset(names[host] for host in decision.placement.hosts)
                    told[number].starts.append((instant.events[0].time_s, hosts))
    return {
        number: Told(told[number].starts, stops[number], requeued[number]) for number in set(numbers.values())
    }


def _journal(
    journal: Journal, jobs: list[str], again: set[str], gone: set[str], *, reruns: bool
) -> list[Violation]:
    """One record for each job, which says that it finished; several where Slurm took it up again, or its number.

    None is needed for those that were `gone` before anybody looked.
    """
    found = []
    records: dict[str, list[JournaledJob]] = defaultdict(list)
    for record in journal.jobs():  # the newest first
        records[record.engine_id].append(record)
    for job in jobs:
        there = records[job]
        if not there and job in gone:
            continue
        if len(there) != 1 and not (there and (reruns or job in again)):
            found.append(Violation("wrong in the journal", f"{job} is there {len(there)} times"))
        if there and (there[0].status != "ended" or there[0].outcome != "finished"):
            found.append(Violation("wrong in the journal", f"{job}: {there[0].status}, {there[0].outcome!r}"))
    for run in journal.runs():
        if (difference := replay(journal, run.id).difference) is not None:
            found.append(Violation("replay differs", f"run {run.id}: {difference}"))
    return found


def _booked(batch: Batch, said: dict[str, list[Said]]) -> list[Violation]:
    """GPUs in use at once on a node, by number where a job told its numbers, and by count on all its nodes."""
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    numbered: dict[tuple[str, int], list[tuple[float, float, str]]] = defaultdict(list)
    for job, starts in said.items():
        for at, one in enumerate(starts):
            after_s = starts[at + 1].start_s if at + 1 < len(starts) else math.inf
            end_s = min(one.end_s if one.end_s is not None else one.start_s, after_s)
            for node in one.nodes:
                changes[node] += [(one.start_s, batch.wishes[job].gpus), (end_s, -batch.wishes[job].gpus)]
            for gpu in one.gpus:
                numbered[one.nodes[0], gpu].append((one.start_s, end_s, job))
    found = []
    for node, steps in changes.items():
        used = 0
        for time_s, gpus in sorted(steps):
            used += gpus
            if used > GPUS:
                found.append(Violation("GPUs double-booked", f"{used} of {node} at {time_s}"))
    for (node, gpu), spans in numbered.items():
        for one, after in pairwise(sorted(spans)):
            if one[1] > after[0]:
                found.append(Violation("GPUs double-booked", f"{node}, GPU {gpu}: {one} and {after}"))
    return found
