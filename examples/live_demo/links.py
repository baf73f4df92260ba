"""What the racks' uplinks carry, by the kernel's own counters."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Self

from hemiola.lab import state
from hemiola.lab.namespaces import enter
from hemiola.lab.slurm import SlurmLab

__all__ = ["Sample", "Uplinks", "uplink_bytes"]

Sample = tuple[float, tuple[int, ...]]
"""Unix time, and the bytes that each rack's uplink has sent out of the rack by then."""
EVERY_S = 0.5
COUNTERS = Path("/proc/thread-self/net/dev")


class Uplinks:
    """Reads the counters every half second while the block lasts, in a thread that enters the switch's namespace.

    Attributes:
        samples: so far.
    """

    def __init__(self, lab: SlurmLab, racks: int) -> None:
        self._namespace = state.load(lab.spec.lab_name).switch
        self._racks = racks
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.samples: list[Sample] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        enter(self._namespace).close()
        while not self._over.wait(EVERY_S):
            self.samples.append((time.time(), uplink_bytes(COUNTERS.read_text(), self._racks)))


def uplink_bytes(text: str, racks: int) -> tuple[int, ...]:
    """Bytes sent by up0, up1, ... of a table as in /proc/net/dev."""
    sent = {
        name: int(numbers.split()[8]) for name, numbers in re.findall(r"^\s*(\S+):(.*)$", text, re.MULTILINE)
    }
    return tuple(sent[f"up{rack}"] for rack in range(racks))
