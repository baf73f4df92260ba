"""From a schedule to MSCCL's XML."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

from hemiola.core.collective.schedule import Buffer, ChunkMove, ChunkPlace, CollectiveSchedule
from hemiola.core.errors import ScheduleError
from hemiola.trace.atomic import replacing
from hemiola.trace.msccl.document import BUFFERS, NAMES

__all__ = ["msccl_text", "write_msccl"]

_LETTER = {buffer: letter for letter, buffer in BUFFERS.items()}
_ATTRIBUTE_BYTES_MAX = 255
"""RCCL keeps so much of an attribute as it stands in the file, and does not look whether there is more."""
_BYTES_MAX = 1 << 35


def write_msccl(schedule: CollectiveSchedule, path: Path, bytes_min: int = 0) -> None:
    """Write a file; see `msccl_text`.

    Raises:
        InputError: it cannot be written.
        ScheduleError: MSCCL has no such schedules.
    """
    text = msccl_text(schedule, bytes_min)
    with replacing(path) as stream:
        stream.write(text.encode())


@dataclass
class _Block:
    """A thread block that is being filled: its peers, its channel, the attributes of its steps."""

    send: int
    receive: int
    channel: int
    steps: list[dict[str, str]] = field(default_factory=list)


def msccl_text(schedule: CollectiveSchedule, bytes_min: int = 0) -> str:
    """The XML document of a schedule.

    Args:
        bytes_min: collectives of fewer bytes do not go by it. Up to 32 GiB, others do.

    Raises:
        ScheduleError: its chunks are not equal, or it has a root other than rank 0, which MSCCL cannot say.
    """
    if schedule.weights and max(schedule.weights) > min(schedule.weights) * (1 + 1e-9):
        raise ScheduleError(
            f"{schedule.name!r} has chunks of different sizes",
            "MSCCL's are equal: make them so with equal_chunks",
        )
    if schedule.collective in ("broadcast", "reduce") and schedule.root:
        raise ScheduleError(
            f"{schedule.name!r} has the root {schedule.root}",
            "MSCCL's files do not name one: number ranks so that it is 0",
        )
    gpus = [_Gpu(rank) for rank in range(schedule.ranks)]
    for move in schedule.moves:
        source, target = gpus[move.source.rank], gpus[move.target.rank]
        if not move.is_sent:
            source.add("re" if move.adds else "cpy", move, source.block(-1, -1, 0))
            continue
        source.add("s", move, source.block(move.target.rank, -1, move.channel))
        target.add("rrc" if move.adds else "r", move, target.block(-1, move.source.rank, move.channel))
    channels = 1 + max((move.channel for move in schedule.moves), default=0)
    root = ElementTree.Element(
        "algo", name=_kept(schedule.name), proto="Simple", nchannels=str(channels), nchunksperloop=str(schedule.chunks),
        ngpus=str(schedule.ranks), coll=NAMES[schedule.collective], inplace=str(int(schedule.in_place)),
        outofplace=str(int(not schedule.in_place)), minBytes=str(bytes_min), maxBytes=str(_BYTES_MAX),
    )  # fmt: skip
    for gpu in gpus:
        gpu.write(root)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _kept(name: str) -> str:
    """As much of a name as RCCL has room for, with the element around it to spare."""
    kept = name[:_ATTRIBUTE_BYTES_MAX]
    while len(ElementTree.tostring(ElementTree.Element("algo", name=kept), "utf-8")) > _ATTRIBUTE_BYTES_MAX:
        kept = kept[:-1]
    return kept


class _Gpu:
    """One rank's thread blocks."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._blocks: dict[tuple[int, int, int], int] = {}
        self._all: list[_Block] = []
        self._wrote: dict[ChunkPlace, tuple[int, int]] = {}
        self._read: dict[ChunkPlace, list[tuple[int, int]]] = {}
        self._chunks: dict[Buffer, int] = {"input": 0, "output": 0, "scratch": 0}

    def block(self, send: int, receive: int, channel: int) -> int:
        """The number of the one for these peers."""
        key = (send, receive, channel)
        if key not in self._blocks:
            self._blocks[key] = len(self._all)
            self._all.append(_Block(send, receive, channel))
        return self._blocks[key]

    def add(self, kind: str, move: ChunkMove, block: int) -> None:
        """One more step there: it waits for the last ones of other blocks that used its chunks."""
        reads = [place for place in move.sources() if place.rank == self._rank]
        writes = [place for place in move.targets() if place.rank == self._rank]
        latest: dict[int, int] = {}
        for place in (*reads, *writes):
            uses = [self._wrote[place]] if place in self._wrote else []
            uses += self._read.get(place, []) if place in writes else []
            for other, number in uses:
                if other != block:
                    latest[other] = max(number, latest.get(other, -1))
        steps = self._all[block].steps
        *first, last = sorted(latest.items()) or [(-1, -1)]
        for other, number in first:
            steps.append(_step(len(steps), "nop", "i", -1, "o", -1, 0, (other, number)))
        own, there = (move.source, move.target) if kind != "rrc" else (move.target, move.target)
        steps.append(
            _step(
                len(steps), kind, _LETTER[own.buffer], own.index, _LETTER[there.buffer], there.index, move.count, last
            )
        )  # fmt: skip
        self._keep_apart(steps)
        for other, number in latest.items():
            self._all[other].steps[number]["hasdep"] = "1"
        at = (block, len(steps) - 1)
        for place in (*reads, *writes):
            self._chunks[place.buffer] = max(self._chunks[place.buffer], place.index + 1)
        for place in reads:
            self._read.setdefault(place, []).append(at)
        for place in writes:
            self._wrote[place], self._read[place] = at, []

    @staticmethod
    def _keep_apart(steps: list[dict[str, str]]) -> None:
        """MSCCL adds up both of two such steps at once, with the count of the second, unless others hear of the first."""
        if (
            len(steps) > 1
            and steps[-1]["type"] == steps[-2]["type"] == "re"
            and steps[-1]["cnt"] != steps[-2]["cnt"]
        ):
            steps[-2]["hasdep"] = "1"

    def write(self, root: ElementTree.Element) -> None:
        """Its element."""
        size = self._chunks
        gpu = ElementTree.SubElement(
            root, "gpu", id=str(self._rank), i_chunks=str(size["input"]), o_chunks=str(size["output"]),
            s_chunks=str(size["scratch"]),
        )  # fmt: skip
        for number, block in enumerate(self._all):
            element = ElementTree.SubElement(
                gpu,
                "tb",
                id=str(number),
                send=str(block.send),
                recv=str(block.receive),
                chan=str(block.channel),
            )
            for step in block.steps:
                ElementTree.SubElement(element, "step", step)


def _step(
    number: int, kind: str, source: str, source_index: int, target: str, target_index: int, count: int,
    waits_for: tuple[int, int],
) -> dict[str, str]:  # fmt: skip
    return {
        "s": str(number), "type": kind, "srcbuf": source, "srcoff": str(source_index), "dstbuf": target,
        "dstoff": str(target_index), "cnt": str(count), "depid": str(waits_for[0]), "deps": str(waits_for[1]), "hasdep": "0",
    }  # fmt: skip
