"""What the policies of the field cost to simulate, and that text chooses them with their parameters."""

from __future__ import annotations

import dataclasses

import pytest

from hemiola.core.job import Workload
from hemiola.core.topology import Topology
from hemiola.kernels.generate import generate
from hemiola.sched.policies import POLICIES, parameters, policy_from_text
from hemiola.simulator.simulate import Recording, simulate

NAMES = ["gittins", "gandiva", "themis", "lwf", "crux"]


@pytest.fixture(scope="module")
def congested() -> Workload:
    """2,000 jobs after Philly's sizes and run times, so fast that most of them wait."""
    return generate("generated:jobs=2000,gpus=256,mix=philly,load=30,duration_mean=1h")


@pytest.mark.parametrize("name", NAMES)
def test_two_thousand_jobs_take_less_than_two_seconds(name: str, congested: Workload) -> None:
    topology = Topology.flat(hosts=32, gpus_per_host=8)
    run = simulate(congested, topology, [name], recording=Recording(timeline=False)).runs[0]
    assert all(record.finish_s is not None for record in run.records)
    assert run.decisions_refused == 0
    assert run.cpu_s < 2.0


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_can_be_written_and_is_documented(name: str) -> None:
    policy = POLICIES[name]
    default = policy()
    fields = parameters(policy)
    values = {
        field: value.name if field == "placement" else value
        for field, value in ((field, getattr(default, field)) for field in fields)
    }
    text = ",".join(f"{field}={value}" for field, value in values.items())
    assert policy_from_text(f"{name}:{text}") == default
    assert all(f"{field}:" in (policy.__doc__ or "") for field in fields)
    assert dataclasses.replace(default) == default and hash(default) == hash(policy())
    assert default.card() and policy.source.startswith("in the style of")
