"""Training scripts that do something beside training: on one rank alone, in between, with more models than one."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from scripts import Wrap, batches, loss_of, made, to_give_again
from scripts_of_tables import Words
from torch import Tensor, nn


class Plain(nn.Module):
    """Nothing that ranks would have to share before a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(108, 160), nn.Tanh(), nn.Linear(160, 160), nn.Tanh())
        self.head = nn.Linear(160, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images.flatten(1)))


def plain(wrap: Wrap) -> Any:
    torch.manual_seed(1)
    model = Plain()
    return wrap(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))


def looked_at_before_the_step(wrap: Wrap, rank: int) -> Any:
    """Between backward and step, by one rank alone: saving, evaluating, another forward."""
    model, optimizer = plain(wrap)
    for number, (images, labels) in enumerate(batches(rank, 8)):
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        if rank == 0 and number % 4 == 0:
            optimizer.state_dict()
        elif rank == 0 and number % 4 == 1:
            model.eval()
            model.module(images)
            model.train()
        elif rank == 0 and number % 4 == 2:
            model(images)
        elif rank == 1 and number % 4 == 3:
            model.state_dict()
        optimizer.step()
    return model, optimizer


def a_backward_of_ones_own(wrap: Wrap, rank: int) -> Any:
    """Of the module inside: a norm that one rank wants to know, and images made harder by all."""
    model, optimizer = plain(wrap)
    for number, (images, labels) in enumerate(batches(rank, 8)):
        if rank == 0 and number % 2:
            loss_of(model.module(images), labels).backward()
            model.zero_grad()
        for _ in range(2 * (number % 3 == 2)):
            images.requires_grad_()
            loss_of(model.module(images), labels).backward()
            assert images.grad is not None
            images = (images + 0.01 * images.grad.sign()).detach()
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
    return model, optimizer


def gradients_of_ones_own(wrap: Wrap, rank: int) -> Any:
    """`torch.autograd.grad` through an output layer that is a table too, by one rank alone."""
    torch.manual_seed(1)
    model = Words()
    model, optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1), find_unused_parameters=True)
    source = torch.Generator().manual_seed(rank)
    for number in range(9):
        words = torch.randint(0, 200, (3, 4), generator=source)
        optimizer.zero_grad()
        if number % 3 == rank:
            torch.autograd.grad(model(words, "bags too"), list(model.parameters()))
        loss = model(words, "bags too")
        if number % 3 == 2:
            torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        loss.backward()
        optimizer.step()
    return model, optimizer


def two_models(wrap: Wrap, rank: int) -> Any:
    """Of one optimizer; their gradients are cleared by the optimizer, or by one of them alone."""
    torch.manual_seed(1)
    first, second = Plain(), nn.Linear(10, 10)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1, momentum=0.9)
    one, optimizer = wrap(first, optimizer)
    other, optimizer = wrap(second, optimizer)
    for number, (images, labels) in enumerate(batches(rank, 8)):
        loss_of(other(one(images)), labels).backward()
        optimizer.step()
        if number % 3 == 1:
            one.zero_grad()
            other.zero_grad(set_to_none=False)
        else:
            optimizer.zero_grad()
    return nn.ModuleList([one, other]), optimizer


def two_optimizers(wrap: Wrap, rank: int) -> Any:
    """Of one model, each of a part, given one after the other, and stepped in either order."""
    torch.manual_seed(1)
    inner = Plain()
    model, first = wrap(inner, torch.optim.SGD(inner.body.parameters(), 0.1, momentum=0.9))
    model, second = wrap(to_give_again(model), torch.optim.AdamW(inner.head.parameters(), 1e-2))
    for number, (images, labels) in enumerate(batches(rank, 8)):
        loss_of(model(images), labels).backward()
        for optimizer in (first, second) if number % 2 else (second, first):
            optimizer.step()
            optimizer.zero_grad(set_to_none=number % 4 < 2)
    return model, first if rank == 0 else second


def groups_that_change(wrap: Wrap, rank: int) -> Any:
    """The optimizer gets a part of the model later on, and then another rate for it."""
    torch.manual_seed(1)
    model = Plain()
    model, optimizer = wrap(model, torch.optim.SGD(model.head.parameters(), 0.1, momentum=0.9))
    for number, (images, labels) in enumerate(batches(rank, 8)):
        if number == 2:
            optimizer.add_param_group({"params": list(model.module.body.parameters()), "lr": 0.01})
        if number == 5:
            moved = optimizer.param_groups[0]["params"].pop()
            optimizer.param_groups[1]["params"].append(moved)
        model.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
    return model, optimizer


def clamp(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(-1e-3, 1e-3)


def hooks_that_come_later(wrap: Wrap, rank: int) -> Any:
    """What changes gradients as soon as they are there changes what is sent."""
    model, optimizer = plain(wrap)
    for number, (images, labels) in enumerate(batches(rank)):
        if number == 2:
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(clamp)
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
    return model, optimizer


def trained_as_if_evaluated(wrap: Wrap, rank: int) -> Any:
    """With gradients, but without dropout: accumulated with and without exchange."""
    model, optimizer = made(wrap)
    model.eval()
    for number, (images, labels) in enumerate(batches(rank, 9)):
        if number % 3 == 0:
            with model.no_sync():
                loss_of(model(images), labels).backward()
            continue
        loss_of(model(images), labels).backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer


def averages_of_another_type(wrap: Wrap, rank: int) -> Any:
    model, optimizer = plain(wrap)
    average = [parameter.detach().double() for parameter in model.parameters()]
    for images, labels in batches(rank):
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
        for mean, parameter in zip(average, model.parameters(), strict=True):
            mean.lerp_(parameter.type(torch.float64).detach(), 0.5)
    with torch.no_grad():
        model.module.head.bias += torch.stack([mean.sum() for mean in average]).sum().float()
    return model, optimizer


def copies(wrap: Wrap, rank: int) -> Any:
    """Of the accelerated model and of what is inside, while things are on their way; they train by themselves."""
    model, optimizer = plain(wrap)
    sums: list[float] = []
    for number, (images, labels) in enumerate(batches(rank)):
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        if number == 1:
            torch.save(model.module, io.BytesIO())
        optimizer.step()
        if number == 2:
            average = torch.optim.swa_utils.AveragedModel(model.module)
            average.update_parameters(model.module)
            sums.append(float(average(images).sum()))
        elif number == 3:
            file = io.BytesIO()
            torch.save(model.module, file)
            file.seek(0)
            sums.append(float(torch.load(file, weights_only=False)(images).sum()))
        elif number == 4:
            other = copy.deepcopy(model.module)
            other(images).sum().backward()
            sums.append(float(other.head.weight.grad.sum()))
    with torch.no_grad():
        model.module.head.bias += sum(sums)
    return model, optimizer


SCRIPTS = [
    looked_at_before_the_step, a_backward_of_ones_own, gradients_of_ones_own, two_models, two_optimizers,
    groups_that_change, hooks_that_come_later, trained_as_if_evaluated, averages_of_another_type, copies,
]  # fmt: skip
