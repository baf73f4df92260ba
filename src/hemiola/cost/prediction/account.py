"""Reads an executed iteration: where its time went, what each transfer cost, the critical path, the links."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hemiola.core.graph import PHASES
from hemiola.cost.prediction.setting import Setting
from hemiola.cost.prediction.steady import SteadyRun
from hemiola.cost.prediction.value import Breakdown, LinkUse, PathStep, TransferUse
from hemiola.cost.parallelism import Transfer

__all__ = [
    "breakdown",
    "busy_s",
    "critical_path",
    "link_shape",
    "link_uses",
    "ready_s",
    "shown_iteration",
    "step_name",
    "transfer_uses",
    "updating",
]


def breakdown(run: SteadyRun) -> tuple[Breakdown, NDArray[np.float64]]:
    """Where the slowest rank's iteration went, and how long it stood still for communication before each of its steps."""
    start_s, end_s, before_s = _steps(run)
    stood_s = np.maximum(start_s - before_s, 0.0)
    served = updating(run, -math.inf, math.inf)
    served_s = np.array([_length(_within(served, a, b)) for a, b in zip(before_s, start_s, strict=True)])
    gaps = stood_s - served_s
    parts = np.array([step.parts_s for step in run.steps])
    static = parts.sum(axis=1)
    share = np.divide(parts, static[:, None], out=np.zeros_like(parts), where=static[:, None] > 0)
    forward_s, backward_s, optimizer_s, overhead_s = ((end_s - start_s)[:, None] * share).sum(axis=0).tolist()
    parts_s = (forward_s, backward_s, optimizer_s, float(gaps.sum()), overhead_s, float(served_s.sum()))
    return Breakdown(*parts_s), gaps


def _steps(run: SteadyRun) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of the slowest rank's last steps, and when the one before each ended."""
    tasks = run.lowered.step_task[-1, run.slowest]
    start_s, end_s = run.execution.start_s[tasks], run.execution.end_s[tasks]
    return start_s, end_s, np.concatenate([[run.start_s], end_s[:-1]])


def updating(run: SteadyRun, start_s: float, end_s: float) -> list[tuple[float, float]]:
    """When within this time a server applied gradients and no transfer was in progress: pieces, in order and apart."""
    updates = _update_tasks(run)
    if not updates:
        return []
    sent = _merged(run, np.array(_flow_tasks(run), dtype=np.int64), start_s, end_s)
    found = []
    for a, b in _merged(run, np.array(updates, dtype=np.int64), start_s, end_s):
        reached = a
        for low, high in _within(sent, a, b):
            if low > reached:
                found.append((reached, low))
            reached = high
        if b > reached:
            found.append((reached, b))
    return found


def _within(pieces: list[tuple[float, float]], start_s: float, end_s: float) -> list[tuple[float, float]]:
    """What of these pieces, which are in order and apart, lies in this time."""
    found = []
    for place in range(bisect_right(pieces, start_s, key=lambda piece: piece[1]), len(pieces)):
        a, b = max(pieces[place][0], start_s), min(pieces[place][1], end_s)
        if b <= a:
            break
        found.append((a, b))
    return found


def _flow_tasks(run: SteadyRun) -> list[int]:
    """Of all transfers of all iterations."""
    return [task for done in run.lowered.flow_tasks for flows in done for task in flows]


def _update_tasks(run: SteadyRun) -> list[int]:
    """Of all pushes of all iterations."""
    return [task for updates in run.lowered.update_tasks for task in updates.values()]


def _merged(run: SteadyRun, tasks: NDArray[np.int64], start_s: float, end_s: float) -> list[tuple[float, float]]:
    """When within this time one of the tasks was in progress: pieces, in order and apart."""
    first_s = np.maximum(run.execution.start_s[tasks], start_s)
    last_s = np.minimum(run.execution.end_s[tasks], end_s)
    found: list[tuple[float, float]] = []
    own = last_s > first_s
    for a, b in sorted(zip(first_s[own].tolist(), last_s[own].tolist(), strict=True)):
        if found and a <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], b))
        else:
            found.append((a, b))
    return found


