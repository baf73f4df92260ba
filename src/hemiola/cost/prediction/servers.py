"""What a push to a parameter server, or a pull from it, loads: all workers send to one host, or it to all of them.

Workers are alike and push a parameter together, so a push is one many-to-one transfer, as a collective is.
A worker on the server's own host uses no network, but shares with the others there what joins the GPUs of
that host; alone with its server it uses no link.
"""

from __future__ import annotations

import math

from hemiola.core.hardware import Hardware
from hemiola.cost.collective.library import Cost, Library, measurement
from hemiola.cost.places import RankPlaces
from hemiola.cost.parallelism import Transfer

__all__ = ["server_cost"]


def server_cost(transfer: Transfer, place: RankPlaces, library: Library, hardware: Hardware) -> Cost:
    """The bytes on every link for one parameter of all workers.

    Server s stands with rank s % ranks, as `hemiola.synchronise` places them.
    """
    home = place.host_of[transfer.server % place.ranks]
    push = transfer.collective == "push"
    variant = library.variants["send"][0]
    best = measurement(hardware, library, variant, "send", place)
    loads = []
    for i, link in enumerate(place.links):
        own = home in link.hosts
        if link.inner and not own:
            continue
        copies = place.ranks - link.inside if own and not link.inner else link.inside
        outgoing = push != own
        loads.append(
            (
                i if outgoing else i + len(place.links),
                copies * transfer.size_bytes / variant.data_share(place),
            )
        )
    step_s = variant.network_s if len(place.counts) > 1 else variant.local_s
    alpha_s = best.alpha_s if best else variant.start_s + step_s
    return Cost(
        algorithm="direct",
        latency_s=alpha_s + place.latency_s,
        loads=tuple(load for load in loads if load[1] > 0),
        sent_bytes=transfer.size_bytes,
        rate_max_bytes_per_s=best.bytes_per_s if best else math.inf,
        cpu_s=best.cpu_s_per_byte * transfer.size_bytes + best.cpu_s_per_step if best else 0.0,
        spread=best.spread if best else 0.0,
        latency_spread=best.alpha_spread if best else 0.0,
    )
