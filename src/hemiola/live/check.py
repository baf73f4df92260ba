"""What `hemiola doctor` finds, one thing at a time; engines say so of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from hemiola.core.errors import HemiolaError
from hemiola.core.units import format_duration
from hemiola.live.leadership import STOPPED

__all__ = ["Check", "alive_checks", "problem_check"]

ALIVE_OLD_S = 30.0


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at.

    Attributes:
        about: in a word.
        what: what was found.
        remedy: what to do about it; "" for nothing.
    """

    state: Literal["OK", "WARN", "FAIL"]
    about: str
    what: str
    remedy: str = ""


def alive_checks(alive: Path, now_s: float, *, mode: str = "") -> Check:
    """Whether the file says that the daemon turned a moment ago."""
    try:
        text = alive.read_text().strip()
    except (OSError, UnicodeDecodeError) as problem:
        if isinstance(problem, FileNotFoundError) and mode in ("observe", "advise"):
            return Check(
                "OK", "alive", f"{alive} is not there: a daemon that only looks on does not write it"
            )
        why = problem.strerror if isinstance(problem, OSError) else problem
        return Check(
            "FAIL", "alive", f"{alive} cannot be read: {why}", f'give it to "hemiola serve --alive {alive}"'
        )  # fmt: skip
    if text.endswith(STOPPED) and text.removesuffix(STOPPED).isdecimal():
        return Check(
            "WARN", "alive", f"{alive} says that Hemiola was stopped: jobs are not held for it", "start it"
        )
    if not text.isdecimal():
        return Check(
            "FAIL", "alive", f"{alive} holds {text[:40]!r}, not a time", "give the file of serve --alive"
        )
    silent_s = now_s - int(text)
    if silent_s > ALIVE_OLD_S:
        return Check(
            "FAIL", "alive", f"{alive} was last written {format_duration(silent_s)} ago: jobs are no longer held for Hemiola",
            f'see that the daemon runs and turns; "hemiola release --when-silent 60s --alive {alive}" hands back what is held',
        )  # fmt: skip
    return Check("OK", "alive", f"{alive} was written {max(0.0, silent_s):.0f} s ago")


def problem_check(about: str, problem: HemiolaError) -> Check:
    """A check that could not be made."""
    return Check("FAIL", about, problem.what, problem.remedy)
