"""Training scripts that look rows of tables up, some of which are an output layer's weight too."""

from __future__ import annotations

from typing import Any

import torch
from scripts import Wrap
from torch import Tensor, nn


class Words(nn.Module):
    """Looks words up in a tied table and in one of its own; what else uses them changes from step to step."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(300, 20)
        self.bags = nn.EmbeddingBag(200, 20, mode="sum")
        self.middle = nn.Linear(20, 20)
        self.out = nn.Linear(20, 300)
        self.out.weight = self.table.weight

    def forward(self, words: Tensor, how: str = "") -> Tensor:
        if how == "nothing":
            return self.middle(torch.ones(1, 20)).sum()
        flow = self.middle(self.table(words)) if how != "bags only" else self.bags(words)
        if how == "bags too":
            flow = flow + self.bags(words)[:, None]
        if how in ("hidden", "bags only"):
            return flow.pow(2).sum()
        if how == "by hand too":
            return (flow @ self.table.weight.t()).pow(2).mean() + self.out(flow).pow(2).mean()
        if how == "in vain":  # other rows, whose gradient stays the output layer's
            flow = flow + 0 * self.table(words + 90) + 0 * self.bags(words)[:, None]
        if how == "twice":
            flow = self.middle(self.out(flow) @ torch.ones(300, 20) / 300)
        return nn.functional.cross_entropy(self.out(flow).flatten(0, 1), words.flatten())


HOWS = (
    ["", ""], ["bags too", "bags too"], ["hidden", ""], ["by hand too", "bags too"], ["", "by hand too"], ["nothing", "nothing"],
    ["bags only", "nothing"], ["in vain", ""], ["in vain", "hidden"], ["twice", ""], ["twice", "twice"], ["bags only", "bags too"], ["nothing", "hidden"], ["", ""],
)  # fmt: skip
"""What rank 0 does with its tables in a step, and what the others do."""


def tables(wrap: Wrap, rank: int, make: Any = None) -> Any:
    torch.manual_seed(1)
    model = Words()
    optimizer = (make or (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-3)))(
        model.parameters()
    )
    model, optimizer = wrap(model, optimizer, find_unused_parameters=True)
    source = torch.Generator().manual_seed(rank)
    for hows in HOWS:
        optimizer.zero_grad()
        model(torch.randint(0, 200, (3, 4), generator=source), hows[rank > 0]).backward()
        optimizer.step()
    return model, optimizer


def tables_with_adam(wrap: Wrap, rank: int) -> Any:
    return tables(wrap, rank, lambda p: torch.optim.Adam(p, 1e-2))


def tables_accumulate(wrap: Wrap, rank: int) -> Any:
    """Over backwards with and without exchange, onto zeros and onto what is there, clipped now and then."""
    torch.manual_seed(1)
    model = Words()
    model, optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1), find_unused_parameters=True)
    source = torch.Generator().manual_seed(rank)
    for number, hows in enumerate(HOWS):
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        words = torch.randint(0, 200, (2, 3, 4), generator=source)
        if number % 6 == 0:
            with model.no_sync():
                model(words[1], "bags too").backward()
        elif number % 6 == 3:
            model.require_backward_grad_sync = False
            model(words[1], "bags too").backward()
            model.require_backward_grad_sync = True
        elif number % 3 == 1:
            model(words[1], hows[rank > 0]).backward()
        model(words[0], hows[rank > 0]).backward()
        if number % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return model, optimizer


def tables_looked_up_in_vain(wrap: Wrap, rank: int) -> Any:
    """Forwards that no backward follows, of one rank alone or of all, before the one that counts."""
    torch.manual_seed(1)
    model = Words()
    model, optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1), find_unused_parameters=True)
    source = torch.Generator().manual_seed(rank)
    for number in range(9):
        words = torch.randint(0, 200, (3, 3, 4), generator=source)
        if number % 3 == rank:
            inner = model.module  # past DDP, whose forward all ranks have to call
            inner(words[1], "bags too")
        if number % 2:
            model(words[2], "bags too")
        optimizer.zero_grad()
        model(words[0], "bags too" if number % 4 else "").backward()
        optimizer.step()
    return model, optimizer


SCRIPTS = [tables_looked_up_in_vain, tables, tables_with_adam, tables_accumulate]
