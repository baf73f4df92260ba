"""Hosts that belong to one owner, and hosts that are lent to another for a while."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hemiola.core.job import Job, Service

__all__ = ["INFERENCE", "TRAINING", "Loan", "VirtualCluster", "cluster_of"]

TRAINING, INFERENCE = "training", "inference"
"""Where jobs and services belong that name no virtual cluster."""


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


def cluster_of(job: Job, names: Iterable[str]) -> str:
    """The virtual cluster that a job belongs to: its `queue`, where one is called so, else the one for its kind."""
    if job.queue in names:
        return job.queue
    return INFERENCE if isinstance(job, Service) else TRAINING
