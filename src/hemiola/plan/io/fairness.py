"""Whether ranks that share a store get equal parts of it, who does not and why, and what each may take.

In the style of Diot (its text is not public). On a shared link the delivery follows connections, so the rank with
few of them becomes the straggler for whom all others wait. The judge looks at the ranks that want more, gives each a
rate to keep to (max-min by weight: what one cannot use goes to the others), and lifts all rates when reports stop.
Ranks keep to a rate by a token bucket over the starts of their requests: no store has to help.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hemiola.core.errors import InputError
from hemiola.cost.io import jain_index

__all__ = ["Cause", "FairnessJudge", "FairnessRules", "InputReport", "InputVerdict", "fair_rates"]

Cause = Literal["", "connections", "store", "host", "disk"]


class InputReport(NamedTuple):
    """What one rank says of its last second.

    Attributes:
        rank: who.
        at_s: when, on the judge's clock.
        delivered_bytes_per_s: what arrived.
        connections: requests in flight.
        waiting: part of the time in which training waited for data, from 0 to 1.
        wanted: part of the time in which the reader wanted more than it had asked for, from 0 to 1.
        first_byte_s: median time to a first byte.
        stream_bytes_per_s: median rate of a body.
        weight: its part, against the others'.
        local: reads a disk of its own.
    """

    rank: int
    at_s: float
    delivered_bytes_per_s: float
    connections: int
    waiting: float
    wanted: float = 1.0
    first_byte_s: float = 0.0
    stream_bytes_per_s: float = 0.0
    weight: float = 1.0
    local: bool = False


class InputVerdict(NamedTuple):
    """What the judge says.

    Attributes:
        jain: Jain's index of delivered bytes over weights, over ranks that want more.
        rates_bytes_per_s: by rank, what to keep to; empty where all may read as they like.
        victim: the rank that gets least; -1 where nobody is one.
        cause: why, by exclusion.
        sentence: the verdict in words; "" without a victim.
    """

    jain: float
    rates_bytes_per_s: Mapping[int, float]
    victim: int = -1
    cause: Cause = ""
    sentence: str = ""


def fair_rates(
    share_bytes_per_s: float, weights: Sequence[float], wants_bytes_per_s: Sequence[float]
) -> tuple[float, ...]:
    """Max-min by weight: nobody gets more than it wants, and what it leaves goes to the others.

    Args:
        share_bytes_per_s: of all together.
        weights: by reader, above 0.
        wants_bytes_per_s: most that each can use; may be infinite.
    """
    if not all(weight > 0 for weight in weights):
        raise InputError(f"weights {tuple(weights)}", "give each reader a weight above 0")
    rates, left, rest = [0.0] * len(weights), share_bytes_per_s, set(range(len(weights)))
    while rest:
        level = left / sum(weights[i] for i in rest)
        content = {i for i in rest if wants_bytes_per_s[i] <= level * weights[i]}
        for i in content or rest:
            rates[i] = wants_bytes_per_s[i] if content else level * weights[i]
            left -= rates[i]
        rest -= content or set(rest)
    return tuple(rates)


@dataclass(frozen=True)
class FairnessRules:
    """When the judge acts.

    Attributes:
        act_below: rates are set below this index.
        verdict_below: a victim is named below this one ...
        verdict_windows: ... seen so often in a row.
        headroom: rates add up to so much more than what arrives, to find a share that has grown.
        estimate_s: the share is what arrived at most in so long.
        silent_s: a rank counts no longer when it has said nothing for so long.
        lift_s: and then, when reports stop, rates are lifted by ranks themselves.
        wanting: a rank whose reader wanted more for less than this part of the time is content.
    """

    act_below: float = 0.99
    verdict_below: float = 0.9
    verdict_windows: int = 3
    headroom: float = 1.01
    estimate_s: float = 5.0
    silent_s: float = 3.0
    lift_s: float = 10.0
    wanting: float = 0.5


class FairnessJudge:
    """Takes the ranks' reports once a second, and says what each may take.

    Args:
        rules: when to act.
    """

    def __init__(self, rules: FairnessRules | None = None) -> None:
        self.rules = rules or FairnessRules()
        self._reports: dict[int, InputReport] = {}
        self._sums: deque[tuple[float, float]] = deque()
        self._unfair = 0
        self._acting_since_s = math.inf

    def take(self, report: InputReport) -> None:
        """The newest report of a rank."""
        self._reports[report.rank] = report

    def observe(self, now_s: float) -> InputVerdict:
        """Judge the reports that are fresh."""
        fresh = [r for _, r in sorted(self._reports.items()) if now_s - r.at_s <= self.rules.silent_s]
        wanting = [r for r in fresh if r.wanted >= self.rules.wanting]
        if len(wanting) < 2:
            self._calm()
            return InputVerdict(1.0, {})
        share = self._share(now_s, sum(r.delivered_bytes_per_s for r in fresh))
        jain = jain_index([r.delivered_bytes_per_s / r.weight for r in wanting])
        if jain < self.rules.act_below:
            self._acting_since_s = min(self._acting_since_s, now_s)
        self._unfair = self._unfair + 1 if jain < self.rules.verdict_below else 0
        rates = self._rates(now_s, fresh, share) if self._acting_since_s <= now_s else {}
        if self._unfair < self.rules.verdict_windows:
            return InputVerdict(jain, rates)
        return InputVerdict(jain, rates, *_blame(wanting))

    def _calm(self) -> None:
        self._sums.clear()
        self._unfair, self._acting_since_s = 0, math.inf

    def _share(self, now_s: float, together: float) -> float:
        self._sums.append((now_s, together))
        while self._sums[0][0] < now_s - self.rules.estimate_s:
            self._sums.popleft()
        return max(amount for _, amount in self._sums)

    def _rates(self, now_s: float, fresh: Sequence[InputReport], share: float) -> dict[int, float]:
        """Content ranks keep what they take; one that cannot use its part after a while leaves the rest."""
        settled = now_s - self._acting_since_s > 2 * self.rules.silent_s
        whole = share * self.rules.headroom
        even = whole / sum(r.weight for r in fresh)
        wants = []
        for report in fresh:
            content = report.wanted < self.rules.wanting
            short = settled and report.delivered_bytes_per_s < 0.8 * even * report.weight
            wants.append(1.1 * report.delivered_bytes_per_s if content or short else math.inf)
        rates = fair_rates(whole, [r.weight for r in fresh], wants)
        return {
            r.rank: max(rate, 0.05 * even * r.weight) for r, rate in zip(fresh, rates, strict=True)
        }  # one that becomes hungry again is heard


def _blame(wanting: Sequence[InputReport]) -> tuple[int, Cause, str]:
    """The rank with least for its weight, and why, by exclusion."""
    victim = min(wanting, key=lambda r: r.delivered_bytes_per_s / r.weight)
    others = [r for r in wanting if r is not victim]
    cause = _cause(victim, others)
    most = max(others, key=lambda r: r.delivered_bytes_per_s / r.weight)
    told = {
        "connections": f"it has {victim.connections} connections, rank {most.rank} has {most.connections}",
        "store": f"its first byte takes {1e3 * victim.first_byte_s:.0f} ms, rank {most.rank}'s "
        f"{1e3 * most.first_byte_s:.0f} ms: the store, or the prefix it reads",
        "host": "its streams are slow where others' are not: its network card or processor",
        "disk": "it reads its own disk, and the others do not wait for theirs",
        "": "the reports do not say why",
    }[cause]
    return (
        victim.rank,
        cause,
        f"rank {victim.rank} gets {victim.delivered_bytes_per_s / 1e6:.1f} MB/s and rank {most.rank} "
        f"{most.delivered_bytes_per_s / 1e6:.1f} MB/s: {told}",
    )


def _cause(victim: InputReport, others: Sequence[InputReport]) -> Cause:
    if victim.local:
        return "disk"
    first_s = sorted(r.first_byte_s for r in others)[len(others) // 2]
    stream = sorted(r.stream_bytes_per_s for r in others)[len(others) // 2]
    if victim.first_byte_s > 2 * first_s > 0:
        return "store"
    if max(r.connections for r in others) >= 1.5 * victim.connections:
        return "connections"
    if 0 < victim.stream_bytes_per_s < 0.6 * stream:
        return "host"
    return ""
