"""Whether thread blocks come to their end: each goes as far as it can, by MSCCL's own rules of waiting."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from hemiola.core.collective.schedule import ChunkPlace
from hemiola.core.errors import ScheduleError
from hemiola.trace.msccl.words import RECEIVES, SENDS

__all__ = ["At", "BlockStep", "check_progress"]

At = tuple[int, int, int]
"""Rank, block, step."""
Block = tuple[int, int]
Link = tuple[int, int, int]
Need = tuple[str, int, int, int]
"""A finished step ("step", rank, block, number), data that came or room for more ("data" or "room", of a link)."""
_SHOWN = 3


@dataclass
class BlockStep:
    """One step of one thread block.

    Attributes:
        rank, block, number: which.
        kind: MSCCL's name.
        source, target: MSCCL's own, of this rank.
        before: steps of this rank (block, number) that have to end before.
        to, of: peer and channel that it sends on and receives from.
        tells: whether others hear of its end (hasdep).
    """

    rank: int
    block: int
    number: int
    kind: str
    source: ChunkPlace
    target: ChunkPlace
    count: int
    before: list[tuple[int, int]]
    to: tuple[int, int]
    of: tuple[int, int]
    tells: bool

    @property
    def at(self) -> At:
        """Which it is."""
        return self.rank, self.block, self.number

    @property
    def where(self) -> str:
        """The same in words."""
        return f"gpu {self.rank}, tb {self.block}, step {self.number}"


def check_progress(steps: Sequence[BlockStep], slots: int, name: str) -> None:
    """Let every block go on until nothing moves.

    Whether all end does not depend on who goes first, for each link has one block at each end. So every step is
    looked at once, and once more for each thing that it waited for.

    Args:
        slots: sends that fit into a link before one of them is received.

    Raises:
        ScheduleError: some wait for ever; names them, and for what.
    """
    stuck = _Blocks(steps, slots).run()
    if stuck:
        raise ScheduleError(
            f"{name}: these wait for each other for ever: {'; '.join(stuck[:_SHOWN])}",
            "let every rank send what it has before it waits for what needs that, and receive before links are full",
        )


class _Blocks:
    """Where every block stands, and what is under way."""

    def __init__(self, steps: Sequence[BlockStep], slots: int) -> None:
        self._slots = slots
        self._left: dict[Block, deque[BlockStep]] = defaultdict(deque)
        for step in steps:
            self._left[step.rank, step.block].append(step)
        self._ended: set[At] = set()
        self._under_way: Counter[Link] = Counter()
        self._waiting: dict[Need, list[Block]] = defaultdict(list)

    def run(self) -> list[str]:
        """What is left at the end, in words."""
        ready = deque(self._left)
        while ready:
            ready.extend(self._go_on(ready.popleft()))
        return [self._words(left[0]) for _, left in sorted(self._left.items()) if left]

    def _go_on(self, block: Block) -> list[Block]:
        """Make a block's steps up to the first that has to wait; who may go on by that."""
        woken: list[Block] = []
        left = self._left[block]
        while left:
            need = self._need(left[0])
            if need is not None:
                self._waiting[need].append(block)
                break
            for one in self._end(left.popleft()):
                woken += self._waiting.pop(one, [])
        return woken

    def _need(self, step: BlockStep) -> Need | None:
        """The first thing that is missing."""
        for block, number in step.before:
            if (step.rank, block, number) not in self._ended:
                return "step", step.rank, block, number
        if step.kind in RECEIVES and not self._under_way[_came(step)]:
            return "data", *_came(step)
        if step.kind in SENDS and self._under_way[_goes(step)] >= self._slots:
            return "room", *_goes(step)
        return None

    def _end(self, step: BlockStep) -> list[Need]:
        """Make a step; what is there now."""
        self._ended.add(step.at)
        found: list[Need] = [("step", *step.at)]
        if step.kind in RECEIVES:
            self._under_way[_came(step)] -= 1
            found.append(("room", *_came(step)))
        if step.kind in SENDS:
            self._under_way[_goes(step)] += 1
            found.append(("data", *_goes(step)))
        return found

    def _words(self, step: BlockStep) -> str:
        what, *of = self._need(step) or ("", 0, 0, 0)
        reason = {
            "step": f"step {of[2]} of tb {of[1]}",
            "data": f"what gpu {of[0]} sends on channel {of[2]}",
            "room": f"gpu {of[1]} to receive one of the {self._slots} that channel {of[2]} holds",
        }
        return f"{step.where} ({step.kind}) for {reason.get(what, 'nothing')}"


def _came(step: BlockStep) -> Link:
    return step.of[0], step.rank, step.of[1]


def _goes(step: BlockStep) -> Link:
    return step.rank, step.to[0], step.to[1]
