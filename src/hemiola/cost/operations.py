"""How long each operation of a graph takes on some hardware, alone.

In order of preference: the same operation with the same shapes was measured there; its like were (the
same operation with other shapes); or the roofline says (Williams, Waterman and Patterson, CACM 2009):
the longer of its FLOP at the peak rate and its bytes at the memory's rate, each times the efficiency
of its kind. The framework's overhead comes on top.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import HardwareError, InputError
from hemiola.core.graph import KINDS, PHASES, Graph, Signature
from hemiola.core.hardware import Hardware, Measurement, signature_key
from hemiola.trace.struct_json import read_hardware

__all__ = [
    "CONTEXTS",
    "EVIDENCE",
    "context_of",
    "known_hardware",
    "load_hardware",
    "main_dtype",
    "operation_seconds",
    "peak_name",
    "roofline",
    "shape_sizes",
]


EVIDENCE = ("measured", "shape class", "roofline", "overhead")
"""What an operation's time rests on. "overhead" is a view's: nothing but its call."""

CONTEXTS = ("", "optimizer", "optimizer, sparse")
"""Where an operation stands. The optimizer finds its gradients in the cache, and a table's that are
mostly 0 (an embedding of which a batch touches few rows) take their own time: square roots of 0 do."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_VIEW = KINDS.index("view")
_OPTIMIZER = PHASES.index("optimizer")
_EMBEDDING = KINDS.index("embedding")
_NEIGHBOURS = 3
_SAME = 0.02  # distance (in natural logarithms of work and sizes) that counts as none
_FADE = 3  # a neighbour's weight falls with this power of its distance
_STRANGE = 3.0  # distance of another type, and of another context
_FAR = 8.0  # distance at which the roofline stands among the neighbours
_LEAST_SPREAD = 0.05  # of what was not measured itself


@dataclass(frozen=True, eq=False)
class OperationCosts:
    """One entry per operation in every column.

    Attributes:
        seconds: framework's overhead included.
        spread: relative.
        evidence: index into `EVIDENCE`.
    """

    seconds: Floats
    spread: Floats
    evidence: NDArray[np.int8]


def operation_seconds(graph: Graph, hardware: Hardware) -> OperationCosts:
    """What every operation of a graph takes on one rank of this hardware, with nothing beside it.

    On a GPU an operation that is over before the host has launched the next one leaves the device
    idle; that wait is counted with the operation that waited.

    Raises:
        HardwareError: if the hardware has no peak rate for a type that the graph computes in.
    """
    cases, case_of = _cases(graph)
    seconds, spread, evidence = _case_seconds(graph, cases, hardware)
    kind, phase = graph.operations.kind, graph.operations.phase
    view = kind == _VIEW
    phases = [hardware.phases[name] for name in PHASES]
    overhead = np.where(
        view,
        np.array([cost.view_s for cost in phases])[phase],
        np.array([cost.operation_s for cost in phases])[phase],
    )
    alone = np.where(view, 0.0, seconds[case_of] * np.array([cost.factor for cost in phases])[phase])
    total = alone + overhead if hardware.kind == "cpu" else _queued(alone, overhead)
    return OperationCosts(
        seconds=total,
        spread=np.where(view, 0.0, spread[case_of]),
        evidence=np.where(view, EVIDENCE.index("overhead"), evidence[case_of]).astype(np.int8),
    )


def _queued(device_s: Floats, launch_s: Floats) -> Floats:
    """Time from each operation's end to the next one's, on a device that a host feeds.

    Operation i starts when it was launched and the one before it is done:
    end(i) = max(end(i-1), launched(i)) + device(i), whose closed form is a running maximum.
    """
    done = np.cumsum(device_s)
    ends = done + np.maximum.accumulate(np.cumsum(launch_s) - (done - device_s))
    return np.diff(ends, prepend=0.0)


def _cases(graph: Graph) -> tuple[Ints, Ints]:
    """The first row of each distinct (signature, context), and every row's place among them."""
    operations = graph.operations
    code = operations.signature * len(CONTEXTS) + context_of(graph)
    _, first, case_of = np.unique(code, return_index=True, return_inverse=True)
    return first, case_of


def context_of(graph: Graph) -> Ints:
    """For each operation an index into `CONTEXTS`."""
    operations = graph.operations
    optimizer = operations.phase == _OPTIMIZER
    sparse = np.isin(operations.module, _sparse_modules(graph))
    return np.where(optimizer, np.where(sparse, 2, 1), 0).astype(np.int64)


