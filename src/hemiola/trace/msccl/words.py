"""The words of MSCCL's XML, and what each kind of step uses: by MSCCL's interpreter, not by what else a file says.

`msccl_interpreter.h` (microsoft/msccl) and `msccl_kernel_impl.h` (RCCL) agree: what is received comes into the target;
what it is added to lies in the source (`rrc`, `rrs`, `rrcs`), and only `re` adds to its target. Of a step that sends,
the target stands for the reader, as the source does of one that receives and adds nothing.
"""

from __future__ import annotations

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
