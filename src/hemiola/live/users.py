"""Who a user id is."""

from __future__ import annotations

import pwd

__all__ = ["user_name"]


def user_name(uid: int) -> str:
    """Of a user id; the number where this host does not know it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
