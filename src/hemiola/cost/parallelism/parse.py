"""A parallelism from text: "ddp", "ddp:bucket=10MiB,view=yes", "fsdp:reshard=no", "ps:servers=2", "none"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hemiola.core.errors import InputError
from hemiola.core.units import parse_size
from hemiola.cost.parallelism.ddp import DDP, NoExchange
from hemiola.cost.parallelism.fsdp import FSDP
from hemiola.cost.parallelism.parallelism import Parallelism
from hemiola.cost.parallelism.parameter_server import ParameterServer

__all__ = ["PARALLELISMS", "parse_parallelism"]

Field = tuple[str, Callable[[str], Any]]


def parse_parallelism(text: str) -> Parallelism:
    """The parallelism that a text names.

    Raises:
        InputError: an unknown parallelism or option, an option twice, a value that cannot be.

    >>> parse_parallelism("ddp:bucket=2MiB").limits
    (2097152.0, 2097152.0)
    """
    name, _, rest = text.partition(":")
    if name not in PARALLELISMS:
        raise InputError(f"unknown parallelism {text!r}", f"use one of {', '.join(PARALLELISMS)}")
    make, known = PARALLELISMS[name]
    values: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if key not in known or not equals:
            options = ", ".join(f"{option}=..." for option in known) or "none"
            raise InputError(
                f"parallelism {text!r}: {part!r} is no option of {name}", f"its options: {options}"
            )
        field, read = known[key]
        if field in values:
            raise InputError(f"parallelism {text!r} gives {key} twice", "give it once")
        values[field] = read(value)
    return make(**values)


def _yes_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise InputError(f"{text!r} is neither yes nor no", "write yes or no")
    return text == "yes"


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise InputError(f"{text!r} is not a whole number", "write 0, 1, 2, ...")
    return int(text)


def _size(text: str) -> float:
    size = parse_size(text)
    if size <= 0:
        raise InputError(f"a bucket of {text}", "give a size above 0, such as 25MiB")
    return size


def _paths(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split("+")))


PARALLELISMS: dict[str, tuple[Callable[..., Parallelism], dict[str, Field]]] = {
    "ddp": (
        DDP,
        {
            "bucket": ("bucket_bytes", _size),
            "first": ("first_bucket_bytes", _size),
            "view": ("gradient_as_bucket_view", _yes_no),
            "unused": ("find_unused_parameters", _yes_no),
        },
    ),
    "fsdp": (
        FSDP,
        {
            "reshard": ("reshard_after_forward", _yes_no),
            "prefetch": ("prefetch", _whole),
            "units": ("units", _paths),
        },
    ),
    "ps": (ParameterServer, {"servers": ("servers", _whole)}),
    "none": (NoExchange, {}),
}
"""By name: what makes it, and its options with their fields and readers."""
