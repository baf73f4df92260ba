"""What users say of a job in words, whatever the engine: `model=resnet50 runtime=2h required=rack`."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hemiola.core.errors import HemiolaError, InputError
from hemiola.core.job import Profile
from hemiola.core.units import parse_duration
from hemiola.cost.profiles import load_library

__all__ = ["KEYS", "JobLabels", "profiles_by_model", "read_words", "user_name"]


KEYS = ("model", "runtime", "required", "preferred")
"""Words that every engine's users may say."""


@dataclass
class JobLabels:
    """What was understood.

    Attributes:
        words: by key, as they were written.
        runtime_s: how long the job is said to run; None if nothing is said.
        profile: of its model.
        problems: what was not understood, in sentences.
    """

    words: dict[str, str] = field(default_factory=dict)
    runtime_s: float | None = None
    profile: Profile | None = None
    problems: list[str] = field(default_factory=list)


def read_words(
    words: Sequence[str], where: str, profile: Callable[[str], Profile], keys: Sequence[str] = KEYS
) -> JobLabels:
    """Read KEY=VALUE words; what cannot be read is told, and left out.

    Args:
        where: they stand, for messages: "its comment".
        profile: of a model by its name.
        keys: that may be said.
    """
    said = JobLabels()
    for word in words:
        key, equals, value = word.partition("=")
        if key in keys and equals and value:
            said.words[key] = value
        else:
            said.problems.append(f"{where} says {word[:80]!r}: write one of {', '.join(keys)} as KEY=VALUE")
    try:
        if "runtime" in said.words:
            said.runtime_s = parse_duration(said.words["runtime"])
        if "model" in said.words:
            said.profile = profile(said.words["model"])
    except HemiolaError as problem:
        said.problems.append(problem.what)
    return said


# Who a user id is.


def user_name(uid: int) -> str:
    """Of a user id; the number where this host does not know it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# Profiles by the names that users give to models.


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
