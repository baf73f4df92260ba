"""Spans of time: who, where, from, to, of what kind. Every metric and picture is a function of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Timeline", "TrafficLog"]


@dataclass(frozen=True, eq=False)
class Timeline:
    """What ran where and when: one row for each host of each span in which a job held GPUs.

    Attributes:
        job: index into the run's jobs.
        host: index into the topology's hosts.
        gpu_mask: the GPUs held on that host, bit i for GPU i.
        start_s, end_s: from, to.
        resume_s: until then the span saved, loaded or waited for GPUs to be handed over; after it
            the job made progress.
        tier: the narrowest tier that held the whole job (0 is one host).
        outcome: index into `OUTCOMES`: how the span ended.
    """

    job: NDArray[np.int64]
    host: NDArray[np.int64]
    gpu_mask: NDArray[np.uint64]
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
            gpu_mask=np.array(columns[2], dtype=np.uint64),
            start_s=np.array(columns[3], dtype=np.float64),
            end_s=np.array(columns[4], dtype=np.float64),
            resume_s=np.array(columns[5], dtype=np.float64),
            tier=np.array(columns[6], dtype=np.int64),
            outcome=np.array(columns[7], dtype=np.int64),
        )


@dataclass(frozen=True, eq=False)
class TrafficLog:
    """What each job that crosses hosts sent, while its speed stayed the same.

    Attributes:
        job: index into the run's jobs.
        start_s, end_s: from, to.
        iteration_s: time of one iteration in that while.
        bytes_per_s: mean rate on each link it crosses.
        hosts: the hosts it ran on, from which the links follow.
    """

    job: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    iteration_s: NDArray[np.float64]
    bytes_per_s: NDArray[np.float64]
    hosts: tuple[tuple[int, ...], ...]
