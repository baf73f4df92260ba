"""`hemiola serve` as a child that can be killed and stopped: forked from this process, which has imported everything.

A campaign starts thousands of them; a new Python would spend half a second of each on imports.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sqlalchemy.dialects.sqlite  # noqa: F401 - so that no child has to
from patience import patience

import hemiola.live.journal.replay  # noqa: F401
from hemiola.cli.serve import serve
from hemiola.live import leadership, service
from hemiola.trace.topologies import read  # noqa: F401

PR_SET_PDEATHSIG = 1


class Daemon:
    """One instance.

    Args:
        said: the file to which it writes what it says.
        environ: variables over this process's: where Slurm is, and where to die.
        lease_s: another length of the lease, renewed five times within it.
        clock: a file with the seconds by which its wall clock is off, looked at whenever that is.
        elsewhere: cannot see whether the leader's process is gone, as if it were on another host.
        options: of `hemiola serve`, beside the engine.

    Attributes:
        status: how it ended, as `subprocess` has it; None while it runs.
    """

    def __init__(
        self, said: Path, environ: Mapping[str, str], *, lease_s: float | None = None, clock: Path | None = None,
        elsewhere: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        self.said = said
        self.status: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if lease_s is not None:
                leadership.LEASE_S = service.LEASE_S = lease_s
                leadership.RENEW_S = lease_s / 5
            if clock is not None:
                _set_clock(clock)
            if elsewhere:
                service.is_gone = lambda holder: False
            self._live(environ, options)

    def _live(self, environ: Mapping[str, str], options: dict[str, Any]) -> None:
        status = 1
        try:
            gc.freeze()  # what was imported before the fork stays shared
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            output = os.open(self.said, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout = os.fdopen(1, "w", closefd=False)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            os.environ.update(environ)
            serve(engine="slurm", **options)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is None

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.runs:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self.signal(signal.SIGKILL)
        self.wait(10.0)

    def end(self, limit_s: float = 30.0) -> int | None:
        """Ask it to end, and wait; None if it does not."""
        self.signal(signal.SIGTERM)
        return self.wait(limit_s)

    def wait(self, limit_s: float) -> int | None:
        """Until it has ended."""
        end_s = time.monotonic() + patience(limit_s)
        while self.runs and time.monotonic() < end_s:
            time.sleep(0.005)
        return self.status


def _set_clock(file: Path) -> None:
    right = time.time
    time.time = lambda: right() + float(file.read_text())
