"""A comparison as one web page that needs no network. Knows the order of the page, not its charts.

Everything is inside the file: Plotly's JavaScript once, the style sheet, the script that draws,
and the charts as JSON. It reads in light and dark, on a screen and on a phone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

import msgspec
import numpy as np

from hemiola.analysis.cluster_metrics import finish_time_fairness
from hemiola.core.decisions import placement_of
from hemiola.core.errors import InputError
from hemiola.core.job import Batch, Profile
from hemiola.core.result import Comparison, JobRecord, Run
from hemiola.core.topology import Level, Topology
from hemiola.core.units import format_duration, format_rate
from hemiola.report.charts import (
    bars,
    completion,
    differences,
    first_runs,
    gantt,
    gpu_seconds,
    heat_maps,
    over_time,
    tiers,
)
from hemiola.report.document import Chart, asset, document, policy_color, write_page
from hemiola.report.metrics import Figures
from hemiola.report.serving import SERVING_HEADS, serving_charts, serving_rows
from hemiola.report.words import (
    COLUMNS,
    Column,
    cell,
    change,
    columns_of,
    never_ran,
    seed_count,
    semantics_card,
    unfinished,
)

__all__ = ["card", "charts", "charts_json", "render", "write_report"]


# The jobs that took longest, per policy, with what took the time.

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
    rows = "".join(_job_row(run.records[i], rho[i], reasons) for i in order)
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


def _job_row(record: JobRecord, rho: float, reasons: dict[str, str]) -> str:
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


# The foot of the page: under which rules, with which jobs and on which cluster.


def semantics(comparison: Comparison) -> str:
    """Every rule that shaped the numbers; where policies differ, each policy's own."""
    rows = [
        (rule, "\n".join(f"{policy}: {value}" if policy else value for policy, value in values.items()))
        for rule, values in semantics_card(comparison)
    ]
    return _section("Rules that shaped these numbers", "", _definitions(rows))


def job_mix(comparison: Comparison) -> str:
    """What the jobs of the first seed ask for, by number of GPUs and by profile."""
    if not comparison.workloads:
        return ""
    seed = min(comparison.workloads)
    jobs = comparison.workloads[seed]
    if not jobs:
        return ""
    work_s = sum(job.gpus * job.duration_s for job in jobs)
    wide = Counter(job.gpus for job in jobs)
    facts = [
        ("read from", comparison.workload_format or "not stated"),
        ("arrivals", f"over {format_duration(jobs[-1].submit_s - jobs[0].submit_s)}"),
        ("work", f"{work_s / 3600:,.1f} GPU-hours if every job ran alone on its best placement"),
        ("GPUs per job", ", ".join(f"{gpus}: {count:,}" for gpus, count in sorted(wide.items())[:24])),
    ]
    if len(wide) > 24:
        facts.append(("", f"and {len(wide) - 24} larger sizes"))
    about = f"Seed {seed}." if len(comparison.workloads) > 1 else ""
    return _section("The jobs", about, _definitions(facts) + _profiles(jobs, work_s))


def _profiles(jobs: tuple[Batch, ...], work_s: float) -> str:
    mix: dict[str, list[Batch]] = {}
    for job in jobs:
        mix.setdefault(job.profile.name if job.profile else "", []).append(job)
    rows = [_profile(name, mix[name], len(jobs), work_s) for name in sorted(mix, key=lambda n: -len(mix[n]))]
    heads = ("profile", "jobs", "share of work", "overlap", "pattern", "checkpoint + restore", "source")
    return _table(heads, rows, "sources")


def _profile(name: str, mine: list[Batch], jobs: int, work_s: float) -> tuple[str, ...]:
    share = sum(job.gpus * job.duration_s for job in mine) / work_s if work_s else 0.0
    counts = (f"{len(mine):,} ({len(mine) / jobs:.0%})", f"{share:.0%}")
    profile: Profile | None = mine[0].profile
    if profile is None:
        return ("none: equally fast everywhere", *counts, "–", "–", "–", "–")
    costs = f"{format_duration(profile.checkpoint_s)} + {format_duration(profile.restore_s)}"
    return (name, *counts, f"{profile.overlap:.0%}", profile.pattern, costs, profile.source or "–")


