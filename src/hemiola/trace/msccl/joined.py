"""Steps of MSCCL's thread blocks as moves: sends meet their receives, and everything gets an order."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec

from hemiola.core.collective.schedule import ChunkMove, ChunkPlace, CollectiveSchedule
from hemiola.core.errors import InputError, ScheduleError
from hemiola.core.graph import in_order
from hemiola.trace.msccl.document import ADDS, LOCAL, RECEIVES, SENDS, SOURCES, TARGETS

__all__ = ["At", "BlockStep", "Equal", "check_progress", "equal_chunks", "joined_moves", "repeats"]


@dataclass
class _Node:
    """A half of a move that is sent, a whole one that is not, or nothing but an order.

    Attributes:
        step: of which.
        reads, writes: chunks of this rank; the first of each is where the move begins, and ends.
        adds: whether it adds to what it writes, which it then reads, too.
        is_local: whether it is a whole move.
        after: nodes that have to end before.
        other: the receiving half of a sending one.
    """

    step: BlockStep
    reads: tuple[ChunkPlace, ...] = ()
    writes: tuple[ChunkPlace, ...] = ()
    adds: bool = False
    is_local: bool = False
    after: list[int] = field(default_factory=list)
    other: int = -1


def joined_moves(steps: list[BlockStep], name: str, slots: int) -> list[tuple[ChunkMove, str]]:
    """The moves of all steps, in an order that all of them allow, and by which steps each is made.

    `rrs` sends a sum and keeps none, so it is added up in a place of its own. Where what lies in its source is
    overwritten next, as rings do, it is added up there: the same, with a copy less.

    Raises:
        InputError, ScheduleError: as `Joined` and `check_progress`, and of two steps that use a chunk in no certain order.
    """
    exact = Joined(steps, name)
    check_progress(steps, slots, name)
    exact.put_in_order()
    if not exact.overwritten:
        return exact.moves()
    shorter = Joined(steps, name, exact.overwritten)
    shorter.put_in_order()
    return shorter.moves()


class Joined:
    """Steps of all ranks, sends joined with what they meet.

    Args:
        in_place: steps (`rrs`) that add up in their source.

    Raises:
        InputError: a step waits for one that is not there, or that tells nobody of its end.
        ScheduleError: sends and receives between two ranks do not fit.
    """

    def __init__(self, steps: list[BlockStep], name: str, in_place: Collection[At] = ()) -> None:
        self._name, self._in_place = name, in_place
        self._nodes: list[_Node] = []
        self._first: dict[At, int] = {}
        self._last: dict[At, int] = {}
        self._spare = _scratch_used(steps)
        self._sends: dict[At, list[int]] = defaultdict(list)
        self._receives: dict[At, list[int]] = defaultdict(list)
        self.overwritten: set[At] = set()
        """Steps (`rrs`) whose source is overwritten before anything else reads it; known once there is an order."""
        for step in steps:
            self._add(step)
        self._join()
        self._wait(steps)

    def _add(self, step: BlockStep) -> None:
        """The nodes of a step, one after the other."""
        self._first[step.at] = len(self._nodes)
        source, target = tuple(step.source.row(step.count)), tuple(step.target.row(step.count))
        if step.kind in LOCAL:
            self._append(self._local(step, source, target, adds=step.kind == "re"))
        if step.kind == "nop":
            self._append(_Node(step))
        into = self._own(step) if step.kind == "rrs" else target
        if step.kind in ADDS and into != source:
            self._append(self._local(step, source, into))
        if step.kind in RECEIVES:
            adds = step.kind in ADDS
            self._receives[step.of[0], step.rank, step.of[1]].append(len(self._nodes))
            self._append(_Node(step, into if adds else (), into, adds))
        if step.kind in SENDS:
            self._sends[step.rank, *step.to].append(len(self._nodes))
            self._append(_Node(step, source if step.kind == "s" else into))
        self._last[step.at] = len(self._nodes) - 1

    def _append(self, node: _Node) -> None:
        if len(self._nodes) > self._first[node.step.at]:
            node.after.append(len(self._nodes) - 1)
        self._nodes.append(node)

    @staticmethod
    def _local(
        step: BlockStep, source: tuple[ChunkPlace, ...], target: tuple[ChunkPlace, ...], adds: bool = False
    ) -> _Node:
        return _Node(step, source + (target if adds else ()), target, adds, is_local=True)

    def _own(self, step: BlockStep) -> tuple[ChunkPlace, ...]:
        """Where a sum that is not kept is added up."""
        if step.at in self._in_place:
            return tuple(step.source.row(step.count))
        first = self._spare[step.rank]
        self._spare[step.rank] += step.count
        return tuple(ChunkPlace(step.rank, "scratch", first).row(step.count))

    def _join(self) -> None:
        for key in sorted({*self._sends, *self._receives}):
            out, into = self._sends.get(key, []), self._receives.get(key, [])
            if len(out) != len(into):
                raise ScheduleError(
                    f"{self._name}: rank {key[0]} sends {len(out)} times to rank {key[1]} on channel {key[2]}, which receives "
                    f"{len(into)} times",
                    "give every send its receive",
                )
            for one, other in zip(out, into, strict=True):
                sent, received = self._nodes[one].step, self._nodes[other].step
                if sent.count != received.count:
                    raise ScheduleError(
                        f"{self._name}: {sent.where} and {received.where} differ in cnt: {sent.count} and {received.count}",
                        "give both the same",
                    )
                self._nodes[one].other = other
                self._nodes[other].after.append(one)

    def _wait(self, steps: list[BlockStep]) -> None:
        """A step waits for the one before it in its block, and for the one that it names."""
        told = {step.at: step.tells and step.kind != "nop" for step in steps}
        for step in steps:
            first = self._nodes[self._first[step.at]]
            if step.number:
                first.after.append(self._last[step.rank, step.block, step.number - 1])
            for block, number in step.before:
                named = (step.rank, block, number)
                where = f"{self._name}: {step.where} waits for step {number} of tb {block}"
                if named not in told:
                    raise InputError(f"{where}, which is not there", "name a step of the same gpu")
                if not told[named]:
                    raise InputError(
                        f"{where}, which tells nobody of its end",
                        'set hasdep="1" there; of a nop nobody hears',
                    )
                first.after.append(self._last[named])

    def put_in_order(self) -> None:
        """Find an order, and pairs of nodes of which the second has to follow the first: one writes what both use.

        Raises:
            ScheduleError: nothing makes one of such two wait for the other.
        """
        self._order = in_order([node.after for node in self._nodes])
        self._conflicts: list[tuple[int, int]] = []
        uses = Counter(one for node in self._nodes for one in node.after)
        ancestors = [0] * len(self._nodes)
        wrote: dict[ChunkPlace, int] = {}
        read: dict[ChunkPlace, list[int]] = {}
        last_readers = _LastReaders()
        for number in self._order:
            node = self._nodes[number]
            for one in node.after:
                ancestors[number] |= ancestors[one] | 1 << one
                uses[one] -= 1
                if not uses[one]:
                    ancestors[one] = 0  # nobody asks again: what is held stays as small as the frontier
            reads, writes = dict.fromkeys(node.reads), dict.fromkeys(node.writes)
            for place in reads | writes:
                others = [wrote[place]] if place in wrote else []
                others += read.get(place, []) if place in writes else []
                for other in others:
                    self._check_order(other, number, place, ancestors[number])
                    self._conflicts.append((other, number))
            for place in reads:
                if node.is_local and node.step.kind == "rrs":
                    last_readers.read(number, place, read.get(place, []), ancestors[number])
                read.setdefault(place, []).append(number)
            for place in writes:
                if place not in reads:
                    last_readers.overwritten(place, read.get(place, []))
                wrote[place], read[place] = number, []
        self.overwritten = {
            self._nodes[number].step.at
            for number, places in last_readers.found.items()
            if places == self._nodes[number].step.count
        }

    def _check_order(self, one: int, other: int, place: ChunkPlace, before: int) -> None:
        if not before >> one & 1:
            raise ScheduleError(
                f"{self._name}: {self._nodes[one].step.where} and {self._nodes[other].step.where} use {place} in no certain order",
                "let one of them wait for the other",
            )

    def moves(self) -> list[tuple[ChunkMove, str]]:
        """Halves as one, in an order that what they read and write allows.

        Raises:
            ScheduleError: a place is written while what lies there is sent to where that comes from.
        """
        move_of: dict[int, int] = {}
        moves: list[tuple[ChunkMove, str]] = []
        for number in self._order:
            node = self._nodes[number]
            if node.other >= 0:
                received = self._nodes[node.other]
                move_of[number] = move_of[node.other] = len(moves)
                move = ChunkMove(
                    node.reads[0], received.writes[0], node.step.count, received.adds, node.step.to[1]
                )
                moves.append((move, f"{node.step.where} and {received.step.where}"))
            elif node.is_local:
                move_of[number] = len(moves)
                move = ChunkMove(node.reads[0], node.writes[0], node.step.count, node.adds)
                moves.append((move, node.step.where))
        after: list[list[int]] = [[] for _ in moves]
        for one, other in set(self._conflicts):
            if move_of[one] != move_of[other]:
                after[move_of[other]].append(move_of[one])
        found = in_order(after)
        if len(found) < len(moves):
            move, where = moves[min(set(range(len(moves))) - set(found))]
            raise ScheduleError(
                f"{self._name}: {where}: {move.source} goes to {move.target}, from where what lies there is on its way at the same time",
                "receive it in scratch memory",
            )
        return [moves[number] for number in found]


class _LastReaders:
    """Which nodes are, for all their places, the last to read what lies there before it is overwritten."""

    def __init__(self) -> None:
        self._alone: set[tuple[int, ChunkPlace]] = set()
        self.found: Counter[int] = Counter()

    def read(self, number: int, place: ChunkPlace, others: list[int], before: int) -> None:
        """One reads after others, all of which it has to have waited for."""
        if all(before >> other & 1 for other in others):
            self._alone.add((number, place))

    def overwritten(self, place: ChunkPlace, readers: list[int]) -> None:
        """A place gets something else."""
        if readers and (readers[-1], place) in self._alone:
            self.found[readers[-1]] += 1


def _scratch_used(steps: list[BlockStep]) -> Counter[int]:
    """By rank, how many chunks of scratch memory its steps use."""
    used: Counter[int] = Counter()
    for step in steps:
        for place, kinds in ((step.source, SOURCES), (step.target, TARGETS)):
            if step.kind in kinds and place.buffer == "scratch":
                used[step.rank] = max(used[step.rank], place.index + step.count)
    return used


# A schedule whose chunks differ in size, with equal chunks, as MSCCL has them: a large one becomes
# several.

CHUNKS_MAX = 64
"""RCCL moves fewer than 72 at once, and MSCCL uses a schedule only for tensors whose elements it can divide into them."""
ENOUGH = 0.01


@dataclass(frozen=True)
class Equal:
    """What was found.

    Attributes:
        schedule: without weights.
        excess: the share by which the data on a link grows at most: 0.02 where a chunk has 51 % instead of 50 %.
    """

    schedule: CollectiveSchedule
    excess: float


def equal_chunks(schedule: CollectiveSchedule, chunks_max: int = CHUNKS_MAX, enough: float = ENOUGH) -> Equal:
    """The same schedule with equal chunks: the fewest that come near enough to its weights, and no more than allowed.

    Args:
        enough: the excess that is near enough; where it cannot be reached, the least excess is taken.

    Raises:
        ScheduleError: chunks of different sizes that do not keep their places, or are more than allowed.
    """
    if not schedule.weights:
        return Equal(schedule, 0.0)
    if schedule.collective not in ("all-reduce", "broadcast", "reduce") or not schedule.keeps_places:
        raise ScheduleError(
            f"{schedule.name!r} has chunks of different sizes, whose places follow from their number",
            "give each rank equal chunks",
        )
    if schedule.chunks > chunks_max:
        raise ScheduleError(
            f"{schedule.name!r} has {schedule.chunks} chunks of different sizes, more than {chunks_max}",
            "use fewer trees",
        )
    counts, excess = repeats(schedule.weights, chunks_max, enough)
    start = [0, *accumulate(counts)]

    def place(old: ChunkPlace) -> ChunkPlace:
        return msgspec.structs.replace(old, index=start[old.index])

    moves = tuple(
        ChunkMove(place(m.source), place(m.target), start[m.source.index + m.count] - start[m.source.index], m.adds, m.channel)
        for m in schedule.moves
    )  # fmt: skip
    found = msgspec.structs.replace(schedule, chunks=start[-1], moves=moves, weights=())
    return Equal(found.verify(), excess)


def repeats(weights: Sequence[float], most: int, enough: float = 0.0) -> tuple[tuple[int, ...], float]:
    """How many equal chunks each share becomes, and the excess of that."""
    counts = [1] * len(weights)
    next_of = [(2 / weight, number) for number, weight in enumerate(weights)]
    heapq.heapify(next_of)
    largest = max(1 / weight for weight in weights)
    best, least = tuple(counts), largest / len(counts) - 1
    for together in range(len(weights) + 1, most + 1):
        if least <= enough:
            break
        ratio, number = heapq.heappop(next_of)
        counts[number] += 1
        largest = max(largest, ratio)
        heapq.heappush(next_of, ((counts[number] + 1) / weights[number], number))
        if largest / together - 1 < least - 1e-12:
            best, least = tuple(counts), largest / together - 1
    return best, max(least, 0.0)


# Whether thread blocks come to their end: each goes as far as it can, by MSCCL's own rules of waiting.

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
