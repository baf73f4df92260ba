"""Reads an executed iteration: where its time went, what each transfer cost, the critical path, the links."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hemiola.core.graph import PHASES
from hemiola.cost.parallelism import Transfer
from hemiola.cost.prediction.lower import core_links
from hemiola.cost.prediction.setting import Setting
from hemiola.cost.prediction.steady import SteadyRun
from hemiola.cost.prediction.uncertainty import straggling
from hemiola.cost.prediction.value import Breakdown, LinkUse, PathStep, TransferUse

__all__ = [
    "bound_s",
    "breakdown",
    "busy_s",
    "critical_path",
    "link_shape",
    "link_uses",
    "ready_s",
    "shown_iteration",
    "step_name",
    "transfer_bound_s",
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


def _merged(
    run: SteadyRun, tasks: NDArray[np.int64], start_s: float, end_s: float
) -> list[tuple[float, float]]:
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
        verb = "update" if setting.parallelism.updates_on_arrival else "copy"
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


# What no order of the same steps and transfers is faster than: processor, links, and what has to follow
# what.

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]


def bound_s(setting: Setting, run: SteadyRun) -> float:
    """Least length of an iteration, whatever the order of steps and transfers."""
    own_s = float(_steps_s(setting, run).sum())
    uses = link_uses(setting, 1.0)
    sent_s = sum(run.lowered.sender_s)
    return max(own_s, uses[0].busy if uses else 0.0, sent_s, _busiest_processor_s(setting, run, own_s))


def transfer_bound_s(setting: Setting, run: SteadyRun) -> float:
    """Least length of an iteration, whatever the order of transfers; steps keep theirs."""
    busy_s = _busy_s(setting, run)
    return max(bound_s(setting, run), *(_windows_s(setting, run, busy_s, next_) for next_ in (True, False)))


def _steps_s(setting: Setting, run: SteadyRun) -> Floats:
    return np.array([step.seconds for step in run.steps]) * straggling(setting)


def _busiest_processor_s(setting: Setting, run: SteadyRun, own_s: float) -> float:
    """How long the cores of one host, where they are shared, are busy with steps and with what transfers cost."""
    cpu_s = sum(cost.cpu_s for cost in setting.costs)
    return (own_s * max(setting.hardware.threads_per_rank, 1) + cpu_s) / _cores(setting, run)


def _cores(setting: Setting, run: SteadyRun) -> float:
    """What a rank has of them where it has least; inf where computing and sending do not meet."""
    cores = core_links(setting, run.lowered.ranks, 0)
    return min(
        (cores.capacities[link] / count for link, count in Counter(cores.links).items()), default=math.inf
    )


def _windows_s(setting: Setting, run: SteadyRun, busy_s: list[float], names_next: bool) -> float:
    """The longest that any pair of steps makes of it.

    Args:
        busy_s: how long each transfer keeps what all of them together keep longest.
        names_next: of transfers that the next iteration waits for, instead of those that the same one does.
    """
    sent = {number: step for step, each in enumerate(run.steps) for number in each.sends}
    pairs: dict[tuple[int, int], float] = {}
    awaited: set[int] = set()
    for step, each in enumerate(run.steps):
        for number in each.waits_before if names_next else each.waits:
            if number in sent and number not in awaited:
                awaited.add(number)
                pairs[sent[number], step] = pairs.get((sent[number], step), 0.0) + busy_s[number]
    if not pairs:
        return 0.0
    sends = np.array(sorted({a for a, _ in pairs}))
    waits = np.array(sorted({w for _, w in pairs}))
    carried = np.zeros((len(sends), len(waits)))
    for (a, w), seconds in pairs.items():
        carried[np.searchsorted(sends, a), np.searchsorted(waits, w)] += seconds
    within_s = carried[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)
    around_s = _around_s(setting, run, sends, waits, names_next)
    follows = sends[:, None] < waits[None, :]
    return float(np.where(follows == names_next, 0.0, around_s + within_s).max())


def _around_s(setting: Setting, run: SteadyRun, sends: Steps, waits: Steps, names_next: bool) -> Floats:
    """From step w to step a, for all (a, w): the steps, and what transfers that begin meanwhile take from them.

    Their part of the processor's time begins when they are ready, and cores are shared evenly: until a, each has had
    all of it, or as much as the steps since then.
    """
    before = np.concatenate([[0.0], np.cumsum(_steps_s(setting, run))])
    computed_s: Floats = before[sends + 1][:, None] - before[waits][None, :]
    computed_s = computed_s if names_next else computed_s + before[-1]  # across the iteration's end
    cores = _cores(setting, run)
    if math.isinf(cores) or setting.library.at_once < len(setting.transfers):  # these wait for each other
        return computed_s
    ready = np.array([step for step, each in enumerate(run.steps) for _ in each.sends])
    cpu_s = np.array([setting.costs[number].cpu_s for each in run.steps for number in each.sends])
    since_s = before[sends + 1][:, None] - before[ready + 1][None, :]
    begin = (ready[:, None] >= waits[None, :]).astype(np.float64)
    if names_next:
        taken_s = np.clip(since_s, 0.0, cpu_s) @ begin
    else:
        taken_s = np.clip(since_s, 0.0, cpu_s).sum(axis=1)[:, None]
        taken_s = taken_s + np.minimum(since_s + before[-1], cpu_s) @ begin
    threads = max(setting.hardware.threads_per_rank, 1)
    longer_s: Floats = np.maximum(computed_s, (computed_s * threads + taken_s) / cores)
    return longer_s


def _busy_s(setting: Setting, run: SteadyRun) -> list[float]:
    """How long each transfer keeps the link, or its rank's sender, that all of them together keep longest."""
    rates = setting.place.bytes_per_s
    loads = [{link: size / float(rates[link]) for link, size in cost.loads} for cost in setting.costs]
    total: dict[int, float] = {}
    for load in loads:
        for link, busy_s in load.items():
            total[link] = total.get(link, 0.0) + busy_s
    busiest = max(total, key=total.__getitem__, default=-1)
    of_link, of_sender = [load.get(busiest, 0.0) for load in loads], run.lowered.sender_s
    return max(of_link, of_sender, key=sum)
