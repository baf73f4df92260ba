"""What collectives take between hosts: run this module once on each, rank 0 writes the result.

    RANK=... WORLD_SIZE=... MASTER_ADDR=... MASTER_PORT=... \\
        python -m hemiola.profiler.calibrate.links --output links.json

`torchrun --nnodes ... --nproc-per-node 1 -m hemiola.profiler.calibrate.links --output links.json` does the same.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hemiola.comm.transport.home import missing_variables
from hemiola.core.errors import DAMAGED, HardwareError, HemiolaError, InputError
from hemiola.core.hardware import CollectiveCost, spread_of
from hemiola.cost.collective.library import fit_collective
from hemiola.trace.atomic import replacing
from hemiola.trace.results import read_bytes

__all__ = ["SCHEMA", "main", "read_links"]

SCHEMA = "hemiola.links/1"
SIZES = (4, 64, 1024, 16_384, 131_072, 1_048_576, 4_194_304, 16_777_216, 67_108_864)
_FEWEST, _MOST = 5, 200  # calls of one size
_WARM = 2
_Measured = tuple[list[tuple[float, float, float]], list[float], int]
"""Points and spreads as `fit_collective` takes them, and timed calls per size."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: str
    measured_on: str
    collectives: tuple[CollectiveCost, ...]


def read_links(path: Path) -> tuple[CollectiveCost, ...]:
    """The collectives of a file that rank 0 wrote.

    Raises:
        InputError: if it is missing or not such a file.
    """
    remedy = "name what `python -m hemiola.profiler.calibrate.links --output FILE` wrote"
    try:
        found = msgspec.json.decode(read_bytes(path), type=_File)
    except DAMAGED as error:
        raise InputError(f"{str(path)!r} does not say what links take: {error}", remedy) from error
    if found.schema != SCHEMA:
        raise InputError(f"{str(path)!r} has the schema {found.schema!r}, not {SCHEMA!r}", remedy)
    return found.collectives


def main() -> None:
    """Be one rank."""
    options = _options()
    try:
        _run(options)
    except HemiolaError as problem:
        print(f"error: {problem}", file=sys.stderr)
        raise SystemExit(2) from None


def _run(options: argparse.Namespace) -> None:
    """Measure with the others; rank 0 writes what could be fitted, and then says what could not.

    Raises:
        InputError: the environment describes no job, or one of a single rank; the file cannot be written.
        HardwareError: what was measured tells no latency and rate.
    """
    if missing := missing_variables():
        raise InputError(f"{', '.join(missing)} not set", "start it with torchrun on every host")
    import torch.distributed as dist

    dist.init_process_group(options.backend)
    try:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        if ranks < 2:
            raise InputError(f"{ranks} ranks have no links between them", "start it on two hosts or more")
        hosts, measured = _measure(options)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    if rank == 0:
        _write(options, hosts, measured)


def _write(options: argparse.Namespace, hosts: list[str], measured: dict[str, _Measured]) -> None:
    """What can be fitted, whatever cannot: measuring takes minutes."""
    found, failed = [], dict[str, HardwareError]()
    for collective, (points, spreads, runs) in measured.items():
        try:
            found.append(
                fit_collective(options.backend, collective, hosts, points, spreads=spreads, runs=runs)
            )
        except HardwareError as problem:
            failed[collective] = problem
    if found:
        content = _File(SCHEMA, f"{platform.node()}, {options.backend}", tuple(found))
        with replacing(options.output) as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
    if failed:
        first = next(iter(failed.values()))
        without = f"{options.output} is without {', '.join(failed)}: " if found else ""
        raise HardwareError(without + first.what, first.remedy)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--seconds-per-size", type=float, default=0.5)
    return parser.parse_args()


def _measure(options: argparse.Namespace) -> tuple[list[str], dict[str, _Measured]]:
    """The ranks' hosts, and what was measured, by collective."""
    import torch
    import torch.distributed as dist

    device = "cpu"
    if options.backend == "nccl":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    said: list[Any] = [None] * dist.get_world_size()
    refused = _refused(options.output) if dist.get_rank() == 0 else ""  # it is rank 0 that writes
    dist.all_gather_object(said, (platform.node(), refused))
    if said[0][1]:
        raise InputError(said[0][1], "name a path that rank 0 may write to")
    found = {}
    for collective, prepare in _COLLECTIVES.items():
        points, spreads, runs = [], [], 0
        for size in options.sizes:
            call, size_bytes = prepare(size, device)
            seconds, cpu_s, spread, runs = _timed(call, options.seconds_per_size, device)
            points.append((float(size_bytes), seconds, cpu_s))
            spreads.append(spread)
        found[collective] = (points, spreads, runs)
    return [host for host, _ in said], found


