"""Verbs and options under the names they had: they work for one release, and say their new names."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["renamed"]

VERBS = {"strategy": "collective"}
"""New names of verbs by old ones."""
OPTIONS = {"predict": {"--strategy": "--parallelism", "--strategies": "--schedules"}}
"""New names of options by verb and old one."""


def renamed(words: Sequence[str]) -> list[str]:
    """The words of a command line by today's names; what was renamed is said on stderr, a line each.

    Example:
        >>> renamed(["collective", "flat:hosts=2"])
        ['collective', 'flat:hosts=2']
    """
    if not words:
        return []
    verb = VERBS.get(words[0], words[0])
    if verb != words[0]:
        _say(f"hemiola {words[0]}", f"hemiola {verb}")
    return [verb, *(_option(verb, word) for word in words[1:])]


def _option(verb: str, word: str) -> str:
    old, equals, value = word.partition("=")
    new = OPTIONS.get(verb, {}).get(old, old)
    if new != old:
        _say(old, new)
    return f"{new}{equals}{value}"


def _say(old: str, new: str) -> None:
    print(f"note: {old} is now {new}; the old name works until the next release", file=sys.stderr)
