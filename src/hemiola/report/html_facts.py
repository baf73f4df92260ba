"""The foot of the page: under which rules, with which jobs and on which cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from html import escape

import numpy as np

from hemiola.core.job import Job, Profile
from hemiola.core.result import Comparison
from hemiola.core.topology import Level, Topology
from hemiola.core.units import format_duration, format_rate
from hemiola.report.words import semantics_card

__all__ = ["cluster_facts", "job_mix", "notes", "semantics"]


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


def _profiles(jobs: tuple[Job, ...], work_s: float) -> str:
    mix: dict[str, list[Job]] = {}
    for job in jobs:
        mix.setdefault(job.profile.name if job.profile else "", []).append(job)
    rows = [_profile(name, mix[name], len(jobs), work_s) for name in sorted(mix, key=lambda n: -len(mix[n]))]
    heads = ("profile", "jobs", "share of work", "overlap", "pattern", "checkpoint + restore", "source")
    return _table(heads, rows, "sources")


def _profile(name: str, mine: list[Job], jobs: int, work_s: float) -> tuple[str, ...]:
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
