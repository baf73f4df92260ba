"""A job's story in plain words, from a decisions file alone. Knows no simulator and no policy.

It says what the file proves, and says so where the file is silent: a policy that decided nothing
about a waiting job left no reason behind.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator
from pathlib import Path

from hemiola.core.errors import InputError
from hemiola.core.units import format_duration
from hemiola.report.live.columns import printable
from hemiola.report.story import Story, clock
from hemiola.trace.decision_log import DecisionLog, JobFacts, RunFacts, read_decisions

__all__ = ["explain"]

WIDTH = 96
"""Columns that the text is wrapped to."""


def explain(decisions_file: Path, job_id: str, *, policy: str = "", seed: int | None = None) -> str:
    """What happened to a job, and why.

    Args:
        decisions_file: as written by `hemiola.trace.decisions.write_decisions`.
        job_id: the job's name in the workload.
        policy: only under this policy; "" tells each policy's story.
        seed: only this seed; None tells each policy's first.

    Raises:
        InputError: for a file that cannot be read, or a job, policy or seed that is not in it.
    """
    log = read_decisions(decisions_file)
    runs = _chosen(log, policy, seed)
    found = [(run, job) for run in runs if (job := _job(run, job_id)) is not None]
    if not found:
        raise _unknown_job(runs, job_id)
    return "\n\n".join("\n".join(_paragraphs(log, run, job)) for run, job in found)


def _chosen(log: DecisionLog, policy: str, seed: int | None) -> list[RunFacts]:
    runs = log.header.runs
    chosen = [run for run in runs if policy in ("", run.policy) and seed in (None, run.seed)]
    if not chosen:
        wanted = " and ".join([f"policy {policy!r}"] * bool(policy) + [f"seed {seed}"] * (seed is not None))
        there = ", ".join(f"{run.policy} (seed {run.seed})" for run in runs) or "none"
        raise InputError(f"the file has no run of {wanted or 'any policy'}", f"its runs are {there}")
    first: dict[str, RunFacts] = {}
    for run in chosen:
        first.setdefault(run.policy, run)
    return list(first.values())


def _job(run: RunFacts, job_id: str) -> JobFacts | None:
    return next((job for job in run.jobs if job.id == job_id), None)


def _unknown_job(runs: list[RunFacts], job_id: str) -> InputError:
    names = list(dict.fromkeys(job.id for run in runs for job in run.jobs))
    close = difflib.get_close_matches(job_id, names, n=3, cutoff=0.5)
    hint = (
        f"did you mean {printable(' or '.join(close))}?"
        if close
        else f"its {len(names)} jobs begin with {names[:3]}"
    )
    return InputError(f"there is no job {job_id!r} in the decisions", hint)


def _paragraphs(log: DecisionLog, run: RunFacts, job: JobFacts) -> Iterator[str]:
    mark = ", INTERRUPTED before its end" if run.interrupted else ""
    yield printable(f"Job {job.id} under {run.policy} (seed {run.seed}{mark})")
    alone = format_duration(job.ideal_s)
    yield _wrapped(f"It wanted {_wish(job)}; alone on its best placement it would run {alone}.", 2)
    yield "  Times count from the first arrival, as days and h:min:s."
    told = Story(log, run, job)
    for time_s, text in told.events():
        yield _wrapped(f"{clock(time_s - run.origin_s):>12}  {text}", 16)
    if told.came and job.status != "refused":
        yield from _totals(job, run)


def _wish(job: JobFacts) -> str:
    parts = [f"{job.gpus} GPU{'s' if job.gpus != 1 else ''}"]
    if job.gpu_type:
        parts.append(f"of type {job.gpu_type}")
    if job.required:
        parts.append(f"inside one {job.required}")
    if job.preferred:
        parts.append(f"inside one {job.preferred} if possible")
    owner = " ".join(filter(None, [job.model and f"for {job.model}", job.user and f"of user {job.user}"]))
    return " ".join(parts) + (f" ({owner})" if owner else "")


def _totals(job: JobFacts, run: RunFacts) -> Iterator[str]:
    until = run.end_s if job.finish_s is None else job.finish_s
    yield _wrapped(
        f"In all: {format_duration(until - job.submit_s)} from submission, of which it waited "
        f"{format_duration(job.queueing_s)} and held GPUs for {format_duration(job.run_s)}.",
        2,
    )
    if job.run_s > 0:
        spent = [
            ("computing", job.useful_s),
            ("waiting for communication", job.exposed_communication_s),
            ("saving and loading checkpoints", job.checkpoint_s),
            ("on work that was lost", job.lost_s),
        ]
        words = ", ".join(f"{format_duration(s)} {what} ({s / job.run_s:.0%})" for what, s in spent if s > 0)
        yield _wrapped(f"With GPUs it spent {words}.", 2)


def _wrapped(text: str, hanging: int) -> str:
    indent = "  "
    return textwrap.fill(
        printable(text),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=" " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
