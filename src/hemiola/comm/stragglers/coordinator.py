"""Who is ready, and what is begun with whom: decided by the first rank. No clock and no network of its own.

A sum is added up in parts, from its beginning to its end, so that little is lost if a late rank comes soon after
all: once everybody is ready, what is left is one collective of all. Before that, a part begins with those who are
ready when waiting has taken as long as this part and those before it cost more than if all had been there
(`plan.collective.waiting`): so all of them together never cost more than the wait. What was begun without a rank it sends to everybody when it is ready.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hemiola.plan.collective.waiting import WaitingCosts

__all__ = [
    "AT_ONCE",
    "GIVEN_BYTES",
    "PART_BYTES",
    "ByteCosts",
    "CatchUp",
    "Contribution",
    "Coordinator",
    "Order",
    "PartialGroup",
    "TensorMismatch",
    "decode",
    "decode_given",
    "encode",
    "encode_given",
    "order_bytes",
]


# What a byte of each kind of collective costs, where several kinds are often under way at once.

_KEPT = 32
"""Times in which something was under way."""
_FORGOTTEN = 0.85
"""What each of them counts, relative to the next one."""
_BELIEVED = 0.1
"""What it counts that kinds are in proportion, and that to begin costs nothing."""


class ByteCosts:
    """For one group, on its first rank's clock."""

    def __init__(self, like: Sequence[float]) -> None:
        """Of kinds 0, 1, ...

        Args:
            like: what a byte of each is expected to cost, relative to the first.
        """
        self._like = np.asarray(like, dtype=np.float64)
        self._under_way = 0
        self._since_s = 0.0
        self._bytes = np.zeros(len(like))
        self._known: deque[tuple[float, np.ndarray]] = deque(maxlen=_KEPT)
        self._each: np.ndarray | None = None

    def begin(self, now_s: float) -> None:
        """Something begins."""
        if not self._under_way:
            self._since_s = now_s
            self._bytes = np.zeros(len(self._like))
        self._under_way += 1

    def end(self, kind: int, size_bytes: float, now_s: float) -> None:
        """It has ended, and was this."""
        self._under_way -= 1
        self._bytes[kind] += size_bytes
        if not self._under_way and now_s > self._since_s:
            self._known.append((now_s - self._since_s, self._bytes))
            self._each = self._fitted()

    def seconds(self, kind: int, size_bytes: float) -> float | None:
        """What so many bytes cost, while others are under way too; None before anything of the first kind has ended."""
        return None if self._each is None else float(self._each[kind]) * size_bytes

    def _fitted(self) -> np.ndarray | None:
        """Seconds of a byte of each kind; None before anything of the first has ended."""
        took_s = np.array([seconds for seconds, _ in self._known])
        sizes = np.array([sizes for _, sizes in self._known])
        if self._each is None and not sizes[:, 0].any():
            return None
        weights = np.sqrt(_FORGOTTEN ** np.arange(len(took_s))[::-1])[:, None]
        usual = (
            weights[:, 0] @ (sizes @ self._like) / (weights[:, 0] @ took_s)
        )  # bytes/s, as of the first kind
        rows = (
            weights * np.column_stack([sizes / usual, np.full(len(took_s), took_s.mean())]) / took_s[:, None]
        )
        believed = _BELIEVED
        while True:
            found = np.linalg.lstsq(
                np.vstack([rows, believed * self._beliefs()]),
                np.concatenate([weights[:, 0], np.zeros(len(self._like))]),
                rcond=None,
            )[0]
            if (found[:-1] > 0).all():
                return np.asarray(found[:-1] / usual)
            believed *= 10

    def _beliefs(self) -> np.ndarray:
        """That every other kind is in proportion to the first, and that to begin costs nothing."""
        count = len(self._like)
        table = np.zeros((count, count + 1))
        table[: count - 1, 0] = -1.0
        table[np.arange(count - 1), np.arange(1, count)] = 1 / self._like[1:]
        table[count - 1, count] = 1.0
        return table


PARTS, PART_BYTES = 32, 1 << 19
"""A sum is divided into so many parts, unless they were smaller than this."""
AT_ONCE = 3
"""Parts without everybody that are under way: while one goes up, another goes down, and a third one's last bytes land."""

_FULL, _PARTIAL, _CAUGHT = range(3)


@dataclass(frozen=True)
class Contribution:
    """What a rank brings to a sum.

    Attributes:
        elements, element_bytes: of its tensor.
        kind: type and operation, in any numbers that all ranks use alike.
        place: where the tensor lies in that rank's memory: the same one comes again in the next iteration.
    """

    elements: int
    element_bytes: int
    kind: int
    place: int


