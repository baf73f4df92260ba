"""How long to wait before something is given up: limits that grow with how slow this machine is right now.

A limit is there so that a fault ends a test, and never so that a busy machine does. What takes `seconds` on a quiet
machine is therefore given several times as long where the same small work takes several times as long.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from collections.abc import Callable

TRUE = shutil.which("true") or "/bin/true"  # found before a test takes the path away
QUIET_S = 0.03
"""What `_small_work` takes on a quiet machine."""
LASTS_S = 5.0
"""A measurement is taken anew after this long."""
_measured: list[tuple[float, float]] = []


def slowness() -> float:
    """How many times as long as on a quiet machine things take, lately and at least; never below 1."""
    now_s = time.monotonic()
    if not _measured or now_s - _measured[-1][0] > LASTS_S:
        _measured[:] = [*_measured[-3:], (time.monotonic(), _small_work() / QUIET_S)]
    return max(1.0, *(factor for _, factor in _measured))


def slowly(seconds: float) -> float:
    """So many seconds of a quiet machine, on this one as it is now: for times that a test sets and has to bear."""
    return math.ceil(10 * seconds * slowness()) / 10


def patience(seconds: float) -> float:
    """After how long something that takes at most so long on a quiet machine is given up: no test should come near."""
    return 3 * slowly(seconds)


def until(met: Callable[[], object], what: str = "it", limit_s: float = 40.0, every_s: float = 0.02) -> None:
    """Wait for it; before it is given up, the machine is asked how slow it has become meanwhile."""
    begun_s = time.monotonic()
    while not met():
        waited_s = time.monotonic() - begun_s
        assert waited_s < limit_s or waited_s < patience(limit_s), f"never: {what}"
        time.sleep(every_s)


def _small_work() -> float:
    """Seconds for some arithmetic, and for a process that has to be started and heard of."""
    begun_s = time.monotonic()
    sum(range(1_000_000))
    subprocess.run([TRUE], check=True)
    return time.monotonic() - begun_s
