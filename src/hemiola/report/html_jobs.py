"""The jobs that took longest, per policy, with what took the time."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from hemiola.core.decisions import placement_of
from hemiola.analysis.cluster_metrics import finish_time_fairness
from hemiola.core.result import Comparison, JobRecord, Run
from hemiola.core.units import format_duration
from hemiola.report.charts_time import first_runs

__all__ = ["slowest_jobs"]

SHOWN = 12
"""How many jobs of each policy are listed."""

_HEADS = (
    "job",
    "model",
    "GPUs",
    "JCT",
    "waited",
    "ran",
    "alone",
    "rho",
    "what took the time",
)
_REASON = "last placed because"


def slowest_jobs(comparison: Comparison) -> str:
    """A folded table for each policy; unfinished jobs first."""
    tables = "".join(_policy(run, comparison) for run in first_runs(comparison))
    return (
        '<section class="card"><h2>The slowest jobs</h2><p class="about">By completion time; jobs that did '
        "not finish come first. Alone is the run time on the best placement of an empty cluster; rho is the "
        f"completion time over that on a fair share of the cluster.</p>{tables}</section>"
    )


def _policy(run: Run, comparison: Comparison) -> str:
    rho = finish_time_fairness(run, comparison.topology).tolist()
    reasons = _reasons(run)
    order = sorted(range(len(run.records)), key=lambda i: _slowness(run.records[i]))[:SHOWN]
    rows = "".join(_row(run.records[i], rho[i], reasons) for i in order)
    heads = "".join(f"<th>{head}</th>" for head in (*_HEADS, *([_REASON] if reasons else [])))
    return (
        f"<details><summary>{escape(run.policy)} (seed {run.seed})</summary><div class='scroll'>"
        f"<table class='jobs'><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _slowness(record: JobRecord) -> tuple[bool, float]:
    return record.jct_s is not None, -(record.jct_s or record.queueing_s + record.run_s)


def _reasons(run: Run) -> dict[str, str]:
    return {
        logged.decision.job_id: logged.decision.reason
        for logged in run.decisions
        if placement_of(logged.decision) is not None and not logged.refused
    }


def _row(record: JobRecord, rho: float, reasons: dict[str, str]) -> str:
    jct = format_duration(record.jct_s) if record.jct_s is not None else f"{record.status}: {record.why}"
    cells = (
        record.model or "–",
        str(record.gpus),
        jct,
        format_duration(record.queueing_s),
        format_duration(record.run_s),
        format_duration(record.ideal_s),
        "–" if rho != rho else f"{rho:.2f}",
        ", ".join(_parts(record)) or "–",
        *([reasons.get(record.id, "–")] if reasons else []),
    )
    return f"<tr><th>{escape(record.id)}</th>{''.join(f'<td>{escape(text)}</td>' for text in cells)}</tr>"


def _parts(record: JobRecord) -> Iterator[str]:
    whole = record.queueing_s + record.run_s
    parts = (
        ("queueing", record.queueing_s),
        ("computing", record.useful_s),
        ("communication", record.exposed_communication_s),
        ("checkpoints", record.checkpoint_s),
        ("lost work", record.lost_s),
    )
    for name, part in parts:
        if whole > 0 and part / whole >= 0.005:
            yield f"{part / whole:.0%} {name}"
    if record.preemptions:
        yield f"{record.preemptions}× pre-empted"
    if record.migrations:
        yield f"{record.migrations}× moved"
