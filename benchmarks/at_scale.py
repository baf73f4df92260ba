"""All of Philly on its 2,816 GPUs, and 200,000 jobs on 100,000 GPUs: each replay in its own process."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import child
from clocks import spread, table, verdict
from workloads import ALL_JOBS, HUGE, PHILLY, Source, generated, philly_all

LIMITS_S = {"fifo": 2.5, "tiresias": 10.0, "dally": 20.0}
MEMORY_MIB = 1024.0
HUGE_S, DECISION_S = 60.0, 0.005
HUGE_POLICIES = ("fifo", "srtf", "tiresias", "dally")
RELAXED, CROWDED = 0.8, 10.0
HUGE_HEAD = (
    "CPU s, at most 60",
    "peak MiB",
    "mean wait, s",
    "pre-emptions",
    "µs per event",
    "decision p50, µs",
    "p99, µs, at most 5,000",
    "longest, µs",
    "all of an instant, p99, µs",
)


def philly(jobs: int = ALL_JOBS, rounds: int = 3, policies: Sequence[str] = tuple(LIMITS_S)) -> str:
    """The section about the whole trace."""
    source = philly_all(jobs)
    lines, first = [], {}
    for policy in policies:
        runs = [_replay(source, PHILLY, policy) for _ in range(rounds)]
        first = first or runs[0]
        cpu = [run["cpu_s"] for run in runs]
        limit = LIMITS_S.get(policy)
        said = "" if limit is None else f"{limit:g} s: {verdict(median(cpu), limit)}"
        walls = spread([run["wall_s"] for run in runs])
        loop = spread([run["loop_s"] for run in runs])
        peak = max(run["peak_mib"] for run in runs)
        lines.append(
            [policy, said, loop, spread(cpu), walls, f"{peak:.0f}", f"{runs[0]['events']:,}", _us(runs[0])]
        )
    head = ["policy", "target", "replay, CPU s", "`simulate()`, CPU s", "wall s", "peak MiB", "events", "µs per event"]  # fmt: skip
    return "\n\n".join(
        [
            f"{source.says} on 2,816 GPUs (`{PHILLY}`), models by the default mix, contention on; {rounds} runs, "
            f"each in a process of its own: median (least–most). Reading them takes {first['read_s']:.2f} s of CPU, "
            f"drawing models {first['assign_s']:.2f} s.",
            table(head, lines),
            _memory(jobs, policies),
        ]
    )


def _memory(jobs: int, policies: Sequence[str]) -> str:
    counts = [jobs // 4, jobs // 2, jobs]
    lines = []
    for policy in policies:
        peaks = [_replay(philly_all(count), PHILLY, policy)["peak_mib"] for count in counts]
        per_job = [
            1024 * (b - a) / (m - n) for a, b, n, m in zip(peaks, peaks[1:], counts, counts[1:], strict=False)
        ]
        lines.append(
            [policy, *(f"{peak:.0f}" for peak in peaks), *(f"{kib:.1f}" for kib in per_job), verdict(peaks[-1], MEMORY_MIB)]
        )  # fmt: skip
    head = ["peak MiB of the process", *(f"{count:,} jobs" for count in counts), "KiB per job, first step", "second step", "under 1 GiB"]  # fmt: skip
    return table(head, lines)


def huge(
    jobs: int = 200_000, cluster: str = HUGE, policies: Sequence[str] = HUGE_POLICIES, limit_s: float = 150.0
) -> str:
    """The section about the largest cluster, with the time that each decision takes.

    Args:
        limit_s: wall time after which a replay is given up, and the table says so.
    """
    parts = [
        f"{jobs:,} generated jobs in the style of Philly (`{cluster}`), models by the default mix, contention on, "
        "one run each. A decision's time is wall time from asking the policy for it (or for word that there is "
        f"none) to having it; CPU includes taking it. Replays are given up after {limit_s:g} s."
    ]
    for load in (RELAXED, CROWDED):
        lines = [_huge(generated(jobs, load), cluster, policy, limit_s) for policy in policies]
        parts.append(table([f"load {load:g}", *HUGE_HEAD], lines))
    parts.append(
        f"At load {RELAXED:g} hardly anybody waits. At load {CROWDED:g} the same jobs arrive within {RELAXED / CROWDED:.0%} "
        "of the time: the cluster fills, jobs queue and pre-empt each other, and links are congested."
    )
    return "\n\n".join(parts)


def _huge(source: Source, cluster: str, policy: str, limit_s: float) -> list[str]:
    try:
        run = _replay(source, cluster, policy, latency=True, limit_s=limit_s)
    except TimeoutError:
        return [policy, f"more than {limit_s:g} wall s: missed", *[""] * (len(HUGE_HEAD) - 1)]
    return [
        policy,
        f"{run['cpu_s']:.1f}: {verdict(run['cpu_s'], HUGE_S)}",
        f"{run['peak_mib']:.0f}",
        f"{run['queueing_mean_s']:.0f}",
        f"{run['preemptions']:,}",
        _us(run),
        _microseconds(run, "step_p50_s"),
        f"{_microseconds(run, 'step_p99_s')}: {verdict(run['step_p99_s'], DECISION_S)}",
        _microseconds(run, "step_max_s"),
        _microseconds(run, "instant_p99_s"),
    ]


def _replay(source: Source, cluster: str, policy: str, **more: Any) -> dict[str, Any]:
    return child.run(workload=source.text, limit=source.limit, cluster=cluster, policy=policy, **more)


def _us(run: dict[str, Any]) -> str:
    return f"{1e6 * run['loop_s'] / run['events']:.1f}"


def _microseconds(run: dict[str, Any], name: str) -> str:
    return f"{1e6 * run[name]:,.0f}"
