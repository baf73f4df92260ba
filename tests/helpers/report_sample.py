"""A DDP job as a recording would show it: honest arithmetic, seeded chance, one late rank."""

from __future__ import annotations

import random
from typing import Any

from job_build import Build

from hemiola.core.job_timeline import JobTimeline, Rank

LAYERS = 12
BUCKETS = 4
BUCKET_BYTES = 25e6


def ddp(
    *, ranks: int = 4, iterations: int = 6, late: int = 3, rate: float = 1.5e9, seed: int = 0, name: str = "gpt-small",
    operations: int = 1, evil: str = "", **more: Any,
) -> JobTimeline:  # fmt: skip
    """Forward, backward with buckets on one serial link, wait for all of them, update.

    Args:
        late: the rank that computes 8 % slower.
        rate: of the link, in bytes per second.
        operations: into how many each layer's work is cut.
        evil: appended to every name.
    """
    chance = random.Random(seed)
    build = Build([Rank(i, f"host{i // 2}{evil}", "cpu", 0.0, 20e-6 * (i > 0)) for i in range(ranks)])
    now = [0.0] * ranks
    attributes: list[dict[str, Any]] = []

    def span(rank: int, kind: str, start: float, end: float, what: str, **rest: Any) -> None:
        build.span(rank, kind, start, end, what + evil, **rest)
        module = f"transformer.h.{what.split()[-1]}{evil}" if "layer" in what else ""
        attributes.append({"module": module} if module else {})

    for number in range(iterations):
        begun = list(now)
        ready: list[list[float]] = [[] for _ in range(ranks)]
        for rank in range(ranks):
            slow = (1.08 if rank == late else 1.0) * (2.5 if number == 0 else 1.0)
            at = now[rank] + chance.uniform(1e-3, 4e-3)
            span(rank, "input", now[rank], at, "next batch", lane="main thread")
            for phase, cost in (("forward", 2.2e-3), ("backward", 4.4e-3)):
                for layer in range(LAYERS) if phase == "forward" else reversed(range(LAYERS)):
                    for _ in range(operations):
                        end = at + cost * slow * chance.uniform(0.95, 1.05) / operations
                        span(rank, "compute", at, end - 2e-6, f"{phase} layer {layer}", lane="main thread")
                        at = end
                    if phase == "backward" and layer % (LAYERS // BUCKETS) == 0:
                        ready[rank].append(at)
            now[rank] = at
        free = 0.0
        last: list[int] = []
        wire: list[tuple[float, float]] = []
        for bucket in range(BUCKETS):
            first = max(free, *(ready[rank][bucket] for rank in range(ranks)))
            free = first + 2 * (ranks - 1) / ranks * BUCKET_BYTES / rate * chance.uniform(0.97, 1.03)
            wire.append((first, free))
        for rank in range(ranks):
            at = now[rank]
            for bucket, (first, end) in enumerate(wire):
                needed = now[rank]
                released = max(at, end)
                sent = build.transfer(
                    rank, f"bucket {bucket}{evil}", ready[rank][bucket], first, end, needed, max(needed, released),
                    size=BUCKET_BYTES, iteration=number,
                )  # fmt: skip
                attributes.append({})
                last.append(sent)
                if released > at:
                    span(
                        rank,
                        "wait",
                        at,
                        released,
                        f"wait for bucket {bucket}",
                        lane="main thread",
                        transfer=sent,
                    )
                    at = released
            for layer in range(LAYERS):
                span(rank, "compute", at, at + 0.4e-3, f"update layer {layer}", lane="main thread")
                at += 0.4e-3
            span(rank, "other", at, at + 0.8e-3, "logging", lane="main thread")
            now[rank] = at + 1e-3
            build.iteration(rank, number, begun[rank], now[rank])
    facts = {"strategy": f"ddp{evil}", "torch": "2.13.0", "recording cost": "0.8 % of iteration time"}
    kept = {"facts": facts, "source": f"trace of {ranks} ranks{evil}", "attributes": tuple(attributes)}
    return build.timeline(**{"name": name + evil, **kept, **more})
