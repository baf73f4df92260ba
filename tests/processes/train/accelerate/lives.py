"""A rank of a small accelerated job that goes wrong or ends in some way: `lives.py RANK RANKS FILE HOW`."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import itertools
import os
import shutil
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from patience import patience
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hemiola
from hemiola.core.errors import HemiolaError
from hemiola.core.plan import Acceleration, Piece, Plan, PlannedTransfer
from hemiola.trace.struct_json import read_acceleration


def made(wrap: Any, width: int = 256, depth: int = 1) -> Any:
    torch.manual_seed(0)
    within = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), *within, nn.Linear(width, 8))
    return wrap(model, torch.optim.AdamW(model.parameters(), 1e-3))


def train(
    model: Any, optimizer: Any, rank: int, steps: int, after: Any = lambda number: None, batch: int = 8
) -> None:
    source = torch.Generator().manual_seed(rank)
    for number in range(steps):
        optimizer.zero_grad()
        model(torch.randn(batch, 64, generator=source)).pow(2).mean().backward()
        optimizer.step()
        after(number)


def each(parameters: Any) -> Plan:
    """Every parameter by itself, in the order of the model."""
    transfers = tuple(
        PlannedTransfer(name=name, pieces=(Piece(name, 0, p.numel()),), priority=number)
        for number, (name, p) in enumerate(parameters)
    )
    return Plan(
        name="each", graph="any", ranks=dist.get_world_size(), update="on-arrival", chunk_bytes=1 << 16,
        transfers=transfers,
    )  # fmt: skip


def from_the_start(model: nn.Module, optimizer: Any) -> Any:
    """By a plan from the first iteration on."""
    return hemiola.accelerate(model, optimizer, plan=each(model.named_parameters()), quiet=True)


def finds_a_plan(rank: int, file: str) -> None:
    """Measures, plans, goes over, judges: at the end the same parameters as with DDP, whatever it decided."""
    os.environ["HEMIOLA_RUN_REPORT"] = f"{file}.report"
    model, optimizer = made(
        lambda m, o: hemiola.accelerate(m, o, min_gain=0.0, rate="1gbit", quiet=rank > 0), 512, 4
    )
    states = set()
    train(model, optimizer, rank, 40, lambda number: states.add(model.job.state), batch=256)
    other, other_optimizer = made(lambda m, o: (DistributedDataParallel(m), o), 512, 4)
    train(other, other_optimizer, rank, 40, batch=256)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    print("went through", *sorted(states), flush=True)


def cannot_measure(rank: int, file: str) -> None:
    """The first rank fails while the links are measured: the other is told, and neither keeps a connection."""
    from hemiola.train.accelerate import job

    def fails(*_: Any) -> None:
        raise HemiolaError("no more memory", "free some")

    if rank == 0:
        job.probe = fails  # type: ignore[assignment]
    model, optimizer = made(lambda m, o: hemiola.accelerate(m, o, min_gain=0.0, quiet=True), 512, 4)
    begun = time.monotonic()
    refused("no more memory" if rank == 0 else "rank 0", lambda: train(model, optimizer, rank, 40, batch=256))
    assert time.monotonic() - begun < patience(25), "as long as the others are thought to live"
    assert "hemiola-transport" not in [thread.name for thread in threading.enumerate()]


def defers_transfers(rank: int, file: str) -> None:
    """Many buckets, a parameter that is not used and gradients that add up: the bits of DDP, each sent after backward."""
    from hemiola.train.accelerate.profile import defer_transfers

    class Partly(nn.Sequential):
        def __init__(self) -> None:
            torch.manual_seed(0)
            super().__init__(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8), nn.Linear(3, 3))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self[2](self[1](self[0](images)))

    def trained(deferred: bool) -> Any:
        model = DistributedDataParallel(Partly(), bucket_cap_mb=0.01, find_unused_parameters=True)
        if deferred:
            defer_transfers(model, None)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        source = torch.Generator().manual_seed(rank)
        for number in range(5):
            for part in range(2):
                with contextlib.nullcontext() if part else model.no_sync():
                    model(torch.randn(8, 64, generator=source)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=number % 2 == 0)
        return model

    expected, model = trained(False), trained(True)
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(a, b)
    happened: list[str] = []
    usual = dist.all_reduce
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: happened.append("ready"))

    def seen(*arguments: Any, **named: Any) -> Any:
        happened.append("sent")
        return usual(*arguments, **named)

    dist.all_reduce = seen
    model(torch.randn(8, 64)).mean().backward()
    dist.all_reduce = usual
    assert happened == ["ready"] * 4 + ["sent"] * happened.count("sent") and happened.count("sent") > 1, (
        happened
    )


class Odd(nn.Sequential):
    """Every rank has running statistics of its own."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))