def cluster_facts(topology: Topology) -> str:
    """Hosts and links, with how much each level promises beyond what it has."""
    hosts = topology.hosts
    sizes = Counter(zip(hosts.gpus.tolist(), hosts.gpu_types, strict=True))
    kinds = ", ".join(f"{n:,} × {gpus} GPUs {kind}".strip() for (gpus, kind), n in sizes.most_common(8))
    facts = [
        ("name", topology.name),
        ("hosts", kinds),
        ("network card", _range(hosts.nic_bytes_per_s.tolist())),
        ("inside an island", _range(hosts.fabric_bytes_per_s.tolist())),
    ]
    below = hosts.nic_bytes_per_s
    for level in topology.levels:
        facts.append((f"{level.name} uplinks", _level(level, below)))
    if topology.source:
        facts.append(("source", topology.source))
    return _section("The cluster", "", _definitions(facts))


def _level(level: Level, nic_bytes_per_s: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    inside = np.bincount(level.domain_of_host, weights=nic_bytes_per_s, minlength=len(level.domains))
    text = f"{len(level.domains):,} × {_range(level.uplink_bytes_per_s.tolist())}"
    ratio = inside / level.uplink_bytes_per_s
    if not np.isfinite(ratio).all():
        return text
    low, high = float(ratio.min()), float(ratio.max())
    span = f"{low:.3g}" if np.isclose(low, high) else f"{low:.3g} to {high:.3g}"
    return f"{text} (network cards below / uplink: {span})"


def _range(rates: Iterable[float]) -> str:
    low, high = min(rates := list(rates)), max(rates)
    return format_rate(low) if low == high else f"{format_rate(low)} to {format_rate(high)}"


def notes(comparison: Comparison) -> str:
    """What the readers assumed, and what each simulation took."""
    items = "".join(f"<li>{escape(note)}</li>" for note in comparison.notes)
    listed = f"<ul>{items}</ul>" if items else ""
    rows = [
        (
            run.policy,
            str(run.seed),
            f"{run.events:,}",
            f"{run.decisions_made:,} ({run.decisions_refused:,} refused)",
            format_duration(run.wall_s),
            "interrupted" if run.interrupted else "complete",
        )
        for run in comparison.runs
    ]
    table = _table(("policy", "seed", "events", "decisions", "simulated in", "state"), rows)
    return _section("Notes", "", listed + table)


def _section(title: str, about: str, content: str) -> str:
    if not content:
        return ""
    told = f'<p class="about">{escape(about)}</p>' if about else ""
    return f'<section class="card"><h2>{escape(title)}</h2>{told}{content}</section>'


def _definitions(rows: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    return f"<dl>{items}</dl>" if items else ""


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]], look: str = "") -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(value)}</td>' for value in row[1:])}</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table class="{look}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


# The top of the page: what was compared, what came out, and every main figure in one table.


def header(figures: Figures) -> str:
    """Title, the cluster and the jobs in a line, the finding, and warnings."""
    comparison, topology = figures.comparison, figures.comparison.topology
    jobs = max(whole.jobs_submitted for whole in figures.summaries)
    facts = [
        f"{jobs:,} jobs",
        f"{len(topology.hosts):,} hosts, {topology.gpus:,} GPUs"
        + "".join(f" {escape(name)}" for name in topology.gpu_types if name),
        f"{len(figures.policies)} {'policies' if len(figures.policies) > 1 else 'policy'}",
        seed_count(figures),
    ]
    title = escape(comparison.workload_name or "Comparison of policies")
    said = [*never_ran(comparison), *unfinished(comparison, figures)]
    warnings = "".join(f'<p class="warning">{escape(text)}.</p>' for text in said)
    return (
        f'<header><p class="brand">Hemiola</p><h1>{title} on {escape(topology.name)}</h1>'
        f'<p class="facts">{" · ".join(facts)}</p><p class="finding">{_finding(figures)}</p>{warnings}</header>'
    )


