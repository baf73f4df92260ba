"""Hosts that belong to one owner, and hosts that are lent to another for a while."""

from __future__ import annotations

import msgspec

__all__ = ["Loan", "VirtualCluster"]


class VirtualCluster(msgspec.Struct, frozen=True):
    """A part of the cluster with jobs of its own.

    Attributes:
        hosts: host indices that belong to it; no host belongs to two.
    """

    name: str
    hosts: tuple[int, ...]


class Loan(msgspec.Struct, frozen=True, gc=False):
    """One host in other hands.

    Attributes:
        lender, borrower: names of virtual clusters.
        due_s: when it is to be back at the latest.
        recalled: whether the lender wants it back: it returns as soon as nothing runs there.
    """

    lender: str
    borrower: str
    since_s: float
    due_s: float
    recalled: bool = False
