"""Measures this machine, so that what runs on it can be predicted.

PyTorch is imported when something is measured, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hemiola.core.errors import InputError

if TYPE_CHECKING:
    from hemiola.core.graph import Graph
    from hemiola.core.hardware import CollectiveCost, Hardware

__all__ = ["calibrate", "calibrate_links"]


def calibrate(
    graphs: Sequence[Graph] = (),
    *,
    device: str = "cpu",
    threads: int = 1,
    rounds: int = 8,
    budget_s: float = 240.0,
    name: str = "",
    exchange: bool = True,
    small: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Hardware:
    """Measure what operations take on this machine.

    A set of small networks is captured, replayed operation by operation, and really trained; the
    graphs are replayed. On a CPU with one thread processor time is measured, so that other load
    disturbs little; rounds in which it took more than a tenth of the time are measured again.

    Args:
        graphs: further graphs whose every operation is measured.
        device: "cpu", "cuda", or one of several GPUs ("cuda:1").
        threads: with which a rank computes, on a CPU.
        rounds: replays of each graph.
        budget_s: time for all, about: when it is used up the larger networks are left out, and
            `Hardware.sources` names them.
        name: what to call the hardware; the processor's name unless given.
        exchange: whether to measure what DistributedDataParallel adds (not if the process is in a group).
        small: only the smallest networks: seconds, for a first look.
        progress: told what is measured, how many steps are done, and of how many.

    Raises:
        InputError: if PyTorch is missing, there is no such device, or an argument is impossible.
    """
    _need_torch()
    if threads < 1 or rounds < 1 or not budget_s > 0:
        raise InputError(f"threads={threads}, rounds={rounds}, budget_s={budget_s:g}", "give numbers above 0")
    if device != "cpu" and not device.startswith("cuda"):
        raise InputError(f"there is no way to measure a {device!r}", "give 'cpu' or 'cuda'")
    from hemiola.profiler.calibrate.calibration import CalibrationSettings, calibrate_machine

    settings = CalibrationSettings(
        device=device, threads=threads, rounds=rounds, budget_s=budget_s, name=name,
        exchange=exchange, small=small,
    )  # fmt: skip
    return calibrate_machine(graphs, settings, progress or (lambda what, done, steps: None))


def calibrate_links(
    ranks: int = 2,
    *,
    backend: str = "gloo",
    sizes_bytes: Sequence[int] = (),
    seconds_per_size: float = 0.5,
    launch: Callable[[list[str]], Any] | None = None,
) -> tuple[CollectiveCost, ...]:
    """Measure collectives between processes: how long, and how much processor time each size takes.

    Args:
        ranks: processes on this machine, unless there is a launch.
        backend: "gloo" or "nccl".
        sizes_bytes: of the tensors; 4 B to 64 MB unless given.
        seconds_per_size: about how long each size of each collective is repeated.
        launch: runs a command once on each host, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set
            (in a lab: its `run`), and returns when all have ended.

    Raises:
        InputError: if PyTorch is missing, an argument is impossible, or a rank failed.
    """
    _need_torch()
    if ranks < 2:
        raise InputError(f"{ranks} ranks have no links between them", "give at least 2")
    from hemiola.profiler.calibrate.launching import links_between

    return links_between(ranks, backend, tuple(sizes_bytes), seconds_per_size, launch)


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError(
            "calibrating needs PyTorch, which is not installed", "pip install 'hemiola[torch]'"
        ) from error