def _finding(figures: Figures) -> str:
    """Which policy has the lowest mean completion time, and whether that is certain."""
    if not figures.seeds:
        return "No seed was run under every policy: which is best cannot be said."
    if any(run.interrupted for policy in figures.policies for run in figures.runs(policy)):
        return "No seed was run to its end under every policy: which is best cannot be said."
    base = figures.comparison.baseline
    means = {policy: figures.mean(policy, "jct_mean_s") for policy in figures.policies}
    known = {policy: mean.mean for policy, mean in means.items() if mean is not None}
    if not known:
        return "No job finished."
    best = min(known, key=lambda policy: known[policy])
    text = f"Lowest mean job completion time: <b>{escape(best)}</b>, {cell(known[best], 'duration')}"
    if best == base or base not in figures.policies:
        return text + (" (the baseline)." if best == base and len(known) > 1 else ".")
    found = figures.difference(best, "jct_mean_s")
    if found is None:
        return text + "."
    text += f" ({escape(change(found))} against {escape(base)})."
    if found.low is None or found.high is None:
        return text + " One seed: how certain this is cannot be said."
    if found.low <= 0 <= found.high:
        return text + " At 95 % confidence this could be chance."
    return text


def overview(figures: Figures) -> str:
    """A line for each policy, a column for each figure, differences to the baseline below the values; where jobs have a
    utility, what it came to in a table of its own."""
    shown = [COLUMNS, columns_of(figures)[len(COLUMNS) :]]
    tables = "".join(_overview_table(figures, columns) for columns in shown if columns)
    return (
        '<section class="card"><h2>All policies</h2>'
        f'<p class="about">{_legend(figures)}</p>{tables}</section>'
    )


