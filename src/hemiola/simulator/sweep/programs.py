"""The program of a policy that is none of Hemiola's, as a digest: it can be edited while a sweep runs."""

from __future__ import annotations

import hashlib
import inspect
import sys
from pathlib import Path

from hemiola.sched.policy import Policy

__all__ = ["program_of"]

NOT_FROM_OUTSIDE = frozenset({"hemiola", "abc", *sys.builtin_module_names})
"""Packages whose classes are no program of a user's; what is built into Python has no file to read either."""


def program_of(policy: Policy) -> str | None:
    """Of the files in which its class and their bases stand now, whatever they are encoded in.

    Returns:
        None where one cannot be read: it is gone, or was typed in.
    """
    digest = hashlib.sha256()
    try:
        for kind in type(policy).__mro__:
            if kind.__module__.partition(".")[0] not in NOT_FROM_OUTSIDE:
                digest.update(Path(inspect.getfile(kind)).read_bytes() + b"\0")
    except (OSError, TypeError):
        return None
    return digest.hexdigest()
