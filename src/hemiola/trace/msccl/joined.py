"""Steps of MSCCL's thread blocks as moves: sends meet their receives, and everything gets an order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hemiola.core.errors import InputError, StrategyError
from hemiola.core.ordering import in_order
from hemiola.core.strategy import Move, Place
from hemiola.trace.msccl.words import ADDS, LOCAL, RECEIVES, SENDS

__all__ = ["Joined", "Step"]


@dataclass
class Step:
    """One step of one thread block.

    Attributes:
        rank, block, number: which.
        kind: MSCCL's name.
        source, target: MSCCL's own, of this rank.
        before: steps of this rank (block, number) that have to end before.
        to, of: peer and channel that it sends on and receives from.
    """

    rank: int
    block: int
    number: int
    kind: str
    source: Place
    target: Place
    count: int
    before: list[tuple[int, int]]
    to: tuple[int, int]
    of: tuple[int, int]


@dataclass
class _Node:
    """A half of a move that is sent, a whole one that is not, or nothing but an order.

    Attributes:
        step: of which.
        reads, writes: chunks of this rank.
        after: nodes that have to end before.
        other: the receiving half of a sending one.
        is_kept: whether what is written stays: `rrs` sends its sum on and keeps nothing.
    """

    step: Step
    reads: tuple[Place, ...] = ()
    writes: tuple[Place, ...] = ()
    after: list[int] = field(default_factory=list)
    other: int = -1
    is_kept: bool = True


class Joined:
    """Steps of all ranks, sends joined with what they meet, as moves with an order. Sends wait for no receiver."""

    def __init__(self, steps: list[Step], name: str) -> None:
        self._name = name
        self._nodes: list[_Node] = []
        self._first: dict[tuple[int, int, int], int] = {}
        self._last: dict[tuple[int, int, int], int] = {}
        sends: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        receives: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for step in steps:
            at, own = (step.rank, step.block, step.number), len(self._nodes)
            source, target = tuple(step.source.row(step.count)), tuple(step.target.row(step.count))
            if step.kind in RECEIVES:
                into = source if step.kind == "rrs" else target
                self._nodes.append(
                    _Node(step, into if step.kind in ADDS else (), into, is_kept=step.kind != "rrs")
                )
                receives[step.of[0], step.rank, step.of[1]].append(own)
            if step.kind in SENDS:
                self._nodes.append(_Node(step, target if step.kind in ("rcs", "rrcs") else source))
                sends[step.rank, *step.to].append(len(self._nodes) - 1)
            if step.kind in LOCAL:
                self._nodes.append(_Node(step, source + (target if step.kind == "re" else ()), target))
            if step.kind == "nop":
                self._nodes.append(_Node(step))
            self._first[at], self._last[at] = own, len(self._nodes) - 1
            if self._last[at] > own:
                self._nodes[own + 1].after.append(own)
        self._join(sends, receives)
        self._putin_order(steps)

    def _join(
        self, sends: dict[tuple[int, int, int], list[int]], receives: dict[tuple[int, int, int], list[int]]
    ) -> None:
        for key in sorted({*sends, *receives}):
            out, into = sends.get(key, []), receives.get(key, [])
            if len(out) != len(into):
                raise StrategyError(
                    f"{self._name}: rank {key[0]} sends {len(out)} times to rank {key[1]} on channel {key[2]}, which receives "
                    f"{len(into)} times",
                    "give every send its receive",
                )
            for one, other in zip(out, into, strict=True):
                if len(self._nodes[one].reads) != len(self._nodes[other].writes):
                    raise StrategyError(
                        f"{self._name}: {self._at(one)} and {self._at(other)} differ in cnt",
                        "give both the same",
                    )
                self._nodes[one].other = other
                self._nodes[other].after.append(one)

    def _putin_order(self, steps: list[Step]) -> None:
        """A step waits for the one before it in its block, and for the one that it names."""
        for step in steps:
            first = self._nodes[self._first[step.rank, step.block, step.number]]
            before = self._last.get((step.rank, step.block, step.number - 1))
            if before is not None:
                first.after.append(before)
            for block, number in step.before:
                named = self._last.get((step.rank, block, number))
                if named is None:
                    raise InputError(
                        f"{self._name}: {_at(step)} waits for step {number} of tb {block}, which is not there",
                        "name a step of the same gpu",
                    )
                first.after.append(named)

    def moves(self) -> list[Move]:
        """In an order that all of them allow."""
        order = in_order([node.after for node in self._nodes])
        if len(order) < len(self._nodes):
            there = set(order)
            stuck = [self._at(number) for number in range(len(self._nodes)) if number not in there][:3]
            raise StrategyError(
                f"{self._name}: these wait for each other for ever: {'; '.join(stuck)}",
                "let every rank send what it has before it waits for what needs that",
            )
        return self._whole(order, self._conflicts(order))

    def _conflicts(self, order: list[int]) -> list[tuple[int, int]]:
        """Pairs of nodes of which the second has to follow the first, for both use a chunk and one writes it."""
        ancestors = [0] * len(order)
        wrote: dict[Place, int] = {}
        read: dict[Place, list[int]] = {}
        found = []
        for number in order:
            node = self._nodes[number]
            for one in node.after:
                ancestors[number] |= ancestors[one] | 1 << one
            for place in dict.fromkeys((*node.reads, *node.writes)):
                others = [wrote[place]] if place in wrote else []
                others += read.get(place, []) if place in node.writes else []
                for other in others:
                    if not ancestors[number] >> other & 1:
                        raise StrategyError(
                            f"{self._name}: {self._at(other)} and {self._at(number)} use {place} in no certain order",
                            "let one of them wait for the other",
                        )
                    found.append((other, number))
                last = self._nodes[wrote[place]] if place in wrote and place in node.reads else node
                if last.step is not node.step and not last.is_kept:
                    raise StrategyError(
                        f"{self._name}: {self._at(number)} reads {place}, which {_at(last.step)} (rrs) does not keep",
                        "receive it with rrcs",
                    )
            for place in node.reads:
                read.setdefault(place, []).append(number)
            for place in node.writes:
                wrote[place], read[place] = number, []
        return found

    def _whole(self, order: list[int], conflicts: list[tuple[int, int]]) -> list[Move]:
        """Halves as one, in an order that what they read and write allows."""
        move_of: dict[int, int] = {}
        moves: list[Move] = []
        for number in order:
            node = self._nodes[number]
            step = node.step
            if node.other >= 0:
                received = self._nodes[node.other]
                adds = received.step.kind in ADDS
                move_of[number] = move_of[node.other] = len(moves)
                moves.append(Move(node.reads[0], received.writes[0], len(node.reads), adds, step.to[1]))
            elif step.kind in LOCAL:
                move_of[number] = len(moves)
                moves.append(Move(step.source, step.target, step.count, step.kind == "re"))
        after: list[list[int]] = [[] for _ in moves]
        for one, other in set(conflicts):
            if move_of[one] != move_of[other]:
                after[move_of[other]].append(move_of[one])
        found = in_order(after)
        if len(found) < len(moves):
            move = moves[min(set(range(len(moves))) - set(found))]
            raise StrategyError(
                f"{self._name}: {move.source} goes to {move.target}, from where what lies there is on its way at the same time",
                "receive it in scratch memory",
            )
        return [moves[number] for number in found]

    def _at(self, number: int) -> str:
        return _at(self._nodes[number].step)


def _at(step: Step) -> str:
    return f"gpu {step.rank}, tb {step.block}, step {step.number}"
