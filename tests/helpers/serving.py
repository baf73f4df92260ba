"""Services by hand, as several test files share them."""

from __future__ import annotations

from typing import Any

from hemiola.core.job import Objective, RequestRate, Service
from hemiola.core.latency import BatchTime, LatencyProfile

ONE = LatencyProfile((BatchTime(1, 0.25),))
EIGHT = LatencyProfile((BatchTime(1, 0.2), BatchTime(8, 0.4)))


def service(rate: float = 3.0, until_s: float = 600.0, **more: Any) -> Service:
    facts: dict[str, Any] = {
        "latency": ONE, "objective": Objective(1.0, 0.99), "replicas_max": 8, "cold_start_s": 10.0,
        "arrivals": (RequestRate(0.0, rate), RequestRate(until_s, 0.0)),
    } | more  # fmt: skip
    return Service(id="chat", submit_s=0.0, gpus=1, **facts)
