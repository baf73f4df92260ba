"""Which of a backward pass's all-reduces is which of DDP's buckets, and what lies in it.

The reducer hands its buckets over in the order of their numbers, and its log says how large each is. So the
k-th is bucket k if all sizes agree; with a communication hook that sends something else, if as many were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hemiola.profiler.trace.values import RecordedTransfer

__all__ = ["Buckets"]

_ATTEMPTS = 8
"""So often is the reducer's log read when it does not explain what was sent; it changes once, after iteration 0."""


class Buckets:
    """Names transfers after the buckets of the DDP modules of one process."""

    def __init__(self, reducers: dict[int, Any], announce: Callable[[dict[str, Any]], None]) -> None:
        self._reducers = reducers
        self._announce = announce
        self._sizes: dict[int, list[int]] = {}
        self._rebuilt: dict[int, bool] = {}
        self._attempts = _ATTEMPTS

    def name(self, transfers: Sequence[RecordedTransfer]) -> None:
        """Name the transfers that the reducers waited for at the end of one backward pass."""
        for group, reference in self._reducers.items():
            module = reference()
            mine = [transfer for transfer in transfers if transfer.group == group]
            if module is not None and mine:
                self._name_group(group, module, mine)

    def _name_group(self, group: int, module: Any, transfers: list[RecordedTransfer]) -> None:
        sizes = [transfer.size_bytes for transfer in transfers]
        final = self._rebuilt.get(group, False)
        if self._attempts and not (final and self._explains(group, sizes)):
            self._attempts -= 1
            self._read_log(group, module)
        explained = self._explains(group, sizes)
        word = "bucket" if self._rebuilt.get(group, False) or not explained else "first bucket"
        buckets = len(self._sizes[group]) if explained else len(transfers)
        for number, transfer in enumerate(transfers):
            transfer.name = f"{word} {number}" if number < buckets else "used parameters"

    def _explains(self, group: int, sizes: list[int]) -> bool:
        known = self._sizes.get(group)
        return known is not None and sizes[: len(known)] == known and len(sizes) - len(known) in (0, 1)

    def _read_log(self, group: int, module: Any) -> None:
        log = module._get_ddp_logging_data()
        rebuilt = bool(log.get("has_rebuilt_buckets"))
        self._rebuilt[group] = rebuilt or not _will_rebuild(module)
        self._sizes[group] = _numbers(log.get("rebuilt_bucket_sizes" if rebuilt else "bucket_sizes", ""))
        if rebuilt:
            places = str(log.get("rebuilt_per_bucket_param_indices", "")).split(", ")
            names = _parameter_names(module)
            contents = {
                f"bucket {number}": [names[int(place)] for place in bucket.split()]
                for number, bucket in enumerate(places)
            }
            self._announce({"buckets": contents})


def _will_rebuild(module: Any) -> bool:
    return not module.find_unused_parameters or module.static_graph


def _numbers(text: object) -> list[int]:
    return [int(number) for number in str(text).split(", ") if number]


def _parameter_names(module: Any) -> list[str]:
    """Names in the order in which DDP counts: each parameter once, those that need a gradient."""
    ignored = module.parameters_to_ignore
    return [
        name
        for name, parameter in module.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]
