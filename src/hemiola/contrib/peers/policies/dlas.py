"""Four ladders of attained service: Tiresias's simulator has two, Muri's and Pollux's one each."""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass

from hemiola.core.topology import Topology
from hemiola.sched.placement import Rule
from hemiola.contrib.peers.policies.ladder import Ladder
from hemiola.contrib.peers.policies.placing import Emptiest, scheme
from hemiola.contrib.peers.policies.policy import PeerPolicy

__all__ = ["Dlas", "DlasGpu", "MuriTiresias", "PolluxTiresias"]

TIRESIAS_LIMITS = (3250.0, 7200.0)
POLLUX_LIMITS = (16 * 3600.0,)


@dataclass(frozen=True)
class CountedLadder(PeerPolicy, Ladder, ABC):
    """A ladder that takes a placement scheme and ignores it: the peers choose no hosts here."""

    limits = TIRESIAS_LIMITS

    def rule_for(self) -> Rule:
        return scheme("count")

    def largest(self, topology: Topology) -> int:
        return topology.gpus

    def card(self) -> dict[str, str]:
        return {**Ladder.card(self), "placement": "by number of GPUs only, whatever `placement` says"}


@dataclass(frozen=True)
class Dlas(CountedLadder):
    """Attained service in seconds."""

    name = "dlas"
    source = "Tiresias's simulator, --schedule dlas"
    gpu_time = False

    def next_step_s(self, gpus: int, limit: float, attained_s: float, now: float) -> float:
        return limit - attained_s + now


@dataclass(frozen=True)
class DlasGpu(CountedLadder):
    """Attained service in GPU-seconds.

    The peer subtracts seconds from GPU-seconds when it sets its timer, so it looks late; the step
    down then happens at whichever instant first sees the limit reached.
    """

    name = "dlas-gpu"
    source = "Tiresias's simulator, --schedule dlas-gpu"

    def next_step_s(self, gpus: int, limit: float, attained_s: float, now: float) -> float:
        return math.ceil((limit - attained_s) / gpus) + now


@dataclass(frozen=True)
class MuriTiresias(CountedLadder):
    """Muri's Tiresias-L: attained service in GPU-seconds, the timer at the crossing, rounded up."""

    name = "tiresias"
    source = "Muri's simulator (SIGCOMM'22), --schedule dlas-gpu"

    def next_step_s(self, gpus: int, limit: float, attained_s: float, now: float) -> float:
        return max(math.ceil(limit / gpus) - attained_s + now, math.nextafter(now, math.inf))


@dataclass(frozen=True)
class PolluxTiresias(Ladder):
    """Tiresias as Pollux's simulator has it: two queues cut at 16 GPU-hours, in order of entry."""

    name = "tiresias"
    source = "Pollux's simulator (OSDI'21), policy tiresias"
    limits = POLLUX_LIMITS
    running_first = False

    def rule_for(self) -> Rule:
        return Emptiest()

    def card(self) -> dict[str, str]:
        return {**super().card(), "placement": f"{Emptiest.name}: {Emptiest.says}"}
