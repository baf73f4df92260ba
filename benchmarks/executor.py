"""How fast the iteration executor is: tasks per second of CPU, beside a bare list scheduler in plain Python.

    python benchmarks/executor.py                                    # to the terminal
    python benchmarks/executor.py --write docs/results/executor.md
    python benchmarks/executor.py --tasks 20000 --rounds 3           # smaller

`execute` is timed whole: checks, successors, schedule, lower bound. Compilation is quoted apart.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import date
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
from clocks import Took, timed
from page import machine, spread, table, write_page

from hemiola.kernels.executor import execute, warm_up
from hemiola.kernels.executor.tasks import Tasks, tasks_from_columns

RANKS = 64
NIC_BYTES_PER_S = 12.5e9
LATENCY_S = 5e-6
TARGET_FIXED, TARGET_FLOWS = 8e6, 2e6
PAUSED = (1_000, 4_000, 16_000, 64_000)
HEAD = """# Executor speed

How fast `hemiola.kernels.executor.execute` is, all of it: checking the tasks, finding who waits for whom,
the schedule, the lower bound. CPU time is the figure, because the machine is shared by other work:
median (least–most) over the rounds. Even so the same code takes up to a quarter more or less from one
hour to the next on such a machine, so a multiple of plain Python, measured between the same rounds,
stands beside it. What is executed is generated, with a fixed seed.
"""
Build = Callable[[int], Tasks]


def random_graph(count: int, depends: int = 2, window: int = 200) -> Tasks:
    """Operations on 8 resources in random order of priority; each waits for about two of the 200 before it."""
    chance = np.random.default_rng(1)
    waiter = np.repeat(np.arange(1, count), depends)
    dependency = waiter - 1 - chance.integers(0, window, len(waiter))
    known = dependency >= 0
    return tasks_from_columns(
        chance.exponential(1e-4, count),
        resource=chance.integers(0, 8, count),
        priority=chance.integers(0, 1000, count),
        resources=8,
        waits=(waiter[known], dependency[known]),
    )


def chains(count: int) -> Tasks:
    """8 streams of operations in issue order, each now and then waiting for another stream."""
    chance = np.random.default_rng(2)
    place = np.arange(count)
    waiter, across = place[8:], place[64:][chance.random(count - 64) < 0.1]
    return tasks_from_columns(
        chance.exponential(1e-4, count),
        resource=place % 8,
        resources=8,
        in_order=True,
        waits=(np.r_[waiter, across], np.r_[waiter - 8, across - chance.integers(9, 64, len(across))]),
    )


def rings(count: int, at_once: int) -> Tasks:
    """Ring all-reduces over 64 NICs, `at_once` of them side by side: each step a flow from rank to rank."""
    chance = np.random.default_rng(3)
    steps = 2 * (RANKS - 1)
    each = max(1, round(count / (RANKS * steps * at_once)))
    shape = (at_once, each * steps, RANKS)
    task = np.arange(np.prod(shape)).reshape(shape)
    rank = np.broadcast_to(np.arange(RANKS), shape)
    later, sooner = task[:, 1:], task[:, :-1]
    size = np.repeat(chance.uniform(1e5, 1e6, at_once * each), steps * RANKS)
    return tasks_from_columns(
        np.full(task.size, LATENCY_S),
        size_bytes=size,
        crosses=(
            np.r_[task.ravel(), task.ravel()],
            np.r_[rank.ravel(), RANKS + (rank.ravel() + 1) % RANKS],
        ),
        waits=(
            np.r_[later.ravel(), later.ravel()],
            np.r_[sooner.ravel(), np.roll(sooner, 1, axis=2).ravel()],
        ),
        link_bytes_per_s=np.full(2 * RANKS, NIC_BYTES_PER_S),
    )


def iteration(count: int, buckets: int = 12) -> Tasks:
    """One training iteration on 64 ranks: operations on 64 GPUs, and 12 ring all-reduces, two at a time.

    Half of the tasks are operations, one stream per rank, of 20 µs on average and equal on all ranks
    but for 2 %. The second half of them is the backward pass; every twelfth of it readies a bucket of
    25 MB. Collectives take turns in two channels, as NCCL's would in two communicators.
    """
    chance = np.random.default_rng(4)
    steps = 2 * (RANKS - 1)
    flows = RANKS * steps * buckets
    operations = max(2 * buckets, (count - flows) // RANKS)
    operation = np.arange(operations * RANKS).reshape(operations, RANKS)
    flow = operation.size + np.arange(flows).reshape(buckets, steps, RANKS)
    ready = operation[
        operations // 2 + (operations - operations // 2) * np.arange(1, buckets + 1) // buckets - 1
    ]
    rank = np.broadcast_to(np.arange(RANKS), flow.shape).ravel()
    waits = [
        (operation[1:], operation[:-1]),
        (flow[:, 0], ready),
        (flow[:, 1:], flow[:, :-1]),
        (flow[:, 1:], np.roll(flow, 1, axis=2)[:, :-1]),
        (flow[2:, 0], flow[:-2, -1]),
    ]
    duration = np.repeat(chance.exponential(2e-5, operations), RANKS) * chance.normal(1, 0.02, operation.size)
    return tasks_from_columns(
        np.r_[duration, np.full(flows, LATENCY_S)],
        resource=np.r_[np.tile(np.arange(RANKS), operations), np.full(flows, -1)],
        resources=RANKS,
        size_bytes=np.r_[np.zeros(operation.size), np.full(flows, 25e6 / RANKS)],
        crosses=(np.r_[flow.ravel(), flow.ravel()], np.r_[rank, RANKS + (rank + 1) % RANKS]),
        waits=(
            np.concatenate([waiter.ravel() for waiter, _ in waits]),
            np.concatenate([dependency.ravel() for _, dependency in waits]),
        ),
        link_bytes_per_s=np.full(2 * RANKS, NIC_BYTES_PER_S),
    )


def all_to_all(count: int, ranks: int = 16) -> Tasks:
    """Every rank sends to every other, unequal amounts, round after round: all flows hang together."""
    chance = np.random.default_rng(5)
    sender, receiver = np.nonzero(~np.eye(ranks, dtype=bool))
    rounds = max(1, count // len(sender))
    task = np.arange(rounds * len(sender)).reshape(rounds, -1)
    senders, receivers = np.tile(sender, rounds), np.tile(receiver, rounds)
    return tasks_from_columns(
        np.full(task.size, LATENCY_S),
        size_bytes=chance.uniform(1e5, 1e6, task.size),
        crosses=(np.r_[task.ravel(), task.ravel()], np.r_[senders, ranks + receivers]),
        waits=(task[1:].ravel(), task[:-1].ravel()),
        link_bytes_per_s=np.full(2 * ranks, NIC_BYTES_PER_S),
    )


def paused(count: int) -> Tasks:
    """Slices of a gradient that become ready ten times as fast as they are sent, each more urgent than all before."""
    chance = np.random.default_rng(6)
    task = np.arange(count)
    size = chance.uniform(1e5, 4e5, count)
    return tasks_from_columns(
        np.full(count, LATENCY_S),
        priority=count - task,
        release_s=np.cumsum(size) / NIC_BYTES_PER_S / 10,
        size_bytes=size,
        crosses=(np.r_[task, task, task], np.repeat([0, 1, 2], count)),
        link_bytes_per_s=[NIC_BYTES_PER_S, NIC_BYTES_PER_S, 0.9 * NIC_BYTES_PER_S],
        sharing="priority",
    )


def plain(
    durations: list[float],
    resources: list[int],
    priorities: list[int],
    in_order: list[bool],
    dependencies: list[list[int]],
) -> float:
    """A bare list scheduler with heaps: fixed durations, every task on a resource; when the last ends.

    No checks, no releases, no flows, no bound, nothing recorded.
    """
    waiters: list[list[int]] = [[] for _ in durations]
    for task, of_task in enumerate(dependencies):
        for dependency in of_task:
            waiters[dependency].append(task)
    awaited = [len(of_task) for of_task in dependencies]
    queues: list[list[tuple[int, float, int]]] = [[] for _ in in_order]
    for task, count in enumerate(awaited):
        if count == 0:
            queues[resources[task]].append((0 if in_order[resources[task]] else priorities[task], 0.0, task))
    events: list[tuple[float, int]] = []
    for queue in queues:
        heapify(queue)
        if queue:
            task = heappop(queue)[2]
            heappush(events, (durations[task], task))
    busy = [False] * len(queues)
    for _, task in events:
        busy[resources[task]] = True
    now = 0.0
    while events:
        now = events[0][0]
        touched = []
        while events and events[0][0] == now:
            task = heappop(events)[1]
            busy[resources[task]] = False
            touched.append(resources[task])
            for waiter in waiters[task]:
                awaited[waiter] -= 1
                if awaited[waiter] == 0:
                    held = resources[waiter]
                    heappush(queues[held], (0 if in_order[held] else priorities[waiter], now, waiter))
                    touched.append(held)
        for held in touched:
            if queues[held] and not busy[held]:
                task = heappop(queues[held])[2]
                busy[held] = True
                heappush(events, (now + durations[task], task))
    return now


def plain_of(tasks: Tasks) -> Callable[[], float]:
    """The bare scheduler on these tasks, its lists made ready."""
    starts = tasks.dep_start.tolist()
    every = tasks.dep.tolist()
    dependencies = [every[low:high] for low, high in pairwise(starts)]
    columns = (tasks.duration_s.tolist(), tasks.resource.tolist(), tasks.priority.tolist())
    return lambda: plain(*columns, tasks.in_order.tolist(), dependencies)


def execution(tasks: Tasks) -> tuple[float, Took]:
    """When the last task ends, and what executing them took."""
    return timed(lambda: execute(tasks).makespan_s)


def rates(took: list[Took], count: int) -> tuple[str, str]:
    """Millions of tasks per second of CPU, and wall ms."""
    return (
        spread([count / each.cpu_s / 1e6 for each in took]),
        spread([1e3 * each.wall_s for each in took], 1),
    )


def verdict(took: list[Took], count: int, target: float | None) -> str:
    """Whether the median meets the target."""
    if target is None:
        return "–"
    rate = count / median(each.cpu_s for each in took)
    return f"{target / 1e6:g} M/s: " + ("met" if rate >= target else f"missed ({rate / target:.2f}x)")


def measure_fixed(count: int = 200_000, rounds: int = 9) -> str:
    """Fixed durations, beside the bare scheduler, by turns."""
    rows = []
    for name, tasks in (("random graph", random_graph(count)), ("8 streams", chains(count))):
        bare = plain_of(tasks)
        executed, plainly = [], []
        for at in range(rounds):
            makespan_s, took = execution(tasks)
            executed.append(took)
            if at < max(1, rounds // 3):
                end_s, took = timed(bare)
                plainly.append(took)
                assert abs(end_s - makespan_s) <= 1e-9 * end_s, "the two schedulers disagree"
        ratio = median(each.cpu_s for each in plainly) / median(each.cpu_s for each in executed)
        target = TARGET_FIXED if name == "random graph" else None
        number, dependencies = f"{len(tasks):,}", f"{len(tasks.dep):,}"
        figures = (*rates(executed, len(tasks)), rates(plainly, len(tasks))[0], f"{ratio:.0f}")
        rows.append([name, number, dependencies, verdict(executed, len(tasks), target), *figures])
    head = ["tasks", "number", "dependencies", "target", "M tasks/s of CPU", "wall ms", "plain Python, M/s", "times as fast"]  # fmt: skip
    return table(head, rows)


def measure_flows(count: int = 200_000, rounds: int = 7) -> str:
    """With links shared max-min."""
    cases: list[tuple[str, Build, int, float | None]] = [
        ("iteration on 64 ranks, two all-reduces at a time", iteration, count, TARGET_FLOWS),
        ("ring all-reduces on 64 ranks, one at a time", lambda n: rings(n, 1), count, TARGET_FLOWS),
        ("... two at a time", lambda n: rings(n, 2), count, TARGET_FLOWS),
        ("... four at a time", lambda n: rings(n, 4), count, None),
        ("all-to-all of 16 ranks, unequal", all_to_all, count // 10, None),
    ]
    rows = []
    for name, build, size, target in cases:
        tasks = build(size)
        took = [execution(tasks)[1] for _ in range(rounds)]
        flows = int((tasks.size_bytes > 0).sum())
        rows.append(
            [
                name,
                f"{len(tasks):,}",
                f"{flows:,}",
                verdict(took, len(tasks), target),
                *rates(took, len(tasks)),
            ]
        )
    return table(["tasks", "number", "of them flows", "target", "M tasks/s of CPU", "wall ms"], rows)


def measure_paused(counts: Sequence[int] = PAUSED, rounds: int = 7) -> str:
    """Under priority, with ever more flows that wait for more urgent ones."""
    rows: list[list[str]] = []
    each_s: list[float] = []
    for count in counts:
        tasks = paused(count)
        took = [execution(tasks)[1] for _ in range(rounds)]
        each_s.append(median(one.cpu_s for one in took) / count)
        cpu_ms = spread([1e3 * one.cpu_s for one in took], 1)
        rows.append([f"{count:,}", cpu_ms, f"{1e6 * each_s[-1]:.2f}", f"{each_s[-1] / each_s[0]:.2f}"])
    return table(["flows", "CPU ms", "µs per flow", f"times that of {counts[0]:,}"], rows)


def compile_s() -> tuple[float, float, float]:
    """CPU seconds of a process that warms up: without a cache, with one; and of one that imports Numba only."""
    warm = "from hemiola.kernels.executor import warm_up; warm_up()"
    head, tail = "import time; since = time.process_time(); ", "; print(time.process_time() - since)"
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        took = [
            subprocess.run(
                [sys.executable, "-c", head + code + tail],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            for code in (warm, warm, "import numba")
        ]
    cold, cached, numba = (float(each.stdout) for each in took)
    return cold, cached, numba


def page(count: int, rounds: int, compiling: bool = True) -> str:
    """All tables, in Markdown."""
    warm_up()
    parts = [
        "## Fixed durations",
        measure_fixed(count, rounds),
        f"The random graph: {random_graph.__doc__} The streams: {chains.__doc__} The bare scheduler (`plain` in "
        "`benchmarks/executor.py`: heaps, no checks, no flows, nothing recorded) runs on the same tasks "
        "between the rounds and has to reach the same end.",
        "## With links that flows share",
        measure_flows(count, rounds),
        "A ring's step is a flow from each rank to the next, over the sender's and the receiver's side of "
        "two NICs. One ring alone shares nothing; rings side by side share every NIC, and a flow that "
        "comes or goes lets only those that hang together with it be solved anew. In the all-to-all, "
        "that is all 240 of them every time: the cost per task grows with the number that hang together.",
        "## With flows that are paused",
        measure_paused(rounds=rounds),
        f"{paused.__doc__} They cross a NIC, a sender and a receiver. At the end of the gradient nine in ten "
        "are paused; a paused flow costs when it is paused and when it goes on, not at each event between.",
    ]
    if compiling:
        cold, cached, numba = compile_s()
        parts.append(
            f"## Compilation\n\nWithout a cache, once per machine: {cold:.1f} s of CPU. From the cache: "
            f"{cached:.2f} s, of which importing Numba is {numba:.2f} s."
        )
    return "\n\n".join(parts)


def main(arguments: list[str] | None = None) -> None:
    """Measure; print it, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=200_000, help="how many in a graph (default 200000)")
    parser.add_argument("--rounds", type=int, default=15, help="how often each is repeated (default 15)")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="write the page there")
    asked = parser.parse_args(arguments)
    command = "python benchmarks/executor.py " + " ".join(sys.argv[1:] if arguments is None else arguments)
    text = page(asked.tasks, asked.rounds)
    print(text)
    if asked.write is not None:
        measured = f"Measured on {date.today():%Y-%m-%d} with `{command.strip()}` on: {machine()}, "
        measured += f"which others used as well (load average {os.getloadavg()[0]:.0f})."
        write_page(asked.write, "\n\n".join([HEAD.strip(), measured, text]) + "\n")


if __name__ == "__main__":
    main()