def stays_with_ddp(rank: int, file: str) -> None:
    """Under other buckets, at once or after a plan that was no faster: as with DDP to the bit, own buffers included."""
    from hemiola.train.accelerate import job as deciding
    from hemiola.train.accelerate.measured import AutoPlan

    deciding._LOSS = 0.0  # no plan is fast enough
    exchanges: list[Any] = []

    def trained(wrap: Any) -> Any:
        odd = Odd()
        odd[1].running_mean.fill_(rank)
        model, optimizer = wrap(odd)

        def after(_: int) -> None:
            engine = None if isinstance(model, DistributedDataParallel) else model.job.engine
            if engine is not None:
                exchanges.append(weakref.ref(engine._carrier))

        train(model, optimizer, rank, 40, after)
        return model

    def ddp(module: nn.Module) -> Any:
        return DistributedDataParallel(module, broadcast_buffers=False), torch.optim.SGD(
            module.parameters(), 0.1
        )

    expected = trained(ddp)
    for state in ("reverted", "off"):

        def autoplan(
            _1: Any, _2: Any, parameters: dict[str, nn.Parameter], *_: Any, state: str = state
        ) -> AutoPlan:
            return AutoPlan(each(parameters.items()) if state == "reverted" else None, "it says", 1 << 20)

        deciding.autoplan = autoplan
        model = trained(
            lambda m: hemiola.accelerate(
                m, torch.optim.SGD(m.parameters(), 0.1), min_gain=0.0, broadcast_buffers=False, quiet=True
            )
        )
        assert model.job.state == state
        assert model.job.ddp.bucket_bytes_cap == 1 << 20
        assert model.job.engine is None
        gc.collect()
        assert exchanges and all(exchange() is None for exchange in exchanges)
        for a, b in zip(model.state_dict().values(), expected.state_dict().values(), strict=True):
            assert torch.equal(a, b)


def freezes_for_a_while(rank: int, file: str) -> None:
    """A layer, before or after the plan is made and DDP comes back, or all of the model during each step: as with DDP."""
    from hemiola.train.accelerate import job as deciding
    from hemiola.train.accelerate.measured import AutoPlan

    def trained(wrap: Any, frozen: range, all_of_it: bool) -> Any:
        model, optimizer = made(wrap)
        source = torch.Generator().manual_seed(rank)
        for number in range(40):
            model.module[0].requires_grad_(number not in frozen)
            optimizer.zero_grad()
            model(torch.randn(8, 64, generator=source)).pow(2).mean().backward()
            model.module[2:].requires_grad_(not all_of_it)
            optimizer.step()
            model.module[2:].requires_grad_(True)
        return model

    def ddp(module: nn.Module, optimizer: Any) -> Any:
        return DistributedDataParallel(module, find_unused_parameters=True), optimizer

    def accelerated(module: nn.Module, optimizer: Any) -> Any:
        return hemiola.accelerate(module, optimizer, min_gain=0.0, find_unused_parameters=True, quiet=True)

    deciding._LOSS = 0.0  # no plan is fast enough
    for by_plan, frozen, all_of_it in (
        (False, range(5, 25), False), (False, range(15, 25), True), (True, range(15, 25), False),
        (True, range(30, 38), True),
    ):  # fmt: skip

        def autoplan(
            _1: Any, _2: Any, parameters: dict[str, nn.Parameter], *_: Any, by_plan: bool = by_plan
        ) -> AutoPlan:
            return AutoPlan(each(parameters.items()) if by_plan else None, "it says", 1 << 20)

        deciding.autoplan = autoplan
        model, expected = trained(accelerated, frozen, all_of_it), trained(ddp, frozen, all_of_it)
        assert model.job.state == ("reverted" if by_plan else "off")
        for a, b in zip(model.parameters(), expected.parameters(), strict=True):
            assert torch.equal(a, b), (by_plan, frozen)


