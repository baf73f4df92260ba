"""Semantics as values: which exist, which policies they know, what their cards say, what they refuse."""

from __future__ import annotations

import msgspec
import pytest
from peer_runs import completion_s, stops, under
from replays import check_run, cluster, job

from hemiola.core.errors import InputError, PolicyError
from hemiola.core.events import NodeLost
from hemiola.cost.contention import MaxMin
from hemiola.sched.policies import policy_from_text
from hemiola.simulator.rules import Rules, known_semantics, semantics_by_name
from hemiola.simulator.simulate import simulate

PEERS = ("tiresias-sim", "muri-sim", "pollux-sim")
LINES = (
    "semantics", "time", "allocation reset", "duration", "contention", "preemption cost", "tie-break", "placement",
    "order", "backfill", "preemption", "seed",
)  # fmt: skip


def _cases() -> list[tuple[Rules, str]]:
    return [(rules, name) for rules in known_semantics().values() for name in rules.policies]


@pytest.mark.parametrize(("rules", "name"), _cases(), ids=lambda value: getattr(value, "name", value))
def test_every_card_says_every_rule(rules: Rules, name: str) -> None:
    policy = policy_from_text(name, rules.policies)
    card = rules.card(policy, seed=3)
    assert all(card.get(line) for line in LINES), card
    assert card["seed"].startswith("3")
    assert policy.source


def test_default_policies_exist_under_their_semantics() -> None:
    for rules in known_semantics().values():
        for name in rules.default_policies:
            policy_from_text(name, rules.policies)


def test_unknown_semantics_and_policies_are_errors_that_list_the_known() -> None:
    with pytest.raises(InputError, match="'slurm-sim'") as caught:
        semantics_by_name("slurm-sim")
    assert all(name in caught.value.remedy for name in PEERS)
    with pytest.raises(PolicyError, match="'dally'") as unknown:
        under("tiresias-sim", [job("a", 0, 1, 1)], cluster([1]), "dally")
    assert "dlas-gpu" in unknown.value.remedy
    with pytest.raises(PolicyError, match="placement='best-fit'") as scheme:
        under("tiresias-sim", [job("a", 0, 1, 1)], cluster([1]), "fifo:placement=best-fit")
    assert scheme.value.remedy == "choose one of yarn, count"


@pytest.mark.parametrize("name", PEERS)
def test_a_peers_rules_cannot_be_changed(name: str) -> None:
    rules = semantics_by_name(name)
    assert rules.changed() is rules
    with pytest.raises(InputError, match="contention cannot be set"):
        rules.changed(law=MaxMin())
    with pytest.raises(InputError, match="cost of pre-emption"):
        rules.changed(scale=0.5)


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_knows_no_other_fabric(name: str) -> None:
    rules, topology = semantics_by_name(name), cluster([4])
    with pytest.raises(InputError, match=f"{name} .* recorded_on cannot be set") as caught:
        simulate(
            [job("a", 0, 1, 10)], topology, rules.default_policies, semantics=rules, recorded_on=topology
        )
    assert caught.value.remedy == "leave the option out, or use --semantics event-driven"


def test_a_peer_knows_no_failures_and_no_constraints() -> None:
    jobs, topology = [job("a", 0, 1, 10)], cluster([2], [2])
    with pytest.raises(InputError, match="knows no failures"):
        simulate(
            jobs,
            topology,
            ["fifo"],
            semantics=semantics_by_name("tiresias-sim"),
            node_events=[NodeLost(1.0, 0)],
        )
    run = under("tiresias-sim", [job("a", 0, 1, 10, required="rack"), job("b", 0, 1, 10)], topology, "fifo")
    assert [record.status for record in run.records] == ["refused", "finished"]
    assert "must stay within one rack" in run.records[0].why


def test_a_peer_gives_whole_hosts_and_no_parts_of_several() -> None:
    jobs = [job("a", 0, 4, 10, hosts=2), job("b", 0, 8, 10, hosts=2), job("c", 0, 4, 10, hosts=1)]
    run = under("tiresias-sim", jobs, cluster([4, 4]), "shortest")
    assert [record.status for record in run.records] == ["refused", "finished", "finished"]
    assert "parts of 2 hosts" in run.records[0].why


def test_a_peer_stops_whom_it_likes_and_knows_one_size() -> None:
    pinned = [job("a", 0, 4, 100, pinned=True), job("b", 1, 4, 50), job("c", 60, 1, 1000)]
    free = [msgspec.structs.replace(one, pinned=False) for one in pinned]
    runs = [under("tiresias-sim", jobs, cluster([4]), "shortest") for jobs in (pinned, free)]
    assert completion_s(runs[0]) == completion_s(runs[1])
    assert stops(runs[0])["a"] == 1
    elastic = [job("a", 0, 4, 100, gpus_min=1, gpus_max=4), job("b", 10, 1, 100)]
    run = under("tiresias-sim", elastic, cluster([4]), "hemiola.sched.policies.elastic:ElasticSharing")
    assert [record.finish_s for record in run.records] == [100, 200]


def test_a_peers_policy_runs_only_under_a_peers_rules() -> None:
    policy = policy_from_text("dlas", semantics_by_name("tiresias-sim").policies)
    with pytest.raises(PolicyError, match="only under that peer's semantics"):
        simulate([job("a", 0, 1, 10)], cluster([2]), [policy])


def test_a_policy_from_outside_runs_under_a_peers_rules_too() -> None:
    run = under(
        "tiresias-sim",
        [job("a", 0, 2, 5), job("b", 0, 2, 5)],
        cluster([2]),
        "hemiola.sched.policies.fifo:Fifo",
    )
    assert [record.finish_s for record in run.records] == [5, 10]


MURI_FACTS = {"iterations": 100.0, "iteration_time": 1000.0}


@pytest.mark.parametrize("name", PEERS)
def test_an_interrupted_replay_is_true_up_to_then(name: str) -> None:
    facts = {**MURI_FACTS, "batch_size": 32768.0}
    jobs = [job(str(i), 40.0 * i, 1, 50.0 + 40 * i, model="ncf", facts=facts) for i in range(6)]

    def interrupt(policy: str, seed: int, ended: int, total: int) -> None:
        if ended == 2:
            raise KeyboardInterrupt

    rules, topology = semantics_by_name(name), cluster([2])
    run = simulate(jobs, topology, [rules.default_policies[-1]], semantics=rules, progress=interrupt).runs[0]
    assert run.interrupted
    assert 2 <= sum(record.status == "finished" for record in run.records) < 6
    check_run(run, jobs, topology)
