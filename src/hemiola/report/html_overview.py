"""The top of the page: what was compared, what came out, and every main figure in one table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

from hemiola.report.chart import policy_color
from hemiola.report.metrics import Figures
from hemiola.report.words import COLUMNS, Column, cell, change, never_ran, seed_count, unfinished

__all__ = ["header", "overview"]


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
    """A line for each policy, a column for each figure, differences to the baseline below the values."""
    heads = "".join(f'<th title="{escape(c.about)}">{escape(c.title)}</th>' for c in COLUMNS)
    rows = "".join(_row(figures, index, policy) for index, policy in enumerate(figures.policies))
    return (
        '<section class="card"><h2>All policies</h2>'
        f'<p class="about">{_legend(figures)}</p><div class="scroll">'
        f"<table><thead><tr><th>policy</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _legend(figures: Figures) -> str:
    several = len({run.seed for run in figures.comparison.runs}) > 1
    means = (
        f"Means over {seed_count(figures)}; ± is half of the 95 % confidence interval. " if several else ""
    )
    return f"{means}Small print: difference to {escape(figures.comparison.baseline)}, the baseline."


def _row(figures: Figures, index: int, policy: str) -> str:
    cut = any(run.interrupted for run in figures.runs(policy))
    mark = ' <span class="warning">interrupted</span>' if cut else ""
    swatch = f'<span class="swatch" style="background:var({policy_color(index)})"></span>'
    cells = "".join(_cell(figures, policy, column) for column in COLUMNS)
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
