"""Synchronisation schemes as values, and the one rule by which servers let workers go on. Pure.

A worker begins its iteration t once every parameter that it reads holds its own first t - `own_lag` updates
and everybody's first t - `ahead`. With `ahead` = 0 that is BSP, with infinity ASP, between them SSP: as Ho et al.
(NIPS 2013, section 3) bound staleness. With `own_lag` = 1 a worker does not even wait for its own last update,
which gives up their read-my-writes and leaves what Li et al. (OSDI 2014, section 3.4) call bounded delay.

Where all workers meet, all have everybody's updates, however many each has made: from there on everybody's are counted
anew.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from hemiola.core.errors import InputError

__all__ = ["SCHEMES", "Clocks", "Scheme", "scheme_of"]

SCHEMES = ("bsp", "ssp", "asp", "local")


@dataclass(frozen=True)
class Scheme:
    """How far workers may be apart.

    Attributes:
        name: one of `SCHEMES`.
        ahead: iterations (exchanges under "local") that a worker may be ahead of the slowest; infinity for any.
        own_lag: how many of its own newest updates may be on their way when it begins an iteration.
        period: optimizer steps between two exchanges; 0 where every step exchanges gradients.
    """

    name: str
    ahead: float = 0.0
    own_lag: int = 0
    period: int = 0

    @property
    def together(self) -> bool:
        """Whether a server waits for all before it changes anything."""
        return self.name in ("bsp", "local")

    def needs(self, iteration: int, met: int = 0) -> tuple[int, int]:
        """Updates that parameters have to hold before this iteration begins: of one's own, of everybody's.

        Args:
            met: iterations of this worker that were before all met; everybody's updates count from there.
        """
        floor = 0 if math.isinf(self.ahead) else iteration - met - int(self.ahead)
        return max(iteration - self.own_lag, 0), max(floor, 0)


def scheme_of(name: str, bound: int | None, period: int | None, pipelined: bool = False) -> Scheme:
    """The scheme that a user names.

    Args:
        bound: for "ssp" only, 0 or more.
        period: for "local" only, 1 or more.
        pipelined: for "ssp" and "asp" only: begin an iteration while one's own last update is on its way.

    Raises:
        InputError: an unknown scheme; a parameter missing, senseless, or of another scheme.
    """
    if name not in SCHEMES:
        raise InputError(f"the scheme {name!r}", f"there are {', '.join(SCHEMES)}")
    for word, value, owner, least in (("bound", bound, "ssp", 0), ("period", period, "local", 1)):
        if (value is None) == (name == owner):
            problem = f"the scheme {name!r} {'without' if value is None else 'with'} a {word}"
            raise InputError(
                problem, f"give {word}=... with {owner!r}" if value is None else f"leave {word} out"
            )
        if value is not None and value < least:
            raise InputError(f"{word} is {value}", f"give {least} or more")
    ahead = {"bsp": 0.0, "ssp": float(bound or 0), "asp": math.inf, "local": 0.0}[name]
    if pipelined and not ahead:
        raise InputError(f"{name!r} lets nobody be ahead and cannot be pipelined", "leave pipelined out")
    return Scheme(name, ahead, int(pipelined), period or 0)


@dataclass(frozen=True)
class PullRequest:
    """A worker's wish for a parcel.

    Attributes:
        own, floor: updates that it has to hold at least: the worker's, everybody's since all met.
        meeting: if above 0, it is answered once all have asked with that number, to all alike.
    """

    own: int
    floor: int
    meeting: int = 0


@dataclass
class Clocks:
    """Of one parcel at its server: how many updates of each worker it holds, and who waits for more.

    Attributes:
        present: workers that have not said goodbye; shared by all parcels of a server.
        applied: by worker.
        met: so many of them when all met last, by worker.
    """

    present: Collection[int]
    applied: list[int]
    waiting: dict[int, PullRequest] = field(default_factory=dict)
    met: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.met = [0] * len(self.applied)

    @property
    def floor(self) -> int:
        """What it holds of everybody who is present, since all met; who waits to meet the others holds nobody up."""
        since = [applied - met for applied, met in zip(self.applied, self.met, strict=True)]
        waits = {w for w, wish in self.waiting.items() if wish.meeting}
        counted = [w for w in self.present if w not in waits] or self.present
        return min((since[w] for w in counted), default=max(since))

    def answerable(self) -> list[int]:
        """The workers whose requests can be answered as it stands; they wait no longer."""
        floor = self.floor
        found = [
            w for w, wish in self.waiting.items()
            if self.applied[w] >= wish.own and (self._all_met(wish.meeting) if wish.meeting else floor >= wish.floor)
        ]  # fmt: skip
        if any(self.waiting[w].meeting for w in found):
            self.met = list(self.applied)
        for w in found:
            del self.waiting[w]
        return found

    def _all_met(self, meeting: int) -> bool:
        wishes = [(w, self.waiting.get(w)) for w in self.present]
        return all(wish and wish.meeting == meeting and self.applied[w] >= wish.own for w, wish in wishes)
