"""Profiles by the names that users give to models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hemiola.core.errors import InputError
from hemiola.core.job import Profile
from hemiola.cost.profiles import load_library

__all__ = ["profiles_by_model"]


def profiles_by_model(file: Path | None) -> Callable[[str], Profile]:
    """The profile of a model, from a file beside those that come with Hemiola; it raises InputError for others."""
    library = load_library(str(file) if file else None)

    def profile(model: str) -> Profile:
        found = library.find(model)
        if found is None:
            raise InputError(
                f"no profile has the model {model!r}", f"there are {', '.join(library.names[:5])}, ..."
            )
        return found

    return profile
