"""From one rank's steps and the transfers' costs to tasks for the executor, over several iterations.

1. A rank's steps follow one another, and an iteration's first its predecessor's last.
2. A collective starts when it is ready on all ranks and the library has a place for it: `at_once` of a
   group run at once, in the order of issue; any number of those that go by schedules. Of these channels it gets
   the one that is free first where all have links and processor to themselves. It is one flow per kind of link
   load, after its latency.
3. A push waits in its server's queue, as does a pull in the other direction; between them the server
   updates the parameter.
4. Where transfers pause each other by priority, all of a rank go through one sender, no faster than the library;
   equals go as they become ready. Processor cores are shared evenly all the same: what computes has one priority.
5. Where ranks compete for processor cores, steps are flows over the cores, and so is what a collective
   costs its ranks' processors.

Ranks that are alike do the same at the same time: one of each kind is executed, with its part of the
cores, and of links that are loaded alike the narrowest is kept.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hemiola.core.graph import PHASES
from hemiola.cost.collective.library import Cost
from hemiola.cost.parallelism import Transfer
from hemiola.cost.prediction.setting import Setting
from hemiola.kernels.executor.tasks import Tasks, tasks_from_columns

__all__ = ["ComputeStep", "CostFactors", "Lowered", "core_links", "lower", "rank_steps"]

Flows = list[tuple[float, tuple[int, ...]]]
"""Bytes, and the links that they cross."""


# What one rank does in an iteration, in order: stretches of operations, copies, and the transfers it waits for.
# Operations between two points at which a transfer becomes ready, or is needed, are one step: nothing can
# come between them, so a graph of six thousand operations becomes some dozens of steps.


@dataclass(frozen=True, slots=True)
class ComputeStep:
    """A stretch in which a rank computes without a break.

    Attributes:
        kind: "compute", "copy" (out of a transfer's buffer, and applying it where that is the rank's work) or "overhead".
        first, last: its operations, `last` not among them.
        parts_s: seconds of forward, backward, optimizer, and of everything that is no operation.
        waits: transfers that have to be complete first.
        waits_before: transfers of the iteration before that have to be complete first.
        sends: transfers that are ready when it ends.
    """

    kind: str
    first: int
    last: int
    parts_s: tuple[float, float, float, float]
    waits: tuple[int, ...] = ()
    waits_before: tuple[int, ...] = ()
    sends: tuple[int, ...] = ()

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(self.parts_s)


def rank_steps(setting: Setting) -> tuple[ComputeStep, ...]:
    """The steps of one rank; the first is the iteration's overhead."""
    transfers = setting.transfers
    count = len(setting.graph.operations)
    needed: dict[int, list[int]] = {}
    ready: dict[int, list[int]] = {}
    for number, transfer in enumerate(transfers):
        if transfer.follows < 0:
            ready.setdefault(transfer.after + 1, []).append(number)
        if transfer.before >= 0:
            needed.setdefault(transfer.before, []).append(number)
    phase = setting.graph.operations.phase
    turns = {int(i) + 1 for i in np.flatnonzero(np.diff(phase))}
    cuts = sorted({0, count} | turns | ready.keys() | needed.keys())
    total = _Totals(setting)
    steps = [
        ComputeStep(
            "overhead",
            0,
            0,
            (0.0, 0.0, 0.0, setting.iteration_s + total.at_start),
            sends=tuple(ready.get(0, ())),
        )
    ]
    for first, last in [*pairwise(cuts), (count, count)]:
        waits: list[int] = []
        for number in needed.get(first, ()):
            copied_s, updated_s = setting.arrival_s(transfers[number])
            if copied_s or updated_s:
                parts_s = (0.0, 0.0, updated_s, copied_s)
                steps.append(ComputeStep("copy", first, first, parts_s, *_split(transfers, [number])))
            else:
                waits.append(number)
        sends = tuple(ready.get(last, ())) if last > first else ()
        if last > first or waits:
            steps.append(
                ComputeStep(
                    "compute", first, last, total.parts(first, last), *_split(transfers, waits), sends
                )
            )
    return tuple(steps)


