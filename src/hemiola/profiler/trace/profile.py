"""A full trace of single iterations: PyTorch's profiler, run from one boundary to the next.

It gives the operations, the device's kernels, and gloo's own word on when a collective began and ended.
Starting, stopping and reading it takes time between iterations, which belongs to none of them; the
profiler also slows the iteration itself, by what `merge` reports as the cost of full recording.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from hemiola.profiler.trace.recorder import IterationRecorder, logger
from hemiola.profiler.trace.values import IterationDraft, RecordedTransfer

__all__ = ["LIGHT_FIRST", "Annotations", "Profiling", "TraceDemand", "refine", "rows"]

LIGHT_FIRST = 5
"""In full mode so many iterations are recorded lightly, to compare with."""

_TOLERANCE_NS = 1_000_000
_PATIENCE_S = 5.0
_MOMENT_S = 0.001
_ANNOTATIONS = ("autograd::", "c10d::", "FSDP::", "torch::", "profiler::")

Span = tuple[str, str, str, int, int]
"""Lane, name, kind, start and end in nanoseconds."""


class TraceDemand:
    """A request for a full trace: its number, its first iteration, how many."""

    def __init__(self, number: int, first: int, iterations: int) -> None:
        self.number = number
        self.first = first
        self.iterations = iterations

    def holds(self, iteration: int) -> bool:
        """Whether that iteration is asked for."""
        return self.first <= iteration < self.first + self.iterations


class Annotations:
    """Knows which annotations (`record_function`) are open, while the profiler runs.

    The profiler must not be stopped inside one: the annotation would write its end into memory that is
    gone. The end of an optimizer's step, where iterations end, is inside one that PyTorch makes itself.
    """

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._after: Callable[[], None] | None = None
        self._undo: Callable[[], None] | None = None

    def watch(self) -> None:
        """Begin to follow annotations; those already open are of no concern."""
        from torch.autograd.profiler import record_function

        self._open.clear()
        if self._undo is not None:
            return
        enter, leave = record_function.__enter__, record_function.__exit__

        def entering(annotation: Any) -> Any:
            self._open.add(id(annotation))
            return enter(annotation)

        def leaving(annotation: Any, *problem: Any) -> Any:
            result = leave(annotation, *problem)
            self._open.discard(id(annotation))
            after = self._after
            if after is not None and not self._open:
                self._after = None
                after()
            return result

        def undo() -> None:
            record_function.__enter__, record_function.__exit__ = enter, leave

        record_function.__enter__, record_function.__exit__ = entering, leaving
        self._undo = undo

    @property
    def any_open(self) -> bool:
        """Whether one has been entered and not left."""
        return bool(self._open)

    def when_closed(self, action: Callable[[], None]) -> None:
        """Do it outside of all annotations: now, or when the last one is left."""
        if self._open:
            self._after = action
        else:
            action()

    def forget(self) -> None:
        """Follow them no longer."""
        if self._undo is not None:
            self._undo()
            self._undo = None


class Profiling:
    """Decides at each boundary whether the next iteration is profiled; starts and stops the profiler."""

    def __init__(self, recorder: IterationRecorder, *, always: bool) -> None:
        self._recorder = recorder
        self._always = always
        self._running: Any = None
        self._others: weakref.WeakSet[Any] = weakref.WeakSet()
        self._annotations = Annotations()
        self._waiting: IterationDraft | None = None
        self._said: set[str] = set()
        self.demand: TraceDemand | None = None

    def boundary(self, draft: IterationDraft, last: bool) -> bool:
        """An iteration has ended; whether it will be handed on later, when the profiler has stopped."""
        demand = self.demand
        if demand is not None and demand.holds(draft.number):
            draft.demand = demand.number
            draft.demand_ends = not demand.holds(draft.number + 1)
        if demand is not None and draft.number + 1 >= demand.first + demand.iterations:
            self.demand = demand = None
        following = draft.number + 1
        wanted = (self._always and following >= LIGHT_FIRST) or (
            demand is not None and demand.holds(following)
        )
        if self._running is None:
            return wanted and not last and self._begin(draft)
        self._hand_on()
        self._waiting = draft
        self._annotations.when_closed(partial(self._turn, wanted and not last))
        if last:  # whatever ends later finds nobody who fetches it
            self._hand_on()
        return True

    def _begin(self, draft: IterationDraft) -> bool:
        """Start after an iteration that was recorded lightly; whether that has been, and the iteration handed on."""
        begin = self._recorder.stream_now()
        self._start()
        if self._running is None:
            return False
        self._recorder.resume(draft, begin)
        return True

    def _turn(self, again: bool) -> None:
        """Stop, start again if wanted, and hand the iteration on."""
        draft, self._waiting = self._waiting, None
        try:
            begin = self._recorder.stream_now()
            self._stop(draft)
            if again:
                self._start()
            else:
                self._annotations.forget()
            if draft is not None:
                self._recorder.resume(draft, begin)
        except Exception as problem:
            self._recorder.fail(problem)

    def _hand_on(self) -> None:
        """An iteration that still waits for an annotation to be left goes without its operations."""
        draft, self._waiting = self._waiting, None
        if draft is not None:
            self._say("iterations have no operations where one annotation (record_function) spans several")
            draft.profiled = True
            self._recorder.finished.append(draft)

    def make_way(self, other: Any) -> None:
        """The script is about to start a profiler of its own, and there can be one: ours stays off until that has ended.

        Inside an annotation ours cannot be stopped, and the script's start fails.
        """
        if other is self._running:
            return
        self._others.add(other)
        if self._running is not None and not self._annotations.any_open:
            under_way = self._recorder.draft
            self._end(under_way.transfers if under_way is not None else ())
            self._annotations.forget()

    def has_ended(self, other: Any) -> None:
        """That profiler of the script's has."""
        self._others.discard(other)

    def abandon(self) -> None:
        """The recording has failed: let the profiler not run on."""
        self._always, self.demand = False, None
        self._hand_on()
        running, self._running = self._running, None
        if running is not None:
            self._annotations.when_closed(lambda: running.__exit__(None, None, None))

    def _start(self) -> None:
        import torch
        from torch.autograd import profiler

        if self._others or torch.autograd._profiler_enabled():  # even our failing to start would disturb it
            self._say("iterations have no operations while the script runs a profiler of its own")
            return
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it announces each start otherwise
        self._running = profiler.profile(
            use_kineto=True, use_device="cuda" if torch.cuda.is_initialized() else None
        )
        try:
            self._running.__enter__()
        except RuntimeError as problem:
            self._running = None
            self._say(f"iterations have no operations: {problem}")
            return
        self._annotations.watch()

    def _stop(self, draft: IterationDraft | None) -> None:
        results = self._end(draft.transfers if draft is not None else ())
        shift_ns = self._recorder.now() - time.time_ns()
        if draft is not None:
            draft.profiled = True
            draft.operations = (results, shift_ns)

    def _end(self, transfers: Sequence[RecordedTransfer]) -> Any:
        """Stop the profiler; what it has seen."""
        running, self._running = self._running, None
        _let_end(transfers)
        running.__exit__(None, None, None)
        return running.kineto_results

    def _say(self, words: str) -> None:
        """Once each: it may hold for many iterations."""
        if words not in self._said:
            self._said.add(words)
            logger.warning(words)


