"""Schedules as MSCCL's XML, which MSCCL (microsoft/msccl, Azure/msccl) and RCCL until March 2026 execute on GPUs.

There, every GPU has thread blocks with at most one peer to send to and one to receive from; a block's steps follow
each other, a step may wait for one of another block, and the k-th send between two ranks on a channel meets
the k-th receive. Here, moves wait for what they read and write.
"""

from hemiola.trace.msccl.document import beyond_limits
from hemiola.trace.msccl.joined import Equal, equal_chunks
from hemiola.trace.msccl.reading import parse_msccl, read_msccl
from hemiola.trace.msccl.writing import msccl_text, write_msccl

__all__ = ["Equal", "beyond_limits", "equal_chunks", "msccl_text", "parse_msccl", "read_msccl", "write_msccl"]
