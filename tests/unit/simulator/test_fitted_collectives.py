"""Jobs whose all-reduces go by schedules that fit their links: by hand, as predictions say, and as before by default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from replays import FREE, at, cluster, job, profile

from hemiola.cli.simulate import simulate as verb
from hemiola.core.errors import InputError
from hemiola.core.job import Job, Profile
from hemiola.core.result import Comparison
from hemiola.core.topology import Topology
from hemiola.cost.collective.duration import schedule_seconds
from hemiola.cost.contention import Colliding
from hemiola.cost.iteration import IterationModel
from hemiola.cost.places import place_ranks
from hemiola.plan.collective.planner import SchedulePlanner
from hemiola.simulator.rules import Semantics, semantics_by_name
from hemiola.simulator.simulate import simulate

MB = 1e6
FITTED = Semantics(costs=FREE, fitted=True)
USUAL = Semantics(costs=FREE)
SIXTEEN = profile(compute_s=1.0, traffic_bytes=24 * MB)
"""16 MB reduced by a ring of four: each sends 24."""


def slow(rates: Sequence[float] = (50 * MB, 50 * MB, 50 * MB, 12.5 * MB)) -> Topology:
    """One host of four at a quarter of the others' rate."""
    bare = cluster([1] * len(rates))
    return replace(bare, hosts=replace(bare.hosts, nic_bytes_per_s=np.array(rates)))


def wanting(gpus: int, model: Profile | None = SIXTEEN, name: str = "a", duration_s: float = 29.2) -> Job:
    return job(name, 0.0, gpus, duration_s, profile=model)


def run(rules: Semantics, *jobs: Job, on: Topology | None = None) -> Comparison:
    return simulate(list(jobs), on or slow(), ["fifo"], semantics=rules)


def test_one_host_at_a_quarter_of_the_rate() -> None:
    """1 s and 24 MB at 12.5 MB/s by a ring: 2.92 s. By trees 16 MB there: 2.28 s. Ten iterations."""
    usual, fitted = run(USUAL, wanting(4)), run(FITTED, wanting(4))
    assert usual.runs[0].records[0].jct_s == pytest.approx(29.2)
    (record,) = fitted.runs[0].records
    assert record.jct_s == pytest.approx(22.8)
    assert record.exposed_communication_s == pytest.approx(12.8)
    assert record.ideal_s == pytest.approx(22.8)


def test_what_a_process_group_would_use_takes_as_long() -> None:
    """But for the filling of its pipeline."""
    schedule = SchedulePlanner(slow(), slow().hosts.names).schedule("all-reduce", 16 * MB)
    assert schedule is not None
    taken_s = schedule_seconds(schedule, 16 * MB, place_ranks(slow(), 4))
    crossing = IterationModel(slow(), fitted=True).crossing(wanting(4), at((0, 1), (1, 1), (2, 1), (3, 1)))
    assert crossing.factors is not None
    rates = (50 * MB, 50 * MB, 50 * MB, 12.5 * MB)
    law_s = max(24 * MB * factor / rate for factor, rate in zip(crossing.factors, rates, strict=True))
    assert law_s < taken_s < law_s * 1.02


def test_two_jobs_share_what_each_puts_on_a_link() -> None:
    """Both send always: job a over n0 and n1, a GPU each (a ring, 10 MB on both), job b over n1 and n2, two GPUs each
    (15 MB by a ring, 10 by a tree). On n1, of 10 MB/s, both get 6 MB/s of a ring: 10 = 6 + 2/3 of 6."""
    model = IterationModel(cluster([2, 4, 2], nic=10 * MB), fitted=True)
    ring = model.crossing(wanting(2, profile(traffic_bytes=10 * MB)), at((0, 1), (1, 1)))
    tree = model.crossing(wanting(4, profile(traffic_bytes=15 * MB, name="b")), at((1, 0b1100), (2, 0b11)))
    assert ring.factors is None
    assert tree.factors == pytest.approx((2 / 3, 2 / 3))
    network = Colliding().network(model.capacities_bytes_per_s)
    for one in (ring, tree):
        network.add(
            compute_s=1.0, hidden_s=0.0, traffic_bytes=one.need.traffic_bytes, links=one.links, factors=one.factors
        )  # fmt: skip
    assert [seconds for _, seconds, _ in network.settle()] == pytest.approx([1 + 10 / 6, 1 + 15 / 6])


