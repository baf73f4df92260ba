"""From MSCCL's XML to a schedule, as MSCCL's readers and its interpreter take it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from hemiola.core.collective.schedule import Buffer, ChunkPlace, Collective, CollectiveSchedule, check_size
from hemiola.core.errors import InputError
from hemiola.trace.msccl.document import (
    BUFFERS,
    COLLECTIVES,
    KINDS,
    RECEIVES,
    SENDS,
    SLOTS,
    SOURCES,
    TARGETS,
    children,
    elements,
    given,
    number,
)
from hemiola.trace.msccl.joined import BlockStep, joined_moves
from hemiola.trace.results import read_bytes

__all__ = ["parse_msccl", "read_msccl"]

_MOST = 1 << 16
"""Chunks of a step, ranks, channels and blocks of a gpu: beyond what any file can mean."""
MOVED_MAX = 1 << 19
"""Chunks that all steps together move."""


def read_msccl(path: Path) -> CollectiveSchedule:
    """Read a file; see `parse_msccl`.

    Raises:
        InputError: it is missing, or says what MSCCL does not know.
        ScheduleError: its steps wait for each other, or race.
    """
    return parse_msccl(read_bytes(path), str(path))


def parse_msccl(text: str | bytes, name: str = "the text") -> CollectiveSchedule:
    """The schedule that an XML document describes; whether it is right is for `CollectiveSchedule.verify` to say.

    Raises:
        InputError: it is no such document, contradicts itself, or is beyond all use; names the place.
        ScheduleError: its steps wait for each other, or two of them use a chunk in no certain order.
    """
    root = elements(text, name)
    if root.tag != "algo":
        raise InputError(f"{name} begins with <{root.tag}>", "MSCCL's files begin with <algo>")
    algorithm = _algorithm(root, name)
    steps = _steps(root, algorithm)
    moves = joined_moves(steps, name, algorithm.slots)
    found = CollectiveSchedule(
        name=root.get("name") or "unnamed", collective=algorithm.collective, ranks=algorithm.ranks, chunks=algorithm.chunks,
        moves=tuple(move for move, _ in moves), in_place=algorithm.in_place, source=f"MSCCL: {name}",
    )  # fmt: skip
    return found.read_from(where for _, where in moves).ordered()


@dataclass(frozen=True)
class _Algorithm:
    """What the head of a document says.

    Attributes:
        channels: how many there are; all that can be where it does not say.
        slots: sends that fit into a connection.
    """

    name: str
    collective: Collective
    ranks: int
    chunks: int
    channels: int
    slots: int
    in_place: bool

    def sizes(self) -> dict[Buffer, int]:
        """The chunks of a rank's input and output."""
        own = self.chunks // self.ranks
        return {
            "input": own if self.collective == "all-gather" else self.chunks,
            "output": own if self.collective == "reduce-scatter" else self.chunks,
        }


def _algorithm(root: ElementTree.Element, name: str) -> _Algorithm:
    collective = COLLECTIVES.get(root.get("coll", ""))
    if collective is None:
        raise InputError(
            f"{name}: the collective {root.get('coll')!r} is not known",
            f"use one of {', '.join(COLLECTIVES)}",
        )
    ranks, chunks = number(root, "ngpus", name), number(root, "nchunksperloop", name)
    if not (1 <= ranks <= _MOST and chunks >= 1):
        raise InputError(f"{name} has {ranks} gpus and {chunks} chunks", "give at least one of each")
    check_size(f"{name}: ngpus and nchunksperloop", ranks, chunks)
    return _Algorithm(
        name, collective, ranks, chunks, given(root, "nchannels", name, 1, _MOST) or _MOST, _slots(root, name),
        _in_place(root, name),
    )  # fmt: skip


def _slots(root: ElementTree.Element, name: str) -> int:
    """Where no protocol is named, as many as with the one that has fewest."""
    protocol = root.get("proto")
    if protocol is None:
        return min(SLOTS.values())
    if protocol not in SLOTS:
        raise InputError(f"{name}: proto is {protocol!r}", f"use one of {', '.join(SLOTS)}")
    return SLOTS[protocol]


def _in_place(root: ElementTree.Element, name: str) -> bool:
    """Whether results lie where inputs do. A document for both would be two schedules."""
    in_place = given(root, "inplace", name, 0, 1) or 0
    beside = given(root, "outofplace", name, 0, 1)
    if beside == in_place:
        raise InputError(
            f"{name}: inplace and outofplace are both {in_place}", "give one of them 1, the other 0"
        )
    return in_place == 1


