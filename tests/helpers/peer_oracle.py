"""Tiresias's and Muri's rules once more, as slow and plain as possible: the oracle of the peers' drivers.

The whole state is rebuilt at every instant from lists of jobs; nothing is indexed and nothing is shared
with the package. A job is a dict; see `answer`.
"""

from __future__ import annotations

import math
from typing import Any

LIMITS = (3250, 7200)
Rows = dict[str, tuple[float, float, int]]


def answer(rows: list[tuple[float, int, float]], switches: list[list[int]], policy: str, scheme: str) -> Rows:
    """(first start, end, pre-emptions) by job "0", "1", ...; rows are (submit_s, gpus, work_s)."""
    jobs: list[dict[str, Any]] = [
        {
            "id": str(i),
            "submit": s,
            "g": g,
            "left": w,
            "ran": 0,
            "spot": None,
            "start": None,
            "stops": 0,
            "q": 0,
        }
        for i, (s, g, w) in enumerate(rows)
    ]
    coming, line, queues = list(jobs), [], [[], [], []]
    done: Rows = {}
    now, timer = 0.0, math.inf
    while coming or any(job["spot"] for job in line):
        ends = {job["id"]: now + job["left"] for job in line if job["spot"]}
        then = min([*ends.values(), *(job["submit"] for job in coming[:1])])
        jump = timer < then
        then = min(then, timer)
        for job in line:
            if job["spot"]:
                job["left"] -= then - now
                job["ran"] += then - now
        now = then
        for job in [job for job in line if not jump and ends.get(job["id"]) == now]:
            done[job["id"]] = (job["start"], now, job["stops"])
            line.remove(job)
            queues[job["q"]] = [other for other in queues[job["q"]] if other is not job]
        while coming and coming[0]["submit"] == now:
            queues[0].append(coming[0])
            line.append(coming.pop(0))
        chosen = _choose(policy, scheme, line, queues, switches)
        for job in line:
            if job["spot"] and job["id"] not in chosen:
                job["stops"] += 1
            job["spot"] = chosen.get(job["id"])
            if job["spot"] and job["start"] is None:
                job["start"] = now
        timer = min((_step(policy, job, now) for job in line if job["spot"]), default=math.inf)
    return done


def _choose(
    policy: str, scheme: str, line: list[Any], queues: list[list[Any]], switches: list[list[int]]
) -> Any:
    if policy in ("fifo", "fjf"):
        return _increment(line, switches, scheme, policy == "fifo")
    if policy in ("dlas", "dlas-gpu"):
        return _ladder(line, queues, sum(map(sum, switches)), policy)
    keys = {
        "sjf": lambda job: job["g"],
        "shortest": lambda job: job["left"],
        "shortest-gpu": lambda job: job["left"] * job["g"],
    }
    line.sort(key=keys[policy])
    free = [list(switch) for switch in switches]
    return {job["id"]: spot for job in line if (spot := _take(free, switches, job["g"], scheme))}


def _increment(line: list[Any], switches: list[list[int]], scheme: str, strict: bool) -> Any:
    free = [list(switch) for switch in switches]
    chosen = {job["id"]: job["spot"] for job in line if job["spot"]}
    for spot in chosen.values():
        for s, n, count in spot:
            free[s][n] -= count
    for job in line:
        if not job["spot"]:
            spot = _take(free, switches, job["g"], scheme)
            if spot:
                chosen[job["id"]] = spot
            elif strict:
                break
    return chosen


def _take(free: list[list[int]], switches: list[list[int]], g: int, scheme: str) -> Any:
    """[(switch, node, GPUs)] taken from `free`, or None."""
    size = switches[0][0]
    spot = None
    if scheme == "count":
        cells = [
            (s, n) for s, nodes in enumerate(free) for n, count in enumerate(nodes) for _ in range(count)
        ]
        spot = [(s, n, 1) for s, n in cells[:g]] if len(cells) >= g else None
    for s, nodes in enumerate(free):
        if spot or scheme == "count":
            break
        idle = [n for n, count in enumerate(nodes) if count == size][: g // size]
        rest = [n for n, count in enumerate(nodes) if g % size and count >= g % size and n not in idle][:1]
        if len(idle) == g // size and (rest or g % size == 0):
            spot = [(s, n, size) for n in idle] + [(s, n, g % size) for n in rest]
    for s, n, count in spot or ():
        free[s][n] -= count
    return spot


def _ladder(line: list[Any], queues: list[list[Any]], free: int, policy: str) -> Any:
    for job in sorted(line, key=lambda job: int(job["id"])):
        if job["spot"] and job["q"] < 2 and job["ran"] * _unit(policy, job) >= LIMITS[job["q"]]:
            queues[job["q"]] = [other for other in queues[job["q"]] if other is not job]
            job["q"] += 1
            queues[job["q"]].append(job)
    chosen = {}
    for q, queue in enumerate(queues):
        waits = []
        for job in queue:
            if job["g"] <= free:
                free -= job["g"]
                chosen[job["id"]] = [(0, 0, job["g"])]
            else:
                waits.append(job)
        queues[q] = [job for job in queue if job["id"] in chosen] + waits
    return chosen


def _unit(policy: str, job: Any) -> int:
    return job["g"] if policy == "dlas-gpu" else 1


def _step(policy: str, job: Any, now: float) -> float:
    if not policy.startswith("dlas") or job["q"] == 2:
        return math.inf
    return math.ceil((LIMITS[job["q"]] - job["ran"]) / _unit(policy, job)) + now
