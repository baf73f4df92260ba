"""What accelerating a training job has brought so far, as `hemiola.accelerate` states it and `hemiola run` shows it."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["SCHEMA", "Acceleration", "State"]

SCHEMA = "hemiola.acceleration/1"

State = Literal["off", "profiling", "on", "reverted"]


class Acceleration(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job's acceleration stands; times are seconds per iteration, None where they are not known (yet).

    Attributes:
        state: "off": under DistributedDataParallel, perhaps in other buckets; "profiling": so far only measured;
            "on": by the plan; "reverted": the plan did not gain what it should, and the job runs under
            DistributedDataParallel again.
        iterations: so many have been run.
        before_s: measured, as DistributedDataParallel.
        predicted_before_s: predicted, as DistributedDataParallel.
        predicted_s: predicted, by the plan or in other buckets.
        bound_s: no order of the same work takes less.
        measured_s: median iteration by the plan: the slowest rank's when it was judged, the first rank's latest since.
        exposed_before_s: of `before_s`, how long ranks waited for communication.
        exposed_s: the same of `measured_s`, on the first rank.
        words: all of that in one sentence.
    """

    state: State
    iterations: int
    before_s: float | None = None
    predicted_before_s: float | None = None
    predicted_s: float | None = None
    bound_s: float | None = None
    measured_s: float | None = None
    exposed_before_s: float | None = None
    exposed_s: float | None = None
    words: str = ""
