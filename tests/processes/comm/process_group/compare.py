"""A rank that does the same with gloo and with Hemiola and says where they differ: `compare.py RANK RANKS FILE`."""

# ruff: noqa: B023  every function of a loop is called before the loop goes on

from __future__ import annotations

import gc
import itertools
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

SIZES = (0, 1, 3, 1000, 40_001)
LARGE = 3_000_001
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64,
)  # fmt: skip


def data(rank: int, size: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Small whole numbers: every order of adding gives the same bits."""
    return ((torch.arange(size) * 7 + 3 * rank + seed) % 5 + 1).to(dtype)


def main(rank: int, ranks: int, file: str) -> None:
    torch.set_num_threads(1)
    os.environ["HEMIOLA_LAB_HOST"] = f"h{rank}"  # as if on a host of its own
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    gloo, ours = dist.group.WORLD, dist.new_group(backend="hemiola")
    assert dist.get_backend(ours) == "hemiola"

    def same(what: str, make: Any, call: Any) -> None:
        results = []
        for group in (gloo, ours):
            made = make()
            call(group, made)
            results.append([t.clone() for t in (made if isinstance(made, list) else [made])])
        for a, b in zip(*results, strict=True):
            assert torch.equal(a, b), f"{what}: gloo has {a.flatten()[:8]}, hemiola {b.flatten()[:8]}"

    ops = (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
    for size, dtype in itertools.product(SIZES, DTYPES):
        for op in ops if size in (3, 40_001) else ops[:1]:
            same(
                f"all_reduce {size} {dtype} {op}",
                lambda: data(rank, size, dtype),
                lambda g, t: dist.all_reduce(t, op, g),
            )
        for root in range(ranks):
            same(
                f"broadcast {size} {dtype}",
                lambda: data(rank, size, dtype),
                lambda g, t: dist.broadcast(t, root, g),
            )
    for size in (7, LARGE):
        real = torch.Generator().manual_seed(rank)
        values = torch.randn(size, generator=real)
        if ranks == 2:  # two summands commute: the same bits as gloo's
            same(
                f"all_reduce {size} random", lambda: values.clone(), lambda g, t: dist.all_reduce(t, group=g)
            )
        else:
            found, expected = values.clone(), values.clone()
            dist.all_reduce(found, group=ours)
            dist.all_reduce(expected, group=gloo)
            torch.testing.assert_close(found, expected)
        bits = found.clone() if ranks > 2 else values.clone()
        if ranks == 2:
            dist.all_reduce(bits, group=ours)
        everyone = [torch.empty_like(bits) for _ in range(ranks)]
        dist.all_gather(everyone, bits, group=gloo)
        assert all(torch.equal(other, bits) for other in everyone), "ranks have different bits"
        same(f"broadcast {size}", lambda: values.clone(), lambda g, t: dist.broadcast(t, ranks - 1, g))
    for size in (1, 5, 300_000):
        own = data(rank, size, torch.float32)
        same(
            "all_gather",
            lambda: [torch.zeros(size) for _ in range(ranks)],
            lambda g, t: dist.all_gather(t, own, g),
        )
        same(
            "all_gather_into_tensor",
            lambda: torch.zeros(size * ranks),
            lambda g, t: dist.all_gather_into_tensor(t, own, g),
        )
        given = [data(rank, size, torch.float32, seed=r) for r in range(ranks)]
        same(
            "reduce_scatter_tensor",
            lambda: torch.zeros(size),
            lambda g, t: dist.reduce_scatter_tensor(t, torch.cat(given), group=g),
        )
        found = torch.zeros(size)
        dist.reduce_scatter(found, given, group=ours)
        assert torch.equal(found, sum(data(r, size, torch.float32, seed=rank) for r in range(ranks)))
        assert torch.equal(
            torch.cat(given), torch.cat([data(rank, size, torch.float32, seed=r) for r in range(ranks)])
        )
        same(
            "all_to_all_single",
            lambda: torch.zeros(size * ranks),
            lambda g, t: dist.all_to_all_single(t, torch.cat(given), group=g),
        )
        found_list = [torch.zeros(size) for _ in range(ranks)]
        dist.all_to_all(found_list, given, group=ours)
        assert all(torch.equal(found_list[r], data(r, size, torch.float32, seed=rank)) for r in range(ranks))
        for root in range(ranks):
            same(
                "gather",
                lambda: [torch.zeros(size) for _ in range(ranks)],
                lambda g, t: dist.gather(own, t if rank == root else None, root, g),
            )
            same(
                "scatter",
                lambda: torch.zeros(size),
                lambda g, t: dist.scatter(t, given if rank == root else None, root, g),
            )
            for op, dtype in zip(ops, DTYPES[:1] + DTYPES[-3:], strict=True):
                same_at_root(data(rank, size, dtype), root, op, gloo, ours)
    # several at once, none at all, parts of several sizes
    several = [data(rank, size, torch.float32, size) for size in (*SIZES, 300_000)]
    dist.all_reduce_coalesced(several, group=ours)
    for tensor in several:
        size = tensor.numel()
        assert torch.equal(tensor, sum(data(r, size, torch.float32, size) for r in range(ranks))), size
    dist.all_reduce_coalesced([], group=ours)
    parts = [data(rank, 30_000 * r + 1, torch.float32, r) for r in range(ranks)]
    found = torch.zeros(30_000 * rank + 1)
    dist.reduce_scatter(found, parts, group=ours)
    assert torch.equal(found, sum(data(r, 30_000 * rank + 1, torch.float32, rank) for r in range(ranks)))
    assert torch.equal(parts[0], data(rank, 1, torch.float32, 0))
    # one after the other: each finds what the one before has left
    if not (os.environ.get("HEMIOLA_STRATEGY") or os.environ.get("HEMIOLA_STRAGGLERS")):
        part, whole = torch.zeros(100_000), data(rank, 100_000 * ranks, torch.float32)
        dist.reduce_scatter_tensor(part, whole, group=ours, async_op=True)
        dist.all_gather_into_tensor(whole, part, group=ours, async_op=True)
        dist.all_reduce(whole, group=ours, async_op=True)
        dist.reduce_scatter_tensor(part, whole, group=ours)
        total = sum(data(r, 100_000 * ranks, torch.float32) for r in range(ranks)) * ranks
        assert torch.equal(whole, total)
        assert torch.equal(part, total.chunk(ranks)[rank] * ranks)
    # uneven all-to-all
    out, into = [r + 1 for r in range(ranks)], [rank + 1] * ranks
    rows = torch.cat([torch.full((r + 1, 2), 10.0 * rank + r) for r in range(ranks)])
    found = torch.zeros(sum(into), 2)
    dist.all_to_all_single(found, rows, into, out, group=ours)
    assert torch.equal(found, torch.cat([torch.full((rank + 1, 2), 10.0 * r + rank) for r in range(ranks)]))
    # gaps, no dimension, average
    strided = data(rank, 40, torch.float32).view(8, 5).t()
    same(
        "not contiguous",
        lambda: strided.clone(memory_format=torch.preserve_format),
        lambda g, t: dist.all_reduce(t, group=g),
    )
    gaps = torch.zeros(10)
    gaps[::2] = rank + 1.0
    dist.all_reduce(gaps[::2], group=ours)
    assert gaps.tolist() == [sum(range(1, ranks + 1)), 0.0] * 5
    scalar = torch.tensor(float(rank + 1))
    dist.all_reduce(scalar, dist.ReduceOp.AVG, group=ours)
    assert scalar.item() == (ranks + 1) / 2
    flags = torch.tensor([rank == 0, False, True])
    same("bool", lambda: flags.clone(), lambda g, t: dist.all_reduce(t, dist.ReduceOp.MAX, g))
    # many at once, asynchronously, and messages between them
    tensors = [data(rank, 5000 * (n + 1), torch.float32, n) for n in range(12)]
    works = [dist.all_reduce(t, group=ours, async_op=True) for t in tensors]
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    box = torch.zeros(3)
    both = [
        dist.irecv(box, left, group=ours, tag=5),
        dist.isend(torch.full((3,), float(rank)), right, group=ours, tag=5),
    ]
    for work in (*both, *works):
        work.wait()
    assert box.tolist() == [left] * 3
    if rank == 0:
        from_whom = {dist.recv(box, group=ours, tag=6): box.tolist() for _ in range(ranks - 1)}
        assert from_whom == {other: [float(other)] * 3 for other in range(1, ranks)}
    else:
        dist.send(torch.full((3,), float(rank)), 0, group=ours, tag=6)
    for n, t in enumerate(tensors):
        assert torch.equal(t, sum(data(r, 5000 * (n + 1), torch.float32, n) for r in range(ranks)))
    future = dist.all_reduce(torch.ones(4), group=ours, async_op=True).get_future()
    assert future.wait()[0].tolist() == [ranks] * 4
    # functional collectives keep only PyTorch's own side of the work
    reduced = functional.all_reduce(torch.full((3,), float(rank)), "sum", ours)
    gathered = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, ours)
    gc.collect()
    assert (reduced + 0).tolist() == [sum(range(ranks))] * 3
    assert (gathered + 0).tolist() == [float(r) for r in range(ranks) for _ in (0, 1)]
    # objects, barrier, a group of some
    objects: list[Any] = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank}, group=ours)
    assert objects == [{"rank": r} for r in range(ranks)]
    said = [("hello", rank)]
    dist.broadcast_object_list(said, 0, group=ours)
    assert said == [("hello", 0)]
    with torch.device("meta"):
        dist.barrier(group=ours)
    some = dist.new_group([0, 1], backend="hemiola")
    if rank < 2:
        pair = torch.full((5,), float(rank + 1))
        dist.all_reduce(pair, group=some)
        assert pair.tolist() == [3.0] * 5
    alone = dist.new_subgroups(1, backend="hemiola")[0] if hasattr(dist, "new_subgroups") else None
    single = torch.ones(3)
    dist.all_reduce(single, group=alone)
    assert single.tolist() == [1.0] * 3
    dist.barrier()
    dist.destroy_process_group()
    used = f", by schedules: {', '.join(sorted(ours._fitted.used))}" if ours._fitted else ""
    print(f"all the same{used}", flush=True)


def same_at_root(given: torch.Tensor, root: int, op: Any, gloo: Any, ours: Any) -> None:
    """Of a reduce only the root's result is defined."""
    results = []
    for group in (gloo, ours):
        tensor = given.clone()
        dist.reduce(tensor, root, op, group)
        results.append(tensor)
    assert dist.get_rank() != root or torch.equal(*results), f"reduce {op} {given.dtype}"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
