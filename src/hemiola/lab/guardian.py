"""A small process that outlives its owner for a moment, and then clears up what that left.

`python -m hemiola.lab.guardian HANDLE lab NAME ID` takes a lab down when the process behind the
handle (a pidfd it inherits) ends; `... HANDLE run ID` ends the processes of one run, and
`... HANDLE slurm FOLDER ID` takes a Slurm down. It waits without work and with little memory, and is
in a session of its own, where no Ctrl-C reaches it.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

__all__ = ["Guardian"]


class Guardian:
    """The handle that the owner keeps; `dismiss` it when the owner has cleared up itself."""

    def __init__(self, *task: str) -> None:
        """Start it: `task` is "lab", name and id, or "run" and id, or "slurm", folder and id."""
        package = str(Path(__file__).resolve().parents[2])
        handle = os.pidfd_open(os.getpid())
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hemiola.lab.guardian", str(handle), *task],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(handle,),
                start_new_session=True,
                cwd="/",
                env=os.environ | {"PYTHONPATH": _first(package, os.environ.get("PYTHONPATH", ""))},
            )
        finally:
            os.close(handle)

    def dismiss(self) -> None:
        """End it; nothing is cleared up."""
        self._process.kill()
        self._process.wait()


def _first(package: str, path: str) -> str:
    return os.pathsep.join(filter(None, (package, path)))


def _wait_for_end_of(handle: int) -> None:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll()


def _clear_up(kind: str, *which: str) -> None:
    if kind == "run":
        from hemiola.lab.namespaces import belonging, end_processes

        end_processes(belonging(which[0]), grace_s=1.0)
        return
    if kind == "slurm":
        from hemiola.lab.slurm.teardown import clear_up

        clear_up(*which)
        return
    from hemiola.lab.network import tear_down
    from hemiola.lab.state import load

    state = load(which[0])
    if state.id == which[1]:
        tear_down(state)


if __name__ == "__main__":
    _wait_for_end_of(int(sys.argv[1]))
    _clear_up(*sys.argv[2:])
