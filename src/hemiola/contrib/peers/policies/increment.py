"""Tiresias's simulator, fifo and fjf: whoever runs is left alone, the rest start in order of arrival."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hemiola.core.decisions import Decision
from hemiola.sched.policies.fifo import ByArrival
from hemiola.contrib.peers.policies.policy import PeerPolicy
from hemiola.sched.policy import by_order
from hemiola.sched.view import ClusterView

__all__ = ["TiresiasFifo", "Fjf"]

ARRIVAL = ByArrival()


@dataclass(frozen=True)
class TiresiasFifo(PeerPolicy):
    """First in, first out: the first that does not fit holds everyone behind it."""

    name = "fifo"
    source = "Tiresias's simulator, --schedule fifo"

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        return by_order(view, ARRIVAL, self.rule, backfill=False)

    def card(self) -> dict[str, str]:
        return {"order": "arrival", "backfill": "none: the head of the queue blocks", "preemption": "none"}


@dataclass(frozen=True)
class Fjf(PeerPolicy):
    """First fit: in order of arrival, whoever fits."""

    name = "fjf"
    source = "Tiresias's simulator, --schedule fjf"

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        return by_order(view, ARRIVAL, self.rule)

    def card(self) -> dict[str, str]:
        return {"order": "arrival", "backfill": "whoever fits, no reservation", "preemption": "none"}