def steps_by_closures(rank: int, file: str) -> None:
    """What is waited for within the optimizer's step is exposed."""
    model, optimizer = made(lambda m, o: hemiola.accelerate(m, o, min_gain=1e-9, quiet=True))
    source = torch.Generator().manual_seed(rank)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(8, 64, generator=source)).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(11):
        optimizer.step(closure)
    assert model.job._found["exposed_before_s"] > 0
    assert model.job.state == "profiling"


def keeps_nothing(rank: int, file: str) -> None:
    """A module that nobody trains any more lets go of the optimizer, and all of its state."""
    model, optimizer = made(lambda m, o: hemiola.accelerate(m, o, quiet=True))
    train(model, optimizer, rank, 2)
    module, kept = model.module, weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert kept() is None
    assert all(parameter.grad is not None for parameter in module.parameters())


def stays_apart_in_no_sync(rank: int, file: str) -> None:
    """Each rank trains by itself for a while, in which one DDP follows another."""

    def trained(wrap: Any) -> Any:
        model, optimizer = made(wrap)
        with model.no_sync():
            train(model, optimizer, rank, 14)
        train(model, optimizer, rank, 2)
        return model

    model = trained(lambda m, o: hemiola.accelerate(m, o, min_gain=0.0, quiet=True))
    expected = trained(lambda m, o: (DistributedDataParallel(m), o))
    assert model.job._found and model.job.state == "profiling"
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(a, b)


