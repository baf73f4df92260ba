"""One rank's engine whose gradients come late: what they are updated by, and what waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from endpoints import connected
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from hemiola.core.errors import InputError, TransportError
from hemiola.core.plan import Piece, Plan, PlannedTransfer
from hemiola.train.accelerate.engine import PlanExecutor
from hemiola.train.accelerate.exchange import GradientExchange
from hemiola.train.accelerate.updates import Updates


class Transfer:
    """It is reduced once somebody waits for it, and sent once somebody waits for that."""

    stood_s, moved_s = 0.0, (0.0, 0.0)

    def __init__(self, done: bool) -> None:
        self.done, self.sent = done, False

    def soon(self, timeout_s: float) -> bool:
        self.done = True
        return True

    def wait(self, timeout_s: float) -> None:
        assert self.done

    def wait_sent(self) -> None:
        self.done = self.sent = True


class Late:
    """Nobody else adds anything."""

    skips = is_seen = True

    def __init__(self, done: bool = False) -> None:
        self._done = done
        self.begun: list[Transfer] = []

    def all_reduce(self, number: int, name: str, flat: Tensor, *more: Any) -> Transfer:
        assert not flat.is_inference()  # a thread of the transport's would add to it
        self.begun.append(Transfer(self._done))
        return self.begun[-1]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, rows: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(rows)))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


ROWS = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))


def engine_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, carrier: Any, timeout_s: float = 10.0
) -> PlanExecutor:
    """Every parameter goes by itself."""
    parameters = dict(model.named_parameters())
    plan = Plan(
        name="each", graph="any", ranks=1, update="on-arrival", chunk_bytes=1 << 16,
        transfers=tuple(
            PlannedTransfer(name=name, pieces=(Piece(name, 0, p.numel()),)) for name, p in parameters.items()
        ),
    )  # fmt: skip
    return PlanExecutor(model, parameters, plan, {}, carrier, Updates(optimizer, None), 1, timeout_s)


def nothing(model: nn.Module) -> None:
    pass


def parameters_seen(model: nn.Module) -> None:
    with torch.inference_mode():
        assert all(p.sum().isfinite() for p in model.parameters())


def gradients_seen(model: nn.Module) -> None:
    with torch.inference_mode():
        assert all(p.grad is None or p.grad.sum().isfinite() for p in model.parameters())


def trained(
    make: Any, late: bool, casts: bool, step_casts: bool = False, before: Callable[..., None] = nothing,
    after: Callable[..., None] = nothing,
) -> dict[str, Tensor]:  # fmt: skip
    """Four steps; before and after the first somebody looks at something."""
    torch.manual_seed(0)
    model = Net()
    optimizer = make(model.parameters())
    engine = engine_of(model, optimizer, Late()) if late else None
    for number in range(4):
        with torch.autocast("cpu", torch.bfloat16, enabled=casts):
            if engine is not None:
                engine.forward_begins(True)
            loss = model(ROWS).float().pow(2).sum()
        loss.backward()
        if number == 0:
            before(model)
        with torch.autocast("cpu", torch.bfloat16, enabled=step_casts):
            engine.step(optimizer.step) if engine is not None else optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None  # waits for nothing
        if number == 0:
            after(model)
    if engine is not None:
        engine.barrier()
        engine.detach()
    return model.state_dict()


@pytest.mark.parametrize("casts, step_casts", [(True, False), (True, True), (False, True)])
def test_updates_are_cast_as_the_step_is_whatever_their_parameters_are_used_in(casts, step_casts):
    def make(parameters):
        return torch.optim.Adafactor(parameters, 0.05)

    found = trained(make, True, casts, step_casts)
    expected = trained(make, False, casts, step_casts)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("seen", ["before", "after"])
def test_what_is_looked_at_in_inference_mode_can_still_be_trained(seen):
    def make(parameters):
        return torch.optim.SGD(parameters, 0.05, momentum=0.9)

    looks = {"before": gradients_seen} if seen == "before" else {"after": parameters_seen}
    found, expected = trained(make, True, False, **looks), trained(make, False, False)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_parameter_whose_gradient_is_still_being_sent_can_be_used(model):
    optimizer, carrier = torch.optim.SGD(model.parameters(), 0.1), Late(done=True)
    engine = engine_of(model, optimizer, carrier)
    engine.forward_begins(True)
    model(ROWS).sum().backward()
    engine.step(optimizer.step)
    loss = model(ROWS).sum()
    assert not any(transfer.sent for transfer in carrier.begun)
    loss.backward()  # adds to it
    assert sum(transfer.sent for transfer in carrier.begun) == 4
    engine.detach()


def test_one_that_is_frozen_meanwhile_can_be_used(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    engine = engine_of(model, optimizer, Late(done=True))
    engine.forward_begins(True)
    model(ROWS).sum().backward()
    engine.step(optimizer.step)
    next(model.parameters()).requires_grad = False
    model(ROWS).sum().backward()
    engine.detach()


def test_parameters_are_looked_at_between_two_backwards_of_one_iteration(model):
    optimizer, carrier = torch.optim.SGD(model.parameters(), 0.1), Late()
    engine = engine_of(model, optimizer, carrier)
    engine.forward_begins(True)
    one, other = model.first(ROWS).sum(), model.second(ROWS).sum()
    one.backward()
    assert model.first.weight.norm() > 0
    assert len(carrier.begun) == 2 and not any(transfer.done for transfer in carrier.begun)
    other.backward()
    engine.step(optimizer.step)
    engine.detach()


def test_a_backward_that_is_interrupted_ends_no_iteration_and_what_was_trained_can_be_saved(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    engine = engine_of(model, optimizer, Late())
    engine.forward_begins(True)
    model(ROWS).sum().backward()
    engine.step(optimizer.step)

    def interrupted(_):
        raise KeyboardInterrupt

    model.first.weight.register_hook(interrupted)
    engine.forward_begins(True)
    with pytest.raises(KeyboardInterrupt):
        model(ROWS).sum().backward()
    engine.settle()
    assert "momentum_buffer" in optimizer.state[model.first.weight]
    assert all(value.isfinite().all() for value in model.state_dict().values())
    with pytest.raises(InputError, match="a backward has not come to its end"):
        engine.step(optimizer.step)
    engine.detach()


def test_hooks_on_the_steps_of_all_optimizers_see_them_whole(model):
    optimizer, seen = torch.optim.SGD(model.parameters(), 0.1), []
    engine = engine_of(model, optimizer, Late())
    hook = register_optimizer_step_post_hook(lambda o, *_: seen.append(len(o.param_groups[0]["params"])))
    try:
        engine.forward_begins(True)
        model(ROWS).sum().backward()
        engine.step(optimizer.step)
    finally:
        hook.remove()
    assert seen == [6]
    engine.detach()


def test_gradients_that_are_views_are_zeroed(model):
    engine = engine_of(model, torch.optim.SGD(model.parameters(), 0.1), Late())
    flat = torch.ones(64)
    model.first.weight.grad = flat.view_as(model.first.weight)
    engine.zero_grad(model.parameters(), False)
    assert not flat.any()
    engine.detach()


def test_hours_in_which_all_is_stopped_count_little_against_a_gradient(model, monkeypatch):
    now_s = [0.0]

    def soon(transfer: Transfer, timeout_s: float) -> bool:
        transfer.done = now_s[0] > 0
        now_s[0] += 1e4
        return transfer.done

    monkeypatch.setattr(Transfer, "soon", soon)
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    engine = engine_of(model, torch.optim.SGD(model.parameters(), 0.1), Late())
    engine.forward_begins(True)
    model(ROWS).sum().backward()
    engine.barrier()
    assert now_s[0] > 1e4
    engine.detach()


def test_a_gradient_that_does_not_come_is_given_up_in_time_and_not_waited_for_again(model):
    with connected(2) as ends:
        carrier = GradientExchange(ends[0], 1 << 16)
        engine = engine_of(model, torch.optim.SGD(model.parameters(), 0.1), carrier, 0.3)
        engine.forward_begins(True)
        model(ROWS).sum().backward()
        with pytest.raises(TransportError, match=r"first.weight was not reduced within 0\.3 s"):
            engine.barrier()
        engine.drain(600.0)
        engine.detach()
