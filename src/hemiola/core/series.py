"""What a run looked like over time, as steps. Knows no files and no screens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hemiola.core.result import Run
from hemiola.core.timeline import Timeline

__all__ = ["QueueSeries", "has_timeline", "job_spans", "queue_series", "span_gpus"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class QueueSeries:
    """Steps: from `time_s[i]` on, until the next, the values at i hold.

    Attributes:
        waiting: jobs in the queue.
        wanted: the GPUs they ask for together.
        busy: GPUs held by jobs.
    """

    time_s: Floats
    waiting: Ints
    wanted: Ints
    busy: Ints


def job_spans(timeline: Timeline) -> Ints:
    """The rows that open a span, one per job and start, by job and then by start.

    A span on several hosts has a row for each; this keeps the first of them.
    """
    order = np.lexsort((timeline.start_s, timeline.job))
    if not len(order):
        return order.astype(np.int64)
    job, start_s = timeline.job[order], timeline.start_s[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (job[1:] != job[:-1]) | (start_s[1:] != start_s[:-1])
    return order[first].astype(np.int64)


def span_gpus(timeline: Timeline) -> Ints:
    """Of each row, the GPUs of its whole span, on all its hosts together."""
    span = np.unique(np.stack([timeline.job, timeline.start_s]), axis=1, return_inverse=True)[1].reshape(-1)
    held = np.bitwise_count(timeline.gpu_mask)
    return np.bincount(span, weights=held)[span].astype(np.int64)


def has_timeline(run: Run) -> bool:
    """Whether the run's spans were recorded (an empty timeline of jobs that ran was not)."""
    if run.timeline is None:
        return False
    return len(run.timeline.job) > 0 or not any(record.run_s > 0 for record in run.records)


def queue_series(run: Run) -> QueueSeries:
    """Queue and busy GPUs over time, from timeline and records; empty without a timeline."""
    if not has_timeline(run):
        return QueueSeries(np.zeros(0), *(np.zeros(0, dtype=np.int64) for _ in range(3)))
    return _derived(run, run.timeline)


def _derived(run: Run, timeline: Timeline) -> QueueSeries:
    job, from_s, to_s = _waits(run, timeline)
    gpus = np.array([record.gpus for record in run.records], dtype=np.int64)[job]
    held = np.bitwise_count(timeline.gpu_mask).astype(np.int64)
    ones, none_waits, none_holds = np.ones_like(job), np.zeros_like(job), np.zeros_like(held)
    time_s = np.concatenate([from_s, to_s, timeline.start_s, timeline.end_s])
    changes = np.stack(
        [
            np.concatenate([ones, -ones, none_holds, none_holds]),
            np.concatenate([gpus, -gpus, none_holds, none_holds]),
            np.concatenate([none_waits, none_waits, held, -held]),
        ]
    )
    order = np.argsort(time_s, kind="stable")
    time_s, levels = time_s[order], np.cumsum(changes[:, order], axis=1)
    last = np.append(time_s[1:] != time_s[:-1], True) if len(time_s) else np.zeros(0, dtype=bool)
    return QueueSeries(time_s[last], levels[0, last], levels[1, last], levels[2, last])


def _waits(run: Run, timeline: Timeline) -> tuple[Ints, Floats, Floats]:
    """(job, from, to) of each while in which a job waited: its life less its spans."""
    opens = job_spans(timeline)
    here = [i for i, record in enumerate(run.records) if record.status != "refused"]
    jobs = np.array(here, dtype=np.int64)
    submit_s = np.array([run.records[i].submit_s for i in here], dtype=np.float64)
    left_s = np.array(
        [run.end_s if (end := run.records[i].finish_s) is None else end for i in here], dtype=np.float64
    )
    job = np.concatenate([jobs, timeline.job[opens]])
    from_s = np.concatenate([submit_s, timeline.end_s[opens]])
    until_s = np.concatenate([timeline.start_s[opens], left_s])
    until_job = np.concatenate([timeline.job[opens], jobs])
    begin, finish = np.lexsort((from_s, job)), np.lexsort((until_s, until_job))
    job, from_s, until_s = job[begin], from_s[begin], until_s[finish]
    real = until_s > from_s
    return job[real], from_s[real], until_s[real]