def _by_id(parent: ElementTree.Element, tag: str, where: str) -> dict[int, ElementTree.Element]:
    """Elements by their ids: what waits for them names them so."""
    found: dict[int, ElementTree.Element] = {}
    for element in children(parent, tag, where):
        key = number(element, "id", where)
        if key in found:
            raise InputError(f"{where}: there are two {tag} {key}", f"give every {tag} an id of its own")
        found[key] = element
    return found


def _steps(root: ElementTree.Element, algorithm: _Algorithm) -> list[BlockStep]:
    """Of all gpus. No more than can be looked at."""
    gpus = _by_id(root, "gpu", algorithm.name)
    ranks = algorithm.ranks
    for rank in sorted({*gpus} - {*range(ranks)}) or sorted({*range(ranks)} - {*gpus}):
        there = "is a" if rank in gpus else "is no"
        raise InputError(
            f"{algorithm.name}: there {there} gpu {rank} of {ranks}", f"number them from 0 to {ranks - 1}"
        )
    steps: list[BlockStep] = []
    moved = 0
    for rank, gpu in gpus.items():
        for step in _Gpu(gpu, rank, algorithm).steps():
            moved += max(step.count, 1)
            if moved > MOVED_MAX:
                raise InputError(
                    f"{algorithm.name}: by {step.where}, whose cnt is {step.count}, steps move {moved:,} chunks",
                    f"give all together at most {MOVED_MAX:,}",
                )
            steps.append(step)
    return steps


class _Gpu:
    """One gpu's blocks, and how much room they have."""

    def __init__(self, gpu: ElementTree.Element, rank: int, algorithm: _Algorithm) -> None:
        self._rank, self._algorithm = rank, algorithm
        self._where = f"{algorithm.name}: gpu {rank}"
        self._blocks = _by_id(gpu, "tb", self._where)
        for missing in sorted({*self._blocks} ^ {*range(len(self._blocks))})[:1]:
            there = "is a" if missing in self._blocks else "is no"
            raise InputError(
                f"{self._where}: there {there} tb {missing} of {len(self._blocks)}",
                "number a gpu's blocks 0, 1, 2, ...",
            )
        self._room = self._sizes(gpu)
        self._held: dict[tuple[str, int, int], int] = {}

    def _sizes(self, gpu: ElementTree.Element) -> dict[Buffer, int]:
        """What the gpu says; MSCCL refuses a document in which that is not what the collective has."""
        room: dict[Buffer, int] = {}
        sizes = self._algorithm.sizes()
        for letter, buffer in BUFFERS.items():
            said = given(gpu, f"{letter}_chunks", self._where, 0, _MOST * _MOST)
            right = sizes.get(buffer, MOVED_MAX)
            if said and (said > right if buffer == "scratch" else said != right):
                raise InputError(
                    f"{self._where}: {letter}_chunks is {said}, beside nchunksperloop {self._algorithm.chunks}",
                    f"give at most {right:,}" if buffer == "scratch" else f"give {right}, or 0 where it is not used",
                )  # fmt: skip
            room[buffer] = right if said is None else said
        return room

    def steps(self) -> list[BlockStep]:
        """Of all its blocks."""
        found = []
        for block, element in self._blocks.items():
            found += self._steps_of(block, element)
        return found

    def _steps_of(self, block: int, element: ElementTree.Element) -> list[BlockStep]:
        where = f"{self._where}, tb {block}"
        channel = number(element, "chan", where)
        if not 0 <= channel < self._algorithm.channels:
            raise InputError(f"{where}: chan is {channel}", f"give 0 to {self._algorithm.channels - 1}")
        to, of = number(element, "send", where), number(element, "recv", where)
        found = [
            self._step(due, step, block, (to, channel), (of, channel))
            for due, step in enumerate(children(element, "step", where))
        ]
        for way, peer in (("send", to), ("recv", of)):
            self._hold(way, peer, channel, block)
        _check_chains(found, self._algorithm.name)
        return found

    def _hold(self, way: str, peer: int, channel: int, block: int) -> None:
        """A connection belongs to one block: two would take each other's place in it."""
        where = f"{self._where}, tb {block}: {way} is {peer}"
        if peer == -1:
            return
        if not self._is_peer(peer):
            raise InputError(where, "name another gpu, or -1 for none")
        holder = self._held.setdefault((way, peer, channel), block)
        if holder != block:
            raise InputError(
                f"{where} on channel {channel}, as that of tb {holder} is", "give one of them another chan"
            )

    def _is_peer(self, peer: int) -> bool:
        return 0 <= peer < self._algorithm.ranks and peer != self._rank

    def _step(
        self, due: int, step: ElementTree.Element, block: int, to: tuple[int, int], of: tuple[int, int]
    ) -> BlockStep:
        kind = step.get("type", "")
        where = f"{self._where}, tb {block}, step {step.get('s', '')[:9]}"
        if number(step, "s", where) != due:
            raise InputError(
                f"{where}: it stands where step {due} should", "number a tb's steps 0, 1, 2, ..."
            )
        if kind not in KINDS:
            raise InputError(f"{where}: the type {kind!r} is not known", f"use one of {', '.join(KINDS)}")
        for peer, needed in ((to[0], kind in SENDS), (of[0], kind in RECEIVES)):
            if needed and not self._is_peer(peer):
                raise InputError(
                    f"{where}: {kind!r} has the peer {peer}",
                    f"name one of {self._algorithm.ranks} other ranks",
                )
        count = number(step, "cnt", where)
        if kind != "nop" and not 1 <= count <= _MOST:
            raise InputError(f"{where}: cnt is {count}", f"give 1 to {_MOST}")
        source = self._place(step, "src", count if kind in SOURCES else 0, where)
        target = self._place(step, "dst", count if kind in TARGETS else 0, where)
        if kind in SOURCES and kind in TARGETS:
            _check_apart(source, target, count, where)
        return BlockStep(
            self._rank, block, due, kind, source, target, 0 if kind == "nop" else count, _waits(step, block, where), to, of,
            given(step, "hasdep", where, 0, 1) == 1,
        )  # fmt: skip

    def _place(self, step: ElementTree.Element, which: str, used: int, where: str) -> ChunkPlace:
        """Where a step reads or writes so many chunks; none where it is a note for the reader."""
        letter = step.get(f"{which}buf", "")
        if letter not in BUFFERS:
            raise InputError(f"{where}: {which}buf is {letter!r}", "use i, o or s")
        buffer, index = BUFFERS[letter], number(step, f"{which}off", where)
        room = self._room[buffer]
        if used and not 0 <= index <= room - used:
            raise InputError(
                f"{where}: {which}off is {index} with cnt {used}, where {letter} has {room} chunks",
                f"give 0 to {room - used}" if room >= used else f"give {letter}_chunks of the gpu as many",
            )
        return ChunkPlace(self._rank, buffer, index)