def accumulating(
    model: Any, optimizer: Any, rank: int, forwards: Any, batch: Any = lambda step: 8
) -> list[Any]:
    """40 steps of so many forwards each, exchanged at the last one, as nanoGPT has it; the parameters after each step."""
    source = torch.Generator().manual_seed(rank)
    found = []
    for step in range(40):
        for number in range(forwards(step)):
            model.require_backward_grad_sync = number == forwards(step) - 1
            model(torch.randn(batch(step), 64, generator=source)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return found


def each_advised(follows: bool = True) -> Any:
    """Every parameter by itself, or other buckets, whatever was measured."""
    from hemiola.train.accelerate.measured import AutoPlan

    def autoplan(_1: Any, _2: Any, parameters: dict[str, nn.Parameter], *_: Any) -> AutoPlan:
        return AutoPlan(each(parameters.items()) if follows else None, "it says", 1 << 20)

    return autoplan


def accumulates_in_every_phase(rank: int, file: str) -> None:
    """By the attribute that DDP has: the same bits after every step, measured, deferred, by the plan and under DDP again."""
    from hemiola.train.accelerate import job as deciding

    expected = accumulating(*made(lambda m, o: (DistributedDataParallel(m), o)), rank, lambda _: 2)
    for state, deciding._LOSS in (("on", 1e9), ("reverted", 0.0), ("off", 0.0)):
        deciding.autoplan = each_advised(state != "off")
        model, optimizer = made(lambda m, o: hemiola.accelerate(m, o, min_gain=1e-9, quiet=True))
        found = accumulating(model, optimizer, rank, lambda _: 2)
        assert model.job.state == state
        wrong = [
            step for step, (a, b) in enumerate(zip(found, expected, strict=True)) if not torch.equal(a, b)
        ]
        assert not wrong, (state, wrong)
        model.flush()


def changes_its_work(rank: int, file: str) -> None:
    """A plan is faster than DDP, or slower, only where an iteration does what it did under DDP."""
    from hemiola.train.accelerate import job as deciding

    deciding.autoplan = each_advised()
    os.environ["HEMIOLA_RUN_REPORT"] = f"{file}.report"
    for deciding._LOSS, forwards, batch, words in (
        (1e9, lambda step: 2, lambda step: 8 + step % 3, "times as fast)"),
        (0.0, lambda step: 2 if step < 25 else 1, lambda step: 8, "an iteration had 2 forwards then and has 1 forwards now"),
        (0.0, lambda step: 1, lambda step: 8 if step < 25 else 9, "had 512 elements of input then and has 576 elements"),
        (0.0, lambda step: 1 + (step > 11), lambda step: 8, " per iteration"),
    ):  # fmt: skip
        model, optimizer = made(lambda m, o: hemiola.accelerate(m, o, min_gain=1e-9, quiet=True))
        accumulating(model, optimizer, rank, forwards, batch)
        said = model.job._said
        assert (model.job.state, model.job.engine is not None) == ("on", True), said
        assert words in said.words and said.measured_s, said
        compared = "times as fast" in words
        assert (said.before_s is not None, "times as fast" in said.words) == (compared, compared), said
        model.flush()


def takes_what_ddp_takes(rank: int, file: str) -> None:
    """What scripts read and set of DDP counts, or is an error; all else stays where it was put."""
    own = dist.new_group([0, 1])
    ddp = DistributedDataParallel(
        Odd(), process_group=own, find_unused_parameters=True, broadcast_buffers=False
    )
    model, optimizer = hemiola.accelerate(ddp, torch.optim.SGD(ddp.parameters(), 0.1), quiet=True)
    names = ["process_group", "device", "device_type", "device_ids", "output_device", "dim", "find_unused_parameters",
             "broadcast_buffers", "require_backward_grad_sync", "require_forward_param_sync", "static_graph",
             "gradient_as_bucket_view", "mixed_precision", "parameters_to_ignore"]  # fmt: skip
    for name in names:
        assert getattr(model, name) == getattr(ddp, name), name
        setattr(model, name, getattr(ddp, name))
    assert model.will_sync_module_buffers() is False
    again, optimizer = hemiola.accelerate(model, optimizer, find_unused_parameters=False, quiet=True)
    assert (again.process_group, again.broadcast_buffers, again.find_unused_parameters) == (own, False, False)
    for name, value in (
        ("find_unused_parameters", True), ("static_graph", True), ("bucket_bytes_cap", 1), ("process_group", None),
        ("device_ids", [0]), ("gradient_as_bucket_view", True), ("register_comm_hook", print),
    ):  # fmt: skip
        refused(
            f"model.{name} = {value!r} would change nothing", lambda n=name, v=value: setattr(again, n, v)
        )
    refused("another Odd, which nobody would train", lambda: setattr(again, "module", Odd()))
    others = {*vars(ddp), *dir(DistributedDataParallel)} - {*vars(again), *dir(again)}
    for name in others - {name for name in vars(ddp) if name.startswith("_")}:
        try:
            getattr(again, name)
        except AttributeError as problem:
            assert "keep DistributedDataParallel" in str(problem), name
        refused("keep DistributedDataParallel", lambda n=name: setattr(again, n, 3))
    again.history, again.head = [3], nn.Linear(2, 2)
    copied = copy.deepcopy(again)
    assert (copied.history, again.history) == ([3], [3]) and "head.weight" in again.state_dict()
    assert not hasattr(again, "nothing_of_anybodys") and not hasattr(copied, "process_group")
    ddp.register_comm_hook(None, lambda state, bucket: bucket.buffer())
    refused("a communication hook", lambda: hemiola.accelerate(ddp, optimizer))


def tries_other_buckets(rank: int, file: str) -> None:
    """By a plan, then in DDP's other buckets, then whichever was faster: as with DDP to the bit all the while.

    The plan's first iterations count as ones of seconds that are all waiting, on rank 1 more than on rank 0: all ranks
    have to compare with the same time, and the report goes on with the plan's own."""
    from hemiola.train.accelerate import job as deciding
    from hemiola.train.accelerate.measured import AutoPlan

    def autoplan(_1: Any, _2: Any, parameters: dict[str, nn.Parameter], *_: Any) -> AutoPlan:
        return AutoPlan(each(parameters.items()), "it says", 1 << 20, 0.0)

    deciding.autoplan, deciding._LOSS = autoplan, 1e9
    other, other_optimizer = made(lambda m, o: (DistributedDataParallel(m), o))
    train(other, other_optimizer, rank, 101)
    os.environ["HEMIOLA_RUN_REPORT"] = f"{file}.report"
    for state, deciding._FASTER in (("on", 0.0), ("reverted", 1e9)):
        model, optimizer = made(lambda m, o: hemiola.accelerate(m, o, min_gain=0.0, quiet=True))
        by_plan: list[bool] = []
        reports: list[Acceleration] = []

        def after(number: int, job: Any = model.job, by_plan: Any = by_plan, reports: Any = reports) -> None:
            by_plan.append(job.engine is not None)
            if job.engine is not None and job._said.measured_s is None:
                (took_s, waited_s), slow_s = job._times[-1], 10.0 * (1 + rank)
                job._times[-1] = (took_s + slow_s, waited_s)
                job.engine.waited_s += slow_s
            if rank == 0 and number >= 60:
                reports.append(read_acceleration(Path(f"{file}.report")))

        train(model, optimizer, rank, 101, after)
        job = model.job
        changes = [b for a, b in itertools.pairwise([not by_plan[0], *by_plan]) if a != b]
        assert changes == [False, True, False, True][: 4 if state == "on" else 3], changes
        assert job.state == state
        assert "per iteration with DDP in buckets of 1 MiB" in job._said.words
        assert job._said.measured_s > 20  # rank 1's
        if rank == 0:
            first, last = reports[0], reports[-1]
            assert (first.measured_s, first.exposed_s > 9) == (job._said.measured_s, True), first
            assert last.iterations == 100
            if state == "on":
                assert last.exposed_s <= last.measured_s < 5, last
            else:
                assert (last.measured_s, last.exposed_s) == (first.measured_s, first.exposed_s), last
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)
        model.flush()


