"""What DistributedDataParallel adds to an iteration where nothing is sent: in a group of this process alone."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hemiola.core.hardware import ExchangeCost
from hemiola.profiler.calibrate.nonnegative import nonnegative_least_squares
from hemiola.profiler.calibrate.probes import Probe
from hemiola.profiler.calibrate.training import Training

__all__ = ["exchange_of", "measure_exchange"]

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