def _split(transfers: tuple[Transfer, ...], numbers: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Transfers of this iteration, and of the one before."""
    this = tuple(n for n in numbers if not transfers[n].next_iteration)
    return this, tuple(n for n in numbers if transfers[n].next_iteration)


class _Totals:
    """Seconds of any stretch of operations, by phase."""

    def __init__(self, setting: Setting) -> None:
        phase = setting.graph.operations.phase
        columns = [np.where(phase == number, setting.compute_s, 0.0) for number in range(len(PHASES))]
        columns.append(setting.added_s[:-1])
        self.sums = np.concatenate([np.zeros((4, 1)), np.cumsum(columns, axis=1)], axis=1)
        self.at_start = float(setting.added_s[-1])

    def parts(self, first: int, last: int) -> tuple[float, float, float, float]:
        a, b, c, d = np.maximum(self.sums[:, last] - self.sums[:, first], 0.0).tolist()
        return a, b, c, d


# From those to tasks.


@dataclass(frozen=True)
class CostFactors:
    """Factors on what computing and sending takes: 1 for the expected, others for an interval's ends."""

    compute: float = 1.0
    network: float = 1.0


@dataclass(frozen=True, eq=False)
class Lowered:
    """Tasks, and what each of them is.

    Attributes:
        tasks: for the executor.
        ranks: the ranks that are executed; each stands for those like it.
        step_task: [iterations, ranks, steps], the task of each step.
        flow_tasks: per iteration and transfer, its flows; the first decides when it started.
        done_tasks: per iteration and transfer, all tasks that have to end before it is complete.
        sent_after: the step after which a transfer is ready, for all but those that follow another.
        step_of, transfer_of: per task, which step or transfer it is; -1 if none.
        update_tasks: per iteration and push, in which its server applies it.
        sender_s: how long each transfer keeps a rank's sender, where all of them go through one; else 0.
    """

    tasks: Tasks
    ranks: tuple[int, ...]
    step_task: NDArray[np.int64]
    flow_tasks: list[list[list[int]]]
    done_tasks: list[list[list[int]]]
    sent_after: dict[int, int]
    step_of: NDArray[np.int64]
    transfer_of: NDArray[np.int64]
    update_tasks: list[dict[int, int]]
    sender_s: list[float]


@dataclass
class _Rows:
    """Tasks in the making."""

    duration: list[float] = field(default_factory=list)
    size: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    resource: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    transfer: list[int] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)
    crosses: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    waits: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))

    def add(
        self, duration_s: float, after: list[int], *, size: float = 0.0, path: tuple[int, ...] = (),
        rate: float = math.inf, resource: int = -1, step: int = -1, transfer: int = -1, priority: int = 0,
    ) -> int:  # fmt: skip
        """One more task; its number."""
        number = len(self.duration)
        self.duration.append(duration_s)
        self.size.append(size)
        self.rate.append(rate)
        self.resource.append(resource)
        self.step.append(step)
        self.transfer.append(transfer)
        self.priority.append(priority)
        self.crosses[0].extend([number] * len(path))
        self.crosses[1].extend(path)
        self.waits[0].extend([number] * len(after))
        self.waits[1].extend(after)
        return number


def lower(setting: Setting, steps: tuple[ComputeStep, ...], iterations: int, scale: CostFactors) -> Lowered:
    """The tasks of so many iterations."""
    return _Lowering(setting, steps, scale).run(iterations)


@dataclass
class _Channel:
    """What a library runs one collective after another on: when it is expected to be free, and the tasks of the last."""

    free_s: float = 0.0
    tasks: list[int] = field(default_factory=list)


