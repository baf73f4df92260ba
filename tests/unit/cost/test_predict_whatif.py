"""What-ifs beside the prediction they start from, and profiles that the cluster's simulator reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from equal_layers import gpu, model
from tiny_graphs import device, flat

from hemiola.core.errors import InputError
from hemiola.core.hardware import CollectiveCost
from hemiola.core.topology import Level, Topology, equal_hosts
from hemiola.cost.job_profile import fit_profile, profile_file
from hemiola.cost.parallelism import DDP, FSDP, ParameterServer, parse_parallelism
from hemiola.cost.places import place_ranks
from hemiola.cost.profiles import load_library
from hemiola.cost.whatif import Question, halved_placement, scaled_collectives, scaled_network, what_ifs


def racks(rate: float) -> Topology:
    level = Level("rack", ("a", "b"), np.array([0, 0, 1, 1]), np.array([rate, rate]))
    hosts = equal_hosts(4, 4, nic_bytes_per_s=rate, fabric_bytes_per_s=100e9)
    return Topology("racks", hosts, (level,)).check()


def test_each_change_is_its_own_prediction() -> None:
    question = Question(model(), gpu(), flat(8, 4, rate=2e9), 8, DDP())
    base = question.answer()
    found = {change.change: change for change in what_ifs(question, base, [gpu("one"), gpu("fast", 2e12)])}
    assert list(found) == [
        "network bandwidth ×2", "half the ranks per host", "buckets of 1 MiB", "buckets of 5 MiB",
        "buckets of 100 MiB", "no overlap", "on fast",
    ]  # fmt: skip
    doubled = Question(model(), gpu(), flat(8, 4, rate=4e9), 8, DDP()).answer()
    assert found["network bandwidth ×2"].iteration_s == pytest.approx(doubled.iteration_s)
    assert found["no overlap"].iteration_s == pytest.approx(0.36 + sum(
        t.end_s - t.start_s for t in base.transfers), rel=0.05)  # fmt: skip
    assert found["on fast"].relative == pytest.approx(found["on fast"].iteration_s / base.iteration_s)


def test_other_hardware_of_the_same_name_is_compared_with() -> None:
    question = Question(model(), gpu(), flat(1), 1, DDP())
    (found,) = what_ifs(question, question.answer(), [gpu(), gpu(rate=2e12)])
    assert (found.change, found.relative) == ("on one", pytest.approx(0.5))


def test_halving_needs_hosts_to_spread_over() -> None:
    assert halved_placement(Question(model(), gpu(), flat(4, 4), 8, DDP())) == (2, 2, 2, 2)
    assert halved_placement(Question(model(), gpu(), flat(2, 4), 8, DDP())) is None
    assert halved_placement(Question(model(), gpu(), flat(8, 1), 8, DDP())) is None


def test_halving_keeps_the_hosts_that_were_asked_for() -> None:
    asked = Question(model(), gpu(), flat(6, 4), 8, DDP(), placement=(0, 0, 0, 4, 4))
    assert halved_placement(asked) == (2, 2, 0, 2, 2, 0)


def test_a_scaled_network_leaves_the_hosts_inside_alone() -> None:
    doubled = scaled_network(racks(1e9), 2.0)
    assert (doubled.hosts.nic_bytes_per_s == 2e9).all() and (
        doubled.levels[0].uplink_bytes_per_s == 2e9
    ).all()
    assert (doubled.hosts.fabric_bytes_per_s == 100e9).all()


def test_collectives_are_scaled_by_the_links_of_the_hosts_that_have_ranks() -> None:
    measured = CollectiveCost(
        backend="nccl", collective="all-reduce", ranks=16, hosts=("n0",) * 8 + ("n1",) * 8, alpha_s=1e-5, bytes_per_s=1.2e9,
    )  # fmt: skip
    hosts = replace(
        equal_hosts(3, 8), gpus=np.array([8, 8, 0]), nic_bytes_per_s=np.array([1.25e9, 1.25e9, 0.125e9])
    )
    with_login_node = Topology("with a login node", hosts)
    for topology in (with_login_node, flat(2, 8, rate=1.25e9)):
        links = place_ranks(topology, 16).links
        (scaled,) = scaled_collectives(device(collectives=(measured,)), links, 2.0).collectives
        assert scaled.bytes_per_s == 2.4e9


@pytest.mark.parametrize(
    ("rate", "scaled"), [(0.96e9, 1.92e9), (3.8e9, 7.6e9), (2e9, 2e9)], ids=["uplink", "nic", "library"]
)
def test_collectives_are_scaled_by_the_link_that_limited_them(rate: float, scaled: float) -> None:
    level = Level("rack", ("a", "b"), np.array([0, 0, 1, 1]), np.array([1e9, 1e9]))
    racks = Topology("racks", equal_hosts(4, 1, nic_bytes_per_s=4e9), (level,))
    measured = CollectiveCost(
        backend="nccl", collective="all-reduce", ranks=4, hosts=("n0", "n1", "n2", "n3"), alpha_s=1e-5, bytes_per_s=rate,
    )  # fmt: skip
    hardware, links = device(collectives=(measured,)), place_ranks(racks, 4).links
    assert scaled_collectives(hardware, links, 2.0).collectives[0].bytes_per_s == scaled


@pytest.mark.parametrize("text", ["ddp", "ddp:bucket=100MiB", "fsdp"])
@pytest.mark.parametrize(
    ("rate", "mean", "most"), [(0.3e9, 0.02, 0.05), (3e9, 0.06, 0.12), (50e9, 0.03, 0.08)]
)
def test_the_simulators_law_repeats_the_predictions(text: str, rate: float, mean: float, most: float) -> None:
    """Bound by the network, between, bound by computation. Between, the law lacks the last bucket's tail."""
    fit = fit_profile(model(), gpu(), racks(rate), parse_parallelism(text))
    assert {time.gpus for time in fit.times} == {1, 2, 4, 8, 16}
    assert {time.tier for time in fit.times} == {"host", "rack", "cluster"}
    assert fit.mean_error <= mean
    assert fit.largest_error <= most


