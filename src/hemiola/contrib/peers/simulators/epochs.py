"""One job of Pollux's simulator: iterations by epoch, worked off round by round."""

from __future__ import annotations

import math

from hemiola.contrib.peers.simulators.pollux_facts import epoch_iterations, iteration_s
from hemiola.contrib.peers.simulators.task import PeerTask
from hemiola.core.decisions import Placement
from hemiola.core.job import Job

__all__ = ["RESTART_S", "ROUND_S", "Epochs"]

ROUND_S = 60.0
RESTART_S = 30.0


class Epochs(PeerTask):
    """Work is iterations by epoch, at a speed that the placement sets.

    Attributes:
        done_s: when its last epoch ended; None before.
    """

    def __init__(self, job: Job, index: int, tiers: int) -> None:
        super().__init__(job, index, tiers)
        self.batch_size = int(job.facts["batch_size"])
        self.epochs = epoch_iterations(job.model, self.batch_size, job.gpus)
        self.epoch = 0
        self.left = self.epochs[0]
        self.hold_s = 0.0
        self.step_s = 0.0
        self.ran_s = 0.0
        self.done_s: float | None = None

    def begin(self, placement: Placement, tier: int, now: float) -> None:
        """It gets GPUs, and restarts."""
        super().begin(placement, tier, now)
        self.hold_s = RESTART_S
        self.resume_s = now + RESTART_S
        per_host = tuple(mask.bit_count() for mask in placement.masks)
        self.step_s = iteration_s(self.job.model, self.batch_size, per_host)

    def advance(self, now: float) -> None:
        """Work through the round that begins now."""
        self.ran_s += ROUND_S
        left_s = self._restart(ROUND_S)
        now += ROUND_S - left_s
        while left_s > 0:
            epoch_s = self.left * self.step_s
            if left_s < epoch_s:
                self.left -= left_s / self.step_s
                return
            whole_s = float(round(epoch_s))
            now, left_s = now + whole_s, left_s - whole_s
            self.epoch += 1
            if self.epoch == len(self.epochs):
                self.done_s = now
                return
            self.left = self.epochs[self.epoch]

    def _restart(self, round_s: float) -> float:
        """Sit out what is left of the restart; what then is left of the round."""
        held_s = min(self.hold_s, round_s)
        self.hold_s -= held_s
        self.checkpoint_s += held_s
        return round_s - held_s

    def attained_s(self, now: float) -> float:
        """Seconds in which it held GPUs, restarts included."""
        return self.ran_s

    def remaining_s(self, now: float) -> float:
        """Seconds of work left where it runs; infinity where it does not."""
        if self.placement is None:
            return math.inf
        return (self.left + sum(self.epochs[self.epoch + 1 :])) * self.step_s
