"""What requests wait in: the seam between a service's replicas and the two fidelities, and what both count."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable

import msgspec

from hemiola.core.events import Load
from hemiola.core.job import Service

__all__ = ["Counts", "RequestQueue"]


class Counts(msgspec.Struct):
    """Of one service's requests, so far.

    Attributes:
        arrived: all of them; always answered + refused + waiting.
        answered: of them, within the objective or not.
        refused: of them, after they had waited for too long.
        missed: answered too late, or refused.
        waiting: in the queue, or in hand.
        waited_s: of those answered, in sum, before a replica took them up.
    """

    arrived: float = 0.0
    answered: float = 0.0
    refused: float = 0.0
    missed: float = 0.0
    waiting: float = 0.0
    waited_s: float = 0.0

    @property
    def attainment(self) -> float:
        """Share of the requests that are done with, that were answered in time; 1 without any."""
        done = self.answered + self.refused
        return max(0.0, 1.0 - self.missed / done) if done > 0 else 1.0


class RequestQueue(ABC):
    """The requests of one service and the replicas that answer them.

    Attributes:
        counts: what became of the requests so far.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.counts = Counts()

    @abstractmethod
    def advance(self, to_s: float) -> None:
        """Let requests come and be answered until then."""

    @abstractmethod
    def join(self, replica: Hashable) -> None:
        """A replica takes requests from now on."""

    @abstractmethod
    def leave(self, replica: Hashable, *, lost: bool = False) -> float:
        """A replica takes no more requests.

        Args:
            lost: what it has in hand is lost with it, and waits again.

        Returns:
            When it has answered what it has in hand.
        """

    @abstractmethod
    def load(self, now: float) -> Load:
        """What the service had to do since the last call."""
