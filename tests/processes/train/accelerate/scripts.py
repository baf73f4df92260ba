"""Training scripts as users write them. Each is given how to wrap its model and optimizer, and returns both, trained."""

from __future__ import annotations

import copy
import io
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

STEPS = 6
Wrap = Callable[..., tuple[nn.Module, Any]]


class Net(nn.Module):
    """Convolution, normalisation with buffers, shared weights, a scalar, a layer that is not always used."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.normal = nn.BatchNorm2d(8)
        self.first = nn.Linear(8 * 36, 160)
        self.again = nn.Linear(160, 160)
        self.side = nn.Linear(160, 160)
        self.last = nn.Linear(160, 10, bias=False)
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor, side: bool = False) -> Tensor:
        flow = torch.relu(self.normal(self.convolution(images))).flatten(1)
        flow = torch.relu(self.again(torch.relu(self.again(torch.relu(self.first(flow))))))
        if side:
            flow = flow + self.side(flow)
        return self.last(flow) * self.gain


class Recurrent(nn.Module):
    """Keeps a list of its weights, so forward never reads them by name; and ties two."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 24)
        self.memory = nn.LSTM(24, 24, num_layers=2, batch_first=True)
        self.out = nn.Linear(24, 30, bias=False)
        self.out.weight = self.table.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.memory(self.table(words))[0])


def batches(rank: int, count: int = STEPS) -> Iterator[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(100 + rank)
    for _ in range(count):
        yield torch.randn(4, 3, 6, 6, generator=source), torch.randint(0, 10, (4,), generator=source)


loss_of = nn.CrossEntropyLoss()


def plain(wrap: Wrap, rank: int, make: Any = None, steps: int = STEPS) -> Any:
    torch.manual_seed(1)
    model = Net()
    optimizer = (make or (lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-3)))(
        model.parameters()
    )
    model, optimizer = wrap(model, optimizer, find_unused_parameters=True)
    for images, labels in batches(rank, steps):
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
    return model, optimizer


def adamw(wrap: Wrap, rank: int) -> Any:
    return plain(wrap, rank, lambda p: torch.optim.AdamW(p, 1e-3))


def fifty_steps_of_sgd(wrap: Wrap, rank: int) -> Any:
    return plain(wrap, rank, steps=50)


def fifty_steps_of_adamw(wrap: Wrap, rank: int) -> Any:
    return plain(wrap, rank, lambda p: torch.optim.AdamW(p, 1e-3), steps=50)


def nesterov_and_amsgrad(wrap: Wrap, rank: int) -> Any:
    plain(wrap, rank, lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True))
    return plain(wrap, rank, lambda p: torch.optim.Adam(p, 1e-3, amsgrad=True, weight_decay=0.01))


def updates_that_write_to_gradients(wrap: Wrap, rank: int) -> Any:
    return plain(
        wrap, rank, lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, foreach=True), 30
    )


def schedule_and_groups(wrap: Wrap, rank: int) -> Any:
    """The rate changes right after each step, before the updates are carried out; groups have rates of their own."""
    torch.manual_seed(1)
    model = Net()
    groups = [
        {"params": list(model.first.parameters()), "lr": 0.2},
        {"params": [p for n, p in model.named_parameters() if not n.startswith("first")]},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    before = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    model, optimizer = wrap(model, optimizer, find_unused_parameters=True)
    after = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.3, 0.1], total_steps=STEPS)
    for images, labels in batches(rank):
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
        before.step()
        after.step()
    return model, optimizer


def clipping(wrap: Wrap, rank: int) -> Any:
    torch.manual_seed(1)
    model, optimizer = made(wrap)
    for images, labels in batches(rank):
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        assert torch.isfinite(norm)
        optimizer.step()
    return model, optimizer


def made(wrap: Wrap, rate: float = 0.05) -> Any:
    torch.manual_seed(1)
    model = Net()
    return wrap(model, torch.optim.SGD(model.parameters(), rate, momentum=0.9), find_unused_parameters=True)


def scaler(wrap: Wrap, rank: int) -> Any:
    model, optimizer = made(wrap)
    scale = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    for number, (images, labels) in enumerate(batches(rank)):
        optimizer.zero_grad()
        loss = loss_of(model(images), labels)
        scale.scale(loss * (float("inf") if number == 2 else 1.0)).backward()  # one step is left out
        scale.step(optimizer)
        scale.update()
    return model, optimizer


