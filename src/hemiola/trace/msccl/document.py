"""MSCCL's XML as elements and numbers: bounded before it is held, and refused where it says what no reader takes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from hemiola.core.collective.schedule import Buffer, Collective
from hemiola.core.errors import InputError

__all__ = [
    "ADDS",
    "BUFFERS",
    "COLLECTIVES",
    "KINDS",
    "LOCAL",
    "NAMES",
    "RECEIVES",
    "SENDS",
    "SLOTS",
    "SOURCES",
    "TARGETS",
    "beyond_limits",
    "children",
    "elements",
    "given",
    "number",
]

ELEMENTS_MAX = 1 << 18
"""Of a document: 64 times what RCCL holds of a gpu."""
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_SHOWN = 40


class _Elements(ElementTree.TreeBuilder):
    """A tree that ends where a document grows beyond all use."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self._count = name, 0

    def start(self, tag: str, attrs: dict[str, str]) -> ElementTree.Element:
        """One more element."""
        self._count += 1
        if self._count > ELEMENTS_MAX:
            raise InputError(
                f"{self._name} has more than {ELEMENTS_MAX:,} elements", "split it: no MSCCL reads so many"
            )
        return super().start(tag, attrs)

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        """Refused: entities make gigabytes of a few lines."""
        raise InputError(
            f"{self._name} declares a document type, <!DOCTYPE {name[:_SHOWN]}>",
            "leave it out: MSCCL's files have none, and no entities",
        )


def elements(text: str | bytes, name: str) -> ElementTree.Element:
    """The root of a document.

    Raises:
        InputError: it is no XML, has a document type, or more elements than any reader holds.
    """
    try:
        return ElementTree.fromstring(text, ElementTree.XMLParser(target=_Elements(name)))
    except (ElementTree.ParseError, ValueError, LookupError) as problem:
        raise InputError(f"{name} is no XML: {problem}", "name an MSCCL XML file") from None


def children(parent: ElementTree.Element, tag: str, where: str) -> list[ElementTree.Element]:
    """What stands in an element, which has to be of one kind: readers pass over everything else in silence.

    Raises:
        InputError: something else stands there.
    """
    for child in parent:
        if child.tag != tag:
            raise InputError(
                f"{where}: there is a <{child.tag}> in <{parent.tag}>", f"put nothing but <{tag}> there"
            )
    return list(parent)


def number(element: ElementTree.Element, attribute: str, where: str) -> int:
    """A whole number.

    Raises:
        InputError: it is missing, or no number; names the place.
    """
    value = element.get(attribute, "")
    if not _NUMBER.fullmatch(value):
        shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
        at = f"<{element.tag} {' '.join(f'{k}={v[:_SHOWN]!r}' for k, v in list(element.items())[:3])}>"
        raise InputError(f"{where}: {at}: {attribute} is {shown!r}", "give a whole number")
    return int(value)


def given(
    element: ElementTree.Element, attribute: str, where: str, least: int, most: int | None = None
) -> int | None:
    """A number that may be left out, and that lies between others where it is not.

    Raises:
        InputError: it is none, or lies outside.
    """
    if element.get(attribute) is None:
        return None
    found = number(element, attribute, where)
    if found < least or (most is not None and found > most):
        raise InputError(
            f"{where}: {attribute} is {found}",
            f"give {least} or more" if most is None else f"give {least} to {most}",
        )
    return found


# The words of MSCCL's XML, and what each kind of step uses: by MSCCL's interpreter, not by what else a file says.
#
# `msccl_interpreter.h` (microsoft/msccl) and `msccl_kernel_impl.h` (RCCL) agree: what is received comes into the target;
# what it is added to lies in the source (`rrc`, `rrs`, `rrcs`), and only `re` adds to its target. Of a step that sends,
# the target stands for the reader, as the source does of one that receives and adds nothing.

COLLECTIVES: dict[str, Collective] = {
    "allreduce": "all-reduce", "allgather": "all-gather", "reduce_scatter": "reduce-scatter", "reducescatter": "reduce-scatter",
    "alltoall": "all-to-all", "broadcast": "broadcast", "reduce": "reduce",
}  # fmt: skip
"""msccl-tools and the first MSCCL write and read reduce_scatter, RCCL and the later executor reducescatter."""
NAMES: dict[Collective, str] = {collective: name for name, collective in COLLECTIVES.items()}
"""What is written: RCCL's names."""
BUFFERS: dict[str, Buffer] = {"i": "input", "o": "output", "s": "scratch"}
RECEIVES = ("r", "rrc", "rrs", "rrcs", "rcs")
SENDS = ("s", "rrs", "rrcs", "rcs")
ADDS = ("rrc", "rrs", "rrcs")
"""What comes is added to the source."""
LOCAL = ("cpy", "re")
KINDS = (*RECEIVES, "s", *LOCAL, "nop")
SOURCES = ("s", "rrc", "rrs", "rrcs", "cpy", "re")
"""Read their source."""
TARGETS = ("r", "rcs", "rrc", "rrcs", "cpy", "re")
"""Write their target."""
SLOTS = {"Simple": 2, "LL": 8, "LL128": 8}
"""By protocol: how many sends fit into a connection before the next one waits for a receive (8 steps of NCCL's, and
Simple takes 4 for each). So it is while data is small enough for a step's chunks to go together."""


# What of an MSCCL document is more than its readers hold: they refuse it, or write beyond their arrays.

STEPS_MAX, COUNT_MAX, PEERS_MAX, BLOCKS_MAX, NODES_MAX = 64, 71, 32, 127, 4095
"""Of a thread block; of chunks in a step; of a channel, in each direction; of a gpu; of a gpu's elements."""


def beyond_limits(text: str) -> list[str]:
    """In words, one for each limit of RCCL's that is exceeded (src/include/msccl/msccl_struct.h, msccl_parser.h).

    Other readers hold no less, but for some that hold 256 steps.
    """
    gpus = list(ElementTree.fromstring(text).iter("gpu"))
    blocks = [block for gpu in gpus for block in gpu]
    found = {
        "steps in a thread block": (max(map(len, blocks), default=0), STEPS_MAX),
        "chunks in a step": (max((int(step.get("cnt", "0")) for block in blocks for step in block), default=0), COUNT_MAX),
        "peers of a gpu on a channel": (max((_peers(gpu) for gpu in gpus), default=0), PEERS_MAX),
        "thread blocks of a gpu": (max(map(len, gpus), default=0), BLOCKS_MAX),
        "elements that a gpu reads": (max((sum(1 for _ in gpu.iter()) for gpu in gpus), default=0) + len(gpus), NODES_MAX),
    }  # fmt: skip
    return [
        f"{have:,} {what}, where RCCL holds {most:,}" for what, (have, most) in found.items() if have > most
    ]


def _peers(gpu: ElementTree.Element) -> int:
    """The most that it sends to, or receives from, on one channel."""
    counts: dict[tuple[str, str | None], int] = {}
    for block in gpu:
        for way in ("send", "recv"):
            if block.get(way) != "-1":
                counts[way, block.get("chan")] = counts.get((way, block.get("chan")), 0) + 1
    return max(counts.values(), default=0)
