"""A rank that trains the same way with DDP and by a plan, and says where they end differently: `scenarios.py RANK RANKS FILE`.

Every scenario is a training script (`scripts.py`, `scripts_of_tables.py`, `scripts_beside.py`). It is run with DistributedDataParallel,
and by a plan whose transfers go apart and together, whole and in pieces, by every algorithm: updating on arrival, the
same so slowly that most gradients arrive late, updating together, and carried by gloo's collectives.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import scripts
import scripts_beside
import scripts_of_tables
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import hemiola
from hemiola.core.plan import Piece, Plan, PlannedTransfer
from hemiola.train.accelerate.ddp_attributes import exchanged
from hemiola.train.accelerate.embeddings import Table, tables_of

SCENARIOS = [*scripts.SCRIPTS, *scripts_of_tables.SCRIPTS, *scripts_beside.SCRIPTS]
AT_FOUR = [scripts.plain, scripts.schedule_and_groups, scripts.recurrent, scripts_of_tables.tables]
"""Where four summands in another order stay a rounding error (Adam blows up that of a bias without effect)."""


def ddp(model: nn.Module, optimizer: Any, find_unused_parameters: bool = False) -> Any:
    return DistributedDataParallel(model, find_unused_parameters=find_unused_parameters), optimizer


SLOW_BYTES_PER_S = 20e6


def by_rows(name: str, table: Table, turn: int) -> Iterator[PlannedTransfer]:
    """A table's transfers: what its output layer has goes before."""
    pieces = (Piece(name, 0, table.parameter.numel()),)
    if table.head is not None:
        yield PlannedTransfer(name=f"{name} head", pieces=pieces, priority=turn, part="head")
    yield PlannedTransfer(name=f"{name} rows", pieces=pieces, priority=turn + 1, part="rows")


def planned(together: bool = False, **more: Any) -> scripts.Wrap:
    def wrap(model: nn.Module, optimizer: Any, find_unused_parameters: bool = False) -> Any:
        inner = getattr(model, "module", model)  # accelerated already
        trained = {name: p for name, p in exchanged(inner).items() if p.requires_grad}
        small = [name for name, p in trained.items() if p.numel() < 500]
        transfers = [
            PlannedTransfer(name="small", pieces=tuple(Piece(n, 0, trained[n].numel()) for n in small))
        ]
        looked_up = tables_of(inner, trained)
        for name, parameter in trained.items():
            if name in small:
                continue
            if name in looked_up:
                transfers += by_rows(name, looked_up[name], len(transfers))
                continue
            count, turn = parameter.numel(), len(transfers)
            cut = count if turn % 3 else count // 3
            for start, stop in ((0, cut), (cut, count)):
                if stop > start:
                    algorithm = ("", "ring", "halving-doubling", "direct")[turn % 4]
                    transfers.append(
                        PlannedTransfer(
                            name=f"{name} {start}",
                            pieces=(Piece(name, start, stop),),
                            priority=turn,
                            algorithm=algorithm,
                        )
                    )
        plan = Plan(
            name="mixed", graph="any", ranks=dist.get_world_size(), update="together" if together else "on-arrival",
            chunk_bytes=16 << 10, transfers=tuple(t for t in transfers if t.pieces),
        )  # fmt: skip
        return hemiola.accelerate(model, optimizer, plan=plan, quiet=True, **more)

    return wrap


def state(model: nn.Module, optimizer: Any) -> list[Tensor]:
    found = [value.detach().clone().float() for _, value in sorted(model.state_dict().items())]
    kept = optimizer.state_dict()["state"]
    return found + [
        value.clone().float()
        for number in sorted(kept)
        for _, value in sorted(kept[number].items(), key=str)
        if isinstance(value, Tensor)
    ]


def main(rank: int, ranks: int, file: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    for scenario in SCENARIOS if ranks == 2 else AT_FOUR:
        expected = state(*scenario(ddp, rank))
        ways = {
            "on arrival": planned(),
            "slowly": planned(rate=SLOW_BYTES_PER_S),
            "together": planned(together=True),
            "as collectives": planned(carrier="collectives"),
        }
        for way, wrap in ways.items():
            if way in ("slowly", "as collectives") and scenario.__name__.startswith("fifty"):
                continue
            found = state(*scenario(wrap, rank))
            assert len(found) == len(expected), (
                f"{scenario.__name__}: {len(found)} tensors, not {len(expected)}"
            )
            for a, b in zip(found, expected, strict=True):
                if ranks == 2:
                    assert torch.equal(a, b), f"{scenario.__name__}, {way}: {(a - b).abs().max()} off"
                else:
                    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
            gc.collect()
            gc.freeze()  # what is left is PyTorch's: to look through it after each training takes longer than that
    dist.barrier()
    dist.destroy_process_group()
    print("all the same", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
