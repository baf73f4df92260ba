"""What fitted trees put on the links between some hosts, without building them: a water level, and how it is shared out.

Where all-reduces go by strategies, an iteration's traffic on a link is no longer a ring's. The least time in which any
mix of trees is done, and what each link then carries, follow from rates alone (`strategy_bounds`); strategies that are
built come close to it where messages are large. The ring is kept where it is less than a tenth slower. Nothing here
knows how many bytes there are, or latencies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hemiola.cost.collective.bounds import Domain, least_time

__all__ = ["KEEP_RING", "HostLinks", "fitted_loads"]

KEEP_RING = 0.10
"""What others have to gain over the ring to be taken instead, wherever strategies are chosen."""


@dataclass(frozen=True)
class HostLinks:
    """The links between a job's hosts. As a value: placements that look alike have equal ones.

    Attributes:
        nics: bytes/s of each host.
        domains: of every level that the job spans, narrow to wide, each host's domain, numbered by first appearance.
        uplinks: of every such level, bytes/s of its domains.
    """

    nics: tuple[float, ...]
    domains: tuple[tuple[int, ...], ...] = ()
    uplinks: tuple[tuple[float, ...], ...] = ()

    @property
    def narrowest(self) -> float:
        """Bytes/s of the slowest of all."""
        return min(*self.nics, *(rate for level in self.uplinks for rate in level))


def fitted_loads(links: HostLinks, gpus: int) -> tuple[float, ...] | None:
    """What an all-reduce of one byte among so many GPUs on these hosts, two or more, puts on each link.

    Returns:
        Bytes per direction: of every host's NIC, then of the uplinks of each level. None where the ring, which puts
        2 (gpus - 1) / gpus on each, is kept.
    """
    ring_s = 2 * (gpus - 1) / gpus / links.narrowest
    most = ring_s / (1 + KEEP_RING)
    hosts = len(links.nics)
    if max(1 / links.narrowest, 2 * (hosts - 1) / sum(links.nics)) >= most:
        return None
    ordered, whole = _domains(links)
    time = least_time(whole)
    if time >= most:
        return None
    spare: dict[Domain, float] = {}
    _share_out(whole, -2.0, time, spare)
    return tuple(1 + abs(spare[domain] + 1) for domain in ordered)


def _domains(links: HostLinks) -> tuple[list[Domain], Domain]:
    """Of every link what is below it, in the links' order, and the whole."""
    below = [Domain((host,), rate) for host, rate in enumerate(links.nics)]
    ordered = list(below)
    of_host = below
    for numbers, rates in zip(links.domains, links.uplinks, strict=True):
        found = []
        for number, rate in enumerate(rates):
            inside = [host for host, its in enumerate(numbers) if its == number]
            found.append(Domain(tuple(inside), rate, tuple(dict.fromkeys(of_host[host] for host in inside))))
        of_host = [found[number] for number in numbers]
        ordered += found
    return ordered, Domain(tuple(range(len(below))), math.inf, tuple(dict.fromkeys(of_host)))


def _share_out(domain: Domain, own: float, time: float, spare: dict[Domain, float]) -> None:
    """Give every part its mean spare ends: each as far as the others from -1, with which it is crossed once, to its end."""
    spare[domain] = own
    if not domain.parts:
        return
    ranges = domain.parts_spare(time, own)
    centre = [min(max(-1.0, low), high) for low, high in ranges]
    ends = [high if own >= sum(centre) else low for low, high in ranges]
    room = sum(ends) - sum(centre)
    share = min(1.0, (own - sum(centre)) / room) if room else 0.0
    for part, near, far in zip(domain.parts, centre, ends, strict=True):
        _share_out(part, near + share * (far - near), time, spare)