def reports_to_its_end(rank: int, file: str) -> None:
    """What a given plan takes, and how many iterations there were, whoever was in charge."""
    os.environ["HEMIOLA_RUN_REPORT"] = f"{file}.report"
    path = Path(f"{file}.report")
    for state, wrap in (
        ("on", from_the_start),
        ("off", lambda m, o: hemiola.accelerate(m, o, min_gain=1e9, quiet=True)),
    ):
        model, optimizer = made(wrap)
        train(model, optimizer, rank, 30)
        assert model.job.state == state
        del model
        gc.collect()
        if rank == 0:
            report = read_acceleration(path)
            assert (report.state, report.iterations) == (state, 30)
            if state == "on":
                assert 0 <= report.exposed_s <= report.measured_s
                assert report.words.endswith(" per iteration")


def is_killed(rank: int, file: str) -> None:
    model, optimizer = made(from_the_start)

    def after(number: int) -> None:
        if number == 3:
            Path(f"{file}.{rank}").write_text(str(os.getpid()))
            if rank == 1:
                time.sleep(60)

    try:
        train(model, optimizer, rank, 10, after)
    except HemiolaError as problem:
        print(problem, flush=True)


def has_fewer_batches(rank: int, file: str) -> None:
    model, optimizer = made(from_the_start)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            train(model, optimizer, rank, 4 if rank else 9)
            print("done", sum(float(p.sum()) for p in model.parameters()) != 0, flush=True)
        except HemiolaError as problem:
            print(problem, flush=True)
    os._exit(0) if rank == 0 else None


