"""Strategies as MSCCL's XML, which NCCL's descendants (MSCCL, RCCL, MSCCL++) execute on GPUs.

There, every GPU has thread blocks with at most one peer to send to and one to receive from; a block's steps follow
each other, a step may wait for one of another block, and the k-th send between two ranks on a channel meets
the k-th receive. Here, moves wait for what they read and write.
"""

from hemiola.trace.msccl.reading import parse_msccl, read_msccl
from hemiola.trace.msccl.writing import msccl_text, write_msccl

__all__ = ["msccl_text", "parse_msccl", "read_msccl", "write_msccl"]