def test_sharded_parameters_gain_nothing() -> None:
    """Half of the traffic all-reduced: 12 MB as by a ring, and 8 instead of 12."""
    sharded, mixed = (profile(traffic_bytes=24 * MB, all_reduced=share) for share in (0.0, 0.5))
    assert run(FITTED, wanting(4, sharded)).runs[0].records[0].jct_s == pytest.approx(29.2)
    assert run(FITTED, wanting(4, mixed)).runs[0].records[0].jct_s == pytest.approx(10 * (1 + 20 / 12.5))


def test_who_cannot_be_priced_so_is_counted() -> None:
    several = [
        wanting(4), wanting(4, None, "b"), wanting(4, profile(pattern="all-to-all"), "c"), wanting(1, SIXTEEN, "d"),
    ]  # fmt: skip
    comparison = run(FITTED, *several)
    assert any("2 of 3 jobs on several GPUs have no profile" in note for note in comparison.notes)
    assert "schedules that fit" in comparison.runs[0].semantics["collectives"]
    assert "collectives" not in run(USUAL, *several).runs[0].semantics


def test_equal_links_and_one_gpu_each_change_nothing() -> None:
    jobs = [wanting(3), wanting(2, SIXTEEN, "b"), wanting(4, SIXTEEN, "c")]
    even = slow([50 * MB] * 4)
    usual, fitted = run(USUAL, *jobs, on=even), run(FITTED, *jobs, on=even)
    assert [r.finish_s for r in fitted.runs[0].records] == [r.finish_s for r in usual.runs[0].records]


def test_run_times_are_those_of_rings_where_they_were_recorded() -> None:
    """Recorded where all are fast: 1.48 s an iteration there by rings, 2.28 s here by trees."""
    fast = slow([50 * MB] * 4)
    found = simulate([wanting(4, duration_s=14.8)], slow(), ["fifo"], semantics=FITTED, recorded_on=fast)
    assert found.runs[0].records[0].jct_s == pytest.approx(22.8)


def test_sensitivity_is_of_trees_on_both_sides() -> None:
    """Sixteen GPUs on two hosts of a rack, or scattered over racks: both carry 8/15 of a ring's."""
    racks = cluster([8, 8], [8, 8], nic=15.0, uplink=30.0)
    model = profile(compute_s=1.0, traffic_bytes=15.0)
    for fitted in (False, True):
        its = IterationModel(racks, fitted=fitted)
        wide = its.slowdown(job("a", 0.0, 16, 1.0, profile=model), 2, 1)
        load = 8 / 15 if fitted else 1.0
        assert wide == pytest.approx((1 + load * 15 / (15 * 2 / 8)) / (1 + load))


def test_the_verb_and_its_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text("id,submit_s,gpus,duration_s,model\na,0,8,3600,bert\n")
    asked = {"cluster": "flat:hosts=2,gpus_per_host=4", "policy": ("fifo",)}
    verb(str(table), **asked)  # type: ignore[arg-type]
    usual = capsys.readouterr().out
    verb(str(table), collectives="fitted", **asked)  # type: ignore[arg-type]
    assert "fitted to the links" in capsys.readouterr().out
    verb(str(table), collectives="usual", **asked)  # type: ignore[arg-type]
    assert capsys.readouterr().out == usual
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(
        'workload = "jobs.csv"\ncluster = "flat:hosts=2,gpus_per_host=4"\ncollectives = "fast"\n'
    )
    with pytest.raises(InputError, match="collectives"):
        verb(scenario=(scenario,))


@pytest.mark.parametrize("name", ["tiresias-sim", "muri-sim", "pollux-sim"])
def test_a_peers_rules_know_no_schedules(name: str) -> None:
    with pytest.raises(InputError, match="collectives' schedules cannot be set"):
        semantics_by_name(name).changed(fitted=True)
