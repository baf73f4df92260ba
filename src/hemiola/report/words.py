"""Figures as people read them, the same in the terminal and on the page."""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hemiola.core.result import Comparison
from hemiola.core.units import format_duration
from hemiola.report.metrics import ConfidenceInterval, Figures

if TYPE_CHECKING:
    from rich.table import Table


__all__ = [
    "COLUMNS",
    "OPTIMISED",
    "Column",
    "cell",
    "change",
    "columns_of",
    "listed",
    "never_ran",
    "no_job_ended",
    "policy_list",
    "seed_count",
    "semantics_card",
    "unfinished",
]


_NAMED = 3
"""So many jobs are named where more are meant."""


@dataclass(frozen=True)
class Column:
    """A figure of the comparison, with its heading and how it reads.

    Attributes:
        metric: as `Figures.mean` takes it.
        better: whether less or more of it is better; "" if neither is.
    """

    metric: str
    title: str
    short: str
    unit: Literal["duration", "share", "number", "count"]
    about: str
    better: Literal["less", "more", ""] = "less"


COLUMNS = (
    Column("jct_mean_s", "Mean JCT", "JCT mean", "duration", "job completion time, from submission to end"),
    Column("jct_p50_s", "Median JCT", "median", "duration", "half of the jobs took at most this long"),
    Column("jct_p95_s", "p95 JCT", "p95", "duration", "95 % of the jobs took at most this long"),
    Column("jct_p99_s", "p99 JCT", "p99", "duration", "99 % of the jobs took at most this long"),
    Column("makespan_s", "Makespan", "makespan", "duration", "from the first arrival to the last job's end"),
    Column("queueing_mean_s", "Mean queueing", "queueing", "duration", "time without GPUs, per job"),
    Column(
        "exposed_communication_fraction",
        "Exposed communication",
        "exposed",
        "share",
        "share of working GPU-seconds spent waiting for the network",
    ),
    Column(
        "gpu_utilization",
        "GPU utilisation",
        "util.",
        "share",
        "share of all GPU-seconds held by jobs",
        "more",
    ),
    Column("preemptions", "Pre-emptions", "pre-emp.", "count", "times a job was stopped for another", ""),
    Column(
        "rho_mean",
        "Mean unfairness",
        "rho",
        "number",
        "JCT over the JCT on a fair share of the cluster (Themis); above 1 is less than fair",
    ),
)
"""What every overview shows, in this order."""

OPTIMISED = (
    Column("utility", "Utility", "utility", "number", "what all ends were worth to the jobs' owners", "more"),
    Column(
        "utility_of_certificate",
        "Utility of certificate",
        "of bound",
        "share",
        "share of what no schedule at all could exceed (a bound from the dual, so more is out of reach)",
        "more",
    ),
    Column("jobs_declined", "Declined", "declined", "count", "jobs that the policy would not take", ""),
    Column(
        "decision_p50_s",
        "Median decision",
        "decision",
        "duration",
        "what the policy took to decide; half took less",
    ),
    Column(
        "decision_p99_s", "p99 decision", "p99", "duration", "99 % of its decisions took at most this long"
    ),
)
"""What an overview shows beside them where jobs have a utility, or some were declined."""


def columns_of(figures: Figures) -> tuple[Column, ...]:
    """What the overview of these runs shows."""
    told = any(whole.utility is not None or whole.jobs_declined for whole in figures.summaries)
    return COLUMNS + OPTIMISED if told else COLUMNS


def cell(value: float | None, unit: str) -> str:
    """A figure with its unit; "–" where there is none."""
    if value is None:
        return "–"
    if unit == "duration":
        return format_duration(value)
    if unit == "share":
        return f"{value:.1%}"
    return f"{value:.2f}" if unit == "number" else f"{value:,.0f}"


def change(difference: ConfidenceInterval | None) -> str:
    """A relative difference with half the width of its interval: "-12.3% ± 1.1"."""
    if difference is None:
        return "–"
    text = f"{difference.mean:+.1%}"
    if difference.high is None:
        return text
    return f"{text} ± {100 * (difference.high - difference.mean):.1f}"


def seed_count(figures: Figures) -> str:
    """How many seeds means are over: "3 seeds"; "unlike seeds" where there is none that all policies have run."""
    count = len(figures.seeds)
    return f"{count} seed{'s' * (count != 1)}" if count else "unlike seeds"


