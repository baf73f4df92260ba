"""A predicted iteration as a timeline of the same kind as a recorded one, every operation a span.

Shown are the ranks that were executed; each stands for those like it, and `facts` says for how many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from hemiola.core.graph import KINDS
from hemiola.core.job_timeline import SPAN_KINDS, Iterations, JobTimeline, Rank, Spans, TransferLog
from hemiola.cost.prediction.account import ready_s, shown_iteration, step_name, updating
from hemiola.cost.prediction.setting import Setting
from hemiola.cost.prediction.steady import SteadyRun

__all__ = ["predicted_timeline"]

COMPUTE, COMMUNICATION, WAIT, OTHER = (
    SPAN_KINDS.index(k) for k in ("compute", "communication", "wait", "other")
)
LANES = ("compute", "communication")
VIEW = KINDS.index("view")


class _Names:
    """Every name once, with its number."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self.number.setdefault(name, len(self.number))


Row = tuple[
    int, int, int, int, float, float, int, int
]  # rank, lane, name, kind, start, end, transfer, operation


def predicted_timeline(
    setting: Setting, run: SteadyRun, name: str, interval: tuple[float, float] | None = None
) -> JobTimeline:
    """The steady iteration; second 0 is where it began on the slowest rank.

    Args:
        interval: the iteration's, where one is known.
    """
    names = _Names()
    ranks = run.lowered.ranks
    count = len(setting.transfers)
    rows: list[Row] = []
    for place in range(len(ranks)):
        rows += _steps(setting, run, place, names, place * count)
        rows += _transfers(setting, run, place, names, place * count)
    hosts = setting.place.topology.hosts.names
    ends = run.execution.end_s[run.lowered.step_task[-2:, :, -1]] - run.start_s
    host_of = [hosts[setting.place.counts[setting.place.host_of[rank]][0]] for rank in ranks]
    log = _log(setting, run, names)
    return JobTimeline(
        name=name,
        ranks=tuple(
            Rank(rank=r, host=h, device=setting.hardware.name) for r, h in zip(ranks, host_of, strict=True)
        ),
        lanes=LANES,
        names=tuple(names.number),
        groups=(tuple(range(setting.place.ranks)),),
        spans=_spans(rows),
        transfers=log,
        iterations=Iterations.from_rows((i, 0, ends[0, i], ends[1, i]) for i in range(len(ranks))),
        predicted=True,
        facts={
            "strategy": setting.parallelism.label,
            "topology": setting.place.topology.name,
            "hardware": setting.hardware.name,
            "ranks": setting.place.ranks,
            "hosts": len(setting.place.counts),
            "ranks_shown": len(ranks),
            **_likely(setting, interval),
        },
        source="predicted by hemiola",
    ).check()


def _steps(setting: Setting, run: SteadyRun, place: int, names: _Names, base: int) -> Iterator[Row]:
    """Operations, copies, and the waits before them."""
    tasks = run.lowered.step_task[-1, place]
    reached = float(run.execution.end_s[run.lowered.step_task[-2, place, -1]])
    for number, (step, task) in enumerate(zip(run.steps, tasks.tolist(), strict=True)):
        start_s, end_s = float(run.execution.start_s[task]), float(run.execution.end_s[task])
        waited = step.waits + step.waits_before
        if start_s > reached and waited:
            last = max(waited, key=lambda t: run.execution.end_s[_done(run, step.waits, t)].max())
            yield from _waits(setting, run, place, names, last, reached, start_s, base)
        if step.kind == "compute":
            yield from _operations(
                setting, run, number, place, names, start_s - run.start_s, end_s - run.start_s
            )
        elif end_s > start_s:
            label = names(step_name(setting, run, number))
            yield place, 0, label, OTHER, start_s - run.start_s, end_s - run.start_s, -1, -1
        reached = end_s


def _likely(setting: Setting, interval: tuple[float, float] | None) -> dict[str, float]:
    if interval is None:
        return {}
    return {"confidence": setting.options.confidence, "low_s": interval[0], "high_s": interval[1]}


