"""`hemiola explain` for a live job: its story, who has what it waits for, and when it would start."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hemiola.cli.engines import engine_of_journal
from hemiola.cli.live import daemon_text, open_journal, print_json, reason_text, state_text

if TYPE_CHECKING:
    from hemiola.core.errors import InputError
    from hemiola.live.journal import Journal, JournaledJob
    from hemiola.live.query.cluster import LiveCluster, LiveJob, Names
    from hemiola.live.query.forecast import Forecast
    from hemiola.live.query.job_history import Moment

__all__ = ["explain_live", "is_journal"]

EXPLANATION_SCHEMA = "hemiola.explanation/1"
WIDTH, NAMED = 96, 4
SAID = {
    "user": "what its user said",
    "limit": "its time limit",
    "default": "the default of 1 d, as nobody said",
}

HOW = {
    "ends": "to end",
    "is pre-empted": "to be pre-empted",
    "moves": "to move",
    "is resized": "to be resized",
}


def is_journal(where: str) -> bool:
    """Whether this is a journal's address or file, and not a decisions file."""
    if where.startswith(("sqlite://", "postgresql://")):
        return True
    path = Path(where)
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            return stream.read(15) == b"SQLite format 3"
    except OSError:  # it may not be read: whoever reads decisions says so
        return False


def explain_live(job: str, *, journal: str, partition: str, engine: str = "", json: bool) -> None:
    """Print it.

    Raises:
        InputError: the journal has no such job.
    """
    now_s = time.time()
    with open_journal(journal, partition) as opened:
        told = _Told(opened, _record(opened, job, partition, engine), now_s)
    if json:
        print_json(EXPLANATION_SCHEMA, told.cluster, **told.values())
    else:
        print("\n".join(told.lines()))


def _record(journal: Journal, name: str, partition: str, engine: str) -> JournaledJob:
    record = journal.job(name)
    if record is None:
        raise _unknown(journal, name, partition, engine)
    return record


def _unknown(journal: Journal, name: str, partition: str, engine: str) -> InputError:
    """No such job, with the most helpful thing that can be said of it."""
    from hemiola.core.errors import InputError

    what = f"the journal {journal.name} has no job {name!r}"
    recent = [job.engine_id for job in journal.jobs(limit=1000)]
    if elements := sorted(other for other in recent if other.startswith(f"{name}_")):
        return InputError(
            what, f"it is an array: name one of its elements, such as {', '.join(elements[:NAMED])}"
        )
    why, remedy = _asked(journal, name, partition, engine)
    if why:
        return InputError(f"{what}: {why}", remedy)
    return InputError(
        what, f"the last of its jobs: {', '.join(recent[:NAMED]) or 'none'}; see: hemiola jobs --all"
    )


def _asked(journal: Journal, name: str, partition: str, engine: str) -> tuple[str, str]:
    """Why the journal lacks a job, as its engine says, and what to do about it; "" where that does not know it either."""
    from hemiola.core.errors import EngineError
    from hemiola.trace.topologies.native import read_native

    its, to = engine_of_journal(journal, engine, {}, partition=partition)
    runs = journal.runs()
    if its is None or its.why_unknown is None or not runs:
        return "", ""
    try:
        with its.connected(to) as client:
            return its.why_unknown(client, name, read_native(runs[-1].opening.topology, journal.name))
    except EngineError:
        return "", ""  # then nobody knows more