def accumulation(wrap: Wrap, rank: int) -> Any:
    model, optimizer = made(wrap)
    optimizer.zero_grad()
    for number, (images, labels) in enumerate(batches(rank)):
        if number % 3 != 2:
            with model.no_sync():
                loss_of(model(images), labels).backward()
            continue
        loss_of(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def accumulation_by_the_attribute(wrap: Wrap, rank: int) -> Any:
    """As nanoGPT does it; buffers are not shared after a forward without exchange."""
    model, optimizer = made(wrap)
    for number, (images, labels) in enumerate(batches(rank, 9)):
        model.require_backward_grad_sync = number % 3 == 2
        loss_of(model(images), labels).backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return model, optimizer


def exchanged_now_and_then(wrap: Wrap, rank: int) -> Any:
    """The attribute and `no_sync` within each other, changed between forward and backward, after a forward for nothing."""
    model, optimizer = made(wrap)

    def backward(images: Tensor, labels: Tensor, then: bool) -> None:
        loss = loss_of(model(images), labels)
        model.require_backward_grad_sync = then  # what counts is what it was in forward
        loss.backward()

    for number, (images, labels) in enumerate(batches(rank, 12)):
        with model.no_sync():
            assert model.require_backward_grad_sync is False
            backward(images, labels, True)
            backward(images, labels, False)
            if number % 4 == 1:
                backward(images, labels, True)
                backward(images, labels, False)
        assert model.require_backward_grad_sync is True
        if number % 4 == 2:
            model(images)  # the next backward is exchanged, whichever it is
            model.require_backward_grad_sync = False
            backward(images, labels, True)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        model.require_backward_grad_sync = True
        backward(images, labels, False)
        assert model.require_backward_grad_sync is False
        model.require_backward_grad_sync = True
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def buffers_shared_now_and_then(wrap: Wrap, rank: int) -> Any:
    """Whether rank 0's running means are everybody's is changed on the way; in the end each rank has its own."""
    model, optimizer = made(wrap)
    for number, (images, labels) in enumerate(batches(rank, 8)):
        model.broadcast_buffers = number % 4 < 2
        if number % 4 == 1:
            model.require_forward_param_sync = False
        loss_of(model(images), labels).backward()
        assert model.require_forward_param_sync is True
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def parts_that_are_each_ranks_own(wrap: Wrap, rank: int) -> Any:
    """As DistributedDataParallel is told of parameters and buffers that it is to leave alone."""
    torch.manual_seed(1)
    model = Net()
    own = ["side.weight", "side.bias", ".gain", "normal.running_mean"]
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, own)
    model, optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9))
    for images, labels in batches(rank):
        optimizer.zero_grad()
        loss_of(model(images, side=True), labels).backward()
        optimizer.step()
    assert model.parameters_to_ignore == set(own)
    return model, optimizer


def accumulation_without_no_sync(wrap: Wrap, rank: int) -> Any:
    model, optimizer = made(wrap)
    for number, (images, labels) in enumerate(batches(rank)):
        loss_of(model(images), labels).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return model, optimizer


def two_losses(wrap: Wrap, rank: int) -> Any:
    """Two backward passes, each through one half of the parameters."""
    torch.manual_seed(1)
    parts = nn.ModuleDict({"a": nn.Linear(9, 7), "b": nn.Linear(9, 7)})
    parts.forward = lambda x: (parts["a"](x), parts["b"](x))  # type: ignore[method-assign]
    model, optimizer = wrap(parts, torch.optim.SGD(parts.parameters(), 0.1, momentum=0.9))
    source = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        one, other = model(torch.randn(5, 9, generator=source))
        optimizer.zero_grad()
        one.pow(2).sum().backward()
        other.abs().sum().backward()
        optimizer.step()
    return model, optimizer


def a_branch_that_only_some_use(wrap: Wrap, rank: int) -> Any:
    """By one rank, by all, by none: AdamW's weight decay and moments must not touch what nobody used."""
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1)
    model, optimizer = wrap(model, optimizer, find_unused_parameters=True)
    for number, (images, labels) in enumerate(batches(rank)):
        optimizer.zero_grad()
        loss_of(model(images, side=number % 3 == 1 or (number % 3 == 2 and rank == 0)), labels).backward()
        optimizer.step()
    return model, optimizer


def frozen_layer(wrap: Wrap, rank: int) -> Any:
    torch.manual_seed(1)
    model = Net()
    model.normal.eval()
    for parameter in model.first.parameters():
        parameter.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    model, optimizer = wrap(model, torch.optim.SGD(trained, 0.05), find_unused_parameters=True)
    for images, labels in batches(rank):
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
    return model, optimizer


