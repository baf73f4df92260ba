"""What carries a plan's transfers, as the engine sees it: messages of one's own, or collectives of a process group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

__all__ = ["Carrier", "RowCarrier", "RowTransfer", "TransferHandle"]


class TransferHandle(Protocol):
    """A transfer under way.

    Attributes:
        stood_s: how long the engine has stood still for it.
    """

    stood_s: float

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
        """Until it is reduced, or was stood still for so long in all; raises what went wrong."""

    def soon(self, timeout_s: float) -> bool:
        """Whether it is done, after at most so long."""

    def wait_sent(self) -> None:
        """Until this rank's memory may be written again."""

    def sent_soon(self, until_s: float) -> None:
        """The same, or until this moment of the monotonic clock; raises nothing."""


class RowNames(Protocol):
    """Which rows of a table ranks have named, or will have."""


class RowTransfer(TransferHandle, Protocol):
    """A transfer of a table's rows; once it has ended well:

    Attributes:
        parts: rows, as whole numbers, and what was reduced of them, (rows, width), until the next transfer of the same
            number; those of a later part once more.
        whole: whether all of the table was, in its place.
        present: whether any rank had a gradient for the table.
    """

    parts: list[tuple[Tensor, Tensor]]
    whole: bool
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
    ) -> TransferHandle:
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

    def name_rows(self, number: int, named: Sequence[Tensor], priority: int = 0) -> Sequence[RowNames]:
        """Tell the others of rows that this rank will have, before it has them; all ranks do, once for their next transfers.

        Args:
            number, priority: of the first of the tables' transfers.
            named: (rows,) of booleans, by table.
        """

    def reduce_rows(
        self,
        number: int,
        name: str,
        table: Tensor,
        names: RowNames | None,
        priority: int = 0,
        algorithm: str = "",
        factor: float = 1.0,
        others: bool = False,
    ) -> RowTransfer:
        """Begin to add up everybody's rows that anybody has named before, or all others.

        Args:
            table: (rows, width), without gaps; as `flat` of `all_reduce`.
            names: the rows; None if nobody has named any.
            others: all but these instead; else the transfer ends by `end_rows`.
            number, name, priority, algorithm, factor: as `all_reduce` takes them.
        """

    def end_rows(
        self, number: int, tickets: Sequence[Any], touched: Sequence[Tensor], present: Sequence[bool], priority: int = 0,
    ) -> None:  # fmt: skip
        """Add up those too that anybody has touched beside, and end these transfers.

        Args:
            number, priority: of the first of the transfers.
            tickets: all of them, of tables.
            touched: (rows,) of booleans, by table: this rank's.
            present: whether this rank has a gradient for the table at all.
        """
