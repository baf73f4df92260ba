"""Spans of time: who, where, from, to, of what kind. Every metric and picture is a function of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemiola.core.result import Run

__all__ = ["Timeline", "TrafficLog", "has_timeline", "job_spans", "queue_series", "span_gpus"]


_WORD_BITS = 64


@dataclass(frozen=True, eq=False)
class Timeline:
    """What ran where and when: one row for each host of each span in which a job held GPUs.

    A job has one span from any instant on: what it held and left at the same instant is none.

    Attributes:
        job: index into the run's jobs.
        host: index into the topology's hosts.
        mask_words: uint64[rows, words], the GPUs held on that host: bit b of word w for GPU 64 w + b. One word, or
            two if a span holds a GPU beyond a host's first 64. `gpu_mask` has them joined.
        start_s, end_s: from, to.
        resume_s: until then the span saved, loaded or waited for GPUs to be handed over; after it
            the job made progress.
        tier: the narrowest tier that held the whole job (0 is one host).
        outcome: index into `OUTCOMES`: how the span ended.
    """

    job: NDArray[np.int64]
    host: NDArray[np.int64]
    mask_words: NDArray[np.uint64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    resume_s: NDArray[np.float64]
    tier: NDArray[np.int64]
    outcome: NDArray[np.int64]

    OUTCOMES = ("finished", "pre-empted", "moved", "failed", "host lost", "still running")

    @classmethod
    def from_rows(cls, rows: list[tuple[int, int, int, float, float, float, int, int]]) -> Timeline:
        """Columns from rows in the order of the attributes."""
        columns: list[tuple[float, ...]] = [*zip(*rows, strict=True)] if rows else [()] * 8
        return cls(
            job=np.array(columns[0], dtype=np.int64),
            host=np.array(columns[1], dtype=np.int64),
            mask_words=_words(columns[2]),
            start_s=np.array(columns[3], dtype=np.float64),
            end_s=np.array(columns[4], dtype=np.float64),
            resume_s=np.array(columns[5], dtype=np.float64),
            tier=np.array(columns[6], dtype=np.int64),
            outcome=np.array(columns[7], dtype=np.int64),
        )

    @property
    def gpu_mask(self) -> NDArray[Any]:
        """The GPUs held on each row's host, bit i for GPU i; Python's integers where a mask has two words."""
        words = self.mask_words
        if words.shape[1] == 1:
            return words[:, 0]
        joined = [low | high << _WORD_BITS for low, high in words.tolist()]
        return np.array(joined, dtype=object).view(_LongMasks)


def _words(masks: Sequence[Any]) -> NDArray[np.uint64]:
    try:
        return np.array(masks, dtype=np.uint64).reshape(-1, 1)
    except OverflowError:
        low = (1 << _WORD_BITS) - 1
        return np.array([(mask & low, mask >> _WORD_BITS) for mask in masks], dtype=np.uint64)


class _LongMasks(np.ndarray[Any, Any]):
    """Masks that no integer of NumPy's holds; their bits are counted into such integers, as those of others are."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        found = getattr(ufunc, method)(*map(np.asarray, inputs), **options)
        return found.astype(np.uint8) if ufunc is np.bitwise_count else found


@dataclass(frozen=True, eq=False)
class TrafficLog:
    """What each job that crosses hosts sent, while its speed stayed the same.

    Attributes:
        job: index into the run's jobs.
        start_s, end_s: from, to.
        iteration_s: time of one iteration in that while.
        bytes_per_s: mean rate on a link that carries what each of a ring's does.
        hosts: the hosts it ran on, from which the links follow.
        factors: how many times that rate each of its links has: the hosts' cards, then, narrow to wide, the uplinks of
            their domains, each where it comes first. None for once; empty if that is so of all rows.
    """

    job: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    iteration_s: NDArray[np.float64]
    bytes_per_s: NDArray[np.float64]
    hosts: tuple[tuple[int, ...], ...]
    factors: tuple[tuple[float, ...] | None, ...] = ()


# What a run looked like over time, as steps. Knows no files and no screens.

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