def _length(pieces: list[tuple[float, float]]) -> float:
    return sum(b - a for a, b in pieces)


def transfer_uses(setting: Setting, run: SteadyRun, gaps: NDArray[np.float64]) -> tuple[TransferUse, ...]:
    """Each transfer; a gap counts for the one that ended last of those that the step waited for.

    Args:
        gaps: how long communication held up each step.
    """
    execution, lowered = run.execution, run.lowered
    exposed = np.zeros(len(setting.transfers))
    for number, step in enumerate(run.steps):
        ends = {t: _end(run, -1, t) for t in step.waits} | {t: _end(run, -2, t) for t in step.waits_before}
        if ends and gaps[number] > 0:
            exposed[max(ends, key=lambda t: ends[t])] += gaps[number]
    found = []
    for number, (transfer, cost) in enumerate(zip(setting.transfers, setting.costs, strict=True)):
        iteration = shown_iteration(transfer)
        flow = lowered.flow_tasks[iteration][number][0]
        found.append(
            TransferUse(
                transfer.name,
                transfer.collective,
                cost.algorithm,
                transfer.size_bytes,
                ready_s(setting, run, number) - run.start_s,
                float(execution.start_s[flow]) - run.start_s,
                _end(run, iteration, number) - run.start_s,
                float(exposed[number]),
            )
        )
    return tuple(found)


def shown_iteration(transfer: Transfer) -> int:
    """The iteration whose transfer belongs to the steady one: what it needs was sent in the one before."""
    return -2 if transfer.next_iteration else -1


def ready_s(setting: Setting, run: SteadyRun, number: int) -> float:
    """When a transfer could start: the slowest rank's step before it, or the server's update."""
    transfer = setting.transfers[number]
    iteration = shown_iteration(transfer)
    if transfer.follows >= 0:
        return float(run.execution.end_s[run.lowered.update_tasks[iteration][transfer.follows]])
    return float(
        run.execution.end_s[run.lowered.step_task[iteration][:, run.lowered.sent_after[number]]].max()
    )


def _end(run: SteadyRun, iteration: int, transfer: int) -> float:
    return float(run.execution.end_s[run.lowered.done_tasks[iteration][transfer]].max())


def busy_s(run: SteadyRun) -> float:
    """In how much of the steady iteration a transfer was in progress."""
    total, reached = 0.0, -math.inf
    for start_s, end_s in sorted(_in_iteration(run, np.array(_flow_tasks(run), dtype=np.int64))):
        total += max(0.0, end_s - max(start_s, reached))
        reached = max(reached, end_s)
    return total


def _in_iteration(run: SteadyRun, tasks: NDArray[np.int64]) -> Iterator[tuple[float, float]]:
    """(start, end) of those that overlap with the steady iteration, since its start."""
    first_s = np.maximum(run.execution.start_s[tasks], run.start_s)
    last_s = np.minimum(run.execution.end_s[tasks], run.end_s)
    own = last_s > first_s
    return zip((first_s[own] - run.start_s).tolist(), (last_s[own] - run.start_s).tolist(), strict=True)


def critical_path(setting: Setting, run: SteadyRun) -> tuple[PathStep, ...]:
    """Back from the last task through what let each start, until the iteration's beginning.

    Steps of one phase that follow one another are one.
    """
    found: list[PathStep] = []
    updates = set(_update_tasks(run))
    first = -1  # of the steps that the last entry stands for
    for task, start_s, end_s in _path_tasks(run):
        step = int(run.lowered.step_of[task])
        if found and first >= 0 and step >= 0 and _one_phase(setting, run, first, step):
            name = _stretch(setting, run.steps[first].first, run.steps[step].last)
            found[-1] = PathStep(name, "compute", found[-1].start_s, end_s)
            continue
        first = step if step >= 0 and run.steps[step].kind == "compute" else -1
        found.append(PathStep(*_what(setting, run, task, task in updates), start_s, end_s))
    return tuple(found)


