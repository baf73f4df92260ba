"""What Pollux's simulator knows of its six applications: work per epoch, and time per iteration.

Both are derived from the recorded training runs that its authors published; see data/README.md.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TypeVar

import msgspec

from hemiola.core.errors import InputError

__all__ = ["Batch", "batch_of", "epoch_iterations", "iteration_s"]


class BatchLimits(msgspec.Struct, frozen=True):
    """Batch sizes of an application: the first, the largest, and the largest on one GPU."""

    first: int
    largest: int
    on_one_gpu: int


LIMITS = {
    "bert": BatchLimits(12, 384, 12),
    "cifar10": BatchLimits(128, 4096, 1024),
    "deepspeech2": BatchLimits(20, 640, 80),
    "imagenet": BatchLimits(200, 12800, 200),
    "ncf": BatchLimits(256, 32768, 32768),
    "yolov3": BatchLimits(8, 512, 8),
}
MOST_HOSTS = 16


class Batch(msgspec.Struct, frozen=True):
    """How a job's batch is worked off.

    Attributes:
        on_one_gpu: samples per GPU and step.
        accumulated: steps before the one that synchronises.
        effective: samples per iteration; not always what was asked for.
    """

    on_one_gpu: int
    accumulated: int
    effective: int


class _Epochs(msgspec.Struct, frozen=True):
    application: str
    batch: int
    iterations: tuple[float, ...]


class _Steps(msgspec.Struct, frozen=True):
    application: str
    gpus: int
    local_batch: int
    step_and_sync_s: dict[str, tuple[float, float]]


T = TypeVar("T")


def _rows(name: str, kind: type[T]) -> list[T]:
    data = (files("hemiola.contrib.peers.simulators") / "data" / name).read_bytes()
    return msgspec.json.decode(data, type=list[kind])  # type: ignore[valid-type]


@cache
def _epochs() -> dict[tuple[str, int], tuple[float, ...]]:
    return {(row.application, row.batch): row.iterations for row in _rows("pollux_epochs.json", _Epochs)}


@cache
def _steps() -> dict[tuple[str, int, int], dict[str, tuple[float, float]]]:
    rows = _rows("pollux_steps.json", _Steps)
    return {(row.application, row.gpus, row.local_batch): row.step_and_sync_s for row in rows}


def batch_of(application: str, batch_size: int, gpus: int) -> Batch:
    """How a batch is split over GPUs and, where it does not fit them, over steps.

    Raises:
        InputError: an application that Pollux has no record of.
    """
    if application not in LIMITS:
        raise InputError(f"pollux-sim knows no application {application!r}", f"it knows {', '.join(LIMITS)}")
    limits = LIMITS[application]
    share = -(-batch_size // gpus)
    accumulated = -(-share // limits.on_one_gpu) - 1
    if gpus == 1 and batch_size > limits.first:
        accumulated = max(accumulated, 1)
    steps = accumulated + 1
    local = min(-(-share // steps), limits.largest // (gpus * steps))
    return Batch(local, accumulated, gpus * local * steps)


def epoch_iterations(application: str, batch_size: int, gpus: int) -> tuple[float, ...]:
    """Iterations of each epoch, statistical efficiency included.

    Raises:
        InputError: no record of that application at that batch size and number of GPUs.
    """
    batch = batch_of(application, batch_size, gpus)
    known = _epochs().get((application, batch.effective))
    if known is None or (application, gpus, batch.on_one_gpu) not in _steps():
        sizes = ", ".join(str(size) for name, size in _epochs() if name == application)
        raise InputError(
            f"pollux-sim has no record of {application} with batch size {batch_size} on {gpus} GPUs",
            f"for {application} it knows effective batch sizes {sizes}, as in the published workloads",
        )
    return known


def iteration_s(application: str, batch_size: int, per_host: tuple[int, ...]) -> float:
    """Seconds of one iteration with so many GPUs on each host, in the order of the ranks.

    Measured for placements on up to 4 hosts of 4 GPUs, which count as equal when rotated; for
    others the peer interpolates by number of hosts, with 16 the most.

    Raises:
        InputError: no record of that placement.
    """
    gpus = sum(per_host)
    batch = batch_of(application, batch_size, gpus)
    known = _steps().get((application, gpus, batch.on_one_gpu), {})
    rotations = (per_host[i:] + per_host[:i] for i in range(len(per_host)))
    exact = "".join(str(count) for count in min(rotations))
    found = known.get(exact) or known.get(f"{min(len(per_host), MOST_HOSTS)}+")
    if found is None:
        raise InputError(
            f"pollux-sim has no record of {application} on {len(per_host)} hosts with {per_host} GPUs",
            "choose hosts with 4 GPUs each, as in the published cluster",
        )
    step_s, sync_s = found
    return step_s + batch.accumulated * (step_s - sync_s)
