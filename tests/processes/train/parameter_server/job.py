"""A rank that trains on parameter servers for the tests: `job.py RANK FOLDER SCENARIO,...`; prints a line of JSON each."""

from __future__ import annotations

import copy
import gc
import hashlib
import io
import itertools
import json
import os
import socket
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from hemiola.comm.transport import TransportOptions
from hemiola.core.errors import InputError, TransportError
from hemiola.plan.shares import Shares
from hemiola.train.parameter_server import synchronise
from hemiola.train.parameter_server.optimizer import Synchronised

RANK, FOLDER, SCENARIOS = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(",")
OPTIONS = TransportOptions(timeout_s=10.0)


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def until(condition: Any) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


class Clock:
    """A number that another process can read."""

    def __init__(self, rank: int) -> None:
        self.path = FOLDER / f"clock.{rank}"

    def set(self, value: int) -> None:
        new = self.path.with_name(f"{self.path.name}.new")
        new.write_text(str(value))
        new.replace(self.path)

    def get(self) -> int:
        return int(self.path.read_text()) if self.path.exists() else 0


class Odd(nn.Module):
    """Tied weights, an attention that reads its child's weights by itself, a layer that nobody uses, one large one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.unused = nn.Linear(32, 32)
        self.wide = nn.Sequential(nn.Linear(32, 3001), nn.GELU(), nn.Linear(3001, 32))

    def forward(self, tokens: Tensor) -> Tensor:
        flow = self.words(tokens)
        flow = self.norm(flow + self.attention(flow, flow, flow, need_weights=False)[0])
        return functional.linear(flow + self.wide(flow), self.words.weight)


def odd(kind: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0 if kind != "others" else RANK)
    model = Odd()
    if kind == "SGD":
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    some = [p for name, p in model.named_parameters() if "wide" in name]
    rest = [p for name, p in model.named_parameters() if "wide" not in name]
    return model, torch.optim.AdamW([{"params": rest}, {"params": some, "weight_decay": 0.0}], lr=1e-3)


def train(model: nn.Module, optimizer: Any, holder: Any, steps: int = 20) -> None:
    """With a schedule, and every third time over two batches, by `no_sync` or by the attribute that DDP has."""
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    data = torch.Generator().manual_seed(1 + RANK)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(2 if step % 3 == 0 else 1):
            tokens = torch.randint(50, (4, 8), generator=data)
            model.require_backward_grad_sync = not (step % 6 == 3 and part == 0)
            with holder.no_sync() if step % 6 == 0 and part == 0 else nullcontext():
                functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten()).backward()
        optimizer.step()
        schedule.step()


def equal() -> None:
    for kind, coupled, servers in (("SGD", False, 2), ("AdamW", True, 1)):
        model, optimizer = odd(kind)
        ddp = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        train(ddp, optimizer, ddp)
        ours, given = odd(kind)
        ours, stepped = synchronise(ours, given, "bsp", coupled=coupled, servers=servers, options=OPTIONS)
        train(ours, stepped, stepped)
        saved = {name: value.clone() for name, value in ours.state_dict().items()}
        stepped.close()
        assert all(torch.equal(saved[name], value) for name, value in ours.state_dict().items())
        say(ddp=digest(model), servers=digest(ours))


def resumed() -> None:
    """Half, saved, all of it made anew, and the other half."""
    for kind, servers in (("SGD", 2), ("AdamW", 3)):
        model, optimizer = odd(kind)
        ddp = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        train(ddp, optimizer, ddp, 6)
        wanted = optimizer.state_dict()
        ours, given = odd(kind)
        ours, stepped = synchronise(ours, given, "bsp", servers=servers, options=OPTIONS)
        train(ours, stepped, stepped, 6)
        saved = {"optimizer": stepped.state_dict(), "model": ours.state_dict()}
        torch.save(saved, FOLDER / f"saved.{kind}.{RANK}")
        stepped.close()
        saved = torch.load(FOLDER / f"saved.{kind}.{RANK}")
        same_state(saved["optimizer"], wanted)
        for group in optimizer.param_groups:
            group["lr"] = group.pop("initial_lr")
        train(ddp, optimizer, ddp, 6)
        ours, given = odd("others" if kind == "AdamW" else kind)
        if RANK == 0:  # all have rank 0's
            ours.load_state_dict(saved["model"])
            given.load_state_dict(saved["optimizer"])
        for group in given.param_groups:  # the schedule of `train` begins anew
            group["lr"] = wanted["param_groups"][0]["initial_lr"]
            group.pop("initial_lr", None)
        ours, stepped = synchronise(ours, given, "bsp", servers=servers, options=OPTIONS)
        train(ours, stepped, stepped, 6)
        same_state(stepped.state_dict(), optimizer.state_dict())
        stepped.close()
        say(ddp=digest(model), servers=digest(ours))


def same_state(ours: Any, wanted: Any) -> None:
    assert ours["state"].keys() == wanted["state"].keys()
    for number, state in wanted["state"].items():
        assert ours["state"][number].keys() == state.keys()
        for name, value in state.items():
            assert torch.equal(torch.as_tensor(ours["state"][number][name]), torch.as_tensor(value)), name


def small() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(1000 * rank + step))


def bounded() -> None:
    """Rank 1 stops before the backward of iteration 5 until rank 0 is as far ahead as it may be; and ends sooner."""
    bound = 2
    model, optimizer = synchronise(*small(), "ssp", bound=bound, servers=1, options=OPTIONS)
    mine, other = Clock(RANK), Clock(1 - RANK)
    ahead = []
    for step in range(7 if RANK == 1 else 12):
        optimizer.zero_grad()
        loss = model(batch(RANK, step)).square().mean()
        if step < 10:  # then rank 1 waits in synchronise() and holds nobody up
            # read after this iteration was let in, written before any of its updates
            ahead.append(step - other.get())
        if RANK == 1 and step == 5:
            until(lambda: other.get() == 5 + bound + 1)
            time.sleep(0.5)
        mine.set(step + 1)
        loss.backward()
        optimizer.step()
    optimizer.synchronise()
    model.state_dict()
    model(batch(RANK, 0))  # rank 0 is five iterations ahead, and evaluates; rank 1 waits for it
    dist.barrier()
    say(bounded=max(ahead), end=digest(model))
    optimizer.close()


def free() -> None:
    """Rank 1 does nothing until rank 0 has done all and left."""
    model, optimizer = synchronise(
        *small(), "asp", pipelined=True, servers=1, early=RANK == 1, options=OPTIONS
    )
    mine, other = Clock(RANK), Clock(1 - RANK)
    if RANK == 1:
        until(lambda: other.get() == 15)
    for step in range(15):
        optimizer.zero_grad()
        model(batch(RANK, step)).square().mean().backward()
        optimizer.step()
    optimizer.close()
    mine.set(15)
    say(end=digest(model), finite=all(bool(p.isfinite().all()) for p in model.parameters()))
    if RANK == 1:
        interrupted()


def interrupted() -> None:
    """Alone with its server: what is wrong is said, and Ctrl-C is awaited."""
    group = dist.new_group([1], use_local_synchronization=True)
    model, optimizer = synchronise(*small(), "asp", group=group, options=OPTIONS)
    before = copy.deepcopy(model.state_dict())
    model.load_state_dict({name: 2 * value for name, value in before.items()})
    say(problem=refused(lambda: model(batch(0, 0)).square().mean().backward()))
    model.load_state_dict(before)  # as after an evaluation with averaged parameters
    optimizer.step()
    for step in range(3):
        optimizer.zero_grad()
        model(batch(0, step)).square().mean().backward()
        optimizer.step()
    optimizer.zero_grad()
    model(batch(0, 3)).square().mean().backward()
    optimizer.param_groups[0]["lr"] *= 0.5
    say(problem=refused(optimizer.step))
    optimizer.param_groups[0]["lr"] *= 2.0
    optimizer.step()
    say(problem=refused(lambda: functional.linear(batch(0, 3), model[0].weight).sum().backward()))
    optimizer.zero_grad()
    model(batch(0, 3)).square().mean().backward()
    say(problem=refused(lambda: model(batch(0, 4)).square().mean().backward()))
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    say(problem=refused(optimizer.step))
    optimizer.wait()
    nn.init.zeros_(model[2].bias)
    say(problem=refused(optimizer.synchronise))
    while True:
        time.sleep(1)


def refused(action: Any) -> str:
    try:
        action()
    except InputError as problem:
        return str(problem)
    return ""


def frozen() -> tuple[nn.Module, Any]:
    model, optimizer = small()
    model[0].bias.requires_grad_(False)
    return model, optimizer


def newton() -> tuple[nn.Module, Any]:
    model, _ = small()
    return model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)


def stepped(model: nn.Module, optimizer: Any, inputs: Tensor) -> None:
    """LBFGS asks several times."""

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = model(inputs).square().mean()
        found.backward()
        return found

    if isinstance(optimizer.param_groups[0].get("max_iter"), int):
        assert optimizer.step(loss) is not None
    else:
        loss()
        optimizer.step()


def local() -> None:
    """With a schedule, and a rank's own state loaded on the way."""
    for made in (newton, frozen):
        model, optimizer = synchronise(*made(), "local", period=3, servers=1, options=OPTIONS)
        alone = [made() for _ in range(2)]
        schedules = [
            torch.optim.lr_scheduler.LambdaLR(its, lambda step: 1 / (1 + step))
            for its in (optimizer, *(its for _, its in alone))
        ]
        for step in range(7):
            for rank, (other, its) in enumerate(alone):
                stepped(other, its, batch(rank, step))
            if step in (2, 5, 6):
                with torch.no_grad():
                    for a, b in zip(alone[0][0].parameters(), alone[1][0].parameters(), strict=True):
                        a.copy_((a + b) / 2)
                        b.copy_(a)
            stepped(model, optimizer, batch(RANK, step))
            for schedule in schedules:
                schedule.step()
            if step == 3:
                optimizer.load_state_dict(optimizer.state_dict())
        problem = ""
        if made is frozen:
            model[0].bias.requires_grad_(True)
            model(batch(RANK, 7)).square().mean().backward()
            problem = refused(optimizer.step)
        optimizer.close()
        say(by_hand=digest(alone[0][0]), servers=digest(model), problem=problem)


