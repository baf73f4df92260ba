"""Arguments that several verbs read alike."""

from __future__ import annotations

__all__ = ["placement_of"]


def placement_of(text: str) -> tuple[int, ...] | None:
    """Ranks per host from "4,4,2"; None for "".

    Raises:
        InputError: if it is something else.
    """
    from hemiola.core.errors import InputError

    if not text:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(f"the placement {text!r}", "write the ranks of each host in order, such as 4,4,2")
    return tuple(int(part) for part in parts)
