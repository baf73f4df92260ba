"""What is refused at once, and shares that are handed out. One process, no server."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from torch import nn

from hemiola.comm.transport import TransportOptions
from hemiola.core.errors import InputError
from hemiola.plan.shares import Shares
from hemiola.train.parameter_server import synchronise
from hemiola.train.parameter_server.messages import Places
from hemiola.train.parameter_server.state import hyper_of, refuse_unknown


def test_without_a_process_group():
    model = nn.Linear(2, 2)
    with pytest.raises(InputError, match="no process group"):
        synchronise(model, torch.optim.SGD(model.parameters()))


def test_optimizers_that_look_at_all_parameters_at_once():
    with pytest.raises(InputError, match=r"LBFGS.*\n.*AdamW.*'local'"):
        refuse_unknown(torch.optim.LBFGS(nn.Linear(2, 2).parameters()))

    class Own(torch.optim.SGD):
        pass

    with pytest.raises(InputError, match="Own"):
        refuse_unknown(Own(nn.Linear(2, 2).parameters()))


@pytest.mark.parametrize(
    "name", ["ASGD", "Adagrad", "Adadelta", "Adafactor", "AdamW", "Muon", "NAdam", "Rprop", "SGD"]
)
def test_numbers_travel_and_come_back_as_they_were(name):
    kind = getattr(torch.optim, name)
    optimizer = kind([nn.Parameter(torch.zeros(2, 2))])
    group = optimizer.param_groups[0]
    group["lr"] = 0.125
    hyper = hyper_of(optimizer, group)
    back = hyper.options(hyper.numbers(group))
    assert back == {key: group[key] for key in optimizer.defaults}
    assert all(type(back[key]) is type(group[key]) for key in back)
    group["lr"] = 0.25
    assert hyper.options(hyper.numbers(group))["lr"] == 0.25


def test_an_option_that_is_no_number_must_not_change():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1, momentum=0.9)
    hyper = hyper_of(optimizer, optimizer.param_groups[0])
    optimizer.param_groups[0]["nesterov"] = True
    with pytest.raises(InputError, match="nesterov of the optimizer was False and is now True"):
        hyper.numbers(optimizer.param_groups[0])


HERE = TransportOptions(interface="127.0.0.1")


def test_each_side_gets_its_cores_and_its_rate(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5, 6, 7})
    places = Places(0, 2, 4, HERE, Shares(2, 1, 1, 100.0, 300.0, 1.0))
    assert (places.compute_cores, places.communication_cores, places.server_cores) == ({4, 5}, {6}, {7})
    assert sum(places.worker_paces.values()) == 100.0
    assert sum(places.server_paces.values()) == 150.0  # of each of the two that stand here
    together = Places(0, 2, 2, HERE, Shares(3, 1, 0, None, None, 1.0))
    assert together.server_cores == together.communication_cores == {7}
    with pytest.raises(InputError, match="5 cores are shared out and this process may use 4"):
        Places(0, 2, 2, HERE, Shares(4, 1, 0, None, None, 1.0))


def test_a_rate_is_of_those_to_whom_something_goes_over_the_link():
    for options, shares in (
        (HERE, Shares(0, 0, 0, 60e6, 90e6, 1.0)),
        (replace(HERE, rate_bytes_per_s=60e6), None),
    ):
        places = Places(0, 4, 4, options, shares)
        assert places.worker_paces == {5: 20e6, 6: 20e6, 7: 20e6}  # servers elsewhere
        pull = 90e6 if shares else 60e6
        assert places.server_paces == {1: pull / 3, 2: pull / 3, 3: pull / 3}  # workers elsewhere
        assert places.worker_options.rate_bytes_per_s is None
    assert places.worker_options.chunk == replace(HERE, rate_bytes_per_s=60e6).chunk
    assert Places(0, 1, 1, HERE, Shares(0, 0, 0, 60e6, None, 1.0)).worker_paces == {}
    assert Places(0, 4, 4, HERE, None).worker_paces == {}


def test_addresses_are_those_of_ranks_then_of_servers():
    places = Places(1, 2, 3, HERE, None)
    assert places.hosted == [1]
    found = places.in_order([[("a", 1), ("s0", 1), ("s2", 1)], [("b", 1), ("s1", 1)]])
    assert [host for host, _ in found] == ["a", "b", "s0", "s1", "s2"]
    with pytest.raises(InputError, match="0 parameter servers"):
        Places(0, 2, 0, HERE, None)