class _Told:
    """All that is told of a job."""

    def __init__(self, journal: Journal, record: JournaledJob, now_s: float) -> None:
        from hemiola.live.query.cluster import Names, engine_ids, read_cluster
        from hemiola.live.query.job_history import story

        # It may end before the cluster is read.
        since_s = record.submitted_s if record.ended_s is None else record.ended_s
        self.cluster: LiveCluster = read_cluster(journal, now_s, ended_since_s=since_s)
        found = [job for job in self.cluster.jobs if job.uuid == record.uuid]
        self.job: LiveJob = found[0]
        self._records = {open_job.uuid: open_job for open_job in journal.open_jobs()}
        self.names: Names = Names(journal, engine_ids(self._records.values()))
        self.moments: list[Moment] = story(journal, record, self.names)
        self.forecast: Forecast | None = self._forecast(journal, record)
        if self.forecast is not None:  # while the journal is open
            for uuid in (*self.forecast.first, *(holder.job for holder in self.forecast.holders)):
                self.names.of(uuid)

    def _forecast(self, journal: Journal, record: JournaledJob) -> Forecast | None:
        from hemiola.live.query.forecast import forecast

        cluster = self.cluster
        if record.status != "waiting" or cluster.run is None or record.uuid not in self._records:
            return None
        records = list(self._records.values())
        return forecast(journal, cluster.run, records, record.uuid, cluster.as_of_s)

    def values(self) -> dict[str, Any]:
        """For machines; a forecast's jobs by the engine's ids."""
        import msgspec

        forecast = self.forecast
        expected = None
        if forecast is not None:
            expected = msgspec.to_builtins(forecast) | {
                "placement": self._place(forecast),
                "reason": self.names.told(forecast.reason),
                "holders": [
                    msgspec.structs.replace(holder, job=self.names.of(holder.job))
                    for holder in forecast.holders
                ],
                "first": [self.names.of(uuid) for uuid in forecast.first],
            }
        return {"job": self.job, "story": self.moments, "forecast": expected}

    def _place(self, forecast: Forecast) -> str:
        from hemiola.live.query.job_history import place_text

        if forecast.placement is None or self.cluster.topology is None:
            return ""
        return place_text(forecast.placement, self.cluster.topology)

    def lines(self) -> Iterator[str]:
        """For people."""
        from hemiola.report.columns import printable

        job = self.job
        name = f" ({job.name})" if job.name else ""
        yield printable(f"Job {job.id}{name} of user {job.user}: {job.state} ({state_text(job)})")
        yield from _wrapped(f"It wants {self._wish()}. {self._served()}")
        yield from self._moments()
        yield from self._now()
        if self.forecast is not None:
            yield from self._expected(self.forecast)
        yield from _wrapped(self._total())

    def _wish(self) -> str:
        job = self.job
        text = f"{job.gpus} GPU{'s' * (job.gpus != 1)}" + (f" on {job.hosts} hosts" if job.hosts > 1 else "")
        return text + (f" for {job.model}" if job.model and job.model != job.name else "")

    def _served(self) -> str:
        run = self.cluster.run
        rules = f"Policy {run.opening.policy}, {run.opening.mode} mode" if run is not None else "No policy"
        return f"{rules}; {daemon_text(self.cluster)}."

    def _moments(self) -> Iterator[str]:
        from hemiola.report.columns import clock

        now_s = self.cluster.now_s
        for moment in self.moments:
            text = moment.text + (f" (said {moment.times} times)" if moment.times > 1 else "")
            if moment.due_s is not None:
                text += f" (at {clock(moment.due_s, now_s)})"
            yield from _at(clock(moment.time_s, now_s, seconds=True), f"{text}.")

    def _now(self) -> Iterator[str]:
        from hemiola.report.columns import ago, clock, elapsed

        job, as_of_s = self.job, self.cluster.as_of_s
        if job.state == "ended":
            return
        when = (
            "now"
            if self.cluster.daemon.state == "leads"
            else clock(as_of_s, self.cluster.now_s, seconds=True)
        )
        if job.state == "running":
            left_s = job.estimate_s - job.run_s
            end = f"about {ago(left_s)} left" if left_s > 0 else f"{ago(-left_s)} longer than that"
            yield from _at(
                when, f"has run for {elapsed(job.span_s)}; {end}, by {SAID[job.estimate_from]}.{self._pace()}"
            )
        else:
            yield from _at(when, f"waits: {reason_text(job, as_of_s)}.")

    def _pace(self) -> str:
        """What its iterations were predicted to take, and take."""
        took_s, predicted_s = self.job.iteration_s, self.job.predicted_iteration_s
        if took_s is None:
            return (
                "" if predicted_s is None else f" Predicted there, alone: {predicted_s:.3g} s per iteration."
            )
        if predicted_s is None:
            return f" It reports {took_s:.3g} s per iteration."
        return f" It reports {took_s:.3g} s per iteration, {took_s / predicted_s:.2f} times what was predicted there, alone."

    def _expected(self, forecast: Forecast) -> Iterator[str]:
        from hemiola.report.columns import ago, clock

        cluster = self.cluster
        now_s, as_of_s = cluster.now_s, cluster.as_of_s
        if forecast.start_s is None:
            limit_s = forecast.not_before_s
            later = f"not before {clock(limit_s, now_s)}: " if limit_s is not None else "not known: "
            yield from _wrapped(f"Expected start: {later}{forecast.why_not}.")
            return
        if forecast.holders:
            yield from _wrapped(f"What it waits for is held by {self._holders(forecast)}.")
        if forecast.first:
            count = len(forecast.first)
            one = count == 1
            named = _named([self.names.of(uuid) for uuid in forecast.first])
            yield from _wrapped(f"{count} other job{'s' * (not one)} would start before it: {named}.")
        start_s = forecast.start_s
        yield from _wrapped(
            f"Expected start: about {clock(start_s, now_s)} (in {ago(start_s - as_of_s)}), on {self._place(forecast)}: "
            f"{self.names.told(forecast.reason)}."
        )
        yield from _wrapped(self._basis(forecast))

    def _holders(self, forecast: Forecast) -> str:
        from hemiola.report.columns import clock

        groups: dict[str, list[str]] = {}
        for holder in sorted(forecast.holders, key=lambda holder: -holder.until_s):
            over = ", though it has run longer than estimated" if holder.overrun else ""
            what = f"{HOW[holder.how]} about {clock(holder.until_s, self.cluster.now_s)}{over}"
            groups.setdefault(what, []).append(self.names.of(holder.job))
        return _named([
            f"{'job' if len(ids) == 1 else 'jobs'} {_named(ids)} ({what})" for what, ids in groups.items()
        ])  # fmt: skip

    def _basis(self, forecast: Forecast) -> str:
        """Of what the estimate is made."""
        sources = Counter(job.estimate_from for job in self.cluster.jobs if job.state == "running")
        words = {"user": "what users said", "limit": "time limits", "default": "the default of 1 d"}
        known = ", ".join(f"{words[source]} ({count})" for source, count in sources.most_common())
        run = self.cluster.run
        policy = run.opening.policy if run is not None else ""
        text = f"This is an estimate: the present state, played on in the simulator under {policy}"
        if run is not None and run.opening.mode != "enforce":
            text += " (which only looks on: the engine itself decides)"
        if self.cluster.daemon.state != "leads":
            text += " (as if a daemon ran)"
        text += f". Running jobs end by {known}" if known else ""
        text += "; nobody submits a job, and no host fails."
        if not forecast.remembers:
            text += " How long jobs have held out for a better place so far is not known, so some wait longer in it."
        return text

    def _total(self) -> str:
        from hemiola.core.units import format_duration

        job = self.job
        stops = f", and was pre-empted {job.preemptions} times" if job.preemptions > 1 else ""
        stops = ", and was pre-empted once" if job.preemptions == 1 else stops
        had = "had" if job.state == "ended" else "has had"
        return f"In all it waited {format_duration(job.waited_s)} and {had} GPUs for {format_duration(job.run_s)}{stops}."


def _at(when: str, text: str) -> Iterator[str]:
    yield _filled(text, f"  {when}  ", " " * (len(when) + 4))


def _wrapped(text: str) -> Iterator[str]:
    yield _filled(text, "  ", "  ")


def _filled(text: str, first: str, others: str) -> str:
    from hemiola.report.columns import printable

    return textwrap.fill(
        printable(text), WIDTH, initial_indent=first, subsequent_indent=others, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _named(names: Sequence[str]) -> str:
    shown, rest = list(names[:NAMED]), len(names) - NAMED
    if rest > 0:
        return f"{', '.join(shown)} and {rest} more"
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
