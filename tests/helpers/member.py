"""A member that trains, and has its accident: `member.py {"die": {"0": [2, "kill"]}, ...}`; torchrun's variables around it.

Parameter i moves by 1 where entry i is trained on, and on by half of that in every later step: the parameters say in
which step each entry was trained on, and how often, without rounding. The other parameters make messages large.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hemiola.train.elastic import ElasticSampler, Membership, TrainingState

ENTRIES = 24
BALLAST = 100_000
MOMENTUM = 0.5


def main(what: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    with Membership(**what.get("membership", {})) as membership:
        accident = what.get("die", {}).get(str(membership.member), [None, ""])
        model = nn.Linear(ENTRIES + BALLAST, 1, bias=False)
        nn.init.constant_(
            model.weight, 0.0 if membership.member == 0 else 7.0
        )  # rank 0's is what all begin with
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=MOMENTUM)
        sampler = ElasticSampler(
            ENTRIES, rank=membership.member, ranks=membership.members, batch_size=1, seed=3,
            membership_epoch=membership.epoch,
        )  # fmt: skip
        state = TrainingState(model=model, optimizer=optimizer, sampler=sampler, step=0)
        history = []

        @membership.run
        def train(state: TrainingState) -> None:
            history.append([membership.epoch, list(membership.members), state.commits])
            net = DistributedDataParallel(state.model) if what.get("ddp") else None
            for batch in state.sampler:
                own = torch.zeros(1, ENTRIES + BALLAST)
                own[0, batch] = -1.0
                if accident[0] == state.step:
                    happen(accident[1], membership, own)
                state.optimizer.zero_grad()
                if net is None:
                    dist.all_reduce(own)
                    state.model.weight.grad = own
                else:
                    net(own).sum().backward()
                    state.model.weight.grad *= membership.ranks  # from the mean to the sum
                state.optimizer.step()
                state.sampler.confirm()
                state.step += 1
                while state.step == what.get("join_at") and not membership._watch.asked:
                    time.sleep(0.01)
                state.commit()

        train(state)
        said = {
            "history": history, "rank": membership.rank, "step": state.step,
            "weights": state.model.weight[0, :ENTRIES].tolist(), "ballast": float(state.model.weight[0, ENTRIES:].abs().max()),
        }  # fmt: skip
        print(json.dumps(said), flush=True)


def happen(what: str, membership: Membership, gradient: Tensor) -> None:
    if what == "raise":
        raise ValueError("a batch without labels")
    if what == "deciding":  # somebody else is lost in this step: this one is lost while they agree on it
        membership._disband = lambda: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    elif what == "meeting":
        membership._form = lambda epoch: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    elif what == "bringing":
        TrainingState._bring = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        dist.all_reduce(gradient, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
