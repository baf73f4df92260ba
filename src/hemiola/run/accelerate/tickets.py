"""What carries a plan's transfers, as the engine sees it: messages of one's own, or collectives of a process group."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

__all__ = ["Carrier", "Ticket"]


class Ticket(Protocol):
    """A transfer under way.

    Attributes:
        begun_s: when, by the monotonic clock.
    """

    begun_s: float

    @property
    def done(self) -> bool:
        """Whether it is reduced, or has failed."""

    @property
    def sent(self) -> bool:
        """Whether this rank's memory may be written again."""

    @property
    def moved_s(self) -> tuple[float, float]:
        """When its first byte went and its last one came, by the monotonic clock."""

    def wait(self, timeout_s: float) -> None:
        """Until it is reduced; raises what went wrong."""

    def soon(self, timeout_s: float) -> bool:
        """Whether it is done, after at most so long."""

    def wait_sent(self) -> None:
        """Until this rank's memory may be written again."""

    def sent_soon(self, until_s: float) -> None:
        """The same, or until this moment of the monotonic clock; raises nothing."""


class Carrier(Protocol):
    """All-reduces of many tensors at once.

    Attributes:
        skips: whether a transfer may be left out of an iteration, on all ranks.
        is_seen: whether a recording sees the transfers by itself.
    """

    skips: bool
    is_seen: bool

    def all_reduce(
        self,
        number: int,
        name: str,
        flat: Tensor,
        priority: int = 0,
        algorithm: str = "",
        factor: float = 1.0,
    ) -> Ticket:
        """Begin to add up everybody's tensor, in its place.

        Args:
            number: of the transfer, the same on all ranks; one at a time.
            name: for what goes wrong.
            flat: of one dimension, without gaps; not to be touched until the ticket is done and sent.
            priority: the lowest goes first.
            algorithm: one of `core.plan.ALGORITHMS`.
            factor: by which this rank's own is multiplied before.
        """

    def share(self, buffers: list[Tensor]) -> None:
        """Rank 0's buffers, everywhere; called by all ranks."""
