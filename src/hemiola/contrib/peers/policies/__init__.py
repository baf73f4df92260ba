"""What four published simulators and clusters do, policy by policy: each only under its own semantics.

They stand apart from Hemiola's policies of the same names, because a peer's answer depends on how
it breaks ties, when it looks, and what its placement refuses. See docs/reference/semantics.md.
"""

from __future__ import annotations

from hemiola.contrib.peers.policies.ladder import Dlas, DlasGpu, MuriTiresias, PolluxTiresias
from hemiola.contrib.peers.policies.repack import (
    Fjf,
    PeerSjf,
    PeerSrsf,
    PeerSrtf,
    Shortest,
    ShortestGpu,
    TiresiasFifo,
)
from hemiola.contrib.peers.policies.shockwave import PeerFinishTimeFairness, PeerMaxMin, PeerThroughput
from hemiola.sched.policy import Policy

__all__ = ["MURI_SIM", "POLLUX_SIM", "SHOCKWAVE_SIM", "TIRESIAS_SIM"]

TIRESIAS_SIM: dict[str, type[Policy]] = {
    policy.name: policy for policy in (TiresiasFifo, Fjf, PeerSjf, Shortest, ShortestGpu, Dlas, DlasGpu)
}
MURI_SIM: dict[str, type[Policy]] = {
    "srtf": PeerSrtf,
    "srsf": PeerSrsf,
    "tiresias": MuriTiresias,
    "tiresias-l": MuriTiresias,
}
POLLUX_SIM: dict[str, type[Policy]] = {"tiresias": PolluxTiresias}
SHOCKWAVE_SIM: dict[str, type[Policy]] = {
    policy.name: policy for policy in (PeerMaxMin, PeerFinishTimeFairness, PeerThroughput)
}