def _path_tasks(run: SteadyRun) -> list[tuple[int, float, float]]:
    """(task, start, end) of the critical path within the steady iteration, since its start."""
    execution = run.execution
    task, found = int(run.lowered.step_task[-1, run.slowest, -1]), []
    while task >= 0 and execution.end_s[task] > run.start_s:
        before = int(execution.blocker[task])
        start_s = max(float(execution.end_s[before]) if before >= 0 else 0.0, run.start_s)
        end_s = float(execution.end_s[task])
        if end_s > start_s:
            found.append((task, start_s - run.start_s, end_s - run.start_s))
        task = before
    return found[::-1]


def _one_phase(setting: Setting, run: SteadyRun, first: int, step: int) -> bool:
    """Whether two steps compute in the same phase."""
    ends = [run.steps[first], run.steps[step]]
    if any(s.kind != "compute" or s.first == s.last for s in ends):
        return False
    phase = setting.graph.operations.phase
    return bool(phase[ends[0].first] == phase[ends[1].last - 1])


def _what(setting: Setting, run: SteadyRun, task: int, update: bool) -> tuple[str, str]:
    """A task in words, and whose it is."""
    step, transfer = int(run.lowered.step_of[task]), int(run.lowered.transfer_of[task])
    if update:
        return f"server applies {setting.transfers[transfer].name}", "server"
    if transfer >= 0:
        moved = setting.transfers[transfer]
        return f"{moved.collective} {moved.name}", "communication"
    if step >= 0:
        return step_name(setting, run, step), "compute" if run.steps[step].kind == "compute" else "overhead"
    return "processor time of communication", "communication"


def step_name(setting: Setting, run: SteadyRun, number: int) -> str:
    """A step in words."""
    step = run.steps[number]
    if step.kind != "compute":
        waited = step.waits or step.waits_before
        verb = "update" if setting.strategy.updates_on_arrival else "copy"
        return f"{verb} {setting.transfers[waited[0]].name}" if waited else step.kind
    if step.first == step.last:
        return "waiting for the last transfers"
    return _stretch(setting, step.first, step.last)


def _stretch(setting: Setting, first: int, last: int) -> str:
    """A stretch of operations: its phase, and the modules of its first and its last."""
    operations = setting.graph.operations
    names = [setting.graph.modules[int(operations.module[i])] for i in (first, last - 1)]
    known = [name for name in dict.fromkeys(names) if name]
    return " ".join([PHASES[int(operations.phase[first])], " to ".join(known)]).strip()


def link_uses(setting: Setting, iteration_s: float) -> tuple[LinkUse, ...]:
    """Bytes of an iteration on every link that is used, the busiest first."""
    place = setting.place
    total = [0.0] * len(place.names)
    for cost in setting.costs:
        for link, size in cost.loads:
            total[link] += size
    busy = np.divide(total, place.bytes_per_s * max(iteration_s, 1e-300))
    order = np.argsort(-busy, kind="stable")
    return tuple(LinkUse(place.names[i], total[i], float(busy[i])) for i in order if total[i] > 0)


def link_shape(setting: Setting, run: SteadyRun, link: str) -> tuple[tuple[float, float, float], ...]:
    """(from, to, bytes) on one link over the steady iteration, one entry per transfer."""
    if not link:
        return ()
    number = setting.place.names.index(link)
    distinct = {id(cost): cost for cost in setting.costs}
    carried = {key: dict(cost.loads).get(number, 0.0) for key, cost in distinct.items()}
    first, end_s = run.execution.first_byte_s, run.execution.end_s
    found = []
    for transfers in run.lowered.flow_tasks:
        for transfer, flows in enumerate(transfers):
            size = carried[id(setting.costs[transfer])]
            if not (size and flows):
                continue
            a, b = float(first[flows[0]]), float(end_s[flows].max())
            low, high = max(a, run.start_s), min(b, run.end_s)
            if high > low:
                found.append((low - run.start_s, high - run.start_s, size * (high - low) / (b - a)))
    return tuple(sorted(found))
