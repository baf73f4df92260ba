"""A state goes back to its last commit, whole, and refuses what no other rank could give it."""

from __future__ import annotations

import socket
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from hemiola.core.errors import InputError, TransportError
from hemiola.train.elastic import ElasticSampler, Membership, TrainingState
from hemiola.train.elastic.board import MemberBoard


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("hemiola", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def step(state: TrainingState) -> None:
    state.optimizer.zero_grad()
    state.model(torch.ones(4, 3)).sum().backward()
    state.optimizer.step()
    state.schedule.step()
    state.sampler.confirm()
    state.losses.append(len(state.losses))


def parts(state: TrainingState) -> dict[str, Any]:
    """Bit for bit, so that it can be compared."""
    optimizer = state.optimizer.state_dict()
    return {
        "model": {name: tensor.tolist() for name, tensor in state.model.state_dict().items()},
        "moments": {
            key: [float(each.sum()) for each in of.values()] for key, of in optimizer["state"].items()
        },
        "rate": optimizer["param_groups"][0]["lr"],
        "schedule": state.schedule.state_dict(),
        "sampler": state.sampler.state_dict(),
        "losses": list(state.losses),
    }


def test_back_to_the_last_commit_and_on_as_if_nothing_had_been() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    sampler = ElasticSampler(9, rank=0, ranks=1, batch_size=3)
    state = TrainingState(model=model, optimizer=optimizer, schedule=schedule, sampler=sampler, losses=[])
    draws = iter(sampler)
    next(draws)
    step(state)
    state.commit()
    committed = parts(state)
    next(draws)
    step(state)
    further = parts(state)
    assert further != committed
    state.restore()
    assert parts(state) == committed
    assert all(parameter.grad is None for parameter in model.parameters())
    next(iter(sampler))
    step(state)
    assert parts(state) == further
    state.restore()
    assert parts(state) == committed, "what is kept was not trained on"


def test_a_copy_takes_the_place_of_the_one_before() -> None:
    state = TrainingState(model=nn.Linear(2, 2), step=0)
    state.commit()
    before = state._kept["model"]["weight"]
    state.commit()
    assert state._kept["model"]["weight"] is before
    assert state.commits == 2


def test_a_tensor_that_is_trained_stays_the_one_that_an_optimizer_knows() -> None:
    weight, mean = torch.ones(2, requires_grad=True), torch.zeros(1)
    state = TrainingState(weight=weight, mean=mean, again=mean)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    state.commit()
    weight.sum().backward()
    optimizer.step()
    state.again = mean + 1
    state.restore()
    assert state.weight is weight and weight.requires_grad and weight.grad is None
    assert weight.tolist() == [1, 1]
    assert (state.mean.tolist(), state.again.tolist()) == ([0], [0])


def test_tensors_in_lists_and_dictionaries_go_back_to_where_they_were() -> None:
    weights = [torch.ones(1, requires_grad=True), torch.ones(2, requires_grad=True)]
    state = TrainingState(weights=weights, seen={"mean": torch.zeros(1)})
    optimizer = torch.optim.SGD(weights, lr=1.0)
    state.commit()
    sum(each.sum() for each in weights).backward()  # type: ignore[union-attr]
    optimizer.step()
    state.seen["mean"] += 1
    state.seen["more"] = torch.ones(1)
    state.restore()
    assert all(ours is known for ours, known in zip(state.weights, weights, strict=True))
    assert [each.tolist() for each in weights] == [[1], [1, 1]]
    assert {name: each.tolist() for name, each in state.seen.items()} == {"mean": [0]}


def test_dictionaries_stay_of_their_kind() -> None:
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2])
    state = TrainingState(counts=Counter(a=1), means=defaultdict(lambda: torch.zeros(1)), schedule=schedule)
    state.commit()
    state.counts["a"] += 1
    state.means["loss"] += 1
    state.restore()
    state.counts["b"] += 1
    assert state.counts == Counter(a=1, b=1)
    assert state.means["loss"].tolist() == [0]
    assert sorted(state.schedule.milestones.elements()) == [2, 2]


def test_two_parts_that_begin_as_one_tensor_are_two() -> None:
    zero = torch.zeros(1)
    state = TrainingState(one=zero, two=zero)
    state.__dict__["_kept"] = {
        "one": torch.ones(1),
        "two": torch.full((1,), 2.0),
    }  # as brought from another member
    state.restore()
    assert (state.one.tolist(), state.two.tolist()) == ([1], [2])


@pytest.mark.parametrize("name", ["commit", "_parts", "commits"])
def test_a_name_that_is_taken(name: str) -> None:
    with pytest.raises(InputError, match="another name"):
        TrainingState(**{name: 1})


def test_a_part_that_was_not_named() -> None:
    state = TrainingState(step=0)
    with pytest.raises(InputError, match="no part 'epoch'"):
        state.epoch = 1
    with pytest.raises(AttributeError, match="epoch"):
        _ = state.epoch


@pytest.mark.usefixtures("alone")
def test_what_is_sharded_or_bound_to_ranks_is_refused() -> None:
    with pytest.raises(InputError, match="model is a DistributedDataParallel, which is bound"):
        TrainingState(model=DistributedDataParallel(nn.Linear(2, 2)))
    with pytest.raises(InputError, match="model is sharded"):
        TrainingState(model=fully_shard(nn.Linear(2, 2)))
    with warnings.catch_warnings():  # PyTorch's own, on import
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer
    optimizer = ZeroRedundancyOptimizer(nn.Linear(2, 2).parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(InputError, match="optimizer is sharded"):
        TrainingState(optimizer=optimizer)


@pytest.mark.parametrize(
    "wrong", [{"ranks_min": 0}, {"silence_s": 0.0}, {"timeout_s": -1.0}, {"on_loss": "perhaps"}]
)
def test_what_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Membership(**wrong)


def launched(monkeypatch: pytest.MonkeyPatch, port: object, rank: object = 0, ranks: int = 2) -> None:
    for name, value in (
        ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port), ("RANK", rank), ("WORLD_SIZE", ranks),
        ("TORCHELASTIC_USE_AGENT_STORE", False),
    ):  # fmt: skip
        monkeypatch.setenv(name, str(value))


def test_without_the_variables_of_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(InputError, match="MASTER_ADDR is not set"), Membership():
        pass


def test_variables_that_are_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, "http")
    with pytest.raises(InputError, match="MASTER_PORT is 'http'"), Membership():
        pass
    launched(monkeypatch, 1, rank="first")
    with pytest.raises(InputError, match="RANK is 'first'"), Membership():
        pass
    monkeypatch.setenv("HEMIOLA_RANKS_MIN", "half")
    with pytest.raises(InputError, match="HEMIOLA_RANKS_MIN is 'half'"):
        Membership()


def test_a_port_that_somebody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        launched(monkeypatch, port)
        with (
            pytest.raises(TransportError, match=f"cannot be kept at port {port}.*\\n.*MASTER_PORT"),
            Membership(),
        ):
            pass


def test_ranks_that_were_told_of_unlike_numbers_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    MemberBoard(store).launched(2)
    launched(monkeypatch, store.port, rank=1, ranks=3)
    with pytest.raises(InputError, match="rank 1 was started as one of 3, another as one of 2"), Membership():
        pass
