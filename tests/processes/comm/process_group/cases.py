"""A rank of one of these jobs, which prints what it has seen: `cases.py RANK RANKS FILE CASE`."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from patience import patience
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

LARGE = 1_000_000
SOON = timedelta(seconds=30)
SLOW = {"averages": "400mbit", "not_left": "8mbit"}
"""At which rate rank 1 sends, by the case."""


def averages(rank: int, ranks: int) -> str:
    """Rank 1 sends slowly: it has its result long before its own messages are gone."""
    for size in (4 * LARGE, 5):
        flat = torch.arange(size) % 7 + torch.tensor(float(rank))
        dist.all_reduce(flat, dist.ReduceOp.AVG)
        assert torch.equal(flat, torch.arange(size) % 7 + torch.tensor((ranks - 1) / 2)), f"{size} floats"
    return "right"


def no_averages(rank: int, ranks: int) -> str:
    """What cannot be averaged raises at every rank, and harms nothing that follows."""
    for dtype in (torch.int64, torch.bool):
        for size in (3, LARGE):
            begun_s = time.monotonic()
            try:
                dist.all_reduce(torch.ones(size, dtype=dtype), dist.ReduceOp.AVG)
            except RuntimeError as problem:
                assert "can't be cast" in str(problem), problem
            else:
                raise AssertionError(f"an average of {dtype}")
            assert time.monotonic() - begun_s < patience(10)
            flat = torch.ones(size)
            dist.all_reduce(flat, dist.ReduceOp.AVG)
            assert torch.equal(flat, torch.ones(size))
    return "raised"


def no_bits(rank: int, ranks: int) -> str:
    """What there is not for a type raises at every rank before anything is sent, and harms nothing that follows."""

    def scattered(whole: torch.Tensor, operation: Any) -> None:
        dist.reduce_scatter_tensor(torch.empty_like(whole[: len(whole) // ranks]), whole, operation)

    for call, operation, dtype in (
        (dist.all_reduce, dist.ReduceOp.BAND, torch.float32), (scattered, dist.ReduceOp.MAX, torch.complex64),
        (dist.all_reduce, dist.ReduceOp.SUM, torch.float8_e4m3fn),
    ):  # fmt: skip
        for size in (4, LARGE):
            before = torch.ones(size, dtype=dtype)
            try:
                call(before, operation)
            except Exception as problem:
                assert f"of {dtype}" in str(problem), problem
            else:
                raise AssertionError(f"{operation} of {dtype}")
            for _ in range(9):
                flat = torch.ones(size)
                dist.all_reduce(flat)
                assert torch.equal(flat, torch.full((size,), float(ranks)))
            assert torch.equal(before.view(torch.uint8), torch.ones(size, dtype=dtype).view(torch.uint8))
    return "raised"


def unequal(rank: int, ranks: int) -> str:
    """What has no part for each rank, or has it of another size, raises at every rank, and harms nothing that follows."""
    whole, part = torch.ones(2 * ranks - 1), torch.ones(2)
    calls = [
        (lambda: dist.all_to_all_single(torch.empty(ranks + 1), torch.ones(ranks + 1)), f"{ranks + 1} rows"),
        (lambda: dist.all_to_all_single(whole, whole, [1] * ranks, [2] * (ranks - 1) + [1]), "of 1, 1, 1 rows"),
        (lambda: dist.all_to_all_single(whole, whole, None, [ranks, ranks - 1]), "tensor of 5"),
        (lambda: dist.reduce_scatter_tensor(part, whole), "parts of 2"),
        (lambda: dist.all_gather_into_tensor(whole, part), "6 elements"),
        (lambda: dist.all_gather([part] * (ranks - 1), part), "list of 2"),
        (lambda: dist.reduce_scatter(part, [part] * (ranks + 1)), "list of 4"),
        (lambda: dist.all_to_all([part] * ranks, [part] * (ranks - 1)), "list of 2"),
    ]  # fmt: skip
    for call, words in calls:
        try:
            call()
        except Exception as problem:
            assert words in str(problem), problem
        else:
            raise AssertionError(f"{words} ended well")
        for size in (4, LARGE):
            flat = torch.ones(size)
            dist.all_reduce(flat)
            assert torch.equal(flat, torch.full((size,), float(ranks)))
    return "raised"


def unwritable(rank: int, ranks: int) -> str:
    """What has come cannot be put where it should go: whoever waits is told."""
    calls = [
        lambda into: dist.send(torch.ones(3), 1) if rank == 0 else dist.recv(into, 0),
        lambda into: dist.broadcast(into if rank else torch.ones(3), 0),
        dist.all_reduce,
    ]
    for call in calls[rank > 1 :]:  # only the first two send to each other
        begun_s = time.monotonic()
        try:
            call(torch.zeros(1).expand(3))
        except RuntimeError as problem:
            assert "single memory location" in str(problem), problem
        else:
            assert rank == 0 and call is not dist.all_reduce
        assert time.monotonic() - begun_s < patience(10)
    return "raised"


def inference(rank: int, ranks: int) -> str:
    """Some ranks are in inference mode, and others not; then none is."""
    for inferring in ([0], list(range(1, ranks)), list(range(ranks)), []):
        with torch.inference_mode(rank in inferring):
            _every_way(rank, ranks)
        for size in (10, LARGE):
            tensor = _made(size, rank in inferring)
            dist.all_reduce(tensor)
            assert torch.equal(tensor, torch.full((size,), float(ranks)))
    for size in (10, LARGE):
        leaf = nn.Parameter(torch.ones(size))
        with torch.no_grad():
            dist.all_reduce(leaf)
            dist.broadcast(leaf[: size // 2], 0)
        assert leaf.is_leaf and torch.equal(leaf, torch.full((size,), float(ranks)))
        leaf.sum().backward()
        assert torch.equal(leaf.grad, torch.ones(size))
    return "right"


def _made(size: int, inferring: bool) -> torch.Tensor:
    with torch.inference_mode(inferring):
        return torch.ones(size)


def _every_way(rank: int, ranks: int) -> None:
    total = sum(range(ranks))
    for size in (1, 1000, LARGE):
        for gaps in (1, 2):
            for how, result in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.AVG, total / ranks)):
                tensor = torch.full((size * gaps,), float(rank))[::gaps]
                dist.all_reduce(tensor, how)
                assert torch.equal(tensor, torch.full((size,), float(result)))
            tensor = torch.full((size * gaps,), float(rank))[::gaps]
            dist.broadcast(tensor, ranks - 1)
            assert torch.equal(tensor, torch.full((size,), ranks - 1.0))
            dist.reduce(tensor, 0)
            assert rank or torch.equal(tensor, torch.full((size,), ranks * (ranks - 1.0)))
            place = torch.zeros(size * gaps)[::gaps]
            works = [
                dist.isend(torch.full((size,), float(rank)), (rank + 1) % ranks),
                dist.irecv(place, (rank - 1) % ranks),
            ]
            for work in works:
                work.wait()
            assert torch.equal(place, torch.full((size,), float((rank - 1) % ranks)))
        part = torch.zeros(size)
        dist.reduce_scatter_tensor(part, torch.full((ranks * size,), float(rank)))
        assert torch.equal(part, torch.full((size,), float(total)))
        rows = torch.zeros(ranks, size)
        dist.all_gather_into_tensor(rows, torch.full((size,), float(rank)))
        assert torch.equal(rows, torch.arange(float(ranks)).view(-1, 1).expand(ranks, size))
    dist.barrier()
    objects: list[Any] = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": one} for one in range(ranks)]


def nested(rank: int, ranks: int) -> str:
    """What is done after a collective waits for others; whoever carries these out must not be held up by it."""
    for size in (10, LARGE):

        def again(future: Any, size: int = size) -> torch.Tensor:
            flat = future.value()[0].clone()
            dist.all_reduce(flat)
            return dist.all_reduce(torch.ones(size), async_op=True).get_future().wait()[0] + flat

        for late in (False, True):
            work = dist.all_reduce(torch.ones(size), async_op=True)
            if late:
                work.wait()
            found = work.get_future().then(again).then(again_of_one).wait()
            assert torch.equal(found, torch.full((size,), float(ranks + ranks * ranks) * ranks))
    return "right"


def again_of_one(future: Any) -> torch.Tensor:
    flat = future.value().clone()
    dist.all_reduce(flat)
    return flat


def compressed(rank: int, ranks: int, group: Any = None) -> list[torch.Tensor]:
    """Parameters after a few steps of DDP whose hook does collectives after collectives."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 100))
    model = nn.parallel.DistributedDataParallel(model, process_group=group)
    state = power_sgd.PowerSGDState(
        group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    model.register_comm_hook(state, power_sgd.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(16, 200)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def unanswered(rank: int, ranks: int) -> str:
    """The last rank lives, but does not come: whoever waits is told in time, however it waits."""
    group = dist.new_group(timeout=timedelta(seconds=3))
    if rank < ranks - 1:
        begun_s = time.monotonic()
        works = [dist.all_reduce(torch.ones(size), group=group, async_op=True) for size in (4, LARGE)]
        works.append(dist.irecv(torch.ones(4), ranks - 1, group=group))
        waits = [partial(dist.barrier, group, timeout=timedelta(seconds=0.5))]
        waits += [work.get_future().wait for work in works]
        for wait in waits:
            try:
                wait()
            except Exception as problem:
                assert f"within {3 if wait is not waits[0] else 0.5} s" in str(problem), problem
            else:
                raise AssertionError("it ended well")
        assert time.monotonic() - begun_s < patience(20)
    return "raised"


def checkpoints(rank: int, ranks: int) -> str:
    """PyTorch's own, of what FSDP2 has split up."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        set_model_state_dict,
    )
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    given = {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    fully_shard(model)
    whole = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, {} if rank else dict(given), options=whole)
    folder = sys.argv[3] + ".checkpoint"
    checkpoint.async_save(get_model_state_dict(model), checkpoint_id=folder).result()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    state = get_model_state_dict(model)
    checkpoint.load(state, checkpoint_id=folder)
    for name, tensor in state.items():
        assert torch.equal(tensor.full_tensor(), given[name])
    return "as they were"


def power(rank: int, ranks: int) -> str:
    gloo = dist.new_group(backend="gloo", timeout=SOON)
    ours, theirs = compressed(rank, ranks), compressed(rank, ranks, gloo)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    return "as with gloo"


def again_and_again(rank: int, ranks: int) -> str:
    """Groups on one store, whose ranks come to the next one in another order."""
    dist.destroy_process_group()
    store = dist.FileStore(sys.argv[3] + ".store", ranks)
    for number in range(4):
        time.sleep(0.2 * ((rank + number) % ranks))
        dist.init_process_group("hemiola", store=store, rank=rank, world_size=ranks, timeout=SOON)
        for size in (3, LARGE):
            flat = torch.ones(size)
            dist.all_reduce(flat)
            assert torch.equal(flat, torch.full((size,), float(ranks)))
        if number < 3:
            dist.destroy_process_group()
    return "right"


def leaving(rank: int, ranks: int) -> str:
    """Who leaves ends first what it has begun; the next rank is late for it."""
    for size in (8, LARGE):
        group = dist.new_group(timeout=SOON)
        if rank == 1:
            time.sleep(0.5)
        flat = torch.ones(size)
        work = dist.all_reduce(flat, group=group, async_op=True)
        if rank:
            work.wait()
            assert torch.equal(flat, torch.full((size,), float(ranks)))
        dist.destroy_process_group(group)
    return "right"


def failing(rank: int, ranks: int) -> str:
    """Who leaves because it has failed, or after it has waited in vain, waits for nobody who does not come."""
    begun_s = time.monotonic()
    for problem in (ValueError("within 0.2 s"), SystemExit("within 0.2 s"), None):
        group = dist.new_group(timeout=SOON)
        if rank:
            dist.barrier()
            dist.destroy_process_group(group)
            continue
        work = dist.all_reduce(torch.ones(8), group=group, async_op=True)
        try:
            if problem is not None:
                raise problem
            work.wait(timedelta(seconds=0.2))
        except (Exception, SystemExit) as raised:
            assert "within 0.2 s" in str(raised), raised
            if problem is not None:
                dist.destroy_process_group(group)
        if problem is None:
            dist.destroy_process_group(group)
        dist.barrier()
    assert time.monotonic() - begun_s < patience(15)
    return "soon"


def not_left(rank: int, ranks: int) -> str:
    """Rank 1 sends slowly and comes last: it has its results at once, and its process ends without having left the group."""
    dist.barrier()
    time.sleep(0.3 * rank)
    several = [torch.ones(16_000) for _ in range(4)]
    for work in [dist.all_reduce(flat, async_op=True) for flat in several]:
        work.wait()
    assert all(torch.equal(flat, torch.full((16_000,), float(ranks))) for flat in several)
    return "right"


def main(rank: int, ranks: int, file: str, case: str) -> None:
    torch.set_num_threads(1)
    if case in SLOW and rank == 1:
        os.environ["HEMIOLA_RATE"] = SLOW[case]
    dist.init_process_group(
        "hemiola", init_method=f"file://{file}", rank=rank, world_size=ranks, timeout=SOON
    )
    print(globals()[case](rank, ranks), flush=True)
    if case == "not_left":
        return
    dist.barrier()
    if case == "power":  # gloo's destructor may wait, with the GIL, for a thread that waits for the GIL
        dist.group.WORLD.shutdown()
        os._exit(0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
