"""What `/metrics` says, in Prometheus' text format. Names are documented in docs/reference/api.md."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hemiola.live.web.responses import Frame
from hemiola.live.web.schema import VERSION, StatusView
from hemiola.live.web.snapshots import THOUGHT_S, Snapshots

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics(Collector):
    """Reads what the API answers whenever it is asked.

    Args:
        read: the status, and the frame it was made from.
    """

    def __init__(self, read: Callable[[], tuple[StatusView, Frame]], snapshots: Snapshots) -> None:
        self._read, self._snapshots = read, snapshots
        self._lock = threading.Lock()
        self._refused: Counter[str] = Counter(dict.fromkeys(("host", "origin", "rate", "role", "token"), 0))
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def refused(self, reason: str) -> None:
        """A request was not answered."""
        with self._lock:
            self._refused[reason] += 1

    def text(self) -> bytes:
        """All metrics."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing in advance: all depends on the picture."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now."""
        status, frame = self._read()
        yield from _service(status)
        yield from _cluster(status, frame)
        yield from self._counted()

    def _counted(self) -> Iterator[Metric]:
        decisions = CounterMetricFamily(
            "hemiola_decisions", "Decisions of this process's policies.", labels=("kind", "refused")
        )
        for (kind, refused), count in sorted(dict(self._snapshots.counts).items()):
            decisions.add_metric((kind, str(refused).lower()), count)
        yield decisions
        counts = list(accumulate(self._snapshots.thoughts))
        yield HistogramMetricFamily(
            "hemiola_decision_seconds", "How long the policy computed at each instant.",
            buckets=list(zip([*map(str, THOUGHT_S), "+Inf"], counts, strict=True)), sum_value=self._snapshots.thought_s,
        )  # fmt: skip
        requests = CounterMetricFamily(
            "hemiola_http_refused", "Requests that were not answered, by reason.", labels=("reason",)
        )
        with self._lock:
            refusals = dict(self._refused)
        for reason, count in sorted(refusals.items()):
            requests.add_metric((reason,), count)
        yield requests


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"hemiola_{name}", what, value=value)


def _by(name: str, what: str, label: str, found: dict[str, float]) -> Metric:
    family = GaugeMetricFamily(f"hemiola_{name}", what, labels=(label,))
    for key, value in found.items():
        family.add_metric((key,), value)
    return family


def _service(status: StatusView) -> Iterator[Metric]:
    yield _by("build_info", "Always 1; the version as a label.", "version", {VERSION: 1})
    run = GaugeMetricFamily(
        "hemiola_run_info",
        "Always 1; what decides as labels.",
        labels=("policy", "fallback", "mode", "engine"),
    )
    run.add_metric((status.policy, status.fallback, status.mode, status.engine), 1)
    yield run
    yield _gauge("leader", "Whether this instance leads.", status.leads)
    yield _gauge("enforcing", "Whether decisions are carried out.", status.mode == "enforce")
    yield _gauge(
        "policy_broken", "Whether the fallback decides as the policy broke.", bool(status.broken_policy)
    )
    if status.kill_switch is not None:
        yield _gauge("kill_switch", "Whether the kill switch is thrown.", status.kill_switch)
    if status.leads:
        yield _gauge("engine_up", "Whether the engine answers.", not status.engine_away)
        if status.turned_s is not None:
            age_s = max(0.0, time.time() - status.turned_s)
            yield _gauge("loop_turn_age_seconds", "Time since the loop last came around.", age_s)


def _cluster(status: StatusView, frame: Frame) -> Iterator[Metric]:
    jobs, gpus = status.jobs, status.gpus
    states: dict[str, float] = {"waiting": jobs.waiting, "held": jobs.held, "running": jobs.running}
    yield _by("jobs", "Jobs that have not ended, by state.", "state", states)
    states = {"free": gpus.free, "used": gpus.used, "blocked": gpus.blocked, "down": gpus.down}
    yield _by("gpus", "GPUs by what they do.", "state", states)
    down = sum(host.down for host in frame.hosts)
    yield _by("hosts", "Hosts by state.", "state", {"up": len(frame.hosts) - down, "down": down})
    waiting = [seen for seen in frame.seen if seen.state == "waiting"]
    yield _gauge("queue_wanted_gpus", "GPUs that all waiting jobs want.", status.wanted_gpus)
    longest_s = max((time.time() - seen.since_s for seen in waiting), default=0.0)
    yield _gauge("queue_longest_wait_seconds", "Present wait of who has waited longest.", max(0.0, longest_s))
    failing = sum(seen.binds_failed > 0 for seen in frame.seen)
    yield _gauge("jobs_bind_failing", "Jobs whose last placement the engine did not take.", failing)
    uplinks = GaugeMetricFamily(
        "hemiola_uplink_predicted_load_ratio", "Predicted load of a switch's uplink over its capacity.",
        labels=("level", "switch"),
    )  # fmt: skip
    for link in frame.links.items:
        if link.kind == "uplink":
            capacity = link.capacity_bytes_per_s
            uplinks.add_metric(
                (link.level, link.of), link.predicted_bytes_per_s / capacity if capacity else 0.0
            )
    yield uplinks
