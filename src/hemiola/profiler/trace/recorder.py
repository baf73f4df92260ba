"""What the hooks tell, put in order while training runs: iterations, phases, transfers. Knows no PyTorch.

The methods run on the training threads and cost about a microsecond each; finished iterations lie
ready for `keeper`, which fetches them now and then.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hemiola.core.errors import InputError
from hemiola.core.job_timeline import SPAN_KINDS
from hemiola.profiler.trace.values import Instant, IterationDraft, RecordedTransfer

__all__ = ["IterationRecorder", "cut", "logger"]


logger = logging.getLogger("hemiola.record")


class IterationRecorder:
    """The recording of one rank, as the training script sees it.

    `with hemiola.record(...) as recorder` gives one. Without a call of `step` every step of the first
    optimizer ends an iteration.
    """

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self.now = now
        self.stream_now: Callable[[], Instant] = now
        """The time at which the device has done what was asked of it so far; the host's without a device."""
        self.on = True
        self.began = False
        self.explicit = False
        self.finished: deque[IterationDraft] = deque()
        """Where finished iterations are fetched from: no lock, so that nobody is woken at every iteration."""
        self.closed = threading.Event()
        self.cost_ns = 0
        self.failure = ""
        self.context = ""
        self.draft: IterationDraft | None = None
        self.number = 0
        self.on_begin: Callable[[], None] = lambda: None
        self.on_failure: Callable[[], None] = lambda: None
        self.on_boundary: Callable[[IterationDraft, bool], bool] = lambda draft, last: False
        """Called with an iteration that has ended, and whether it is the last; whether `resume` will be called."""
        self._sequences: dict[tuple[int, bool], int] = {}
        self._forward: Instant = None
        self._training = False
        self._thread: int | None = None
        """The one that trains, once that is known."""
        self._first: tuple[int, tuple[Instant, int, list[tuple[str, str, Instant, Instant]]]] | None = None

    def step(self) -> None:
        """Say that an iteration ends here; from now on optimizer steps no longer say it."""
        ended_otherwise = self.number > 0 and not self.explicit
        self.explicit = True
        self._thread = threading.get_ident()
        self.guarded(self._cut_off if ended_otherwise else self.boundary)

    @contextmanager
    def span(self, name: str, kind: str = "other") -> Iterator[None]:
        """Record what happens inside as a span of that name.

        Raises:
            InputError: if the kind is not one of `core.job_timeline.SPAN_KINDS`.
        """
        if kind not in SPAN_KINDS:
            raise InputError(f"{kind!r} is no kind of span", f"use one of {', '.join(SPAN_KINDS)}")
        start = self.stream_now()
        try:
            yield
        finally:
            self.guarded(self.phase, name, kind, start, self.stream_now())

    def open_draft(self, start: Instant) -> IterationDraft:
        """The iteration under way; before the first one, what sets the training up, numbered -1."""
        if self.draft is None:
            if not self.began:
                self.began = True
                self.on_begin()
            self.draft = IterationDraft(self.number if self._training else -1, start)
        return self.draft

    def phase(self, name: str, kind: str, start: Instant, end: Instant) -> None:
        """Something of this rank lasted from `start` to `end`."""
        self.open_draft(start).phases.append((name, kind, start, end))

    def input(self, start: int, end: int) -> None:
        """The loader was asked for a batch, and gave it. Begins no recording: others load data too.

        A thread that reads ahead is not the one that waits for it.
        """
        if self._thread is not None and threading.get_ident() != self._thread:
            return
        if self._training and self.draft is not None:
            self.draft.phases.append(("input", "input", start, end))
        else:
            self._remember(start, [("input", "input", start, end)])

    def forward_begins(self) -> None:
        """A wrapped model is called; only the first call since the last backward counts."""
        if self._forward is None:
            self._forward = self.stream_now()
            if not self._training and self._first is None:
                self._remember(self._forward, [])

    def backward(self, start: Instant, end: Instant) -> None:
        """A backward pass lasted from `start` to `end`, and ended the forward pass before it."""
        forward, self._forward = self._forward, None
        draft = self._training_draft(start if forward is None else forward)
        self._thread = threading.get_ident()
        if forward is not None:
            draft.phases.append(("forward", "compute", forward, start))
        draft.phases.append(("backward", "compute", start, end))

    def optimizer(self, start: Instant, end: Instant) -> None:
        """An optimizer's step lasted from `start` to `end`."""
        self._thread = threading.get_ident()
        self._training_draft(start).phases.append(("optimizer", "compute", start, end))

    def _remember(self, start: Instant, phases: list[tuple[str, str, Instant, Instant]]) -> None:
        """Iteration 0 begins here, if nothing later says so before its backward pass."""
        transfers = len(self.draft.transfers) if self.draft is not None else 0
        self._first = threading.get_ident(), (start, transfers, phases)

    def _training_draft(self, start: Instant) -> IterationDraft:
        """The iteration under way; the first is cut off here from what set the training up."""
        if self._training:
            return self.open_draft(start)
        setup = self.open_draft(start)
        thread, first = self._first or (0, None)
        if first is None or thread != threading.get_ident():  # that one reads ahead
            first = start, len(setup.transfers), []
        begin, transfers, phases = first
        self._training = True
        self.draft = IterationDraft(self.number, begin)
        self.draft.phases += phases
        self.draft.transfers, setup.transfers = setup.transfers[transfers:], setup.transfers[:transfers]
        setup.end = begin
        self.finished.append(setup)
        return self.draft

    def transfer(self, collective: str, group: int, size_bytes: int, enqueue: int) -> RecordedTransfer:
        """A tensor is handed over to be sent."""
        # ranks have unlike numbers of sends and receives, and as many collectives each
        sort = group, collective in ("send", "recv")
        sequence = self._sequences.get(sort, 0)
        self._sequences[sort] = sequence + 1
        transfer = RecordedTransfer(sequence, self.context, collective, group, size_bytes, enqueue, self.now)
        self.open_draft(enqueue).transfers.append(transfer)
        return transfer

    def boundary(self) -> None:
        """An iteration is over and the next begins."""
        end = self.stream_now()
        draft = self._training_draft(end)
        draft.end, draft.complete = end, True
        self.number += 1
        self._forward = None
        self.draft = IterationDraft(self.number, end)
        if not self.on_boundary(draft, False):
            self.finished.append(draft)

    def _cut_off(self) -> None:
        """An optimizer has ended the iteration already: what has passed since then is none, and the next begins."""
        end = self.stream_now()
        draft = self.open_draft(end)
        draft.end = end
        self._forward = None
        self.draft = IterationDraft(self.number, end)
        self.finished.append(draft)

    def resume(self, draft: IterationDraft, begin: Instant) -> None:
        """Something that is no part of any iteration has taken place since `begin`; the iteration before it is ready."""
        now = self.stream_now()
        draft.phases.append(("recording", "other", begin, now))
        following = self.draft
        if following is not None and not following.phases and not following.transfers:
            following.start = now
        self.finished.append(draft)

    def close(self) -> None:
        """Hand over what is under way, as it is, and nothing more."""
        draft, self.draft = self.draft, None
        if draft is not None:
            draft.end = self.now()
            if not self.on_boundary(draft, True):
                self.finished.append(draft)
        self.on = False
        self.closed.set()

    def fail(self, problem: BaseException) -> None:
        """Stop recording, say so once, and let training go on."""
        if self.on:
            self.on = False
            self.failure = f"{type(problem).__name__}: {problem}"
            logger.warning("recording has stopped, training goes on: %s", self.failure, exc_info=problem)
            self.on_failure()

    def guarded(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """Do it if recording is on; whatever goes wrong stops the recording only."""
        if not self.on:
            return None
        try:
            return action(*arguments)
        except Exception as problem:
            self.fail(problem)
            return None


# A rank's phases without overlaps: each instant of its main lane belongs to one thing. Knows no PyTorch.

Phase = tuple[str, str, int, int]
Interval = tuple[int, int]


def cut(phases: Sequence[Phase], waits: Iterable[Interval], window: Interval | None) -> list[Phase]:
    """The phases cut around the waits and around each other, in order of time.

    Args:
        phases: (name, kind, start, end).
        waits: from when to when the rank stood still for communication.
        window: the iteration, whose remaining time is filled; None if there is none to fill.
    """
    taken = _Taken(waits)
    pieces: list[Phase] = []
    for name, kind, start, end in sorted(_with_forward(phases, window), key=_urgency):
        pieces += [(name, kind, left, right) for left, right in taken.take(start, end)]
    if window is not None:
        pieces += [("other", "other", left, right) for left, right in taken.take(*window)]
    return sorted(pieces, key=lambda piece: (piece[2], piece[3]))


def _urgency(phase: Phase) -> tuple[bool, int]:
    return (phase[1] != "input", -phase[2])


def _with_forward(phases: Sequence[Phase], window: Interval | None) -> list[Phase]:
    found = list(phases)
    if window is not None and not any(name == "forward" for name, *_ in phases):
        since = window[0]
        for name, _, start, end in sorted(phases, key=lambda phase: phase[2]):
            if name == "backward" and start > since:
                found.append(("forward", "compute", since, start))
            since = max(since, end)
    return found


class _Taken:
    """Stretches of time that are no longer free: in order, and apart from each other."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in intervals:
            self.take(start, end)

    def take(self, start: int, end: int) -> list[Interval]:
        """Take an interval; what of it was free."""
        if start >= end:
            return []
        met = slice(bisect_left(self._ends, start), bisect_right(self._starts, end))
        starts, ends = self._starts[met], self._ends[met]
        bounds = zip([start, *ends], [*starts, end], strict=True)  # what lies between those that it meets
        free = [(left, right) for left, right in bounds if right > left]
        self._starts[met], self._ends[met] = [min([start, *starts[:1]])], [max([end, *ends[-1:]])]
        return free