class _Lowering:
    """The working state of `lower`."""

    def __init__(self, setting: Setting, steps: tuple[ComputeStep, ...], scale: CostFactors) -> None:
        self.setting, self.steps, self.scale = setting, steps, scale
        self.rows = _Rows()
        self.ranks = _representatives(setting)
        self.flows, bandwidth, self.sender_s = _flows(setting)
        self.cores = core_links(setting, self.ranks, len(bandwidth))
        self.bandwidth = [*bandwidth, *self.cores.capacities]
        self.servers = getattr(setting.parallelism, "servers", 0) if setting.transfers else 0
        self.sent_after = {transfer: i for i, step in enumerate(steps) for transfer in step.sends}
        urgency = sorted(range(len(setting.transfers)), key=lambda i: setting.transfers[i].priority)
        self.turn = {transfer: turn for turn, transfer in enumerate(urgency)}
        self.pull_of = {t.follows: i for i, t in enumerate(setting.transfers) if t.follows >= 0}
        self.step_task: list[list[list[int]]] = []
        self.flow_tasks: list[list[list[int]]] = []
        self.done: list[list[list[int]]] = []
        self.alone_s = [cost.seconds(setting.place) * scale.network for cost in setting.costs]
        self.expected_s = 0.0
        self.ends_s: list[dict[int, float]] = []
        self.channels: list[_Channel] = []
        self.held: deque[list[int]] = deque(maxlen=setting.library.at_once)
        self.updates: list[dict[int, int]] = []

    def run(self, iterations: int) -> Lowered:
        for _ in range(iterations):
            self._iteration()
        rows = self.rows
        in_order = [True] * (3 * self.servers)
        tasks = tasks_from_columns(
            rows.duration, resource=rows.resource, priority=rows.priority, size_bytes=rows.size, rate_max_bytes_per_s=rows.rate,
            crosses=rows.crosses, waits=rows.waits, resources=len(in_order), in_order=in_order,
            link_bytes_per_s=self.bandwidth, sharing="priority" if self.setting.preemptive else "fair",
        )  # fmt: skip
        return Lowered(
            tasks, self.ranks, np.array(self.step_task, dtype=np.int64), self.flow_tasks, self.done,
            self.sent_after, np.array(rows.step, dtype=np.int64), np.array(rows.transfer, dtype=np.int64),
            self.updates, self.sender_s,
        )  # fmt: skip

    def _iteration(self) -> None:
        """One iteration: tasks in an order in which all that is waited for is there already."""
        count = len(self.setting.transfers)
        self.flow_tasks.append([[] for _ in range(count)])
        self.done.append([[] for _ in range(count)])
        self.updates.append({})
        self.ends_s.append({})
        self.step_task.append([[] for _ in self.ranks])
        for number, step in enumerate(self.steps):
            self._expect(step)
            for place in range(len(self.ranks)):
                self.step_task[-1][place].append(self._step(number, step, place))
            ended = [own[-1] for own in self.step_task[-1]]
            for transfer in step.sends:
                self._send(transfer, ended)

    def _expect(self, step: ComputeStep) -> None:
        """When it ends where a rank, and each collective, has links and processor to itself."""
        awaited_s = [self.ends_s[-1].get(transfer, 0.0) for transfer in step.waits]
        if len(self.ends_s) > 1:
            awaited_s += [self.ends_s[-2].get(transfer, 0.0) for transfer in step.waits_before]
        self.expected_s = max([self.expected_s, *awaited_s]) + step.seconds * self.scale.compute

    def _step(self, number: int, step: ComputeStep, place: int) -> int:
        after = [task for transfer in step.waits for task in self._awaited(-1, transfer, place)]
        if len(self.done) > 1:
            after += [task for transfer in step.waits_before for task in self._awaited(-2, transfer, place)]
        mine = self.step_task[-1][place]
        if mine:
            after.append(mine[-1])
        elif len(self.step_task) > 1:
            after.append(self.step_task[-2][place][-1])
        seconds = step.seconds * self.scale.compute
        threads = max(self.setting.hardware.threads_per_rank, 1)
        if self.cores.links and seconds:
            return self.rows.add(
                0.0, after, size=seconds * threads, path=(self.cores.links[place],), rate=threads, step=number
            )
        return self.rows.add(seconds, after, step=number)

    def _awaited(self, iteration: int, transfer: int, place: int) -> list[int]:
        """What has to end before this rank has the transfer: its flows, and this rank's own processor."""
        flows = self.flow_tasks[iteration][transfer]
        own = len(flows) + place
        return flows + self.done[iteration][transfer][own : own + 1]

    def _send(self, number: int, after: list[int]) -> None:
        transfer = self.setting.transfers[number]
        if transfer.server >= 0:
            self._push(number, after)
            return
        if self.setting.goes_by_schedule(transfer):
            self._transfer(number, after)
            return
        channel, before = self._channel()
        channel.tasks = self._transfer(number, after + before)
        channel.free_s = max(channel.free_s, self.expected_s) + self.alone_s[number]
        self.ends_s[-1][number] = channel.free_s

    def _channel(self) -> tuple[_Channel, list[int]]:
        """That of the next collective, and what has to end before it: what holds the channel, and, so that it
        starts no sooner than those before it, what held theirs."""
        if len(self.channels) < self.setting.library.at_once:
            self.channels.append(_Channel())
            return self.channels[-1], []
        channel = min(self.channels, key=lambda channel: channel.free_s)
        self.held.append(channel.tasks)
        return channel, [task for tasks in self.held for task in tasks]

    def _push(self, number: int, after: list[int]) -> None:
        """To its server, updated there, and back."""
        transfer = self.setting.transfers[number]
        pushed = self._transfer(number, after, 3 * transfer.server)
        update_s = float(self.setting.update_s[list(transfer.parameters)].sum()) * self.scale.compute
        updated = self.rows.add(update_s, pushed, resource=3 * transfer.server + 1, transfer=number)
        self.updates[-1][number] = updated
        self._transfer(self.pull_of[number], [updated], 3 * transfer.server + 2)

    def _transfer(self, number: int, after: list[int], resource: int = -1) -> list[int]:
        """Its flows, the slowest first, and what they cost the ranks' processors."""
        cost, flows = self.setting.costs[number], self.flows[number]
        latency_s = cost.latency_s * self.scale.network
        found = []
        if not flows:
            own_s = latency_s + cost.sent_bytes / cost.rate_max_bytes_per_s * self.scale.network
            found.append(self.rows.add(own_s, after, resource=resource, transfer=number))
        for place, (size, path) in enumerate(flows):
            cap = math.inf
            if math.isfinite(cost.rate_max_bytes_per_s):
                cap = size * cost.rate_max_bytes_per_s / cost.sent_bytes
            found.append(
                self.rows.add(
                    latency_s,
                    after,
                    size=size * self.scale.network,
                    path=path,
                    rate=cap,
                    resource=resource if place == 0 else -1,
                    transfer=number,
                    priority=1 + self.turn[number],
                )
            )
        self.flow_tasks[-1][number] = found
        busy = self._processors(number, cost, after)
        self.done[-1][number] = found + busy
        return found + busy

    def _processors(self, number: int, cost: Cost, after: list[int]) -> list[int]:
        if not (cost.cpu_s and self.cores.links):
            return []
        size = cost.cpu_s * self.scale.network
        return [self.rows.add(0.0, after, size=size, path=(link,), rate=1.0) for link in self.cores.links]


