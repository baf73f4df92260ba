"""PyTorch's collectives of one tensor by strategies; None where they are to go the usual way."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hemiola.comm.process_group.fitted import Fitted
from hemiola.comm.process_group.memory import Reduction, contiguous
from hemiola.comm.process_group.pending import Pending
from hemiola.comm.process_group.rows import put_back

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter"]


def all_reduce(fitted: Fitted | None, tensors: Sequence[Tensor], how: Reduction) -> Pending | None:
    """In place."""
    if fitted is None or len(tensors) != 1:
        return None
    tensor = tensors[0]

    def put(flat: Tensor) -> None:
        put_back(flat.div_(fitted.ranks) if how.average else flat, tensor)

    return fitted.add_up(contiguous(tensor).view(-1), how, put, [tensor])


def broadcast(fitted: Fitted | None, tensors: Sequence[Tensor], root: int) -> Pending | None:
    """In place."""
    if fitted is None or len(tensors) != 1:
        return None
    tensor = tensors[0]
    flat = contiguous(tensor).view(-1)
    return fitted.start("broadcast", flat, Tensor.add_, lambda found: put_back(found, tensor), [tensor], root)


def reduce(fitted: Fitted | None, tensors: Sequence[Tensor], how: Reduction, root: int) -> Pending | None:
    """In place at the root; elsewhere nothing changes."""
    if fitted is None or len(tensors) != 1:
        return None
    tensor = tensors[0]

    def put(flat: Tensor) -> None:
        if fitted.rank == root:
            tensor.copy_((flat.div_(fitted.ranks) if how.average else flat).view(tensor.shape))

    return fitted.start("reduce", contiguous(tensor).view(-1), how.join, put, [tensor], root, keeps=True)


def all_gather(fitted: Fitted | None, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Pending | None:
    """One behind the other."""
    if fitted is None or len(outputs) != 1:
        return None
    table = outputs[0]

    def put(rows: Tensor) -> None:
        table.copy_(rows.reshape(table.shape))

    return fitted.start("all-gather", contiguous(inputs[0]).view(-1), Tensor.add_, put, [table])


def reduce_scatter(
    fitted: Fitted | None, outputs: Sequence[Tensor], inputs: Sequence[Tensor], how: Reduction
) -> Pending | None:
    """Each rank's part."""
    if fitted is None or len(outputs) != 1:
        return None
    part = outputs[0]

    def put(own: Tensor) -> None:
        part.copy_((own.div_(fitted.ranks) if how.average else own).view(part.shape))

    return fitted.start("reduce-scatter", contiguous(inputs[0]).view(-1), how.join, put, [part], keeps=True)
