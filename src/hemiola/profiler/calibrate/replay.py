"""A graph's operations run again, in order, each on the results of those it waits for.

What an operation takes depends on what ran before it: whether its inputs are still in the cache,
whether memory for its result has to be had from the system. So a graph is replayed as a whole, with
the tensors flowing as the dependencies say, and each operation is timed where it stands.
"""

from __future__ import annotations

import copy
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from hemiola.core.graph import KINDS, PHASES, Graph
from hemiola.core.hardware import ExchangeCost
from hemiola.profiler.calibrate.arguments import Call, TensorSlot, Unreplayable, call_of, tensors_in
from hemiola.profiler.calibrate.clocks import OperationClock
from hemiola.profiler.calibrate.probes import Probe
from hemiola.profiler.calibrate.summary import nonnegative_least_squares

__all__ = ["GraphReplay", "Training", "exchange_of", "measure_exchange"]


OPTIMIZER = PHASES.index("optimizer")


@dataclass(eq=False)
class _Result:
    """What an operation gave: `changed` if it was there before and only changed; `used` by the present reader."""

    tensor: torch.Tensor
    changed: bool
    used: bool = False

    def fits(self, slot: TensorSlot) -> bool:
        """Whether the slot fills its storage whole."""
        tensor = self.tensor
        same: bool = tensor.dtype == slot.dtype
        return same and bool(tensor.untyped_storage().nbytes() == slot.span * tensor.itemsize)


@dataclass(eq=False)
class _Step:
    row: int
    call: Call
    leaves: dict[int, torch.Tensor]
    flows: bool = True