def to_give_again(model: nn.Module) -> nn.Module:
    """What it is wrapped anew by: DDP's module; what was accelerated is taken as it is."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def unfrozen_later(wrap: Wrap, rank: int) -> Any:
    """A layer is trained from the fourth step on, by the same optimizer, with a scheduler that has hold of it."""
    torch.manual_seed(1)
    inner = Net()
    inner.first.requires_grad_(False)
    optimizer = torch.optim.SGD(inner.parameters(), 0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    model, optimizer = wrap(inner, optimizer, find_unused_parameters=True)
    for number, (images, labels) in enumerate(batches(rank)):
        if number == 3:
            inner.first.requires_grad_(True)
            model, optimizer = wrap(to_give_again(model), optimizer, find_unused_parameters=True)
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # that it would go before the optimizer
            scheduler.step()
    return model, optimizer


def by_another_optimizer_later(wrap: Wrap, rank: int) -> Any:
    """A layer is trained from the fourth step on, and all by a new optimizer."""
    torch.manual_seed(1)
    inner = Net()
    inner.first.requires_grad_(False)
    model, optimizer = wrap(inner, torch.optim.SGD(inner.parameters(), 0.05), find_unused_parameters=True)
    for number, (images, labels) in enumerate(batches(rank)):
        if number == 3:
            inner.first.requires_grad_(True)
            new = torch.optim.SGD(inner.parameters(), 0.02, momentum=0.9)
            model, optimizer = wrap(to_give_again(model), new, find_unused_parameters=True)
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
    return model, optimizer


def closure(wrap: Wrap, rank: int) -> Any:
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=3)
    model, optimizer = wrap(model, optimizer, find_unused_parameters=True)
    for images, labels in batches(rank, 3):

        def again(images: Tensor = images, labels: Tensor = labels) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model(images), labels)
            loss.backward()
            shared = loss.detach().clone()
            dist.all_reduce(shared)
            return shared

        optimizer.step(again)
    return model, optimizer


def recurrent(wrap: Wrap, rank: int) -> Any:
    torch.manual_seed(1)
    model = Recurrent()
    model, optimizer = wrap(model, torch.optim.AdamW(model.parameters(), 1e-2))
    source = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        words = torch.randint(0, 30, (3, 8), generator=source)
        optimizer.zero_grad()
        loss_of(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()
    return model, optimizer


def gradients_dropped_by_hand(wrap: Wrap, rank: int) -> Any:
    model, optimizer = made(wrap)
    for number, (images, labels) in enumerate(batches(rank)):
        loss_of(model(images), labels).backward()
        optimizer.step()
        if number % 3 == 0:
            for parameter in model.parameters():
                parameter.grad = None
        elif number % 3 == 1:
            model.zero_grad()
        else:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()
    return model, optimizer


def gradients_that_are_kept(wrap: Wrap, rank: int) -> Any:
    """Whole ones and parts, over the iterations that follow; in the end they are added to a parameter."""
    model, optimizer = made(wrap)
    kept: list[list[Tensor]] = []
    for number, (images, labels) in enumerate(batches(rank)):
        loss_of(model(images), labels).backward()
        optimizer.step()
        if number in (1, 4):
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            kept.append(
                [g if number == 1 else g.flatten()[: len(g) // 2 if g.dim() else 1] for g in gradients]
            )
        optimizer.zero_grad(set_to_none=number != 3)
    with torch.no_grad():
        every = torch.cat([gradient.flatten() for gradients in kept for gradient in gradients])
        largest = max(model.parameters(), key=Tensor.numel).view(-1)
        for part in every.split(largest.numel()):
            largest[: len(part)] += part
    return model, optimizer


def looked_at_in_between(wrap: Wrap, rank: int) -> Any:
    """Reads by every way there is: an average of weights, a copy, evaluation, numpy, another thread."""
    model, optimizer = made(wrap)
    held = model.module.first.weight
    average = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    seen: list[float] = []
    for number, (images, labels) in enumerate(batches(rank)):
        loss_of(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 0:
            for name, parameter in model.named_parameters():
                average[name].lerp_(parameter.detach(), 0.5)
        elif number == 1:
            seen.append(float(copy.deepcopy(model.module).last.weight.sum()))
        elif number == 2:
            model.eval()
            with torch.no_grad():
                seen.append(float(model.module(images).sum()))
            model.train()
        elif number == 3:
            seen.append(float(held.detach().numpy().sum()))
        elif number == 4:
            other = threading.Thread(target=lambda: seen.append(float(model.module.again.weight.sum())))
            other.start()
            other.join()
    with torch.no_grad():
        model.module.gain.fill_(sum(seen) + sum(float(value.sum()) for value in average.values()))
    return model, optimizer


def changed_by_hand(wrap: Wrap, rank: int) -> Any:
    model, optimizer = made(wrap)
    for images, labels in batches(rank):
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
        with torch.no_grad():
            model.module.first.weight.clamp_(-0.05, 0.05)
            model.module.last.weight.data.mul_(0.999)
    return model, optimizer


class OfOnesOwn(torch.optim.SGD):
    """Counts its steps: whoever steps it in parts sees it."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            group["lr"] = 0.1 / group["count"]
        return super().step(closure)


