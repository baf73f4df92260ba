"""What a machine's processor, memory and collective library can do: how long operations and transfers take on it.

Measured (`hemiola calibrate`) or written down from datasheets; which graph runs on it, and how fast, is
`cost`'s answer. Files are `trace`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from hemiola.core.errors import HardwareError
from hemiola.core.graph import KINDS, PHASES, Signature

__all__ = [
    "HARDWARE_SCHEMA",
    "CollectiveCost",
    "ExchangeCost",
    "Hardware",
    "KindEfficiency",
    "Measurement",
    "PhaseCost",
    "signature_key",
    "spread_of",
]

HARDWARE_SCHEMA = "hemiola.hardware/1"


def spread_of(values: ArrayLike, least: float = 1e-12) -> float:
    """Half the interquartile range of positive values, as a share of their median, or of `least` where that is more."""
    low, middle, high = np.quantile(np.asarray(values), [0.25, 0.5, 0.75])
    return float((high - low) / 2 / max(middle, least))


class Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One operation with one set of shapes, timed on this hardware.

    Attributes:
        operation: as the framework calls it ("aten.addmm.default").
        kind: one of `core.graph.KINDS`, but no "view".
        dtype: that it computes in ("float32").
        context: where it stood (`cost.operations.CONTEXTS`).
        sizes: what else its time depends on (`cost.operations.shape_sizes`).
        flop, read_bytes, written_bytes: its work.
        seconds: median of one call, caller's overhead taken off.
        least_s: the shortest call.
        spread: half the interquartile range, as a share of the median.
        runs: timed calls.
        disturbed: whether other load took the processor away during most of them.
    """

    operation: str
    kind: str
    dtype: str
    context: str
    sizes: tuple[int, int, int, int, int]
    flop: float
    read_bytes: float
    written_bytes: float
    seconds: float
    least_s: float
    spread: float
    runs: int
    disturbed: bool = False


class KindEfficiency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the peaks a kind of operation reaches.

    Attributes:
        compute: share of `peak_flop_per_s`.
        memory: share of `memory_bytes_per_s`.
        overhead_s: what the shortest operation of this kind takes on the device itself.
        spread: relative, of operations of this kind around what this efficiency says.
    """

    compute: float
    memory: float
    overhead_s: float = 0.0
    spread: float = 0.0


class PhaseCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the framework adds to operations of one phase.

    Attributes:
        operation_s: per operation. On a CPU it adds to the operation; on a GPU it is the time that the
            host takes to launch one, hidden behind the device's work where that is longer.
        view_s: per operation of kind "view".
        factor: what an operation takes inside of an iteration, per second alone (cold caches).
    """

    operation_s: float
    view_s: float
    factor: float = 1.0


class CollectiveCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One collective of one library, measured between given hosts.

    A collective of n ranks on a tensor of `size` bytes takes `steps(n) * alpha_s + share(n) * size /
    bytes_per_s`, where steps and share are those of the library's algorithm (`cost.collective.library`): 2(n-1)
    and 2(n-1)/n for a ring all-reduce. An all-gather's and a reduce-scatter's size is the whole tensor's.

    Attributes:
        backend: "gloo" or "nccl".
        collective: "all-reduce", "all-gather", "reduce-scatter", "broadcast" or "send".
        ranks: that took part.
        hosts: of the ranks, in order of rank; the same one several times where ranks shared it.
        alpha_s: of one step, however small.
        bytes_per_s: at which one rank sends when the tensor is large.
        cpu_s_per_byte: processor time of one rank (all its threads) per byte that it sends.
        cpu_s_per_step: processor time of one rank per step, however small.
        spread: relative, of large transfers around the fit.
        alpha_spread: relative, of small ones.
        points: (size_bytes, seconds, cpu_s) as measured: lower quartile of a call, and one rank's processor time.
        runs: timed calls per size.
    """

    backend: str
    collective: str
    ranks: int
    hosts: tuple[str, ...]
    alpha_s: float
    bytes_per_s: float
    cpu_s_per_byte: float = 0.0
    cpu_s_per_step: float = 0.0
    spread: float = 0.0
    alpha_spread: float = 0.0
    points: tuple[tuple[float, float, float], ...] = ()
    runs: int = 0

    @property
    def between_hosts(self) -> bool:
        """Whether the ranks stood on several hosts."""
        return len(set(self.hosts)) > 1


class ExchangeCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What exchanging gradients adds to backward, beside the transfer itself (DistributedDataParallel).

    Attributes:
        parameter_s: per parameter: its hook, and marking it ready.
        bucket_s: per bucket: starting the collective and finishing it.
        copy_s_per_byte: copying gradients into the bucket, scaling, and copying them back.
        iteration_s: per iteration: preparing the reducer, broadcasting buffers aside.
    """

    parameter_s: float
    bucket_s: float
    copy_s_per_byte: float
    iteration_s: float = 0.0


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank computes on, and what talking to others costs it.

    Times are seconds, sizes bytes, rates FLOP/s and bytes/s. A spread is relative.

    Attributes:
        name: what to call it ("A100-SXM4-80GB", a host's name).
        kind: "cpu" or "gpu".
        peak_flop_per_s: dense, by dtype ("float32", "bfloat16", "tf32", ...); of one rank's threads on a CPU.
        memory_bytes_per_s: what memory gives one rank alone.
        memory_bytes: what one device (on a CPU: one host) holds.
        cores: that the ranks of one host share; 0 on a GPU.
        threads_per_rank: with which a rank computes; 0 on a GPU.
        phases: the framework's overhead by phase; every phase of `core.graph.PHASES`.
        iteration_s: per iteration beside its operations (zeroing gradients, the loop).
        efficiencies: by kind of `core.graph.KINDS`; every kind but "view".
        measured: by `signature_key` of signature and context.
        collectives: measured between given hosts; empty if none were.
        exchange: what DDP adds; None if not measured.
        fabric_bytes_per_s: what a device sends to a neighbour in its host (NVLink), one direction; 0 without.
        noise: relative spread of whole iterations.
        sources: where a number comes from, by field ("peak_flop_per_s.bfloat16": "NVIDIA ... datasheet").
        measured_on: machine, date, versions; "" for a datasheet.
    """

    name: str
    kind: Literal["cpu", "gpu"]
    peak_flop_per_s: dict[str, float]
    memory_bytes_per_s: float
    memory_bytes: float
    phases: dict[str, PhaseCost]
    efficiencies: dict[str, KindEfficiency]
    cores: int = 0
    threads_per_rank: int = 0
    iteration_s: float = 0.0
    measured: dict[str, Measurement] = {}
    collectives: tuple[CollectiveCost, ...] = ()
    exchange: ExchangeCost | None = None
    fabric_bytes_per_s: float = 0.0
    noise: float = 0.0
    sources: dict[str, str] = {}
    measured_on: str = ""

    def check(self) -> Hardware:
        """Return this hardware, or refuse it.

        Raises:
            HardwareError: naming the field that cannot be.
        """
        for field, value, positive in _numbers(self):
            if not math.isfinite(value) or value < 0 or (positive and value == 0):
                wanted = "a finite number above 0" if positive else "a finite number of 0 or more"
                raise HardwareError(f"hardware {self.name!r}: {field} is {value}", f"give {wanted}")
        _check_complete(self)
        return self


def _numbers(hardware: Hardware) -> Iterator[tuple[str, float, bool]]:
    """Every number with its field's name, and whether it has to be above 0."""
    for field in ("memory_bytes_per_s", "memory_bytes"):
        yield field, getattr(hardware, field), True
    for field in ("cores", "threads_per_rank"):
        yield field, getattr(hardware, field), hardware.kind == "cpu"
    for field in ("iteration_s", "fabric_bytes_per_s", "noise"):
        yield field, getattr(hardware, field), False
    for dtype, rate in hardware.peak_flop_per_s.items():
        yield f"peak_flop_per_s.{dtype}", rate, True
    parts: tuple[tuple[str, Mapping[str, Any], tuple[str, ...]], ...] = (
        ("phases", hardware.phases, ("factor",)),
        ("efficiencies", hardware.efficiencies, ("compute", "memory")),
        ("measured", hardware.measured, ("seconds", "least_s", "runs")),
        ("collectives", dict(enumerate(hardware.collectives)), ("ranks", "alpha_s", "bytes_per_s")),  # type: ignore[arg-type]
        ("exchange", {"": hardware.exchange} if hardware.exchange else {}, ()),
    )
    for part, entries, positive in parts:
        for name, entry in entries.items():
            for field, value in msgspec.structs.asdict(entry).items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    yield ".".join(filter(None, (part, str(name), field))), value, field in positive


def _check_complete(hardware: Hardware) -> None:
    if not hardware.peak_flop_per_s:
        raise HardwareError(f"hardware {hardware.name!r} has no peak_flop_per_s", "give one per dtype")
    kinds = tuple(kind for kind in KINDS if kind != "view")
    for field, known, needed in (
        ("phases", hardware.phases, PHASES),
        ("efficiencies", hardware.efficiencies, kinds),
    ):
        missing = [name for name in needed if name not in known]
        strange = [name for name in known if name not in needed]
        if missing or strange:
            raise HardwareError(
                f"hardware {hardware.name!r}: {field} lacks {missing} and has the unknown {strange}",
                f"give one entry for each of {', '.join(needed)}",
            )
    for key, measurement in hardware.measured.items():
        if measurement.kind not in kinds:
            raise HardwareError(
                f"hardware {hardware.name!r}: measured.{key} is of the kind {measurement.kind!r}",
                f"give one of {', '.join(kinds)}",
            )
    for collective in hardware.collectives:
        if collective.ranks < 2 or len(collective.hosts) != collective.ranks:
            raise HardwareError(
                f"hardware {hardware.name!r}: {collective.collective} between {collective.ranks} ranks"
                f" on {len(collective.hosts)} hosts",
                "measure it again: at least two ranks, and the host of each",
            )


def signature_key(signature: Signature, context: str = "") -> str:
    """A signature as text, the same for the same operation, shapes, types and strides.

    A tensor reads dtype[shape], followed by its strides where it is not contiguous; a context
    (`Measurement.context`) follows after an "@".

    >>> signature_key(Signature("aten.t.default", ({"shape": [2, 3], "dtype": "float32", "stride": [3, 1]},)))
    'aten.t.default(float32[2,3])'
    """
    parts = [_text(argument) for argument in signature.arguments]
    parts += [f"{name}={_text(value)}" for name, value in sorted(signature.keywords.items())]
    return f"{signature.operation}({', '.join(parts)})" + (f"@{context}" if context else "")


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(entry) for entry in value)}]"
    if not isinstance(value, dict):
        return repr(value)
    shape, stride = list(value["shape"]), value.get("stride")
    text = f"{value['dtype']}[{','.join(map(str, shape))}]"
    if stride is None or list(stride) == _contiguous(shape):
        return text
    return f"{text}/{','.join(map(str, stride))}"


def _contiguous(shape: list[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]
