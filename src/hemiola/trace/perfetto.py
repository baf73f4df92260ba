"""A timeline as Chrome trace events, for https://ui.perfetto.dev. Knows the format, not the policies.

Each run has a process "cluster" with counters, and each host of each run is a process with a
thread per GPU. Times are microseconds since the run's first arrival. Written as it is made, so a
large run needs no more memory than a small one.

Format: "Trace Event Format", Google, JSON object form.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from hemiola.core.errors import InputError
from hemiola.core.result import Comparison, Run
from hemiola.core.timeline import Timeline, has_timeline, queue_series, span_gpus
from hemiola.core.topology import Topology
from hemiola.trace.atomic import replacing

__all__ = ["TIMELINE_SCHEMA", "write_timeline"]

TIMELINE_SCHEMA = "hemiola.timeline/1"

_MICROSECONDS = 1e6


def write_timeline(comparison: Comparison, path: Path) -> None:
    """Write what every run's GPUs did; compressed if the path ends in ".gz".

    Raises:
        InputError: if a run kept no timeline, or the path cannot be written.
    """
    for run in comparison.runs:
        if not has_timeline(run):
            raise InputError(
                f"the run of {run.policy!r}, seed {run.seed}, kept no timeline",
                "simulate again with the timeline kept",
            )
    encode = msgspec.json.Encoder().encode
    about = {
        "schema": TIMELINE_SCHEMA,
        "workload": comparison.workload_name,
        "cluster": comparison.topology.name,
    }
    with replacing(path) as stream:
        stream.write(b'{"displayTimeUnit":"ms","otherData":' + encode(about) + b',"traceEvents":[\n')
        separator = b""
        for event in _events(comparison):
            stream.write(separator + encode(event))
            separator = b",\n"
        stream.write(b"\n]}\n")


def _events(comparison: Comparison) -> Iterator[dict[str, Any]]:
    hosts = len(comparison.topology.hosts)
    for number, run in enumerate(comparison.runs):
        first = number * (hosts + 1) + 1
        yield from _names(run, comparison.topology, first)
        yield from _counters(run, first)
        yield from _spans(run, run.timeline, comparison.topology, first + 1)


def _names(run: Run, topology: Topology, first: int) -> Iterator[dict[str, Any]]:
    title = f"{run.policy} seed {run.seed}" + (" (interrupted)" if run.interrupted else "")
    yield from _process(first, f"{title}: cluster")
    for host, name in enumerate(topology.hosts.names):
        yield from _process(first + 1 + host, f"{title}: {name}")
        for gpu in range(int(topology.hosts.gpus[host])):
            label = {"name": f"GPU {gpu}"}
            yield {"ph": "M", "name": "thread_name", "pid": first + 1 + host, "tid": gpu + 1, "args": label}


def _process(pid: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}


def _counters(run: Run, pid: int) -> Iterator[dict[str, Any]]:
    steps = queue_series(run)
    columns = (steps.time_s, steps.waiting, steps.wanted, steps.busy)
    for time_s, waiting, wanted, busy in zip(*(column.tolist() for column in columns), strict=True):
        ts = _ticks(time_s, run)
        for name, value in (("jobs waiting", waiting), ("GPUs wanted", wanted), ("GPUs busy", busy)):
            yield {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": ts, "args": {"value": value}}


def _spans(run: Run, timeline: Timeline, topology: Topology, first: int) -> Iterator[dict[str, Any]]:
    columns = (
        timeline.job, timeline.host, timeline.gpu_mask, timeline.start_s, timeline.end_s,
        timeline.resume_s, timeline.tier, timeline.outcome, span_gpus(timeline),
    )  # fmt: skip
    for job, host, mask, start_s, end_s, resume_s, tier, outcome, gpus in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        record = run.records[job]
        args = {"gpus": gpus, "tier": topology.tiers[tier], "ended": Timeline.OUTCOMES[outcome]}
        args |= {key: value for key in ("model", "user", "queue") if (value := getattr(record, key))}
        whole = _complete(record.id, "job", run, start_s, end_s) | {"args": args, "pid": first + host}
        opening = _complete("checkpoint or restore", "overhead", run, start_s, resume_s) | {
            "pid": first + host
        }
        for gpu in range(mask.bit_length()):
            if mask >> gpu & 1:
                yield whole | {"tid": gpu + 1}
                if resume_s > start_s:
                    yield opening | {"tid": gpu + 1}


def _complete(name: str, category: str, run: Run, start_s: float, end_s: float) -> dict[str, Any]:
    ts = _ticks(start_s, run)
    return {"ph": "X", "name": name, "cat": category, "ts": ts, "dur": round(_ticks(end_s, run) - ts, 3)}


def _ticks(time_s: float, run: Run) -> float:
    return round((time_s - run.origin_s) * _MICROSECONDS, 3)
