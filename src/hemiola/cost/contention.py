"""The contention law: how jobs whose traffic shares a link slow each other. Laws are values.

Every policy of a comparison runs under the same law. What each law says, when it holds and what
bounds it is derived in docs/concepts/contention.md; `kernels.fluid` computes it. This module knows
neither placements nor profiles: a job here is numbers and the links it uses.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

from numpy.typing import ArrayLike

from hemiola.core.errors import InputError
from hemiola.kernels.fluid import SharedNetwork, Sharing

__all__ = ["LAWS", "Colliding", "Eta", "Interleaved", "Isolated", "Law", "MaxMin", "by_name"]

ETA_OVER_BETA = 0.235 / 0.856
"""Measured on 10 GbE by Wang, Shi, Wang, Chu, "Communication contention aware scheduling of
multiple deep learning training jobs" (arXiv 2002.10105): 0.856 ms/MB alone, 0.235 ms/MB more per competitor."""


@dataclass(frozen=True)
class Law(ABC):
    """How jobs on a shared link slow each other.

    Attributes:
        name: what `by_name` knows it by.
        sentence: what it says, for a report.
    """

    name: ClassVar[str]
    sentence: ClassVar[str]

    @abstractmethod
    def sharing(self) -> Sharing:
        """What `kernels.fluid` computes for it."""

    def network(self, link_bytes_per_s: ArrayLike) -> SharedNetwork:
        """An empty network with these link capacities (bytes/s, `math.inf` allowed) under this law.

        Example:
            >>> network = Colliding().network([1e9])
            >>> for _ in range(2):
            ...     slot = network.add(compute_s=1.0, hidden_s=0.5, traffic_bytes=1e9, links=[0])
            >>> network.settle()
            [(0, 2.5, 500000000.0), (1, 2.5, 500000000.0)]
        """
        return SharedNetwork(link_bytes_per_s, self.sharing())

    def __str__(self) -> str:
        """The text that `by_name` reads back."""
        values = ",".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self))
        return f"{self.name}:{values}" if values else self.name


@dataclass(frozen=True)
class MaxMin(Law):
    """Max-min fair rates among those that send at the same time; the default."""

    name = "max-min"
    sentence = (
        "Jobs that send at the same time share a link max-min fairly, "
        "and each meets every other one for that one's share of time spent sending."
    )

    def sharing(self) -> Sharing:
        """Duty-weighted max-min rates."""
        return Sharing("present")


@dataclass(frozen=True)
class Interleaved(Law):
    """Communication phases staggered perfectly, as CASSINI (NSDI 2024) aims at."""

    name = "interleaved"
    sentence = (
        "Jobs take turns perfectly: a link slows them only when their mean rates exceed it, "
        "and then those are max-min fair."
    )

    def sharing(self) -> Sharing:
        """Max-min fair mean rates."""
        return Sharing("staggered")


@dataclass(frozen=True)
class Colliding(Law):
    """All communication phases at once."""

    name = "colliding"
    sentence = "Jobs that share a link always send at the same time, at max-min fair rates."

    def sharing(self) -> Sharing:
        """Max-min fair rates with everybody always present."""
        return Sharing("together")


@dataclass(frozen=True)
class Eta(Law):
    """The linear law of LWF-κ and AdaDUAL: with k jobs on a link a byte takes kβ + (k-1)η.

    β is 1 / capacity, and k counts the job itself, on the link where that makes it slowest. Whoever
    uses the link counts, sending or not; weights are not looked at.

    Attributes:
        ratio: η/β, what each further competitor wastes beyond its fair share.
    """

    name = "eta"
    sentence = "With k jobs on a link a byte takes k + (k - 1) * ratio times as long as alone."

    ratio: float = ETA_OVER_BETA

    def __post_init__(self) -> None:
        if not 0 <= self.ratio < math.inf:
            raise InputError(f"the law 'eta' has ratio = {self.ratio}", "give a number, 0 or more")

    def sharing(self) -> Sharing:
        """Competitors are counted."""
        return Sharing("counting", self.ratio)


@dataclass(frozen=True)
class Isolated(Law):
    """No contention: for finding out what contention changes."""

    name = "isolated"
    sentence = "Jobs do not slow each other."

    def sharing(self) -> Sharing:
        """Nothing is shared."""
        return Sharing("nothing")


LAWS: tuple[type[Law], ...] = (MaxMin, Interleaved, Colliding, Eta, Isolated)
"""All laws; the first is the default."""


def by_name(text: str) -> Law:
    """The law that a text such as "max-min" or "eta:ratio=0.27" names.

    Raises:
        InputError: for an unknown law or parameter, or a value that is no number.

    Example:
        >>> by_name("eta:ratio=0.27")
        Eta(ratio=0.27)
    """
    name, _, rest = text.partition(":")
    known = {law.name: law for law in LAWS}
    if name not in known:
        raise InputError(f"there is no contention law {name!r}", f"the laws are {', '.join(known)}")
    law = known[name]
    values: dict[str, float] = {}
    for item in rest.split(",") if rest else []:
        key, value = _parameter(law, item)
        if key in values:
            raise InputError(f"the law {name!r} is given {key!r} twice", "give each parameter once")
        values[key] = value
    return law(**values)


def _parameter(law: type[Law], item: str) -> tuple[str, float]:
    key, _, value = item.partition("=")
    names = [field.name for field in fields(law)]
    if key not in names:
        raise InputError(
            f"the law {law.name!r} has no parameter {key!r}",
            f"its parameters are {', '.join(names)}" if names else f"write {law.name} alone",
        )
    try:
        return key, float(value)
    except ValueError:
        raise InputError(
            f"the law {law.name!r} has {key} = {value!r}", f"write a number: {law.name}:{key}=0.5"
        ) from None