@dataclass(frozen=True)
class PartialGroup:
    """Add up these elements of what the active ranks give; all others relay.

    Attributes:
        number: of the sum, counted from 0 by every rank.
        given: what it is of.
        first, last: elements, the last one not among them.
        active: ranks.
        epoch: whose schedules it goes by, at all ranks: their scripts may not be in it yet.
    """

    number: int
    given: Contribution
    first: int
    last: int
    active: frozenset[int]
    epoch: int = 0

    @property
    def size_bytes(self) -> int:
        """Of its elements."""
        return (self.last - self.first) * self.given.element_bytes


@dataclass(frozen=True)
class CatchUp:
    """A rank that was late sends its first elements to all others, who add them in the order of these orders.

    Attributes:
        epoch: as of a part.
    """

    number: int
    given: Contribution
    rank: int
    last: int
    epoch: int = 0

    @property
    def size_bytes(self) -> int:
        """Of its elements."""
        return self.last * self.given.element_bytes


@dataclass(frozen=True)
class TensorMismatch:
    """A rank brings another tensor than the others do."""

    number: int
    rank: int


Order = PartialGroup | CatchUp | TensorMismatch


@dataclass
class _Sum:
    given: Contribution
    since_s: float
    places: dict[int, int] = field(default_factory=dict)
    """Of the ready ranks' tensors."""
    started: int = 0
    parts: list[PartialGroup] = field(default_factory=list)
    """Those that began without somebody."""
    spent_s: float = 0.0
    """What they cost more than if nobody had been late."""


class Coordinator:
    """For one group. Nothing is begun without somebody before a sum of all has been measured."""

    def __init__(self, ranks: int, carries: bool, epoch: Callable[[], int] = lambda: 0) -> None:
        """Of so many ranks.

        Args:
            carries: whether late ranks keep what came too late for their next tensor at that place. That one is not
                added without them.
            epoch: that this rank is in.
        """
        self._ranks, self._carries, self._epoch = ranks, carries, epoch
        self._counts = [0] * ranks
        self._sums: dict[int, _Sum] = {}
        self._refused: set[int] = set()
        self._under_way = 0
        self._owing: list[set[tuple[int, int]]] = [set() for _ in range(ranks)]
        """Of every rank, the tensors (whose, and where) that were last added without it, or without part of it."""
        self.costs = ByteCosts([1.0, 1.0, ranks / (2 * (ranks - 1)) if ranks > 1 else 1.0])
        """Of sums of all; of sums without somebody, who relay; of what late ranks send. Until they are measured:
        a sum without somebody costs what one of all does, whose busiest rank sends each byte 2 (N - 1) / N times, and
        what a late rank sends goes once through each."""

    def ready(self, rank: int, given: Contribution, now_s: float) -> list[Order]:
        """A rank is ready for its next sum; what is to be done."""
        number = self._counts[rank]
        self._counts[rank] += 1
        if number in self._refused:
            return []
        this = self._sums.setdefault(number, _Sum(given, now_s))
        if (given.elements, given.kind) != (this.given.elements, this.given.kind):
            del self._sums[number]
            self._refused.add(number)
            return [TensorMismatch(number, rank)]
        this.places[rank] = given.place
        orders: list[Order] = []
        missed = [part.last for part in this.parts if rank not in part.active]
        if missed and not self._carries:
            orders.append(CatchUp(number, this.given, rank, max(missed), self._epoch()))
            self.costs.begin(now_s)
        return orders + self.due(now_s)

    def ended(self, order: Order, now_s: float) -> list[Order]:
        """It has been done here; what is to be done next."""
        if isinstance(order, CatchUp):
            self.costs.end(_CAUGHT, order.size_bytes, now_s)
        elif isinstance(order, PartialGroup):
            whole = len(order.active) == self._ranks
            self.costs.end(_FULL if whole else _PARTIAL, order.size_bytes, now_s)
            self._under_way -= not whole
        return self.due(now_s)

    def due(self, now_s: float) -> list[Order]:
        """What begins now."""
        orders: list[Order] = []
        for number, this in sorted(self._sums.items()):
            orders += self._whole(number, this, now_s)
        for number, this in sorted(self._sums.items()):
            while self._under_way < AT_ONCE and this.started < this.given.elements:
                if now_s < self._begins_s(this):
                    break
                orders.append(self._begin(number, this, now_s))
        return orders

    def next_s(self) -> float:
        """When to ask again, if nothing happens before; infinity for never."""
        if self._under_way >= AT_ONCE:
            return math.inf
        waiting = (one for one in self._sums.values() if one.started < one.given.elements)
        return min((self._begins_s(one) for one in waiting), default=math.inf)

    def _whole(self, number: int, this: _Sum, now_s: float) -> Iterator[PartialGroup]:
        """What is left of a sum for which all are ready."""
        if len(this.places) < self._ranks:
            return
        if this.started < this.given.elements:
            self.costs.begin(now_s)
            everybody = frozenset(range(self._ranks))
            yield PartialGroup(
                number, this.given, this.started, this.given.elements, everybody, self._epoch()
            )
        present = frozenset(range(self._ranks)).intersection(*(part.active for part in this.parts))
        for rank, owing in enumerate(self._owing):
            if rank in present:
                owing.difference_update(this.places.items())
            elif self._carries:  # a part knew of those only who were ready when it began
                owing.update(this.places.items())
        del self._sums[number]

    def _begin(self, number: int, this: _Sum, now_s: float) -> PartialGroup:
        part = PartialGroup(
            number, this.given, this.started, min(this.started + _part(this.given), this.given.elements),
            frozenset(this.places), self._epoch(),
        )  # fmt: skip
        this.parts.append(part)
        this.spent_s += self._more_s(this)
        if self._carries:
            for rank in set(range(self._ranks)) - part.active:
                self._owing[rank].update(this.places.items())
        this.started = part.last
        self._under_way += 1
        self.costs.begin(now_s)
        return part

    def _begins_s(self, this: _Sum) -> float:
        """When its next part begins if nobody else becomes ready."""
        if self._carries and not this.parts and self._is_owed(this):
            return math.inf
        return this.since_s + this.spent_s + self._more_s(this)

    def _more_s(self, this: _Sum) -> float:
        """What a part costs more without those who are missing; infinity if that is not known."""
        costs = self._costs(_part(this.given) * this.given.element_bytes)
        return math.inf if costs is None else costs.enough_s(len(this.places))

    def _is_owed(self, this: _Sum) -> bool:
        """Whether somebody who is missing has not been there the last time that one of these tensors was added."""
        missing = set(range(self._ranks)) - this.places.keys()
        return any(not self._owing[rank].isdisjoint(this.places.items()) for rank in missing)

    def _costs(self, size_bytes: int) -> WaitingCosts | None:
        """As measured; None before a sum of all has been."""
        full, partial, caught = (self.costs.seconds(kind, size_bytes) for kind in (_FULL, _PARTIAL, _CAUGHT))
        if full is None or partial is None or caught is None:
            return None
        late = range(self._ranks - 1, 0, -1)
        return WaitingCosts(full, tuple(partial + caught * count for count in late))


