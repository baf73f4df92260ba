"""What carries a plan's transfers, as the engine sees it: messages of one's own, or collectives of a process group."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

__all__ = ["Carrier", "RowCarrier", "RowTicket", "Ticket"]


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


class RowTicket(Ticket, Protocol):
    """A transfer of a table's rows; once it has ended well:

    Attributes:
        rows: which were reduced, of whole numbers; None for all, which lie in the table itself.
        values: (rows, width), reduced; until the next transfer of the same number.
        present: whether any rank had a gradient for the table.
    """

    rows: Tensor | None
    values: Tensor | None
    present: bool


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


class RowCarrier(Carrier, Protocol):
    """One that can send a part of a table too."""

    def reduce_rows(
        self,
        number: int,
        name: str,
        table: Tensor,
        touched: Tensor,
        present: bool,
        others: bool = False,
        priority: int = 0,
        algorithm: str = "",
        factor: float = 1.0,
    ) -> RowTicket:
        """Begin to add up everybody's rows that anybody has touched, or all others.

        Args:
            table: (rows, width), without gaps; as `flat` of `all_reduce`.
            touched: (rows,) of booleans: this rank's.
            present: whether this rank has a gradient for the table at all.
            others: those that nobody has touched instead.
            number, name, priority, algorithm, factor: as `all_reduce` takes them.
        """