def leaves_out_a_batch(rank: int, file: str) -> None:
    """One rank catches what ended its backward, and would go on; what it has sent by then is of that batch."""
    model, optimizer = made(from_the_start)
    train(model, optimizer, rank, 3)

    def fails(_: Any) -> None:
        raise MemoryError("on this rank")

    if rank == 1:
        model.module[2].weight.register_hook(fails)
        with contextlib.suppress(MemoryError):
            train(model, optimizer, rank, 1)
        for action in (optimizer.zero_grad, optimizer.step, model.flush, lambda: model(torch.randn(8, 64))):
            refused("a backward has not come to its end", action)
        return
    refused("rank 1", lambda: train(model, optimizer, rank, 3))


def is_interrupted(rank: int, file: str) -> None:
    model, optimizer = made(from_the_start)

    def after(number: int) -> None:
        if number == 3 and rank == 1:
            time.sleep(60)

    Path(f"{file}.{rank}").write_text(str(os.getpid()))
    try:
        train(model, optimizer, rank, 10, after)
    except KeyboardInterrupt:
        print("interrupted", flush=True)


def is_copied(rank: int, file: str) -> None:
    """Copies of the accelerated model exchange nothing; one that is compiled is refused, and goes on as it was."""
    model, optimizer = made(from_the_start)
    train(model, optimizer, rank, 3)
    average = torch.optim.swa_utils.AveragedModel(model)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    images = torch.randn(2, 64)
    for number, other in enumerate((average, copy.deepcopy(model), torch.load(saved, weights_only=False))):
        assert torch.equal(other(images), model.module(images))
        if rank == number % 2:
            other(images).sum().backward()
    average.update_parameters(model)
    assert next(name for name, _ in copy.deepcopy(model).named_parameters()) == "module.0.weight"
    for compiled in (
        lambda: torch.compile(model, backend="eager"),
        lambda: model.module.compile(backend="eager"),
    ):
        try:
            found = compiled()
            (model if found is None else found)(images)
        except Exception as problem:
            assert "cannot be compiled" in str(problem), problem
        else:
            raise AssertionError("compiled")
    model.module._compiled_call_impl = None
    train(model, optimizer, rank, 2)


def waits_at_the_end(rank: int, file: str) -> None:
    """A rank that is done does not leave one alone that has its last iteration yet to come."""
    model, optimizer = made(from_the_start)
    train(model, optimizer, rank, 3)
    if rank == 0:
        time.sleep(11)
    train(model, optimizer, rank, 1)
    if rank == 0:
        model.flush()


