"""The words of MSCCL's XML."""

from __future__ import annotations

from hemiola.core.strategy import Buffer, Collective

__all__ = ["ADDS", "BUFFERS", "COLLECTIVES", "KINDS", "LOCAL", "NAMES", "RECEIVES", "SENDS"]

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
LOCAL = ("cpy", "re")
KINDS = (*RECEIVES, "s", *LOCAL, "nop")