def _sparse_modules(graph: Graph) -> list[int]:
    """Modules that own a table of which an iteration touches less than half."""
    operations = graph.operations
    tied = {parameter.module for parameter in graph.parameters if parameter.aliases}
    found = []
    for row in np.flatnonzero((operations.kind == _EMBEDDING) & (operations.phase == 0)).tolist():
        tensors = [a for a in graph.signatures[operations.signature[row]].arguments if isinstance(a, dict)]
        module = int(operations.module[row])
        few = len(tensors) > 1 and math.prod(tensors[1]["shape"]) < 0.5 * tensors[0]["shape"][0]
        if few and graph.modules[module] not in tied:
            found.append(module)
    return found


def _case_seconds(graph: Graph, cases: Ints, hardware: Hardware) -> tuple[Floats, Floats, NDArray[np.int8]]:
    operations = graph.operations
    context = context_of(graph)[cases]
    signatures = [graph.signatures[i] for i in operations.signature[cases].tolist()]
    work = _Work(
        kinds=operations.kind[cases],
        dtypes=[main_dtype(signature) for signature in signatures],
        flop=operations.flop[cases],
        size_bytes=operations.read_bytes[cases] + operations.written_bytes[cases],
        sizes=np.array([shape_sizes(signature) for signature in signatures], dtype=float).reshape(-1, 5),
        contexts=[CONTEXTS[i] for i in context],
    )
    roof = roofline(work.kinds, work.dtypes, work.flop, work.size_bytes, hardware)
    seconds, spread = roof.copy(), np.empty(len(cases))
    evidence = np.full(len(cases), EVIDENCE.index("roofline"), dtype=np.int8)
    for i, kind in enumerate(work.kinds.tolist()):
        spread[i] = 0.0 if kind == _VIEW else hardware.efficiencies[KINDS[kind]].spread
    classes = _classes(hardware)
    unknown: dict[str, list[int]] = {}
    for i, signature in enumerate(signatures):
        place = CONTEXTS[context[i]]
        found = hardware.measured.get(signature_key(signature, place))
        if found is not None:
            seconds[i], spread[i], evidence[i] = found.seconds, found.spread, EVIDENCE.index("measured")
        elif work.kinds[i] != _VIEW and signature.operation in classes:
            unknown.setdefault(signature.operation, []).append(i)
    for name, members in unknown.items():
        rows = np.array(members)
        ratio, apart = _interpolated(classes[name], work, rows, hardware)
        seconds[rows], spread[rows] = roof[rows] * ratio, apart
        evidence[rows] = EVIDENCE.index("shape class")
    return seconds, spread, evidence


@dataclass(frozen=True, eq=False)
class _Work:
    kinds: NDArray[np.int8]
    dtypes: list[str]
    flop: Floats
    size_bytes: Floats
    sizes: Floats
    contexts: list[str]


def roofline(
    kinds: Iterable[int], dtypes: Iterable[str], flop: Floats, size_bytes: Floats, hardware: Hardware
) -> Floats:
    """The longer of computing and moving, with the efficiency of each operation's kind; views take none.

    Args:
        kinds: indices into `KINDS`.
        dtypes: what each computes in.
        flop, size_bytes: of each; bytes read and written together.
        hardware: where.

    Raises:
        HardwareError: if there is no peak rate for a type.
    """
    rows = []
    for kind, dtype, work in zip(kinds, dtypes, flop.tolist(), strict=True):
        if kind == _VIEW:
            rows.append((math.inf, math.inf, 0.0))
            continue
        efficiency = hardware.efficiencies[KINDS[kind]]
        peak = _peak(hardware, KINDS[kind], dtype) * efficiency.compute if work else math.inf
        rows.append((peak, hardware.memory_bytes_per_s * efficiency.memory, efficiency.overhead_s))
    peaks, rates, least = np.array(rows, dtype=float).reshape(-1, 3).T
    return np.asarray(np.maximum(flop / peaks, size_bytes / rates) + least)


def _peak(hardware: Hardware, kind: str, dtype: str) -> float:
    peaks = hardware.peak_flop_per_s
    name = peak_name(kind, dtype, peaks)
    if name not in peaks:
        raise HardwareError(
            f"hardware {hardware.name!r} has no peak rate for {dtype}: it knows {', '.join(peaks)}",
            f"add peak_flop_per_s.{dtype} to its file, or calibrate with this graph",
        )
    return peaks[name]


def peak_name(kind: str, dtype: str, peaks: Container[str]) -> str:
    """The one of a device's peak rates that a kind of operation is held against: that of its type.

    PyTorch lets a GPU's convolutions of float32 run as TF32, unless told otherwise.
    """
    return "tf32" if kind == "convolution" and dtype == "float32" and "tf32" in peaks else dtype


def main_dtype(signature: Signature) -> str:
    """The type that an operation computes in: of its first floating-point tensor, else "float32"."""
    for argument in (*signature.arguments, *signature.keywords.values()):
        for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
            if isinstance(tensor, dict) and tensor["dtype"].startswith(("float", "bfloat")):
                return str(tensor["dtype"])
    return "float32"


