"""Which forward operation a backward operation belongs to.

Autograd numbers the nodes it makes in forward. An operation that made a node is found again when
that node runs in backward.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["BackwardLinks"]


class BackwardLinks:
    """Numbers of autograd's nodes, and the rows of the operations that made them.

    Args:
        parameters: index of each parameter, by identity.
    """

    def __init__(self, parameters: dict[int, int]) -> None:
        self._parameters = parameters
        self._row: dict[int, int] = {}
        self._next: int = torch.autograd._get_sequence_nr()
        self._last: tuple[int, int] = (-1, -1)

    def made(self, row: int) -> None:
        """Note the nodes made since the last call: the newest is this row's, others the row's before."""
        count = torch.autograd._get_sequence_nr()
        for number in range(self._next, count):
            self._row[number] = row if number == count - 1 else max(row - 1, 0)
        self._next = count

    def begin_backward(self, loss: torch.Tensor) -> None:
        """Backward starts here: its first operations belong to what made the loss."""
        self._last = (self._row.get(loss.grad_fn._sequence_nr(), -1), -1) if loss.grad_fn else (-1, -1)

    def current(self) -> tuple[int, int]:
        """The forward row of the node that runs now, and the parameter that it accumulates into; -1 for none.

        Between nodes (autograd adds up gradients itself) those of the node that ran last.
        """
        node: Any = torch._C._current_autograd_node()
        if node is not None:
            variable = getattr(node, "variable", None)
            if isinstance(variable, torch.Tensor):
                self._last = (-1, self._parameters.get(id(variable), -1))
            else:
                self._last = (self._row.get(node._sequence_nr(), -1), -1)
        return self._last