def _overview_table(figures: Figures, columns: Sequence[Column]) -> str:
    heads = "".join(f'<th title="{escape(c.about)}">{escape(c.title)}</th>' for c in columns)
    rows = "".join(_row(figures, index, policy, columns) for index, policy in enumerate(figures.policies))
    return (
        '<div class="scroll">'
        f"<table><thead><tr><th>policy</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _legend(figures: Figures) -> str:
    several = len({run.seed for run in figures.comparison.runs}) > 1
    means = (
        f"Means over {seed_count(figures)}; ± is half of the 95 % confidence interval. " if several else ""
    )
    return f"{means}Small print: difference to {escape(figures.comparison.baseline)}, the baseline."


def _row(figures: Figures, index: int, policy: str, columns: Sequence[Column]) -> str:
    cut = any(run.interrupted for run in figures.runs(policy))
    mark = ' <span class="warning">interrupted</span>' if cut else ""
    swatch = f'<span class="swatch" style="background:var({policy_color(index)})"></span>'
    cells = "".join(_cell(figures, policy, column) for column in columns)
    name = re.sub("[:=,]", r"\g<0><wbr>", escape(policy))  # where a long one is best broken
    return f"<tr><th>{swatch}{name}{mark}</th>{cells}</tr>"


def _cell(figures: Figures, policy: str, column: Column) -> str:
    mean = figures.mean(policy, column.metric)
    value = escape(cell(None if mean is None else mean.mean, column.unit))
    return f"<td>{value}{''.join(_small(figures, policy, column))}</td>"


def _small(figures: Figures, policy: str, column: Column) -> Iterator[str]:
    base = figures.comparison.baseline
    if policy == base or base not in figures.policies:
        return
    found = figures.difference(policy, column.metric)
    if found is None:
        return
    sure = found.low is not None and found.high is not None and not found.low <= 0 <= found.high
    good = (found.mean < 0) == (column.better == "less")
    verdict = ("good" if good else "bad") if sure and column.better else ""
    yield f'<small class="{verdict}">{escape(change(found))}</small>'


def write_report(comparison: Comparison, path: Path) -> None:
    """Write the page.

    Raises:
        InputError: if there is no run, or the path cannot be written.
        InternalError: if a run's figures do not add up.
    """
    write_page(render(comparison), path)


def render(comparison: Comparison) -> str:
    """The page as text (about 5 MB, most of it Plotly)."""
    from plotly.offline import get_plotlyjs

    if not comparison.runs:
        raise InputError("there is no run to report on", "simulate at least one policy")
    figures = Figures(comparison)
    drawn = charts(figures)
    scripts = [
        f'<script type="application/json" id="charts">{charts_json(drawn)}</script>',
        f"<script>{get_plotlyjs()}</script>",
        f"<script>{asset('report', 'report.js')}</script>",
    ]
    title = comparison.workload_name or "comparison"
    return document(title, asset("report", "report.css"), _body(figures, drawn), scripts)


def charts(figures: Figures) -> list[Chart]:
    """All charts that have something to show, in the order of the page."""
    comparison = figures.comparison
    found: list[Chart | None] = [
        *bars(figures),
        differences(figures),
        completion(figures),
        *serving_charts(comparison),
        *over_time(comparison),
        gpu_seconds(figures),
        tiers(figures),
        heat_maps(comparison),
        gantt(comparison),
    ]
    return [chart for chart in found if chart is not None]


def _body(figures: Figures, drawn: list[Chart]) -> Iterator[str]:
    comparison = figures.comparison
    yield header(figures)
    yield overview(figures)
    yield services(figures)
    yield '<section class="grid">' + "".join(card(chart) for chart in drawn if chart.small) + "</section>"
    yield _seeds(figures)
    yield from (card(chart) for chart in drawn if not chart.small)
    yield slowest_jobs(comparison)
    yield semantics(comparison)
    yield job_mix(comparison)
    yield cluster_facts(comparison.topology)
    yield notes(comparison)


def services(figures: Figures) -> str:
    """What services and loans came to; nothing without services."""
    rows = serving_rows(figures)
    if not rows:
        return ""
    about = (
        "Goodput of training: work per second in GPU-seconds, until the last job arrived; of inference: requests answered within "
        "the objective. Ceiling: the most that loans could multiply training's goodput by, over a static split."
    )
    return _section("Services and loans", about, _table(SERVING_HEADS, rows))


def _seeds(figures: Figures) -> str:
    if len({run.seed for run in figures.comparison.runs}) == 1:
        return ""
    named = f"seed{'s' * (len(figures.seeds) > 1)} {', '.join(map(str, figures.seeds))}"
    over = named if figures.seeds else "each policy's own seeds"
    return (
        f'<p class="aside">Figures are means over {over}. '
        "Charts over time, links and GPUs show the first of them.</p>"
    )


def card(chart: Chart) -> str:
    """A section that holds one chart, with a choice where there are several drawings."""
    options = "".join(f"<option>{escape(label)}</option>" for label in chart.drawings)
    chooser = (
        f'<label>policy <select aria-label="policy">{options}</select></label>'
        if len(chart.drawings) > 1
        else ""
    )
    return (
        f'<section class="card" data-chart="{escape(chart.id)}"><h2>{escape(chart.title)}</h2>'
        f'<p class="about">{escape(chart.about)}</p>{chooser}'
        f'<div class="chart" role="img" aria-label="{escape(chart.title)}" style="height:{chart.height_px}px">'
        "</div></section>"
    )


def charts_json(drawn: list[Chart]) -> str:
    """The charts, with nothing in them that could end the script element."""
    value = {
        chart.id: [
            {"label": label, "data": drawing.data, "layout": drawing.layout}
            for label, drawing in chart.drawings.items()
        ]
        for chart in drawn
    }
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")