def shape_sizes(signature: Signature) -> tuple[int, int, int, int, int]:
    """What an operation's time depends on beside its FLOP and bytes.

    Returns:
        Elements of its first three tensors (0 where it has fewer); the window of a convolution's weight, else
        the length of its first tensor's rows; the product of its first list of several numbers (a
        pooling's window, a convolution's stride, the dimensions of a reduction).
    """
    flat = [
        a
        for argument in signature.arguments
        for a in (argument if isinstance(argument, list) else [argument])
    ]
    shapes = [value["shape"] for value in flat if isinstance(value, dict)]
    first, second, third = [*(math.prod(shape) for shape in shapes[:3]), 0, 0, 0][:3]
    rows = shapes[0][-1] if shapes and shapes[0] else 0
    place = 2 if "backward" in signature.operation else 1
    window = shapes[place][2:] if len(shapes) > place else []
    if "conv" in signature.operation and window:  # not all that is called so has one: "convert"
        rows = math.prod(window)
    lists = [a for a in signature.arguments if isinstance(a, list) and len(a) > 1 and isinstance(a[0], int)]
    return first, second, third, rows, abs(math.prod(lists[0])) if lists else 0


def _classes(hardware: Hardware) -> dict[str, list[Measurement]]:
    classes: dict[str, list[Measurement]] = {}
    for measurement in hardware.measured.values():
        classes.setdefault(measurement.operation, []).append(measurement)
    return classes


def _interpolated(
    known: list[Measurement], work: _Work, rows: Ints, hardware: Hardware
) -> tuple[Floats, Floats]:
    """How many times the roofline an operation takes, from its nearest like; and how far apart these are.

    The roofline itself counts as a neighbour at a fixed distance: far from all that was measured it decides.
    """
    flop = np.array([measurement.flop for measurement in known])
    size_bytes = np.array([measurement.read_bytes + measurement.written_bytes for measurement in known])
    sizes = np.array([measurement.sizes for measurement in known], dtype=float)
    kinds = [KINDS.index(measurement.kind) for measurement in known]
    roof = roofline(kinds, [measurement.dtype for measurement in known], flop, size_bytes, hardware)
    ratio = np.log(np.array([measurement.seconds for measurement in known]) / roof)
    here = _features(work.flop[rows], work.size_bytes[rows], work.sizes[rows])
    square = ((here[:, None] - _features(flop, size_bytes, sizes)) ** 2).sum(axis=2)
    square += _STRANGE**2 * _unlike(
        [work.dtypes[i] for i in rows], [measurement.dtype for measurement in known]
    )
    square += _STRANGE**2 * _unlike(
        [work.contexts[i] for i in rows], [measurement.context for measurement in known]
    )
    nearest = np.argsort(square, axis=1, kind="stable")[:, :_NEIGHBOURS]
    weight = (np.sqrt(np.take_along_axis(square, nearest, axis=1)) + _SAME) ** -_FADE
    weight /= weight.sum(axis=1, keepdims=True) + _FAR**-_FADE
    values = ratio[nearest]
    mean = (weight * values).sum(axis=1)
    apart = np.sqrt((weight * (values - mean[:, None]) ** 2).sum(axis=1))
    return np.exp(mean), np.maximum(apart, _LEAST_SPREAD)


def _unlike(here: list[str], there: list[str]) -> NDArray[np.bool_]:
    return np.asarray(np.array(here)[:, None] != np.array(there))


def _features(flop: Floats, size_bytes: Floats, sizes: Floats) -> Floats:
    """Where an operation lies among its like: logarithms of its work and of its tensors' sizes."""
    return np.log1p(np.column_stack([flop, size_bytes, sizes]))


# Hardware by name: the devices that ship with Hemiola, or a file.

_SHIPPED = Path(__file__).parent / "data" / "hardware"


def known_hardware() -> tuple[str, ...]:
    """Names of the devices that ship with Hemiola."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.json")))


def load_hardware(name_or_path: str | Path) -> Hardware:
    """A shipped device by its name (upper or lower case), or the hardware in a file.

    Raises:
        InputError: if it is neither, or the file is no hardware file.

    >>> load_hardware("h100").kind
    'gpu'
    """
    text = str(name_or_path)
    for name in known_hardware():
        if name.lower() == text.lower():
            return read_hardware(_SHIPPED / f"{name}.json")
    path = Path(name_or_path)
    if not path.exists() and not path.suffix:
        raise InputError(
            f"there is no hardware {text!r}",
            f"known are {', '.join(known_hardware())}; or name a file that `hemiola calibrate` wrote",
        )
    return read_hardware(path)
