"""Spans of time: who, where, from, to, of what kind. Every metric and picture is a function of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Timeline", "TrafficLog"]

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
