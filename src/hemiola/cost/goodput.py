"""Pollux's goodput: throughput times statistical efficiency, by the batch and how it is split (OSDI'21, section 3).

With K GPUs on N hosts, m samples on each at a time, and a gradient that is the sum of `accumulation` such steps:

    T_grad = alpha_c + beta_c m
    T_sync = 0 (K = 1); alpha_r + beta_r (K - 2) (N = 1); alpha_n + beta_n (K - 2) (N > 1)
    T_iter = (accumulation - 1) T_grad + (T_grad^gamma + T_sync^gamma)^(1 / gamma)
    goodput = M / T_iter * (phi + M0) / (phi + M), with M = K m accumulation

It knows values only. How a cluster's other traffic slows a job is `iteration`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hemiola.core.errors import InputError
from hemiola.core.goodput import GoodputModel
from hemiola.core.job import Batch, Configuration, Elastic
from hemiola.cost.iteration import IterationModel, Need, speed_at

__all__ = [
    "TrainingStep", "best_configuration", "efficiency", "goodput", "iteration_s", "kept_worth", "own_configuration", "reference_goodput",
    "reference_hosts",
    "step_s", "throughput", "training_speed",
]  # fmt: skip

CANDIDATES = 50
"""Batches that are tried, in geometric steps from the first to the largest, as Pollux does."""
NEARLY = 1e-8


def step_s(model: GoodputModel, per_gpu_batch: int, gpu_speed: float = 1.0) -> float:
    """Seconds in which a GPU computes a gradient of so many samples."""
    alpha, beta = model.step_s
    return (alpha + beta * per_gpu_batch) / gpu_speed


def sync_s(model: GoodputModel, gpus: int, hosts: int) -> float:
    """Seconds in which so many GPUs on so many hosts exchange gradients, alone."""
    if gpus == 1:
        return 0.0
    alpha, beta = model.host_sync_s if hosts == 1 else model.network_sync_s
    return alpha + beta * (gpus - 2)


def iteration_s(
    model: GoodputModel, configuration: Configuration, hosts: int, gpu_speed: float = 1.0
) -> float:
    """Seconds of one iteration of the whole job, alone.

    Args:
        hosts: over how many it is spread.
        gpu_speed: of its GPUs, relative to those that were measured.
    """
    step = step_s(model, configuration.per_gpu_batch, gpu_speed)
    sync = sync_s(model, configuration.gpus, hosts)
    return (configuration.accumulation - 1) * step + _overlapped(step, sync, model.overlap)


def _overlapped(step: float, sync: float, gamma: float) -> float:
    """(step^gamma + sync^gamma)^(1/gamma), of numbers whose powers may be none."""
    longer, shorter = max(step, sync), min(step, sync)
    return longer * (1 + (shorter / longer) ** gamma) ** (1 / gamma) if longer else 0.0


def throughput(
    model: GoodputModel, configuration: Configuration, hosts: int, gpu_speed: float = 1.0
) -> float:
    """Samples per second."""
    return configuration.batch / iteration_s(model, configuration, hosts, gpu_speed)


def efficiency(model: GoodputModel, batch: int, noise_scale: float) -> float:
    """What a sample of this batch is worth relative to one of the job's own batch: at most 1 from there on."""
    if math.isinf(noise_scale):
        return 1.0
    return (noise_scale + model.first_batch) / (noise_scale + batch) if batch else 1.0


def goodput(
    model: GoodputModel, configuration: Configuration, hosts: int, noise_scale: float, gpu_speed: float = 1.0
) -> float:
    """Samples of the job's own batch per second that train it as well."""
    worth = efficiency(model, configuration.batch, noise_scale)
    return throughput(model, configuration, hosts, gpu_speed) * worth


def own_configuration(model: GoodputModel, gpus: int) -> Configuration:
    """The job's own batch on so many GPUs: as few steps as they can hold it in."""
    return _split(model, gpus, model.first_batch)


def _split(model: GoodputModel, gpus: int, batch: float) -> Configuration:
    """A batch on so many GPUs. One GPU that has more than the job's own batch adds up two steps at least: that is how the
    noise is measured there."""
    share, holds = batch / gpus, model.largest_on_gpu or math.inf
    steps = max(1, math.ceil(share / holds - NEARLY))
    if gpus == 1 and share > model.first_batch + NEARLY:
        steps = max(steps, 2)
    return Configuration(gpus, max(1, math.ceil(share / steps - NEARLY)), steps)