def test_a_profile_is_a_file_that_the_library_reads(tmp_path: Path) -> None:
    fit = fit_profile(model(), gpu(), racks(1e9), FSDP(), gpus=(1, 4, 16), name="house/layers")
    path = tmp_path / "own.json"
    path.write_bytes(profile_file(fit))
    assert load_library(str(path)).find("house/layers") == fit.profile
    assert [demand.gpus for demand in fit.profile.demands] == [1, 4, 16]
    assert fit.profile.demands[0].traffic_bytes == 0
    assert fit.profile.demands[0].compute_s == pytest.approx(0.36)


def test_compute_time_is_never_below_what_a_fast_network_leaves() -> None:
    """On a slow network alone, C and the overlap cannot be told apart: C stays physical."""
    fit = fit_profile(model(), gpu(), flat(8, 1, rate=0.1e9), DDP(), gpus=(8,))
    assert fit.profile.demands[0].compute_s >= 0.36 * (1 - 1e-9)


@pytest.mark.parametrize(
    ("topology", "hosts"),
    [(flat(8, 1, rate=2e9), "abcdefgh"), (flat(1, 8, fabric=2e9), "aaaaaaaa")],
    ids=["nics", "fabric"],
)
def test_what_a_link_limited_when_it_was_measured_is_no_compute_time(topology: Topology, hosts: str) -> None:
    """Measured at the link's rate, sending takes what it would without a measurement, and is none of C."""
    measured = CollectiveCost(
        backend="nccl", collective="all-reduce", ranks=8, hosts=tuple(hosts), alpha_s=1e-6, bytes_per_s=2e9
    )
    found, bare = (
        fit_profile(model(), msgspec.structs.replace(gpu(), collectives=known), topology, gpus=(8,)).profile
        for known in ((measured,), ())
    )
    assert found.demands[0].compute_s == pytest.approx(bare.demands[0].compute_s, rel=0.02)
    assert found.overlap == pytest.approx(bare.overlap, abs=0.02)


@pytest.mark.parametrize(
    ("types", "named"), [(("V100", "A100"), "A100"), (("V100", "V100"), "NVIDIA A100-SXM4-80GB")]
)
def test_a_profile_names_the_gpus_that_it_was_predicted_for(types: tuple[str, str], named: str) -> None:
    """As the cluster calls them, where it has them."""
    bare = flat(2, 1)
    topology = replace(bare, hosts=replace(bare.hosts, gpu_types=types))
    profile = fit_profile(model(), gpu("NVIDIA A100-SXM4-80GB"), topology, gpus=(1, 2)).profile
    assert profile.gpu_type == named
    assert not profile.knows("V100")


def test_what_no_profile_can_say_is_refused() -> None:
    with pytest.raises(InputError, match="parameter server"):
        fit_profile(model(), gpu(), racks(1e9), ParameterServer())
    with pytest.raises(InputError, match="no numbers"):
        fit_profile(model(), gpu(), racks(1e9), gpus=())


def test_a_profile_says_how_much_is_all_reduced() -> None:
    """DDP all-reduces everything; FSDP gathers and scatters, which no parallelism speeds up."""
    for parallelism, share in ((DDP(), 1.0), (FSDP(), 0.0)):
        assert fit_profile(model(), gpu(), racks(1e9), parallelism, gpus=[1, 8]).profile.all_reduced == share