def _part(given: Contribution) -> int:
    """Elements of each part."""
    least = -(-PART_BYTES // given.element_bytes)
    return max(-(-given.elements // PARTS), least)


# What ranks and the first rank tell each other, in messages of one size.

_GIVEN = struct.Struct("<QBIQ")
_ORDER = struct.Struct("<BQQBIQQIQ")
_PART, _CATCH_UP, _REFUSAL = range(3)
GIVEN_BYTES = _GIVEN.size


def encode_given(given: Contribution) -> bytes:
    """As a rank says that it is ready."""
    return _GIVEN.pack(given.elements, given.element_bytes, given.kind, given.place)


def decode_given(data: bytes | bytearray) -> Contribution:
    """The other way."""
    return Contribution(*_GIVEN.unpack(data))


def order_bytes(ranks: int) -> int:
    """Of every order."""
    return _ORDER.size + -(-ranks // 8)


def encode(order: Order, ranks: int) -> bytes:
    """As the first rank sends it."""
    given = Contribution(0, 1, 0, 0) if isinstance(order, TensorMismatch) else order.given
    what, first, last, rank, active, epoch = _PART, 0, 0, 0, 0, 0
    match order:
        case PartialGroup():
            first, last, epoch = order.first, order.last, order.epoch
            active = sum(1 << one for one in order.active)
        case CatchUp():
            what, last, rank, epoch = _CATCH_UP, order.last, order.rank, order.epoch
        case TensorMismatch():
            what, rank = _REFUSAL, order.rank
    head = _ORDER.pack(
        what, order.number, given.elements, given.element_bytes, given.kind, first, last, rank, epoch
    )
    return head + active.to_bytes(order_bytes(ranks) - _ORDER.size, "little")


def decode(data: bytes | bytearray) -> Order:
    """The other way."""
    what, number, elements, element_bytes, kind, first, last, rank, epoch = _ORDER.unpack_from(data)
    given = Contribution(elements, element_bytes, kind, 0)
    if what == _REFUSAL:
        return TensorMismatch(number, rank)
    if what == _CATCH_UP:
        return CatchUp(number, given, rank, last, epoch)
    active = int.from_bytes(data[_ORDER.size :], "little")
    ranks = frozenset(one for one in range(active.bit_length()) if active >> one & 1)
    return PartialGroup(number, given, first, last, ranks, epoch)