def never_ran(comparison: Comparison) -> list[str]:
    """A sentence for each reason for which jobs cannot run here under any policy, with the first of them by name."""
    told = []
    for why, names in comparison.never_ran.items():
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        count = f"{len(names):,} of {len(comparison.runs[0].records):,} jobs"
        told.append(f"{count} can never run here: {why} (job {', '.join(names[:_NAMED])}{more})")
    return told


def no_job_ended(comparison: Comparison) -> list[str]:
    """A sentence for each reason for which no job of a run, that was not interrupted, ran to its end."""
    found: dict[str, dict[str, None]] = {}
    for run in comparison.runs:
        if run.records and not run.interrupted and all(r.status != "finished" for r in run.records):
            why, count = Counter(r.why for r in run.records).most_common(1)[0]
            text = f"none of {len(run.records):,} jobs ran to its end; {count:,} of them: {why}"
            found.setdefault(text, {})[run.policy] = None
    return [f"under {', '.join(policies)}, {text}" for text, policies in found.items()]


def unfinished(comparison: Comparison, figures: Figures) -> list[str]:
    """A sentence where policies ran unlike seeds, and for each run that was interrupted or left jobs unfinished, and why."""
    told = list(_unlike(comparison, figures))
    for run, whole in zip(comparison.runs, figures.summaries, strict=True):
        name = f"{run.policy}, seed {run.seed}"
        if run.interrupted:
            told.append(
                f"{name}: INTERRUPTED after {format_duration(whole.makespan_s)} of simulated time; "
                f"{whole.jobs_finished} of {whole.jobs_submitted} jobs had finished"
                f"{', and only they count' if figures.counts(run) else ''}"
            )
        elif whole.jobs_unfinished:
            whys = Counter(record.why for record in run.records if record.status != "finished")
            why, count = whys.most_common(1)[0]
            told.append(
                f"{name}: {whole.jobs_unfinished} of {whole.jobs_submitted} jobs did not finish "
                f"and do not count in JCT and queueing; {count} of them: {why}"
            )
    return told


def _unlike(comparison: Comparison, figures: Figures) -> Iterator[str]:
    every, common = len({run.seed for run in comparison.runs}), len(figures.seeds)
    if common == every:
        return
    ran = Counter(run.policy for run in comparison.runs if figures.counts(run) or not run.interrupted)
    text = "; ".join(f"{policy}: {count}" for policy, count in ran.items())
    if common:
        yield f"of {every} seeds all policies have run {common}, and means are over these ({text})"
    else:
        yield f"no seed was run under every policy, so that means cannot be compared ({text})"


def semantics_card(comparison: Comparison) -> list[tuple[str, dict[str, str]]]:
    """(rule, {policy: what holds}) for each rule; one entry "" where all policies share it.

    What differs between a policy's seeds is listed: "0, 1, 2".
    """
    card: dict[str, dict[str, dict[str, None]]] = {}
    for run in comparison.runs:
        for rule, value in run.semantics.items():
            card.setdefault(rule, {}).setdefault(run.policy, {})[value] = None
    policies = {run.policy for run in comparison.runs}
    return [
        (rule, _shared({policy: ", ".join(found) for policy, found in values.items()}, len(policies)))
        for rule, values in card.items()
    ]


def _shared(values: dict[str, str], policies: int) -> dict[str, str]:
    same = len(values) == policies and len(set(values.values())) == 1
    return {"": next(iter(values.values()))} if same else values


# The list of policies as a table. Reads names, parameters and sources off the classes.


def policy_list(policies: Mapping[str, type[Any]]) -> Table:
    """Rich's table of policies: what each does, its parameters with defaults, its source."""
    return listed("policy", policies)


def listed(word: str, known: Mapping[str, type[Any]]) -> Table:
    """Rich's table of what can be asked for by name.

    Args:
        word: what one is called.
        known: classes with a docstring, fields for parameters, and a source.
    """
    from rich.table import Table

    table = Table(show_lines=True)
    for head in (word, "what it does", "parameters", "source"):
        table.add_column(head, overflow="fold")
    for name, kind in known.items():
        first = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
        table.add_row(name, first, _parameters(kind), kind.source)
    return table


def _parameters(policy: type[Any]) -> str:
    if not dataclasses.is_dataclass(policy):
        return ""
    return "\n".join(f"{f.name}={getattr(f.default, 'name', f.default)}" for f in dataclasses.fields(policy))
