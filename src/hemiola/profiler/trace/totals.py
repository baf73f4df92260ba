"""What a rank's iterations add up to, for Prometheus: counted as they end, nothing kept of each. Knows no PyTorch.

**Exposed communication** is the time in which the rank's computation stood still for communication: the
union of its waits. **Input** is the time in which it waited for, or made, batches and waited for no
communication. **Compute** is an iteration less both. The **straggler index** is the rank's compute time over
the median of all ranks', both over the same few seconds: 1 is the median, 1.2 is a rank that computes for a
fifth longer than its peers, who wait for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from hemiola.profiler.trace.values import Iteration

__all__ = ["Totals", "exposition", "union_ns", "waits"]

_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)


class Totals:
    """Sums since recording began, and over the window since the last `take_window`."""

    def __init__(self) -> None:
        self.iterations = 0
        self.last_iteration = -1
        self.seconds = 0.0
        self.exposed_s = 0.0
        self.input_s = 0.0
        self.compute_s = 0.0
        self.bytes: dict[str, int] = {}
        self.histogram = [0] * (len(_BUCKETS_S) + 1)
        self.straggler_index: float | None = None
        self.clock_error_s: float | None = None
        self.traces = 0
        self._window_s = 0.0
        self._window_iterations = 0

    def add(self, iteration: Iteration) -> None:
        """Count an iteration."""
        for row in iteration.transfers:
            self.bytes[row[2]] = self.bytes.get(row[2], 0) + row[4]
        if not iteration.complete:
            return
        duration = (iteration.end - iteration.start) / 1e9
        exposed = union_ns(waits(iteration)) / 1e9
        loading = [(start, end) for _, kind, start, end in iteration.phases if kind == "input"]
        input_s = union_ns([*loading, *waits(iteration)]) / 1e9 - exposed
        compute = max(0.0, duration - exposed - input_s)
        self.iterations += 1
        self.last_iteration = iteration.number
        self.seconds += duration
        self.exposed_s += exposed
        self.input_s += input_s
        self.compute_s += compute
        self.histogram[bisect_left(_BUCKETS_S, duration)] += 1
        self._window_s += compute
        self._window_iterations += 1

    def take_window(self) -> float | None:
        """Mean compute time of the iterations since it was last asked; None if none has ended."""
        seconds, iterations = self._window_s, self._window_iterations
        self._window_s, self._window_iterations = 0.0, 0
        return seconds / iterations if iterations else None


def waits(iteration: Iteration) -> list[tuple[int, int]]:
    """From when to when each transfer was waited for, where it was."""
    return [(row[8], row[9]) for row in iteration.transfers if row[8] is not None and row[9] is not None]


def union_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """How long at least one of the intervals lasts."""
    total, reached = 0, -(2**63)
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def exposition(totals: Totals, labels: dict[str, str], *, recording: bool) -> str:
    """The totals in Prometheus' text format, version 0.0.4."""
    common = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "\n".join(_lines(totals, common, recording)) + "\n"


def _lines(totals: Totals, labels: str, recording: bool) -> Iterator[str]:
    yield from _histogram(totals, labels)
    counters = (
        ("iterations_total", "counter", "Training iterations that have ended.", totals.iterations),
        ("exposed_communication_seconds_total", "counter",
         "Time in which this rank's computation stood still for communication.", totals.exposed_s),
        ("input_wait_seconds_total", "counter", "Time spent waiting for, or making, batches.", totals.input_s),
        ("compute_seconds_total", "counter",
         "Iteration time less exposed communication and input.", totals.compute_s),
        ("traces_total", "counter", "Full traces made on demand.", totals.traces),
        ("recording", "gauge", "1 while iterations are recorded, 0 after a failure of the recording.", int(recording)),
        ("straggler_index", "gauge",
         "This rank's compute time over the median of all ranks'.", totals.straggler_index),
        ("clock_error_seconds", "gauge",
         "Bound on the error of this rank's clock against rank 0's.", totals.clock_error_s),
    )  # fmt: skip
    for name, kind, about, value in counters:
        if value is not None:
            yield from _heading(name, kind, about)
            yield f"hemiola_{name}{{{labels}}} {value}"
    yield from _heading("communicated_bytes_total", "counter", "Bytes of tensors handed over, by collective.")
    for collective, size in sorted(totals.bytes.items()):
        yield f'hemiola_communicated_bytes_total{{{labels},collective="{_escaped(collective)}"}} {size}'


def _histogram(totals: Totals, labels: str) -> Iterator[str]:
    yield from _heading("iteration_seconds", "histogram", "How long iterations took.")
    count = 0
    for bound, number in zip((*map(str, _BUCKETS_S), "+Inf"), totals.histogram, strict=True):
        count += number
        yield f'hemiola_iteration_seconds_bucket{{{labels},le="{bound}"}} {count}'
    yield f"hemiola_iteration_seconds_sum{{{labels}}} {totals.seconds}"
    yield f"hemiola_iteration_seconds_count{{{labels}}} {totals.iterations}"


def _heading(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP hemiola_{name} {about}"
    yield f"# TYPE hemiola_{name} {kind}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
