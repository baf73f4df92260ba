"""The moments of one job's life, in order, each in a sentence. Knows only the decisions file's types."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from hemiola.core.errors import InputError
from hemiola.core.units import format_duration
from hemiola.report.columns import printable
from hemiola.trace.decisions import (
    DecisionLine,
    DecisionLog,
    HeldSpan,
    HostGpus,
    JobFacts,
    RunFacts,
    read_decisions,
)

__all__ = ["explain"]


NAMED = 3
"""How many jobs or hosts are named before the rest is counted."""

_PLACING = ("start", "move", "resize")
_DECIDED = ("pre-empted", "moved", "still running")
"""How spans end by a decision, or with the run: after what else happens at that time."""
_AT_ONCE = {"stop": 1, "wake": 2, "start": 4, "move": 4, "resize": 4, "pace": 4}
"""What comes first of what happens at the same time: it is stopped, waits, has waited, starts."""


class Story:
    """What happened to one job in one run."""

    def __init__(self, log: DecisionLog, run: RunFacts, job: JobFacts) -> None:
        self.run, self.job = run, job
        self.cluster = log.header.topology
        mine = [line for line in log.lines if (line.policy, line.seed) == (run.policy, run.seed)]
        self.lines = [line for line in mine if line.job == job.id]
        self.wakes = list(self._wakes())
        self.starts = [
            line for line in mine if line.kind in _PLACING and not line.refused and line.job != job.id
        ]
        self.others = [other for other in run.jobs if other.id != job.id]

    @property
    def came(self) -> bool:
        """Whether it was submitted before the run was stopped."""
        return self.job.submit_s <= self.run.end_s

    def events(self) -> list[tuple[float, str]]:
        """(time_s, sentence) in order of time."""
        if not self.came:
            time_s, _, sentence = self._end()
            return [(time_s, sentence)]
        told = [(self.job.submit_s, 0, self._arrival())]
        told += [(span.end_s, 1, sentence) for span in self.job.spans if (sentence := self._ending(span))]
        for from_s, to_s in self._waits():
            told += [(time_s, 2, sentence) for time_s, sentence in self._timers(from_s, to_s)]
            told.append((to_s, 3, self._meanwhile(from_s, to_s)))
        for line in self.lines:
            told += [(line.time_s, _AT_ONCE[line.kind], sentence) for sentence in self._decision(line)]
        told.append(self._end())
        return [(time_s, sentence) for time_s, _, sentence in sorted(told, key=lambda event: event[:2])]

    def _arrival(self) -> str:
        now, gpus = self.job.submit_s, sum(self.cluster.gpus)
        holders = [
            (other.id, span.gpus) for other in self.others for span in other.spans if _holds(span, now)
        ]
        free = gpus - sum(held for _, held in holders)
        text = f"submitted. {free} of {_count(gpus, 'GPU')} were not held by a job"
        if holders:
            holders.sort(key=lambda holder: -holder[1])
            named = [f"{name} ({_count(held, 'GPU')})" for name, held in holders]
            text += f"; {_named(named)} held the others"
        ahead = sum(_waits_at(other, now) for other in self.others)
        return f"{text}. {_count(ahead, 'job')} {'was' if ahead == 1 else 'were'} waiting before it."

    def _waits(self) -> Iterator[tuple[float, float]]:
        since = self.job.submit_s
        for span in self.job.spans:
            if span.start_s > since:
                yield since, span.start_s
            since = span.end_s
        until = self.run.end_s if self.job.finish_s is None else self.job.finish_s
        if self.job.status != "refused" and until > since:
            yield since, until

    def _wakes(self) -> Iterator[DecisionLine]:
        """The timers that the policy set while the job waited; others are no reason to wait, even of that instant."""
        lost_s = [span.end_s for span in self.job.spans if span.outcome == "host lost"]
        holds = False
        for line in self.lines:
            while lost_s and lost_s[0] <= line.time_s:  # before what is decided then
                del lost_s[0]
                holds = False
            if line.kind == "wake" and not line.refused and not holds:
                yield line
            elif line.kind in (*_PLACING, "stop") and not line.refused:
                holds = line.kind != "stop"

    def _timers(self, from_s: float, to_s: float) -> Iterator[tuple[float, str]]:
        """Those of a wait; equal ones in a row once."""
        mine = [line for line in self.wakes if from_s <= line.time_s < to_s]
        for reason, same in groupby(mine, key=lambda line: line.reason):
            lines = list(same)
            again = f" (said {len(lines)} times)" if len(lines) > 1 else ""
            free = f"{_count(lines[0].free_gpus, 'GPU')} {'was' if lines[0].free_gpus == 1 else 'were'} free"
            due_s = lines[-1].wake_s
            when = "" if due_s is None else f" at {clock(due_s - self.run.origin_s)}"
            yield lines[0].time_s, f"kept waiting, to be looked at again{when}{again}: {reason}. {free}."

    def _meanwhile(self, from_s: float, to_s: float) -> str:
        """How long it waited, and who started in that while."""
        passed = [
            other for other in self.others for span in _begun(other.spans) if from_s <= span.start_s < to_s
        ]
        text = f"had waited {format_duration(to_s - from_s)}"
        if not passed:
            text += ", in which no other job started"
        else:
            later = [other.id for other in passed if other.submit_s > self.job.submit_s]
            text += f", in which {_count(len(passed), 'start')} of other jobs went before it"
            if later:
                text += f"; {_named(list(dict.fromkeys(later)))} had been submitted after it"
            else:
                earlier = list(dict.fromkeys(other.id for other in passed))
                text += f" (all submitted earlier): {_named(earlier)}"
        reasoned = any(from_s <= line.time_s < to_s for line in self.wakes)
        return f"{text}." + ("" if reasoned else " The policy recorded no other reason for this wait.")

    def _decision(self, line: DecisionLine) -> Iterator[str]:
        if line.refused:
            yield f"a {line.kind} was refused: {line.refused}. (The policy's reason was: {line.reason}.)"
        elif line.kind in _PLACING:
            verb = {"start": "started on", "move": "moved to", "resize": "resized to"}[line.kind]
            yield f"{verb} {self._where(line.placement)}: {line.reason}. {self._state(line)}"
        elif line.kind == "stop":
            yield f"was pre-empted: {line.reason}.{self._beneficiaries(line)}"
        elif line.kind == "pace":
            yield f"got weight {line.weight:g} on the links it shares: {line.reason}."

    def _state(self, line: DecisionLine) -> str:
        return f"{_count(line.free_gpus, 'GPU')} free and {_count(line.waiting, 'job')} waiting just before."

    def _where(self, placement: tuple[HostGpus, ...]) -> str:
        hosts = [f"{place.host} (GPU {_numbers(place.gpus)})" for place in placement]
        return f"{_named(hosts)}, {self._width(placement)}"

    def _width(self, placement: tuple[HostGpus, ...]) -> str:
        names = [place.host for place in placement]
        if len(names) == 1:
            return "within one host"
        index = {name: i for i, name in enumerate(self.cluster.hosts)}
        for level, domains in self.cluster.levels.items():
            inside = {domains[index[name]] for name in names}
            if len(inside) == 1:
                return f"{len(names)} hosts within {level} {inside.pop()}"
        return f"{len(names)} hosts across the cluster"

    def _beneficiaries(self, stop: DecisionLine) -> str:
        """Who started at that moment on the hosts that it left."""
        before = [
            line
            for line in self.lines
            if line.kind in _PLACING and not line.refused and line.time_s < stop.time_s
        ]
        left = {place.host for place in before[-1].placement} if before else set()
        took = [
            line.job
            for line in self.starts
            if line.time_s == stop.time_s and left & {place.host for place in line.placement}
        ]
        return f" {_named(list(dict.fromkeys(took)))} started there at that moment." if took else ""

    def _ending(self, span: HeldSpan) -> str:
        ran = format_duration(span.end_s - span.start_s)
        if span.outcome == "host lost":
            return f"lost a host after {ran}, and went back to the queue."
        return ""

    def _end(self) -> tuple[float, int, str]:
        job = self.job
        end_s = self.run.end_s if job.finish_s is None else job.finish_s
        if job.status == "finished":
            return end_s, 5, f"finished, {format_duration(end_s - job.submit_s)} after it was submitted."
        if job.status == "refused":
            return job.submit_s, 5, f"was refused: {job.why}."
        if not self.came:
            due = clock(job.submit_s - self.run.origin_s)
            return end_s, 5, f"had not arrived when the run was stopped; it was to be submitted at {due}."
        word = {
            "failed": "failed", "running": "was still running", "waiting": "was still waiting",
            "declined": "was declined, and did not end on what others left",
        }[job.status]  # fmt: skip
        return end_s, 5, f"{word}: {job.why or 'no reason was recorded'}."


def clock(since_s: float) -> str:
    """Time since the first arrival as [days] h:min:s; before it, of a job that was refused, with a minus."""
    if round(since_s) < 0:
        return f"-{clock(-since_s)}"
    days, rest = divmod(round(since_s), 86400)
    time = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}d {time}" if days else time


def _begun(spans: tuple[HeldSpan, ...]) -> Iterator[HeldSpan]:
    """Without those that only went on from another, elsewhere or on another number of GPUs."""
    for i, span in enumerate(spans):
        if not i or spans[i - 1].outcome != "moved" or spans[i - 1].end_s < span.start_s:
            yield span


def _holds(span: HeldSpan, time_s: float) -> bool:
    """Whether it held GPUs when that time came: jobs arrive after others finish, and before any is stopped or moved."""
    return span.start_s < time_s and (
        time_s < span.end_s or (time_s == span.end_s and span.outcome in _DECIDED)
    )


def _waits_at(job: JobFacts, time_s: float) -> bool:
    gone = job.status == "refused" or (job.finish_s is not None and job.finish_s <= time_s)
    return job.submit_s < time_s and not gone and not any(_holds(span, time_s) for span in job.spans)


def _named(names: list[str]) -> str:
    shown, rest = names[:NAMED], len(names) - NAMED
    if rest > 0:
        return f"{', '.join(shown)} and {rest} more"
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _numbers(gpus: tuple[int, ...]) -> str:
    if len(gpus) > 2 and gpus == tuple(range(gpus[0], gpus[-1] + 1)):
        return f"{gpus[0]}-{gpus[-1]}"
    return ",".join(map(str, gpus))


# A job's story in plain words, from a decisions file alone. Knows no simulator and no policy.

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
