"""The words of MSCCL's XML."""

from __future__ import annotations

from hemiola.core.strategy import Buffer, Collective

__all__ = ["ADDS", "BUFFERS", "COLLECTIVES", "KINDS", "LOCAL", "RECEIVES", "SENDS"]

COLLECTIVES: dict[str, Collective] = {
    "allreduce": "all-reduce", "allgather": "all-gather", "reduce_scatter": "reduce-scatter", "alltoall": "all-to-all",
    "broadcast": "broadcast", "reduce": "reduce",
}  # fmt: skip
BUFFERS: dict[str, Buffer] = {"i": "input", "o": "output", "s": "scratch"}
RECEIVES = ("r", "rrc", "rrs", "rrcs", "rcs")
SENDS = ("s", "rrs", "rrcs", "rcs")
ADDS = ("rrc", "rrs", "rrcs")
LOCAL = ("cpy", "re")
KINDS = (*RECEIVES, "s", *LOCAL, "nop")