def pipes() -> int:
    files = [file for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    return sum("pipe:" in str(file.readlink()) for file in files)


def unfrozen() -> None:
    """As is said where that is refused: the optimizer has the state that it had."""
    model, given = frozen()
    model, optimizer = synchronise(model, given, "bsp", servers=1, options=OPTIONS)
    for step in range(3):
        model[0].bias.requires_grad_(step == 2)
        optimizer.zero_grad()
        model(batch(RANK, step)).square().mean().backward()
        problem = refused(optimizer.step)
    saved = optimizer.state_dict()
    optimizer.close()
    given.load_state_dict(saved)
    model, optimizer = synchronise(model, given, "bsp", servers=1, options=OPTIONS)
    assert len(saved["state"]) == 3
    same_state(optimizer.state_dict(), saved)
    optimizer.zero_grad()
    model(batch(RANK, 3)).square().mean().backward()
    optimizer.step()
    say(problem=problem, trained=len(optimizer.state_dict()["state"]), end=digest(model))
    optimizer.close()


def tuned() -> None:
    """One layer of two, with an optimizer that has trained both; and the model is copied on the way."""
    model, _ = small()
    given = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(batch(RANK, 0)).square().mean().backward()
    given.step()
    model[0].requires_grad_(False)
    had = means(given)
    model, optimizer = synchronise(model, given, "bsp", servers=1, options=OPTIONS)
    copied = []
    ways = itertools.product((copy.deepcopy, loaded), (model, model[2]))
    for step, (how, module) in enumerate(ways):
        optimizer.zero_grad()
        model(batch(RANK, step)).square().mean().backward()
        optimizer.step()
        other = how(module)
        optimizer.wait()
        inputs = torch.ones(1, next(module.parameters()).shape[1])
        copied.append(digest(other) == digest(module) and torch.equal(other(inputs), module(inputs)))
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged(batch(RANK, 0)).sum().backward()
    say(had=had, kept=means(optimizer), copied=copied)
    optimizer.close()


def means(optimizer: Any) -> list[float]:
    """Of the first two parameters' gradients; a state is there of four."""
    state = optimizer.state_dict()["state"]
    assert state.keys() == {0, 1, 2, 3}
    return [float(state[number]["exp_avg"].sum()) for number in range(2)]


def loaded(module: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def tidy() -> None:
    """After all the others: what is left of them, and where a rate goes."""
    gc.collect()
    alive = sum(type(one) is Synchronised for one in gc.get_objects())
    cores = os.sched_getaffinity(0)
    shares = Shares(max(len(cores) - 1, 1), int(len(cores) > 1), 0, 64e6, None, 1.0)
    _, optimizer = synchronise(*small(), "asp", servers=1, coupled=True, shares=shares, options=OPTIONS)
    end = optimizer._worker._courier._end
    paced = threading.Event()
    end.call(paced.set)
    assert paced.wait(60)
    (link,) = end._loop._links[2]
    pace = int.from_bytes(link.sock.getsockopt(socket.SOL_SOCKET, 47, 8), sys.byteorder)
    more, confined = pipes() - PIPES, os.sched_getaffinity(0)
    optimizer.close()
    given_back = os.sched_getaffinity(0) == cores and torch.get_num_threads() == 1
    say(
        alive=alive,
        more_pipes=more,
        pace=pace,
        confined=len(confined) < max(len(cores), 2),
        given_back=given_back,
    )


def child() -> int:
    """A process that this one has forked; it sleeps, also when this one is gone."""
    process = os.fork()
    if not process:
        os.close(1)  # who reads what its parent says is not to wait for it
        os.close(2)
        time.sleep(60)
        os._exit(0)
    return process


def failing() -> None:
    """Four times the same: trains until somebody is gone, says what it was told, and begins anew."""
    for turn, scheme in enumerate(("bsp", "asp", "bsp", "bsp")):
        model, optimizer = synchronise(*small(), scheme, servers=1, options=OPTIONS)
        pids = {
            "server": [c.pid for c in optimizer._servers],
            "courier": [optimizer._worker._courier._child.pid],
        }
        step = 0
        try:
            while True:
                optimizer.zero_grad()
                model(batch(RANK, step)).square().mean().backward()
                optimizer.step()
                step += 1
                if step == 3:
                    if turn == 3 and RANK == 1:
                        pids["child"] = [child()]
                    say(turn=turn, pids=pids)
                if turn == 0 and RANK == 1 and step == 5:
                    optimizer.close()
                    break
                time.sleep(0.01)
        except TransportError as problem:
            say(turn=turn, problem=str(problem))
        if turn == 3:
            return
        dist.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    PIPES = pipes()
    dist.init_process_group("gloo", init_method=f"file://{FOLDER / 'meet'}", rank=RANK, world_size=2)
    known = {
        "equal": equal,
        "resumed": resumed,
        "bounded": bounded,
        "free": free,
        "local": local,
        "failing": failing,
        "unfrozen": unfrozen,
        "tuned": tuned,
        "tidy": tidy,
    }
    for name in SCENARIOS:
        known[name]()
    if known.keys() - {"free", "failing"} >= set(SCENARIOS):
        dist.barrier()
        dist.destroy_process_group()