def _representatives(setting: Setting) -> tuple[int, ...]:
    """One rank of each kind (by how many share its host), or all."""
    if not setting.options.symmetric:
        return tuple(range(setting.place.ranks))
    first, found, kinds = 0, [], set()
    for _, count in setting.place.counts:
        kind = count if setting.hardware.kind == "cpu" and setting.options.cores is None else 0
        if kind not in kinds:
            kinds.add(kind)
            found.append(first)
        first += count
    return tuple(found)


@dataclass(frozen=True)
class SharedCores:
    """The link of cores that each executed rank computes on, and their capacities; empty without contention."""

    links: tuple[int, ...] = ()
    capacities: tuple[float, ...] = ()


def core_links(setting: Setting, ranks: tuple[int, ...], first: int) -> SharedCores:
    """The cores of these ranks as links, numbered from `first` on."""
    hardware, options, place = setting.hardware, setting.options, setting.place
    if hardware.kind != "cpu":
        return SharedCores()
    threads = setting.library.threads if setting.transfers else 0
    wanted = hardware.threads_per_rank + threads
    if options.cores is not None:
        if place.ranks * wanted <= options.cores:
            return SharedCores()
        if options.symmetric:
            return SharedCores((first,) * len(ranks), (options.cores / place.ranks * len(ranks),))
        return SharedCores((first,) * len(ranks), (options.cores,))
    counts = [place.counts[place.host_of[rank]][1] for rank in ranks]
    if max(counts) * wanted <= hardware.cores:
        return SharedCores()
    if options.symmetric:
        return SharedCores(
            tuple(range(first, first + len(ranks))), tuple(hardware.cores / count for count in counts)
        )
    links = tuple(first + place.host_of[rank] for rank in ranks)
    return SharedCores(links, (float(hardware.cores),) * len(place.counts))