def unknown_optimizer(wrap: Wrap, rank: int) -> Any:
    return plain(wrap, rank, lambda p: OfOnesOwn(p, 0.05, momentum=0.9))


def steps_that_are_looked_at(wrap: Wrap, rank: int) -> Any:
    model, optimizer = made(wrap)
    norms: list[float] = []
    optimizer.register_step_pre_hook(
        lambda o, a, k: norms.append(
            sum(float(p.grad.norm()) for p in o.param_groups[0]["params"] if p.grad is not None)
        )
    )
    for images, labels in batches(rank):
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
    assert len(norms) == STEPS
    with torch.no_grad():
        model.module.gain.fill_(sum(norms))
    return model, optimizer


def checkpoint_and_resume(wrap: Wrap, rank: int) -> Any:
    model, optimizer = made(wrap)
    file = io.BytesIO()
    for number, (images, labels) in enumerate(batches(rank)):
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
        if number == STEPS // 2 - 1:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, file)
            break
    file.seek(0)
    kept = torch.load(file)
    torch.manual_seed(9)
    fresh = Net()
    fresh.load_state_dict(kept["model"])
    resumed = torch.optim.SGD(fresh.parameters(), 0.05, momentum=0.9)
    resumed.load_state_dict(kept["optimizer"])
    model, optimizer = wrap(fresh, resumed, find_unused_parameters=True)
    for number, (images, labels) in enumerate(batches(rank)):
        if number < STEPS // 2:
            continue
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
    return model, optimizer


def loaded_in_the_middle(wrap: Wrap, rank: int) -> Any:
    model, optimizer = made(wrap)
    for number, (images, labels) in enumerate(batches(rank)):
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
        if number == 2:
            kept = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        if number == 4:
            model.load_state_dict(kept[0])
            optimizer.load_state_dict(state_dict=kept[1])
    return model, optimizer


def channels_last_and_half(wrap: Wrap, rank: int) -> Any:
    torch.manual_seed(1)
    model = Net().to(memory_format=torch.channels_last)
    model, optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.05), find_unused_parameters=True)
    for images, labels in batches(rank):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model(images.to(memory_format=torch.channels_last)).float(), labels)
        loss.backward()
        optimizer.step()
    return model, optimizer


def recomputed(wrap: Wrap, rank: int) -> Any:
    """Activations are computed again in backward, when the first gradients are on their way."""
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(1)
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(40, 40), nn.Tanh()) for _ in range(4)))

    def forward(x: Tensor) -> Tensor:
        for number, layer in enumerate(layers):
            x = checkpoint(layer, x, use_reentrant=number % 2 > 0)
        return x

    layers.forward = forward  # type: ignore[method-assign]
    model, optimizer = wrap(layers, torch.optim.SGD(layers.parameters(), 0.1, momentum=0.9))
    source = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(6, 40, generator=source)).pow(2).sum().backward()
        optimizer.step()
    return model, optimizer


class Doubled(torch.autograd.Function):
    """A kernel of somebody's own, which asks no class of its arguments."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        plain_weight = torch.from_dlpack(torch.utils.dlpack.to_dlpack(weight.detach()))
        ctx.save_for_backward(x, weight)
        return x @ plain_weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x


class OwnKernels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(50, 50) / 8) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.tanh(Doubled.apply(x, weight))
        return x


def own_kernels(wrap: Wrap, rank: int) -> Any:
    torch.manual_seed(1)
    model = OwnKernels()
    model, optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    source = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(6, 50, generator=source)).pow(2).sum().backward()
        optimizer.step()
    return model, optimizer


SCRIPTS = [
    plain, adamw, nesterov_and_amsgrad, fifty_steps_of_sgd, fifty_steps_of_adamw, updates_that_write_to_gradients, schedule_and_groups, clipping, scaler,
    accumulation, accumulation_by_the_attribute, exchanged_now_and_then, buffers_shared_now_and_then, parts_that_are_each_ranks_own, accumulation_without_no_sync, two_losses, a_branch_that_only_some_use, frozen_layer, unfrozen_later, by_another_optimizer_later, closure, recurrent,
    gradients_dropped_by_hand, gradients_that_are_kept, looked_at_in_between, changed_by_hand, unknown_optimizer, steps_that_are_looked_at,
    checkpoint_and_resume, loaded_in_the_middle, channels_last_and_half, recomputed, own_kernels,
]  # fmt: skip