class GraphReplay:
    """A graph made ready to run on a device.

    Args:
        graph: whose operations.
        device: "cpu" or "cuda".
        repeats: rows of one signature that are run at most; the others are left out.
        limit_bytes: how much memory tensors that nothing produces (weights, state) may take; beyond
            it such tensors of one size are shared.

    Attributes:
        failures: what could not be run, by signature, and why.
    """

    def __init__(
        self, graph: Graph, device: str, *, repeats: int = 4, limit_bytes: float = 2e9
    ) -> None:  # fmt: skip
        self.graph = graph
        self.failures: dict[int, str] = {}
        self._device = device
        self._left_bytes = limit_bytes
        self._spare: dict[Any, torch.Tensor] = {}
        self._steps = self._prepare(repeats)
        self._expired = self._expiries()

    def _prepare(self, repeats: int) -> list[_Step]:
        steps, seen = [], np.zeros(len(self.graph.signatures), dtype=np.int64)
        for row, signature in enumerate(self.graph.operations.signature.tolist()):
            seen[signature] += 1
            if seen[signature] > repeats or signature in self.failures:
                continue
            try:
                steps.append(_Step(row, call_of(self.graph.signatures[signature], self._device), {}))
            except Unreplayable as error:
                self.failures[signature] = str(error)
        return steps

    def _expiries(self) -> dict[int, list[int]]:
        """By row: whose results nothing needs after it. Gradients live until the iteration ends."""
        operations = self.graph.operations
        last: dict[int, int] = {}
        for row in range(len(operations)):
            last[row] = row
            for before in operations.dependencies(row).tolist():
                gradient = operations.phase[before] != OPTIMIZER == operations.phase[row]
                last[before] = len(operations) if gradient else row
        expired: dict[int, list[int]] = {}
        for row, end in last.items():
            expired.setdefault(end, []).append(row)
        return expired

    def round(self, clock: OperationClock) -> NDArray[np.float64]:
        """Run everything once; seconds by row, NaN for rows that were left out."""
        seconds = np.full(len(self.graph.operations), np.nan)
        alive: dict[int, list[_Result]] = {}
        dead: list[_Step] = []
        with torch.no_grad(), clock.round():
            for step in self._steps:
                self._bind(step, alive)
                try:
                    result = clock.time(step.row, step.call)
                except (RuntimeError, IndexError, ValueError, TypeError) as error:
                    if not self._again(step, clock, error):
                        dead.append(step)
                        continue
                    result = step.call()
                alive[step.row] = _results(step.call, result)
                del result
                for slot in step.call.slots:
                    slot.empty()
                for row in self._expired.get(step.row, ()):
                    alive.pop(row, None)
        for step in dead:
            self._steps.remove(step)
        for row, taken_s in clock.taken():
            seconds[row] = taken_s
        return seconds

    def _again(self, step: _Step, clock: OperationClock, error: Exception) -> bool:
        """After a failure on other operations' results: whether it runs on values of its own."""
        if step.flows:
            step.flows = False
            self._bind(step, {})
            try:
                clock.time(step.row, step.call)
                return True
            except (RuntimeError, IndexError, ValueError, TypeError) as again:
                error = again
        signature = int(self.graph.operations.signature[step.row])
        self.failures[signature] = f"{self.graph.operations.name[step.row]}: {str(error).splitlines()[0]}"
        return False

    def _bind(self, step: _Step, alive: dict[int, list[_Result]]) -> None:
        """Fill every slot: with a result of what the operation waits for, or with a tensor of its own."""
        waits = self.graph.operations.dependencies(step.row).tolist()[::-1] if step.flows else []
        results = [result for row in waits for result in alive.get(row, ())]
        for result in results:
            result.used = False
        slots = step.call.slots
        for i in sorted(range(len(slots)), key=lambda i: slots[i].written):
            found = _fitting(slots[i], results, alone=len(slots) == 1)
            slots[i].fill(self._leaf(step, i) if found is None else found)

    def _leaf(self, step: _Step, place: int) -> torch.Tensor:
        """A tensor that no operation produced: a weight, an input, the optimizer's state."""
        if place not in step.leaves:
            slot = step.call.slots[place]
            reach = self._reach(step, slot)
            key = (slot.span, slot.dtype, reach)
            size = slot.span * slot.dtype.itemsize
            if self._left_bytes >= size or key not in self._spare:
                self._left_bytes -= size
                self._spare[key] = slot.fresh(self._device, *reach)
            step.leaves[place] = self._spare[key]
        return step.leaves[place]

    def _reach(self, step: _Step, slot: TensorSlot) -> tuple[float, float]:
        """Between what its values lie, so that nothing overflows on the way through a deep network.

        What the optimizer changes in place starts at 0, as its state does. Weights are scaled as an
        initialization would; the rest is positive, for variances, probabilities and scales.
        """
        operations = self.graph.operations
        if slot.written and operations.phase[step.row] == OPTIMIZER:
            return 0.0, 0.0
        kind = KINDS[operations.kind[step.row]]
        if kind not in ("matmul", "convolution", "attention", "embedding"):
            return 0.1, 1.0
        if len(slot.shape) < 2:
            return -0.02, 0.02
        wide = [other for other in step.call.slots if len(other.shape) > 1]
        if slot is wide[0] or kind in ("attention", "embedding"):
            return -1.0, 1.0
        width = math.sqrt(3 / max(slot.shape[-2] if kind == "matmul" else math.prod(slot.shape[1:]), 1))
        return -width, width


def _results(call: Call, result: Any) -> list[_Result]:
    written = [slot.container[slot.place] for slot in call.slots if slot.written]
    places = {tensor.data_ptr() for tensor in written}
    return [_Result(tensor, tensor.data_ptr() in places) for tensor in tensors_in(result) or written]


def _fitting(slot: TensorSlot, results: list[_Result], *, alone: bool) -> torch.Tensor | None:
    """Which of the results a slot most likely took; the newest come first.

    Operands that are only read were mostly made by another operation; one that is changed in place
    is state that was changed before, or not a result at all. A result serves twice if need be.
    """
    fitting = [result for result in results if result.fits(slot)]
    made = [result for result in fitting if not result.changed]
    changed = [result for result in fitting if result.changed]
    if slot.written:
        order = [r for r in changed if not r.used] or (made if alone else [])
    else:
        order = (
            [r for r in made if not r.used] or made[-1:] or [r for r in changed if not r.used] or changed[-1:]
        )
    if not order:
        return None
    order[0].used = True
    return order[0].tensor


# Real iterations of a probe, phase by phase: what the sum of its operations is held against.


