"""All of Philly on its 2,816 GPUs, and 200,000 jobs on 100,000 GPUs: each replay in its own process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import child
from clocks import spread, table, verdict
from workloads import ALL_JOBS, HUGE, PHILLY, Source, generated, philly_all

LIMITS_S = {"fifo": 2.5, "tiresias": 10.0, "dally": 20.0}
MEMORY_MIB = 1024.0
HUGE_S, DECISION_S = 60.0, 0.005


def philly(jobs: int = ALL_JOBS, rounds: int = 3, policies: Sequence[str] = tuple(LIMITS_S)) -> str:
    """The section about the whole trace."""
    source = philly_all(jobs)
    lines, first = [], {}
    for policy in policies:
        runs = [_replay(source, PHILLY, policy) for _ in range(rounds)]
        first = first or runs[0]
        cpu = [run["cpu_s"] for run in runs]
        limit = LIMITS_S.get(policy)
        said = "" if limit is None else f"{limit:g} s: {verdict(sorted(cpu)[len(cpu) // 2], limit)}"
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


def huge(jobs: int = 200_000, cluster: str = HUGE, policies: Sequence[str] = ("fifo", "srtf", "tiresias", "dally")) -> str:  # fmt: skip
    """The section about the largest cluster, with the time that each decision takes."""
    lines, gpus = [], 0
    for policy in policies:
        plain = _replay(generated(jobs), cluster, policy)
        watched = _replay(generated(jobs), cluster, policy, latency=True)
        gpus = plain["gpus"]
        both = [verdict(plain["cpu_s"], HUGE_S), verdict(watched["step_p99_s"], DECISION_S)]
        lines.append(
            [policy, f"{plain['cpu_s']:.1f}", f"{plain['wall_s']:.1f}", f"{plain['peak_mib']:.0f}", _us(plain),
             *(_microseconds(watched, name) for name in ("step_p50_s", "step_p99_s", "step_max_s", "instant_p99_s")),
             ", ".join(both)]
        )  # fmt: skip
    head = ["policy", "`simulate()`, CPU s", "wall s", "peak MiB", "µs per event", "decision p50, µs", "p99, µs", "max, µs", "all of an instant, p99, µs", "60 s, 5 ms"]  # fmt: skip
    return "\n\n".join(
        [
            f"{generated(jobs).says}, on {gpus:,} GPUs (`{cluster}`), models by the default mix, contention on. "
            "A decision's time is wall time from asking the policy for it to having it, in a run of its own.",
            table(head, lines),
        ]
    )


def _replay(source: Source, cluster: str, policy: str, **more: Any) -> dict[str, Any]:
    return child.run(workload=source.text, limit=source.limit, cluster=cluster, policy=policy, **more)


def _us(run: dict[str, Any]) -> str:
    return f"{1e6 * run['loop_s'] / run['events']:.1f}"


def _microseconds(run: dict[str, Any], name: str) -> str:
    return f"{1e6 * run[name]:,.0f}"