def _waits(step: ElementTree.Element, block: int, where: str) -> list[tuple[int, int]]:
    """The step that one waits for, if any: two numbers that belong together."""
    depends, deps = number(step, "depid", where), number(step, "deps", where)
    if (depends, deps) == (-1, -1):
        return []
    if depends < 0 or deps < 0:
        raise InputError(
            f"{where}: depid is {depends} and deps is {deps}",
            "name a block and its step, or give both -1 to wait for nothing",
        )
    if depends == block:
        raise InputError(
            f"{where} waits for step {deps} of its own tb", "leave it out: a tb's steps follow each other"
        )
    return [(depends, deps)]


def _check_apart(source: ChunkPlace, target: ChunkPlace, count: int, where: str) -> None:
    """All chunks of a step are under way together, so what it reads must not be what it has just written."""
    if source.buffer == target.buffer and 0 < abs(source.index - target.index) < count:
        raise InputError(
            f"{where}: srcoff {source.index} and dstoff {target.index} overlap with cnt {count}",
            "move one chunk after the other",
        )


def _check_chains(steps: list[BlockStep], name: str) -> None:
    """What MSCCL makes one of several steps: nops with the step behind them, sums with the same target."""
    for before, step in zip(steps, [*steps[1:], None], strict=True):
        where = f"{name}: {before.where}"
        if before.kind == "nop" and not before.before:
            raise InputError(
                f"{where}: a nop that waits for nothing",
                "leave it out: MSCCL would number the steps behind it otherwise",
            )
        if before.kind == "nop" and (step is None or not step.before):
            raise InputError(
                f"{where}: a nop before no step that waits, too",
                "let that step wait for it: MSCCL asks for it",
            )
        if step is not None and _is_one(before, step) and before.count != step.count:
            raise InputError(
                f"{name}: {step.where}: cnt is {step.count}, and {before.count} in the step before, with which MSCCL makes it one",
                'give both the same, or the one before hasdep="1"',
            )


def _is_one(before: BlockStep, step: BlockStep) -> bool:
    """Whether MSCCL adds up both at once."""
    same = (before.target, before.source.buffer) == (step.target, step.source.buffer)
    return before.kind == step.kind == "re" and same and not step.before and not before.tells
