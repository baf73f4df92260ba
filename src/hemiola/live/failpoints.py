"""Places at which a test has the process die: before and after every durable write and every call of an engine.

`HEMIOLA_FAILPOINT=12` kills the process (SIGKILL: nothing is tidied up) at the twelfth place that it comes to,
`HEMIOLA_FAILPOINT=journal.decisions.after:2` when it comes to this one for the second time
(with `HEMIOLA_FAILPOINT_SIGNAL=STOP` it is stopped there instead, until somebody sends it SIGCONT);
`HEMIOLA_FAILPOINT_LOG=FILE` writes down the places as they are passed, to know how many there are.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path

__all__ = ["failpoint"]

_PASSED: Counter[str] = Counter()
_LOCK = threading.Lock()


def failpoint(name: str) -> None:
    """The process may die here, and whatever is there must be enough to go on."""
    fatal, log = os.environ.get("HEMIOLA_FAILPOINT"), os.environ.get("HEMIOLA_FAILPOINT_LOG")
    if not (fatal or log):
        return
    with _LOCK:
        _PASSED[name] += 1
        number = str(_PASSED.total())
        if log:
            with Path(log).open("a") as stream:
                stream.write(f"{number} {name}\n")
        if fatal in (number, f"{name}:{_PASSED[name]}"):
            os.kill(os.getpid(), signal.Signals["SIG" + os.environ.get("HEMIOLA_FAILPOINT_SIGNAL", "KILL")])