class Training:
    """A probe that is trained.

    Args:
        probe: it.
        threads: on a CPU: processor time counts with one thread, wall time with several.
    """

    def __init__(self, probe: Probe, threads: int) -> None:
        self._model = probe.model
        self._inputs = probe.inputs
        self._optimizer = probe.optimizer(probe.model.parameters())
        self._cuda = probe.inputs[0].is_cuda
        self._now: Callable[[], float] = (
            time.process_time if threads == 1 and not self._cuda else time.perf_counter
        )

    def run(self, iterations: int) -> NDArray[np.float64]:
        """Seconds by iteration: zeroing gradients, forward, backward, optimizer.

        On a GPU these are the host's, who does not wait for the device between phases.
        """
        rows = []
        for _ in range(iterations):
            if self._cuda:
                torch.cuda.synchronize()
            marks = [self._now()]
            self._optimizer.zero_grad()
            marks.append(self._now())
            loss = self._model(*self._inputs)
            marks.append(self._now())
            loss.backward()
            marks.append(self._now())
            self._optimizer.step()
            marks.append(self._now())
            rows.append(np.diff(marks))
        if self._cuda:
            torch.cuda.synchronize()
        return np.array(rows)


# What DistributedDataParallel adds to an iteration where nothing is sent: in a group of this process
# alone.

_BUCKETS_MB = (25.0, 0.25)
_ROUNDS = 5
_ITERATIONS = 3


def measure_exchange(probes: Iterable[Probe], threads: int) -> ExchangeCost | None:
    """Train each probe with and without it, in turn, and spread the difference over parameters, buckets and bytes.

    Returns:
        None where this process is in a group already, or PyTorch has no gloo.
    """
    if not dist.is_available() or not dist.is_gloo_available() or dist.is_initialized():
        return None
    rows, plain_s, added_s = [], [], []
    with _alone():
        for probe, bucket_mb in itertools.product(probes, _BUCKETS_MB):
            wrapped = DistributedDataParallel(copy.deepcopy(probe.model), bucket_cap_mb=bucket_mb)
            plain = Training(probe, threads)
            exchanging = Training(Probe(probe.name, wrapped, probe.inputs, probe.optimizer), threads)
            plain.run(2)
            exchanging.run(3)  # the reducer orders its buckets anew after the first
            pairs = [(plain.run(_ITERATIONS), exchanging.run(_ITERATIONS)) for _ in range(_ROUNDS)]
            without, with_ = (
                np.median(np.concatenate(side).sum(axis=1)) for side in zip(*pairs, strict=True)
            )
            sizes = [p.numel() * p.itemsize for p in probe.model.parameters() if p.requires_grad]
            rows.append((len(sizes), _buckets(wrapped, sizes), sum(sizes), 1))
            plain_s.append(float(without))
            added_s.append(float(with_ - without))
    return exchange_of(rows, plain_s, added_s)


def exchange_of(
    rows: Sequence[tuple[int, int, int, int]], plain_s: Sequence[float], added_s: Sequence[float]
) -> ExchangeCost:
    """What fits best, by least squares of the error relative to an iteration, no coefficient below 0.

    Relative to what is added, which is a difference of two times, a probe in which chance left little of it
    would count more than all others.

    Args:
        rows: of each probe: its parameters, buckets, bytes, and 1.
        plain_s: its iteration alone, in seconds.
        added_s: what it takes longer with DistributedDataParallel, which chance may have below 0.
    """
    plain = np.array(plain_s)
    relative = np.array(rows, dtype=float) / plain[:, None]
    shares = nonnegative_least_squares(relative, np.array(added_s) / plain).tolist()
    parameter_s, bucket_s, copy_s_per_byte, iteration_s = shares
    return ExchangeCost(
        parameter_s=parameter_s, bucket_s=bucket_s, copy_s_per_byte=copy_s_per_byte, iteration_s=iteration_s
    )


@contextmanager
def _alone() -> Iterator[None]:
    """A group of one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def _buckets(model: DistributedDataParallel, sizes: list[int]) -> int:
    """How many buckets the reducer made."""
    said = model._get_ddp_logging_data()
    text = str(said.get("rebuilt_bucket_sizes") or said.get("bucket_sizes") or "")
    return max(len([part for part in text.split(",") if part.strip()]), 1) if sizes else 0
