"""What a peer's policies are told of a job's progress, to the last bit as the peer would count it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast

from hemiola.core.errors import PolicyError
from hemiola.sched.job_state import JobState
from hemiola.sched.view import ClusterView

__all__ = ["Progress", "progress_of"]


class Progress(Protocol):
    """Part of the estimates under a peer's semantics."""

    def remaining_s(self, job: JobState, now: float) -> float:
        """Seconds of work left, as the peer predicts them."""

    def attained_s(self, jobs: Iterable[JobState], now: float) -> list[float]:
        """Seconds in which each of them held GPUs."""


def progress_of(view: ClusterView, policy: str) -> Progress:
    """The progress of the view's jobs.

    Raises:
        PolicyError: under semantics that do not count as a peer does.
    """
    if not hasattr(view.estimates, "attained_s"):
        raise PolicyError(
            f"the policy {policy!r} of a peer's simulator runs only under that peer's semantics",
            "add --semantics tiresias-sim, muri-sim or pollux-sim",
        )
    return cast(Progress, view.estimates)
