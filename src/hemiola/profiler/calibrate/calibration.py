"""The calibration of one machine, step by step: peaks, probes, graphs, what frameworks add."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from hemiola.core.errors import InputError
from hemiola.core.graph import PHASES, Graph
from hemiola.core.hardware import Hardware, PhaseCost
from hemiola.profiler.calibrate import probes as peaks
from hemiola.profiler.calibrate.clocks import OperationClock, clock_for, settled_allocator
from hemiola.profiler.calibrate.probes import Probe, probes
from hemiola.profiler.calibrate.replay import GraphReplay, Training, measure_exchange
from hemiola.profiler.calibrate.summary import (
    ReplayTimes,
    TrainingTimes,
    efficiencies_of,
    iteration_of,
    measurements_of,
    phases_of,
)
from hemiola.profiler.capture import capture

__all__ = ["CalibrationSettings", "Say", "calibrate_machine"]

Say = Callable[[str, int, int], None]
"""Told what is measured now, how many steps are done, and of how many."""

_FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class CalibrationSettings:
    """How to calibrate: see `hemiola.profiler.calibrate.calibrate`."""

    device: str = "cpu"
    threads: int = 1
    rounds: int = 8
    budget_s: float = 240.0
    name: str = ""
    exchange: bool = True
    small: bool = False


@dataclass(eq=False)
class _Found:
    """What was measured so far."""

    replays: list[ReplayTimes] = field(default_factory=list)
    trained: list[TrainingTimes] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def calibrate_machine(graphs: Sequence[Graph], settings: CalibrationSettings, say: Say) -> Hardware:
    """See `hemiola.profiler.calibrate.calibrate`."""
    device = settings.device
    with _settled(settings):
        clock = clock_for(device, settings.threads)
        say("peak rates", 0, 1)
        peak = peaks.peak_flop_per_s(device, clock)
        rate = peaks.memory_bytes_per_s(device, clock)
        fabric = peaks.fabric_bytes_per_s(device, clock)
        found = _measure(graphs, settings, clock, say)
        exchange = None
        if settings.exchange and device == "cpu":
            say("DistributedDataParallel", 0, 1)
            exchange = measure_exchange(_for_exchange(device, settings), settings.threads)
    measured = measurements_of(found.replays, caller_s=device == "cpu")
    efficiencies, guessed = efficiencies_of(measured, peak, rate)
    nothing = dict.fromkeys(PHASES, PhaseCost(operation_s=0.0, view_s=0.0))
    hardware = Hardware(
        name=settings.name or peaks.device_name(device),
        kind="cpu" if device == "cpu" else "gpu",
        peak_flop_per_s=peak,
        memory_bytes_per_s=rate,
        memory_bytes=peaks.memory_bytes(device),
        phases=nothing,
        efficiencies=efficiencies,
        cores=peaks.cores() if device == "cpu" else 0,
        threads_per_rank=settings.threads if device == "cpu" else 0,
        measured=measured,
        exchange=exchange,
        fabric_bytes_per_s=fabric,
        measured_on=_measured_on(settings),
        sources=_sources(settings, found, guessed),
    )
    iteration_s, noise = iteration_of(found.trained)
    phases = phases_of(found.trained, hardware)
    return msgspec.structs.replace(hardware, phases=phases, iteration_s=iteration_s, noise=noise).check()


@contextmanager
def _settled(settings: CalibrationSettings) -> Iterator[None]:
    """Threads, allocator, arithmetic and the current GPU as they are wanted; everything as it was afterwards."""
    gpu = settings.device.startswith("cuda")
    if gpu and not _is_there(settings.device):
        raise InputError(f"there is no device {settings.device!r}", "calibrate with device 'cpu'")
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    current = torch.cuda.device(settings.device) if gpu else nullcontext()  # events and delays go to it
    chance = torch.random.fork_rng(devices=range(torch.cuda.device_count()))
    try:
        with current, chance, settled_allocator():
            torch.manual_seed(0)
            yield
    finally:
        torch.set_num_threads(before)


def _is_there(device: str) -> bool:
    """Whether there is this GPU."""
    try:
        index = torch.device(device).index or 0
    except RuntimeError:
        return False
    return bool(torch.cuda.is_available() and index < torch.cuda.device_count())


def _measure(
    graphs: Sequence[Graph], settings: CalibrationSettings, clock: OperationClock, say: Say
) -> _Found:
    """Replay and train the small probes, then replay the graphs, then go on with the probes while there is time."""
    found, end = _Found(), time.monotonic() + settings.budget_s
    offered = list(probes(settings.device, small=settings.small))
    few = [*probes(settings.device, small=True)]
    steps: list[Probe | Graph] = [*offered[: len(few)], *graphs, *offered[len(few) :]]
    for done, step in enumerate(steps):
        left_s = end - time.monotonic()
        name = step.name
        if left_s <= 0 and isinstance(step, Probe) and done >= len(few):
            found.left_out.append(name)
            continue
        say(name, done, len(steps))
        share_s = max(left_s, 0.0) / (len(steps) - done)
        if isinstance(step, Probe):
            _probe(step, settings, clock, share_s, found)
        else:
            _replay(step, settings, clock, share_s, found, None)
    say("done", len(steps), len(steps))
    return found


def _probe(
    probe: Probe, settings: CalibrationSettings, clock: OperationClock, share_s: float, found: _Found
) -> None:
    graph = capture(
        probe.model, probe.inputs, optimizer=probe.optimizer, device=settings.device, name=probe.name
    )
    training = Training(probe, settings.threads)
    training.run(2)
    _replay(graph, settings, clock, share_s, found, training)


def _replay(
    graph: Graph,
    settings: CalibrationSettings,
    clock: OperationClock,
    share_s: float,
    found: _Found,
    training: Training | None,
) -> None:
    """Replay in rounds, with real iterations between them where there is something to train.

    What happens to the machine meanwhile happens to both alike. Rounds in which others took the
    processor are run again, and left out if enough others remain.
    """
    start = time.monotonic()
    replay = GraphReplay(graph, settings.device)
    with _flushed():
        replay.round(clock)
    rounds: list[NDArray[np.float64]] = []
    disturbed: list[bool] = []
    iterations: list[NDArray[np.float64]] = []
    while len(rounds) < 2 * settings.rounds:
        if disturbed.count(False) >= settings.rounds:
            break
        if len(rounds) >= _FEWEST_ROUNDS and time.monotonic() - start > share_s:
            break
        with _flushed():
            rounds.append(replay.round(clock))
        disturbed.append(clock.disturbed)
        if training is not None:
            iterations.append(training.run(2))
    quiet = ~np.array(disturbed, dtype=bool)
    keep = quiet if quiet.sum() >= _FEWEST_ROUNDS else np.ones(len(rounds), dtype=bool)
    found.replays.append(ReplayTimes(graph, np.array(rounds)[keep], ~quiet[keep]))
    found.failures += replay.failures.values()
    if training is not None:
        found.trained.append(TrainingTimes(graph, np.concatenate(iterations)))


@contextmanager
def _flushed() -> Iterator[None]:
    """Numbers too small to be normal become 0: random values reach them, trained networks hardly do."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _for_exchange(device: str, settings: CalibrationSettings) -> list[Probe]:
    wanted = {"perceptron-8", "transformer-64"}
    if not settings.small:
        wanted |= {"wide-32", "transformer-192"}
    return [probe for probe in probes(device, small=settings.small) if probe.name in wanted]


