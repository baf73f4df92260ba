"""`key=value` options of a topology, read once, with every default that was assumed written down.

What a file or a generator leaves open is never filled in silently: each default taken here ends
up in `Topology.source`, so that a report can print it. Knows nothing of any format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from hemiola.core.errors import HemiolaError, InputError
from hemiola.core.units import parse_duration, parse_rate
from hemiola.trace.struct_json import as_text

__all__ = ["LINGJUN_COLUMNS", "TIRESIAS_COLUMNS", "TopologyOptions", "split_options", "whole"]

LINGJUN_COLUMNS = ("ip", "DSW", "PSW", "ASW")
TIRESIAS_COLUMNS = ("num_switch", "num_node_p_switch", "num_gpu_p_node")

Value = TypeVar("Value")

_OPTION = re.compile(r"\s*([a-z_]+)=(.*)", re.DOTALL)


class TopologyOptions:
    """TopologyOptions by name; each is taken by at most one reader.

    Args:
        values: as they were typed.
        where: what they belong to, for messages ("leaf-spine", "topo.csv").
        keep_unusable: whether hosts that cannot be used now are kept where the option `unusable` does not say.
    """

    def __init__(self, values: Mapping[str, str], where: str, *, keep_unusable: bool = False) -> None:
        self.values = dict(values)
        self.where = where
        self._unusable = "keep" if keep_unusable else "leave-out"
        self.assumed: dict[str, str] = {}

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def only(self, known: Collection[str]) -> TopologyOptions:
        """These options, or an error for the first that is not known here."""
        for key in self.values:
            if key not in known:
                raise InputError(
                    f"{self.where} has no option {key!r}", f"its options are {', '.join(sorted(known))}"
                )
        return self

    def text(self, key: str, default: str | None = None, example: str = "...") -> str:
        """An option as typed; a default that is not "" is written down, and None demands an answer."""
        if key in self.values:
            return self.values[key]
        if default is None:
            raise InputError(f"{self.where} does not say {key}", f"add {key}={example}")
        if default:
            self.assumed[key] = default
        return default

    def whole(self, key: str, default: str | None = None, example: str = "8", low: int = 1) -> int:
        """A whole number from `low` up."""
        return self._parsed(key, lambda text: whole(text, low), default, example)

    def number(self, key: str, default: str | None = None) -> float:
        """A finite number above 0."""
        return self._parsed(key, _number, default, "4")

    def rate(self, key: str, default: str | None = None) -> float:
        """Bytes per second."""
        return self._parsed(key, parse_rate, default, "100gbit")

    def duration(self, key: str, default: str | None = None) -> float:
        """Seconds."""
        return self._parsed(key, parse_duration, default, "5us")

    @property
    def keeps_unusable(self) -> bool:
        """Whether hosts count that are in the file, and that no job can use now.

        Raises:
            InputError: `unusable` is neither "keep" nor "leave-out".
        """
        given = self.values.get("unusable", self._unusable)
        if given not in ("keep", "leave-out"):
            raise InputError(f"{self.where}: unusable is {given!r}", "choose keep or leave-out")
        return given == "keep"

    def words(self, key: str) -> list[str]:
        """Words joined by "+"; none where the option is not given."""
        words = self.values[key].split("+") if key in self.values else []
        if "" in words:
            raise InputError(f"{self.where}: {key}={self.values[key]} has an empty word", "write one+two")
        return words

    def numbers(self, key: str, default: str) -> list[float]:
        """Numbers joined by "+"."""
        return self._parsed(key, lambda text: [_number(word) for word in text.split("+")], default, "4+2")

    def notes(self, facts: Iterable[str]) -> str:
        """One line for `Topology.source`: the facts, the options given, the defaults assumed."""
        given = ", ".join(f"{key}={as_text(value)}" for key, value in self.values.items())
        assumed = ", ".join(f"{key}={value}" for key, value in self.assumed.items())
        lines = [*facts, given and f"given: {given}", assumed and f"assumed: {assumed}"]
        return "; ".join(line for line in lines if line)

    def _parsed(self, key: str, parse: Callable[[str], Value], default: str | None, example: str) -> Value:
        text = self.text(key, default, example)
        try:
            return parse(text)
        except HemiolaError as error:
            raise InputError(f"{self.where}: {key}: {error.what}", error.remedy) from error


def split_options(text: str, where: str) -> tuple[str, dict[str, str]]:
    """What stands before the options, and the options: "a,b.csv,nic=1gbit" has one.

    Raises:
        InputError: an option given twice.
    """
    pieces = text.split(",")
    values: dict[str, str] = {}
    while pieces and (match := _OPTION.fullmatch(pieces[-1])):
        if match[1] in values:
            raise InputError(f"{where}: {match[1]} is given twice", "give every option once")
        values[match[1]] = match[2].strip()
        pieces.pop()
    return ",".join(pieces), dict(reversed(values.items()))


def whole(text: str, low: int = 0) -> int:
    """A whole number from `low` to 999,999,999.

    Raises:
        InputError: anything else.
    """
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", text) or int(text) < low:
        raise InputError(f"{text!r} is not a whole number from {low} up", "write digits only")
    return int(text)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise InputError(f"{text!r} is not a number above 0", "write a number such as 4 or 2.5")
    return number