def _let_end(transfers: Sequence[RecordedTransfer]) -> None:
    """Wait until collectives in flight have ended, as they too write their end into the profiler's memory."""
    deadline = time.monotonic() + _PATIENCE_S
    while any(t.last is None and t.collective not in ("send", "recv") for t in transfers):
        if time.monotonic() > deadline:
            return
        time.sleep(_MOMENT_S)
    time.sleep(_MOMENT_S)


def rows(results: Any, shift_ns: int) -> list[Span]:
    """The profiler's results as spans: outermost operations of the host's threads, all of the device's."""
    spans = sorted(_spans(results.events(), shift_ns), key=lambda span: (span[0], span[3], -span[4]))
    kept: list[Span] = []
    for span in spans:
        inside = kept and kept[-1][0] == span[0] and span[4] <= kept[-1][4]
        if not (inside and span[0].startswith("operations")):
            kept.append(span)
    return kept


def _spans(events: Sequence[Any], shift_ns: int) -> Iterator[Span]:
    on_gpu = any(map(_on_gpu, events))
    for event in events:
        name, start = event.name(), event.start_ns() + shift_ns
        end = start + event.duration_ns()
        if name.startswith("gloo:"):
            yield (f"gloo thread {event.end_thread_id()}", name, "gloo", start, end)
        elif _on_gpu(event):
            if event.is_user_annotation():  # drawn by the profiler around what was launched inside
                continue
            kind = "copy" if "emcpy" in name or "emset" in name else "compute"
            kind = "communication" if "nccl" in name.lower() else kind
            yield (f"stream {event.device_resource_id()}", name, kind, start, end)
        elif "::" in name and not name.startswith(_ANNOTATIONS):
            kind = "other" if on_gpu else "compute"  # beside a GPU the host only asks
            yield (f"operations of thread {event.start_thread_id()}", name, kind, start, end)


def _on_gpu(event: Any) -> bool:
    return str(event.device_type()).endswith("CUDA")


def refine(transfers: Sequence[RecordedTransfer], spans: Sequence[Span]) -> None:
    """Give transfers of gloo the first and last byte that gloo's own spans tell, where the two can be paired."""
    for collective in {transfer.collective for transfer in transfers}:
        mine = sorted((t for t in transfers if t.collective == collective), key=lambda t: t.enqueue)
        theirs = sorted((s for s in spans if _collective(s[1]) == collective), key=lambda s: s[3])
        if len(mine) != len(theirs):
            continue
        for transfer, (_, _, _, start, end) in zip(mine, theirs, strict=True):
            known = isinstance(transfer.last, int)
            if known and start >= transfer.enqueue - _TOLERANCE_NS and end <= transfer.last + _TOLERANCE_NS:
                transfer.first = max(start, transfer.enqueue)
                transfer.last = max(transfer.first, min(end, transfer.last))


def _collective(name: str) -> str:
    words = name.removeprefix("gloo:").strip("_").removesuffix("_base").removesuffix("_into_tensor")
    return words.removesuffix("_single").removesuffix("_tensor").replace("_", "-")