def _measured_on(settings: CalibrationSettings) -> str:
    what = f"{peaks.device_name(settings.device)}, PyTorch {torch.__version__}, Python {platform.python_version()}"
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{platform.node()}: {what}, {platform.system()} {platform.release()}, {when}"


def _sources(settings: CalibrationSettings, found: _Found, guessed: list[str]) -> dict[str, str]:
    one = settings.threads == 1 and settings.device == "cpu"
    sources = {
        "peak_flop_per_s": "measured: matrix product, best of 7",
        "memory_bytes_per_s": "measured: triad, best of 7",
        "measured": f"replayed: {', '.join(replay.graph.name for replay in found.replays)}",
        "phases": f"fitted to real iterations of {', '.join(each.graph.name for each in found.trained)}",
        "clock": "processor time" if one else "device time" if settings.device != "cpu" else "wall time",
    }
    if settings.device != "cpu":
        sources["fabric_bytes_per_s"] = "measured: copy to the next GPU, best of 7; 0 if none can be reached"
    for kind in guessed:
        sources[f"efficiencies.{kind}"] = "not measured: that of elementwise"
    if found.left_out:
        sources["left out"] = f"for want of time: {', '.join(found.left_out)}"
    if found.failures:
        sources["not replayed"] = "; ".join(sorted(set(found.failures)))
    return sources