def _flows(setting: Setting) -> tuple[list[Flows], list[float], list[float]]:
    """Those of `_link_flows`, and for each transfer one more through a rank's sender, which sends once what goes over several
    links; and how long each transfer keeps that."""
    flows, bandwidth = _link_flows(setting)
    sender = _sender_bytes_per_s(setting)
    sender_s = [cost.sent_bytes / sender for cost in setting.costs]
    if math.isfinite(sender):
        sends = [[(cost.sent_bytes, (len(bandwidth),))] for cost in setting.costs]
        flows = [[*own, *sent] for own, sent in zip(flows, sends, strict=True)]
        bandwidth.append(sender)
    return flows, bandwidth, sender_s


def _link_flows(setting: Setting) -> tuple[list[Flows], list[float]]:
    """Per transfer its flows, the slowest first; and the links' bandwidth.

    Links that every transfer loads alike are one, as narrow as the narrowest of them, unless every rank is
    executed by itself.
    """
    costs, rates = setting.costs, setting.place.bytes_per_s
    distinct = {id(cost): cost for cost in costs}
    loads = {key: dict(cost.loads) for key, cost in distinct.items()}
    used = sorted({link for load in loads.values() for link in load})
    looks = {link: tuple(load.get(link, 0.0) for load in loads.values()) for link in used}
    kept: dict[tuple[float, ...], int] = {}
    for link in used:
        look = looks[link] if setting.options.symmetric else (float(link),)
        if look not in kept or rates[link] < rates[kept[look]]:
            kept[look] = link
    number = {link: i for i, link in enumerate(sorted(kept.values()))}
    bandwidth = [float(rates[link]) for link in number]
    grouped = {key: _grouped(load, number, bandwidth) for key, load in loads.items()}
    return [grouped[id(cost)] for cost in costs], bandwidth


def _sender_bytes_per_s(setting: Setting) -> float:
    """At which rate a rank's one sender sends by itself; inf where there is none, or no limit."""
    rates = [cost.rate_max_bytes_per_s for cost in setting.costs]
    return max(rates, default=math.inf) if setting.preemptive else math.inf


def _grouped(
    load: dict[int, float], number: dict[int, int], bandwidth: list[float]
) -> list[tuple[float, tuple[int, ...]]]:
    """One flow per number of bytes, over all links that carry so many."""
    sizes = Counter(load[link] for link in load if link in number)
    flows = [
        (size, tuple(number[link] for link in load if load[link] == size and link in number))
        for size in sizes
    ]
    return sorted(flows, key=lambda flow: -flow[0] / min(bandwidth[link] for link in flow[1]))
