"""Real iterations of a probe, phase by phase: what the sum of its operations is held against."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from hemiola.profiler.calibrate.probes import Probe

__all__ = ["Training"]


class Training:
    """A probe that is trained.

    Args:
        probe: it.
        threads: on a CPU: processor time counts with one thread, wall time with several.
    """

    def __init__(self, probe: Probe, threads: int) -> None:
        self._model = probe.model
        self._inputs = probe.inputs
        self._optimizer = probe.optimizer(probe.model.parameters())
        self._cuda = probe.inputs[0].is_cuda
        self._now: Callable[[], float] = (
            time.process_time if threads == 1 and not self._cuda else time.perf_counter
        )

    def run(self, iterations: int) -> NDArray[np.float64]:
        """Seconds by iteration: zeroing gradients, forward, backward, optimizer.

        On a GPU these are the host's, who does not wait for the device between phases.
        """
        rows = []
        for _ in range(iterations):
            if self._cuda:
                torch.cuda.synchronize()
            marks = [self._now()]
            self._optimizer.zero_grad()
            marks.append(self._now())
            loss = self._model(*self._inputs)
            marks.append(self._now())
            loss.backward()
            marks.append(self._now())
            self._optimizer.step()
            marks.append(self._now())
            rows.append(np.diff(marks))
        if self._cuda:
            torch.cuda.synchronize()
        return np.array(rows)