class Apart(nn.Module):
    """Tables and layers of which an iteration may use a part."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(300, 20) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(20, 20) for _ in range(2))

    def forward(self, used: tuple[int, ...]) -> torch.Tensor:
        words = torch.tensor([3, 7])
        return sum((self.layers[n](self.tables[n](words)).pow(2).sum() for n in used), torch.zeros(()))


def leaves_before_its_step(rank: int, file: str) -> None:
    """Each has begun to send what the other has not come to, rows and whole gradients; neither waits for it at its end."""
    module = Apart()
    plan = each(module.named_parameters())
    transfers = tuple(
        msgspec.structs.replace(one, part="rows") if one.name.startswith("tables") else one
        for one in plan.transfers
    )
    plan = msgspec.structs.replace(plan, transfers=transfers)
    model, optimizer = hemiola.accelerate(
        module, torch.optim.SGD(module.parameters(), 0.1), plan=plan, quiet=True
    )
    model((0, 1)).backward()
    optimizer.step()
    optimizer.zero_grad()
    model((rank,)).backward()


def trains_for_long(rank: int, file: str) -> None:
    """The folder of its report goes away meanwhile, and what it remembers of iterations does not grow."""
    os.environ["HEMIOLA_RUN_REPORT"] = f"{file}.{rank}/report"
    Path(f"{file}.{rank}").mkdir()
    model, optimizer = made(from_the_start)
    shutil.rmtree(f"{file}.{rank}")
    train(model, optimizer, rank, 101)
    assert len(model.job._times) == 12


def is_one_of_two_groups(rank: int, file: str) -> None:
    """Each by collectives of its own, twice, as with DDP; the groups that carry them are given back where they can be."""
    own = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][rank // 2]

    def by_collectives(model: nn.Module, optimizer: Any, group: Any = own) -> Any:
        plan = each(getattr(model, "module", model).named_parameters())
        plan = msgspec.structs.replace(plan, ranks=dist.get_world_size(group))
        return hemiola.accelerate(model, optimizer, plan=plan, carrier="collectives", group=group, quiet=True)

    other, other_optimizer = made(lambda m, o: (DistributedDataParallel(m, process_group=own), o))
    model, optimizer = made(by_collectives)
    for again in (True, False):
        train(other, other_optimizer, rank, 3)
        train(model, optimizer, rank, 3)
        if again:
            model, optimizer = by_collectives(model, optimizer)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    model, optimizer = made(lambda m, o: by_collectives(m, o, None))
    known = len(dist.distributed_c10d._world.pg_names)
    model, optimizer = by_collectives(model, optimizer, None)
    train(model, optimizer, rank, 3)
    model.flush()
    assert len(dist.distributed_c10d._world.pg_names) == known
    dist.new_group([0])
    if rank < 2:
        refused("some ranks of the group are in 8 process groups and some in 9", lambda: made(by_collectives))


def is_recorded(rank: int, file: str) -> None:
    model, optimizer = made(from_the_start)
    with hemiola.record(f"{file}.json"):
        assert not model.job.updates.has_hooks  # updates stay apart
        train(model, optimizer, rank, 8)
        model.flush()


def refused(what: str, action: Any) -> None:
    try:
        action()
    except HemiolaError as problem:
        assert what in str(problem), problem
    else:
        raise AssertionError(f"not refused: {what}")


def meets_mistakes(rank: int, file: str) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    refused("the optimizer is a int", lambda: hemiola.accelerate(model, 3))  # type: ignore[arg-type]
    refused("min_gain is -1", lambda: hemiola.accelerate(model, optimizer, min_gain=-1))
    frozen = nn.Linear(4, 4).requires_grad_(False)
    refused("no parameter of the model asks", lambda: hemiola.accelerate(frozen, optimizer))
    pieces = (Piece("weight", 0, 16), Piece("bias", 0, 4))
    plan = Plan(
        name="p", graph="g", ranks=3, update="on-arrival", chunk_bytes=1 << 16,
        transfers=(PlannedTransfer(name="all", pieces=pieces),),
    )  # fmt: skip
    refused("is for 3 ranks, this job has 2", lambda: hemiola.accelerate(model, optimizer, plan=plan))
    lacking = msgspec.structs.replace(
        plan, ranks=2, transfers=(PlannedTransfer(name="w", pieces=pieces[:1]),)
    )
    refused("'bias' has 4 elements, of which 0", lambda: hemiola.accelerate(model, optimizer, plan=lacking))
    refused("nothing.json", lambda: hemiola.accelerate(model, optimizer, plan="nothing.json"))
    whole = msgspec.structs.replace(plan, ranks=2)
    before, optimizer = hemiola.accelerate(
        nn.Linear(4, 4), torch.optim.SGD(model.parameters(), 0.1), plan=whole, quiet=True
    )
    again, optimizer = hemiola.accelerate(before, optimizer, plan=whole, quiet=True)
    refused("the model was accelerated again", lambda: before(torch.ones(2, 4)))
    loss = again(torch.ones(2, 4)).sum()
    loss.backward(retain_graph=True)
    refused("a second backward gave", loss.backward)


def main(rank: int, ranks: int, file: str, how: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    globals()[how](rank, file)
    print("left", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
