"""How many replicas a service should have: the field's autoscalers as values, behind one seam.

Each says what it wants by what it was told of the load; limits, places and loans are the policy's affair
(`sched.shared_cluster`). Where a replica is a GPU server, a target of concurrency is a share of what it has in hand at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, ClassVar

from hemiola.core.chosen import Family
from hemiola.core.errors import PolicyError
from hemiola.core.events import Load
from hemiola.core.job import Service
from hemiola.core.latency import ReplicaRate
from hemiola.sched.queueing import servers_for

__all__ = [
    "AUTOSCALERS",
    "Autoscaler",
    "Dynamo",
    "ForecastLoad",
    "Hpa",
    "Kpa",
    "Peak",
    "RayServe",
    "ServicePast",
    "autoscaler_from_text",
]


class ServicePast:
    """What was told of one service so far; an autoscaler's own notes are kept with it.

    Attributes:
        service: with a latency profile.
        rate: what one replica can do within the objective.
        replicas: how many there are, those that start among them.
        ready: those that take requests.
        times, rates: when the load was told, and the requests per second of each interval before it.
        note: the autoscaler's own.
    """

    def __init__(self, service: Service) -> None:
        if service.latency is None:
            raise PolicyError(
                f"nobody says how long a replica of service {service.id!r} takes", "give it a latency profile"
            )
        self.service = service
        sums = [
            sum(getattr(one, name) for one in service.requests) for name in ("input_tokens", "output_tokens")
        ]
        means = [total / len(service.requests) for total in sums] if service.requests else []
        self.rate: ReplicaRate = service.latency.rate(service.objective.latency_s, *means)
        self.replicas = self.ready = 0
        self.times: list[float] = []
        self.rates: list[float] = []
        self._ongoing: list[float] = []
        self.last: Load | None = None
        self.note: Any = None

    def add(self, load: Load, replicas: int, ready: int) -> None:
        """The load of the last interval, and how many replicas there are now."""
        self.last, self.replicas, self.ready = load, replicas, ready
        self.times.append(load.time_s)
        self.rates.append(load.requests_per_s)
        self._ongoing.append(load.ongoing)

    @property
    def now(self) -> float:
        """When the load was last told."""
        return self.times[-1] if self.times else -math.inf

    @property
    def interval_s(self) -> float:
        """From the load told before to the last; 0 after the first."""
        return self.times[-1] - self.times[-2] if len(self.times) > 1 else 0.0

    def ongoing(self, window_s: float) -> float:
        """Requests that wait or are in hand, in the mean of the last seconds; of the last interval at least."""
        first = min(bisect_left(self.times, self.now - window_s + 1e-9), len(self.times) - 1)
        values = self._ongoing[first:]
        return math.fsum(values) / len(values)

    def is_idle(self, seconds: float) -> bool:
        """Whether no request came for so long, and none waits."""
        first = bisect_left(self.times, self.now - seconds)
        waiting = self.last.queue if self.last else 0
        return not waiting and self.now - self.times[0] >= seconds and not any(self.rates[first:])

    def is_new(self, seconds: float) -> bool:
        """Whether no request ever came, and it has been there for less than that."""
        return self.now - self.service.submit_s < seconds and not any(self.rates)

    def busiest(self, since_s: float, until_s: float) -> float:
        """The highest rate between two times; 0 where none was told."""
        first, last = bisect_left(self.times, since_s), bisect_left(self.times, until_s)
        return (
            max(self.rates[first : last + 1], default=0.0)
            if first < len(self.times) and since_s >= self.times[0]
            else 0.0
        )


@dataclass(frozen=True)
class Autoscaler(ABC):
    """Says how many replicas a service should have. A value; what it remembers is in the `ServicePast`.

    Attributes:
        name: as it is asked for.
        source: the system it follows.
    """

    name: ClassVar[str] = ""
    source: ClassVar[str] = ""

    @abstractmethod
    def replicas(self, past: ServicePast) -> int:
        """How many, now that the last load was told."""


class _Held:
    """Since when more, or fewer, have been wanted without a break; what was wanted lately."""

    def __init__(self) -> None:
        self.up_s = self.down_s = math.inf
        self.wants: list[tuple[float, int]] = []
        self.panic_s = -math.inf
        self.asked_s = -math.inf
        self.mean, self.variance = -1.0, 0.0
        self.learned, self.learned_s = 1.0, 0.0

    def highest(self, now: float, want: int, window_s: float) -> int:
        """The most that was wanted in the last seconds."""
        self.wants = [(since, n) for since, n in self.wants if since > now - window_s and n > want] + [
            (now, want)
        ]
        return max(n for _, n in self.wants)


def _held(past: ServicePast) -> _Held:
    if past.note is None:
        past.note = _Held()
    return past.note  # type: ignore[no-any-return]


@dataclass(frozen=True)
class RayServe(Autoscaler):
    """Ongoing requests per replica against a target; more only once it held for a while, fewer after a longer one.

    Args:
        target: ongoing requests per replica.
        look_back_s: over which they are averaged.
        up_delay_s, down_delay_s: how long more or fewer must have been wanted.
    """

    target: float = 2.0
    look_back_s: float = 30.0
    up_delay_s: float = 30.0
    down_delay_s: float = 600.0
    name = "ray-serve"
    source = "Ray Serve 2.x: target_ongoing_requests 2, look_back_period_s 30, upscale_delay_s 30, downscale_delay_s 600"

    def replicas(self, past: ServicePast) -> int:
        """How many it wants now."""
        held, now, have = _held(past), past.now, past.replicas
        total = past.ongoing(self.look_back_s)
        if have == 0:
            return 1 if total > 0 else 0
        want = math.ceil(have * (total / have / self.target) - 1e-9)
        held.up_s = min(held.up_s, now) if want > have else math.inf
        held.down_s = min(held.down_s, now) if want < have else math.inf
        if now - held.up_s >= self.up_delay_s or now - held.down_s >= self.down_delay_s:
            held.up_s = held.down_s = math.inf
            return want
        return have


@dataclass(frozen=True)
class Kpa(Autoscaler):
    """Concurrency against a share of the limit, over a stable window; over a short one in panic, in which none are ended.

    Args:
        limit: requests that a replica has at once; 0 for what its latency profile says.
        utilisation: of it, the target.
        stable_s, panic_s: windows.
        panic_at: times as many as there are, wanted by the short window, begin a panic.
    """

    limit: float = 0.0
    utilisation: float = 0.7
    stable_s: float = 60.0
    panic_s: float = 6.0
    panic_at: float = 2.0
    name = "kpa"
    source = "Knative's pod autoscaler: target 70 % of the limit (100 unless set), windows of 60 s and 6 s, panic at 2x"

    def replicas(self, past: ServicePast) -> int:
        """How many it wants now."""
        held, now = _held(past), past.now
        target = (self.limit or float(past.rate.batch)) * self.utilisation
        stable = math.ceil(past.ongoing(self.stable_s) / target - 1e-9)
        short = math.ceil(past.ongoing(self.panic_s) / target - 1e-9)
        if short >= self.panic_at * max(past.ready, 1):
            held.panic_s = now
        if now - held.panic_s < self.stable_s:
            return max(past.replicas, short, stable)
        return stable


@dataclass(frozen=True)
class Hpa(Autoscaler):
    """Replicas times the ratio of a metric to its target; no change within a tolerance; the most of the last minutes.

    Args:
        target: ongoing requests per replica; 0 for 70 % of what its latency profile says that it has at once.
        tolerance: of the ratio to 1.
        poll_s: between two looks.
        cool_down_s: fewer only if nothing more was wanted for so long.
    """

    target: float = 0.0
    tolerance: float = 0.1
    poll_s: float = 30.0
    cool_down_s: float = 300.0
    name = "hpa"
    source = "Kubernetes' horizontal pod autoscaler, as KEDA drives it: tolerance 10 %, polled each 30 s, 300 s to cool down"

    def replicas(self, past: ServicePast) -> int:
        """How many it wants now."""
        held, now, have = _held(past), past.now, past.replicas
        if now - held.asked_s < self.poll_s:
            return have
        held.asked_s = now
        target = self.target or 0.7 * past.rate.batch
        total = past.ongoing(self.poll_s)
        if have == 0:
            return 1 if total > 0 else 0
        ratio = total / have / target
        want = have if abs(ratio - 1) <= self.tolerance else math.ceil(have * ratio - 1e-9)
        return held.highest(now, want, self.cool_down_s)


@dataclass(frozen=True)
class Dynamo(Autoscaler):
    """The load of the last interval through the profile, corrected by how much slower answers are than it says.

    Args:
        interval_s: between two plans.
        most: the correction is no larger than this, and no smaller than 1 / this.
    """

    interval_s: float = 60.0
    most: float = 3.0
    name = "dynamo"
    source = "in the style of NVIDIA Dynamo's SLA planner: constant predictor, correction by actual over expected latency"

    def replicas(self, past: ServicePast) -> int:
        """How many it wants now."""
        held, now, load = _held(past), past.now, past.last
        if now - held.asked_s < self.interval_s or load is None:
            return past.replicas
        held.asked_s = now
        tokens = past.service.latency.tokens if past.service.latency else None
        if tokens:
            actual, expected = load.first_token_s, tokens.first_s(tokens.input_tokens)
        else:
            actual, expected = load.latency_s, past.rate.latency_s
        correction = min(max(actual / expected if actual and expected else 1.0, 1 / self.most), self.most)
        first = bisect_left(past.times, now - self.interval_s + 1e-9)
        rate = math.fsum(past.rates[first:]) / max(1, len(past.rates) - first)
        return math.ceil(rate * max(1.0, correction) / past.rate.requests_per_s - 1e-9)


@dataclass(frozen=True)
class Peak(Autoscaler):
    """All that it may have, always: what is done without an autoscaler."""

    name = "peak"
    source = "no autoscaler: as many replicas as there may be"

    def replicas(self, past: ServicePast) -> int:
        """How many it wants now."""
        return past.service.replicas_max


@dataclass(frozen=True)
class ForecastLoad(Autoscaler):
    """As many as the load to be expected needs when a replica that starts now is ready.

    The load to be expected is the mean of late plus three deviations, or that of the same time yesterday if it is more (of
    it 85 %, and at most twice the mean). So many that at most `miss` of the requests wait longer than the objective leaves
    (M/D/n), and more to work off what waits. Whenever the objective was missed in an interval, all of it times more: what
    bursts within an interval need is not to be seen in its mean. That is forgotten slowly.

    Args:
        headroom: times the load to be expected.
        miss: share of requests that may wait too long by the sizing.
        window_s: over which load is averaged, exponentially.
        down_s: fewer only if nothing more was wanted for so long.
        horizon_s: beyond the cold start, as far as yesterday is looked at.
        idle_s: without a request for so long none is wanted.
        lesson: times more after each interval in which the objective was missed, `lessons` in all at most; half of it is
            forgotten in `forget_s`.
    """

    headroom: float = 1.15
    miss: float = 1e-4
    window_s: float = 60.0
    down_s: float = 120.0
    horizon_s: float = 60.0
    idle_s: float = 300.0
    lesson: float = 1.1
    lessons: float = 4.0
    forget_s: float = 21600.0
    name = "forecast"
    source = "in the style of FaPES (SoCC'24), whose body is not at hand: sizes by M/D/n"

    def replicas(self, past: ServicePast) -> int:
        """How many it wants now."""
        expected = self.expected(past) * self._learned(past)
        if past.is_idle(self.idle_s):
            return 0
        return _held(past).highest(past.now, self.needed(past, expected), self.down_s)

    def _learned(self, past: ServicePast) -> float:
        """How many times more the misses so far tell it to have."""
        held, load = _held(past), past.last
        if load is None:
            return 1.0
        held.learned = (
            1 + (held.learned - 1) * 0.5 ** ((past.now - held.learned_s) / self.forget_s)
            if held.learned_s
            else 1.0
        )
        held.learned_s = past.now
        objective = past.service.objective
        enough = (
            load.requests_per_s * past.interval_s * (1 - objective.share) >= 1
        )  # requests to tell such a share by
        if load.latency_s > objective.latency_s and past.ready and enough:
            held.learned = min(held.learned * self.lesson, self.lessons)
        return held.learned

    def expected(self, past: ServicePast) -> float:
        """Requests per second by the time at which a replica that starts now is ready."""
        held, now, rate = _held(past), past.now, past.rates[-1]
        if held.mean < 0:
            held.mean, held.asked_s = rate, now
        elif now > held.asked_s:
            keep = math.exp(-(now - held.asked_s) / self.window_s)
            slow = math.exp(-(now - held.asked_s) / (5 * self.window_s))
            held.variance = slow * held.variance + (1 - slow) * (rate - held.mean) ** 2
            held.mean, held.asked_s = keep * held.mean + (1 - keep) * rate, now
        ahead_s = past.service.cold_start_s + self.horizon_s
        day_s = 86400.0
        yesterday = past.busiest(now - day_s, now - day_s + ahead_s)
        return max(held.mean + 3 * math.sqrt(held.variance), min(0.85 * yesterday, 2 * held.mean))

    def needed(self, past: ServicePast, requests_per_s: float) -> int:
        """Replicas for so much load, and for what waits."""
        one, objective = past.rate, past.service.objective
        slack_s = max(0.0, objective.latency_s - one.latency_s)
        load = requests_per_s * self.headroom
        if slack_s > 0:
            count = servers_for(
                load, one.service_s, slack_s, self.miss, each=one.servers, most=past.service.replicas_max
            )
        else:
            count = math.ceil(load / (0.8 * one.requests_per_s))
        waiting = past.last.queue if past.last else 0
        return count + math.ceil(waiting / (one.requests_per_s * 10.0))


AUTOSCALERS: dict[str, type[Autoscaler]] = {
    kind.name: kind for kind in (ForecastLoad, RayServe, Kpa, Hpa, Dynamo, Peak)
}
"""Every autoscaler by name."""
_AUTOSCALER: Family[Autoscaler] = Family(
    "autoscaler", "replicas(past)", "hemiola.sched.autoscaling.Autoscaler", PolicyError
)


def autoscaler_from_text(text: str) -> Autoscaler:
    """An autoscaler from "name" or "name/parameter=value/...", as a policy's parameter has it.

    Raises:
        PolicyError: an unknown name, parameter or value, naming what is known.
    """
    name, slash, rest = text.partition("/")
    return _AUTOSCALER.read(f"{name}:{rest.replace('/', ',')}" if slash else name, AUTOSCALERS)
