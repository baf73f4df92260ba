"""The words of MSCCL's XML, and what each kind of step uses: by MSCCL's interpreter, not by what else a file says.

`msccl_interpreter.h` (microsoft/msccl) and `msccl_kernel_impl.h` (RCCL) agree: what is received comes into the target;
what it is added to lies in the source (`rrc`, `rrs`, `rrcs`), and only `re` adds to its target. Of a step that sends,
the target stands for the reader, as the source does of one that receives and adds nothing.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from hemiola.core.collective.schedule import Buffer, Collective

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
]


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