def best_configuration(
    model: GoodputModel,
    gpus: int,
    hosts: int,
    noise_scale: float,
    *,
    gpu_speed: float = 1.0,
    among: tuple[Configuration, ...] = (),
) -> Configuration | None:
    """The one of most goodput on so many GPUs; None where every GPU would have less than one sample.

    Args:
        among: the only ones that may be; any unless given.
    """
    tried = [one for one in among if one.gpus == gpus] if among else _candidates(model, gpus)
    return max(tried, key=lambda one: goodput(model, one, hosts, noise_scale, gpu_speed), default=None)


def _candidates(model: GoodputModel, gpus: int) -> list[Configuration]:
    least = max(model.first_batch, gpus)
    if least > model.most_batch:
        return [own_configuration(model, gpus)] if gpus <= model.first_batch else []
    batches = np.geomspace(least, model.most_batch, CANDIDATES).tolist()
    return list(dict.fromkeys(_split(model, gpus, batch) for batch in batches))


def kept_worth(model: GoodputModel, asked: int, gpus: int, noise_scale: float) -> float:
    """What a sample is worth to a job whose GPUs keep their batch, on so many rather than the `asked`; at most 1."""
    return min(1.0, efficiency(model, round(model.first_batch * gpus / asked), noise_scale))


def reference_goodput(model: GoodputModel, job: Batch, hosts: int) -> float:
    """Samples per second with its own batch on the GPUs that it asked for: what its run time stands for.

    Raises:
        InputError: its own batch has less than a sample for each of its GPUs.
    """
    if job.gpus > model.first_batch:
        raise InputError(
            f"job {job.id!r} has a batch of {model.first_batch} for {job.gpus} GPUs",
            "give its goodput model a first_batch with a sample for each",
        )
    return throughput(model, own_configuration(model, job.gpus), hosts)


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """How a job trains on a placement at one batch.

    Attributes:
        iteration_s: of one iteration, alone, as the goodput model has it.
        compute_s: of it, in which gradients are computed.
        worth_s: seconds of the job's run time that an iteration does.
    """

    iteration_s: float
    compute_s: float
    worth_s: float

    @classmethod
    def of(
        cls,
        model: GoodputModel,
        told: Configuration,
        hosts: int,
        noise_scale: float,
        gpu_speed: float,
        reference: float,
    ) -> TrainingStep:
        """Of a job that was told to split its batch so.

        Args:
            reference: its `reference_goodput`.
        """
        compute_s = told.accumulation * step_s(model, told.per_gpu_batch, gpu_speed)
        worth_s = told.batch * efficiency(model, told.batch, noise_scale) / reference
        return cls(iteration_s(model, told, hosts, gpu_speed), compute_s, worth_s)

    def need(self, usual: Need, exposed_s: float) -> Need:
        """Of the network, where the job's usual need leaves so much exposed without other traffic: as much is sent."""
        compute_s = max(self.iteration_s - exposed_s, self.compute_s)
        return Need(compute_s, usual.traffic_bytes, usual.hidden_s)


def training_speed(
    model: IterationModel, job: Batch, gpus: int, tier: int, gpu_type: str, noise_scale: float | None
) -> tuple[float, Configuration | None]:
    """(work per second of a job alone on so many GPUs of a type within a tier, how it splits its batch for that).

    Args:
        job: at the size that it asked for.
        noise_scale: as last measured; None for what its model begins with.
    """
    sized = job.sized(gpus)
    narrowest = model.topology.narrowest(gpus, gpu_type or job.gpu_type, sized.hosts)
    if narrowest is None or narrowest > tier:
        return 0.0, None
    profile = job.profile
    if profile is None:
        return gpus / job.gpus, None
    trained = profile.goodput
    if trained is None or not isinstance(job, Elastic):
        kept = speed_at(model, job, job.gpus, gpus) * profile.speed(gpu_type)
        return kept / model.slowdown(sized, tier, narrowest), None
    noise = trained.noise_at(0.0) if noise_scale is None else noise_scale
    speed, hosts = profile.speed(gpu_type), 2 if tier else 1
    best = best_configuration(trained, gpus, hosts, noise, gpu_speed=speed, among=job.configurations)
    if best is None:
        return 0.0, None
    reference = reference_goodput(trained, job, reference_hosts(model, job))
    return goodput(trained, best, hosts, noise, speed) / reference, best


def reference_hosts(model: IterationModel, job: Batch) -> int:
    """1 where a job fits one host at the size that it asked for, else 2: that is all the model tells apart."""
    return 2 if model.topology.narrowest(job.gpus, job.gpu_type, job.hosts) else 1
