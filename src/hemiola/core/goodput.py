"""What is known of how fast a model trains at any batch: a value. `cost.goodput` works with it."""

from __future__ import annotations

import math

import msgspec

from hemiola.core.errors import InputError

__all__ = ["GoodputModel", "Noise"]


class Noise(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The gradient noise scale from a share of a job's work on.

    Attributes:
        from_share: of its work, 0 at its begin.
        scale: in samples; M0 var / sqr of Pollux. The larger, the less a larger batch wastes.
    """

    from_share: float
    scale: float


class GoodputModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pollux's model of a job (Qiao et al., OSDI'21, section 3): time of an iteration, and what it is worth.

    Attributes:
        step_s: (alpha, beta) of computing m samples on one GPU, alpha + beta m.
        host_sync_s: (alpha, beta) of synchronising K GPUs of one host, alpha + beta (K - 2).
        network_sync_s: the same over several hosts.
        overlap: gamma, from 1 (nothing overlaps) on.
        first_batch: M0, the job's own batch, at which a sample is worth 1.
        largest_batch: M is no larger; 0 for `first_batch`.
        largest_on_gpu: samples that one GPU can hold; 0 for any number.
        noise: of its gradients, by ascending share of its work, the first from 0; none takes every sample as worth 1.
    """

    step_s: tuple[float, float]
    host_sync_s: tuple[float, float] = (0.0, 0.0)
    network_sync_s: tuple[float, float] = (0.0, 0.0)
    overlap: float = 1.0
    first_batch: int = 1
    largest_batch: int = 0
    largest_on_gpu: int = 0
    noise: tuple[Noise, ...] = ()

    def __post_init__(self) -> None:
        times = (*self.step_s, *self.host_sync_s, *self.network_sync_s)
        if not all(0 <= time_s < math.inf for time_s in times) or sum(self.step_s) <= 0:
            raise InputError(f"a goodput model's times are {times}", "give seconds >= 0, some for a step")
        if not 1 <= self.overlap < math.inf:
            raise InputError(f"a goodput model's overlap is {self.overlap}", "give 1 or more")
        if self.first_batch < 1 or 0 < self.largest_batch < self.first_batch or self.largest_on_gpu < 0:
            raise InputError(
                f"a goodput model's batches are {self.first_batch} to {self.largest_batch}, "
                f"{self.largest_on_gpu} on a GPU",
                "give first_batch >= 1, and largest_batch no smaller",
            )
        shares = [noise.from_share for noise in self.noise]
        if shares[:1] not in ([], [0.0]) or shares != sorted(set(shares)) or shares[-1:] >= [1.0]:
            raise InputError(
                f"noise is given from the shares {shares}", "let them ascend from 0, each once, below 1"
            )
        if not all(0 <= noise.scale < math.inf for noise in self.noise):
            raise InputError("a noise scale is below 0 or not finite", "give samples, 0 or more")

    @property
    def most_batch(self) -> int:
        """The largest batch."""
        return self.largest_batch or self.first_batch

    def noise_at(self, share: float) -> float:
        """The noise scale at a share of the work done; infinite where none is known: every sample is worth 1."""
        scale = math.inf
        for noise in self.noise:
            if noise.from_share > share:
                break
            scale = noise.scale
        return scale

    def next_noise(self, share: float) -> float:
        """The share of the work at which the noise changes next; 1 where it does not."""
        return next((noise.from_share for noise in self.noise if noise.from_share > share), 1.0)

    def admits(self, gpus: int, per_gpu_batch: int, accumulation: int) -> bool:
        """Whether a job may split its batch so: no GPU holds too much, and the batch is no larger than allowed, but for
        what rounding up on every GPU adds."""
        if min(gpus, per_gpu_batch, accumulation) < 1 or per_gpu_batch > (
            self.largest_on_gpu or per_gpu_batch
        ):
            return False
        return gpus * (per_gpu_batch - 1) * accumulation < self.most_batch
