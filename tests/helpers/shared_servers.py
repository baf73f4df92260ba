"""What the workers of a test run share: a folder, in which the first that needs a server starts it for all."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "TEST_RUN_FOLDER"


def shared_folder() -> Path:
    """One for all workers: the variable is set before they are started, and inherited."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = tempfile.mkdtemp(prefix="hemiola-tests-")
    return Path(os.environ[VARIABLE])


@contextmanager
def alone(name: str) -> Iterator[None]:
    """No other worker is in a block of this name."""
    with (shared_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