def _waits(
    setting: Setting,
    run: SteadyRun,
    place: int,
    names: _Names,
    transfer: int,
    start_s: float,
    end_s: float,
    base: int,
) -> Iterator[Row]:
    """Standing still: for communication, and in between for what a server does, which is none."""
    name, reached = setting.transfers[transfer].name, start_s
    wait, served = names(f"wait for {name}"), [*updating(run, start_s, end_s), (end_s, end_s)]
    for a, b in served:
        if a > reached:
            yield place, 0, wait, WAIT, reached - run.start_s, a - run.start_s, base + transfer, -1
        if b > a:
            yield place, 0, names(f"server applies {name}"), OTHER, a - run.start_s, b - run.start_s, -1, -1
        reached = b


def _done(run: SteadyRun, waits: tuple[int, ...], transfer: int) -> list[int]:
    return run.lowered.done_tasks[-1 if transfer in waits else -2][transfer]


def _operations(
    setting: Setting, run: SteadyRun, number: int, place: int, names: _Names, start_s: float, end_s: float
) -> Iterator[Row]:
    """A step's operations one after the other, each as long as its share of the step; views take none and are left out."""
    step, graph = run.steps[number], setting.graph
    seconds = setting.compute_s[step.first : step.last] + setting.added_s[step.first : step.last]
    total = float(seconds.sum())
    edges = start_s + np.concatenate([[0.0], np.cumsum(seconds)]) * (
        (end_s - start_s) / total if total else 0.0
    )
    for i, operation in enumerate(range(step.first, step.last)):
        if edges[i + 1] > edges[i] and graph.operations.kind[operation] != VIEW:
            label = names(graph.operations.name[operation])
            yield place, 0, label, COMPUTE, float(edges[i]), float(edges[i + 1]), -1, operation


def _transfers(setting: Setting, run: SteadyRun, place: int, names: _Names, base: int) -> Iterator[Row]:
    """What is sent, under the transfer's name, as in a recording; a push and its pull, which share one, with their kind."""
    kinds = Counter(
        name for name, _ in {(transfer.name, transfer.collective) for transfer in setting.transfers}
    )
    for number, transfer in enumerate(setting.transfers):
        tasks = run.lowered.done_tasks[shown_iteration(transfer)][number]
        start_s, end_s = run.execution.start_s[tasks].min(), run.execution.end_s[tasks].max()
        if end_s > start_s:
            kind = f"{transfer.collective} " if kinds[transfer.name] > 1 else ""
            label = names(kind + transfer.name)
            yield (
                place, 1, label, COMMUNICATION, float(start_s) - run.start_s, float(end_s) - run.start_s,
                base + number, -1,
            )  # fmt: skip


def _spans(rows: list[Row]) -> Spans:
    """Ordered by rank and start, all of iteration 0."""
    rows.sort(key=lambda row: (row[0], row[4], row[1]))
    return Spans.from_rows((*row[:6], 0, *row[6:]) for row in rows)


def _log(setting: Setting, run: SteadyRun, names: _Names) -> TransferLog:
    """One entry per executed rank and transfer, rank by rank."""
    execution, lowered = run.execution, run.lowered
    since, rows = run.start_s, []
    for place in range(len(lowered.ranks)):
        tasks = lowered.step_task[-1, place]
        for number, transfer in enumerate(setting.transfers):
            iteration = shown_iteration(transfer)
            flows, done = lowered.flow_tasks[iteration][number], lowered.done_tasks[iteration][number]
            asked = [i for i, step in enumerate(run.steps) if number in step.waits + step.waits_before]
            needed_s = execution.end_s[tasks[asked[0] - 1]] - since if asked else np.nan
            released_s = execution.start_s[tasks[asked[0]]] - since if asked else np.nan
            rows.append(
                (
                    place,
                    names(transfer.name),
                    names(transfer.collective),
                    0,
                    transfer.size_bytes,
                    ready_s(setting, run, number) - since,
                    execution.first_byte_s[flows].min() - since,
                    execution.end_s[done].max() - since,
                    needed_s,
                    released_s,
                    0,
                )
            )
    return TransferLog.from_rows(rows)
