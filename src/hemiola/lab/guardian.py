"""A small process that outlives its owner for a moment, and then clears up what that left.

`python -m hemiola.lab.guardian HANDLE package.module:FUNCTION ARGUMENT...` calls the function with these words once the
process behind the handle (a pidfd it inherits) has ended. It imports nothing of what it clears up before. It waits without
work and with little memory, and is in a session of its own, where no Ctrl-C reaches it.
"""

from __future__ import annotations

import importlib
import os
import select
import subprocess
import sys
from pathlib import Path

__all__ = ["Guardian"]


class Guardian:
    """The handle that the owner keeps; `dismiss` it when the owner has cleared up itself."""

    def __init__(self, clear_up: str, *words: str) -> None:
        """Start it.

        Args:
            clear_up: what is called, "package.module:function".
            words: with what.
        """
        package = str(Path(__file__).resolve().parents[2])
        handle = os.pidfd_open(os.getpid())
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hemiola.lab.guardian", str(handle), clear_up, *words],
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


def _clear_up(function: str, *words: str) -> None:
    module, _, name = function.partition(":")
    getattr(importlib.import_module(module), name)(*words)


if __name__ == "__main__":
    _wait_for_end_of(int(sys.argv[1]))
    _clear_up(*sys.argv[2:])