def _refused(output: Path) -> str:
    """Why nothing can be written there; "" if something can."""
    try:
        folder = output.resolve().parent
        if output.is_dir():
            return f"{output} is a folder"
        if output.exists() and not output.is_file():
            return ""  # a pipe, or a device
        if not folder.is_dir():
            return f"there is no folder {folder}"
        return "" if os.access(folder, os.W_OK | os.X_OK) else f"the folder {folder} cannot be changed"
    except OSError as problem:
        return f"{output} cannot be written: {problem.strerror}"


def _timed(call: Callable[[], None], seconds: float, device: str) -> tuple[float, float, float, int]:
    """Of one call: seconds of the slowest rank, processor time of one that takes part, spread of the seconds, runs.

    Seconds are the lower quartile: what other load adds comes on top now and then, on a busy machine often.
    """
    import torch
    import torch.distributed as dist

    def once() -> tuple[float, float]:
        dist.barrier()
        cpu, start = time.process_time(), time.perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - start, time.process_time() - cpu

    first = max(once()[0] for _ in range(_WARM))
    count = min(max(int(seconds / max(first, 1e-6)), _FEWEST), _MOST)
    wanted = torch.tensor([count], device=device)
    dist.broadcast(wanted, 0)
    runs = np.array([once() for _ in range(int(wanted.item()))])
    slowest = torch.tensor(runs[:, 0], device=device)
    own = [0.0, 0.0] if call is _stand_by else [float(runs[:, 1].mean()), 1.0]
    mine = torch.tensor(own, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    dist.all_reduce(mine)
    seconds_each = slowest.cpu().numpy()
    cpu_s = float(mine[0] / mine[1])
    return float(np.quantile(seconds_each, 0.25)), cpu_s, spread_of(seconds_each), len(runs)


def _tensor(size: int, device: str) -> Any:
    import torch

    if size < 0:
        raise InputError(f"a tensor of {size} bytes", "give sizes of 0 or more")

    return torch.ones(max(size // 4, 1), device=device)


def _all_reduce(size: int, device: str) -> tuple[Callable[[], None], int]:
    import torch.distributed as dist

    tensor = _tensor(size, device).zero_()
    return lambda: dist.all_reduce(tensor), tensor.nbytes


def _all_gather(size: int, device: str) -> tuple[Callable[[], None], int]:
    import torch.distributed as dist

    part = _tensor(size // dist.get_world_size(), device)
    whole = part.new_empty(part.numel() * dist.get_world_size())
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before 2.13
    return lambda: gather(whole, part), whole.nbytes


def _reduce_scatter(size: int, device: str) -> tuple[Callable[[], None], int]:
    import torch.distributed as dist

    part = _tensor(size // dist.get_world_size(), device)
    whole = part.new_zeros(part.numel() * dist.get_world_size())
    scatter = (
        getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    )  # its name before 2.13
    return lambda: scatter(part, whole), whole.nbytes


def _broadcast(size: int, device: str) -> tuple[Callable[[], None], int]:
    import torch.distributed as dist

    tensor = _tensor(size, device)
    return lambda: dist.broadcast(tensor, 0), tensor.nbytes


def _send(size: int, device: str) -> tuple[Callable[[], None], int]:
    """Rank 0 sends to the last rank; the others stand by."""
    import torch.distributed as dist

    tensor, rank, last = _tensor(size, device), dist.get_rank(), dist.get_world_size() - 1

    if rank == 0:
        return lambda: dist.send(tensor, last), tensor.nbytes
    return (lambda: dist.recv(tensor, 0)) if rank == last else _stand_by, tensor.nbytes


def _stand_by() -> None:
    """The call of a rank that takes no part."""


_COLLECTIVES: dict[str, Callable[[int, str], tuple[Callable[[], None], int]]] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "send": _send,
}

if __name__ == "__main__":
    main()
