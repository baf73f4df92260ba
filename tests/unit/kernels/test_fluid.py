"""The shared network against a slow, clear filling of links, against its definition, and against history."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemiola.core.errors import InputError
from hemiola.kernels.fluid import Rule, SharedNetwork, Sharing, warm_up

Spec = dict[str, Any]
RULES: tuple[Rule, ...] = ("present", "staggered", "together")


def spec(
    links: list[int], compute: float = 1.0, hidden: float = 0.0, traffic: float = 1.0, **more: Any
) -> Spec:
    return {"compute_s": compute, "hidden_s": hidden, "traffic_bytes": traffic, "links": links, **more}


def solved(jobs: list[Spec], capacity: list[float], rule: Rule = "present") -> list[tuple[float, float]]:
    """(iteration_s, rate) of each job, settled at once."""
    network = SharedNetwork(capacity, Sharing(rule))
    slots = [network.add(**job) for job in jobs]
    answer = {slot: (iteration_s, rate) for slot, iteration_s, rate in network.settle()}
    return [answer[slot] for slot in slots]


def times(jobs: list[Spec], capacity: list[float], rule: Rule = "present") -> list[float]:
    return [iteration_s for iteration_s, _ in solved(jobs, capacity, rule)]


# --- the slow, clear version -------------------------------------------------------------------


class Flow:
    """One job as the formulas of docs/concepts/contention.md see it."""

    def __init__(self, job: Spec, capacity: list[float]) -> None:
        self.compute, self.hidden, self.traffic = job["compute_s"], job["hidden_s"], job["traffic_bytes"]
        self.weight = job.get("weight", 1.0)
        self.factor = dict(zip(job["links"], job.get("factors") or [1.0] * len(job["links"]), strict=True))
        self.alone = min((capacity[link] / m for link, m in self.factor.items()), default=math.inf)

    def time(self, rate: float) -> float:
        return self.compute + max(0.0, self.traffic / rate - self.hidden)

    def mean(self, rate: float) -> float:
        return self.traffic / self.time(rate)


def root(f: Any, target: float, high: float) -> float:
    """Where the increasing `f` reaches `target`, by bisection; `high` if it does not below that."""
    low = 0.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if f(middle) <= target else (low, middle)
    return low


def filled(jobs: list[Spec], capacity: list[float], rule: Rule) -> list[float]:
    """Iteration times by filling: find the lowest level of all, stop that job, repeat."""
    flows = [Flow(job, capacity) for job in jobs]
    pace = Flow.mean if rule == "present" else lambda _, rate: rate
    cap = [flow.mean(flow.alone) if rule == "staggered" else flow.alone for flow in flows]
    stopped: dict[int, float] = {j: math.inf for j, flow in enumerate(flows) if not flow.traffic}
    while len(stopped) < len(flows):
        lowest = (math.inf, -1, 0.0)
        for j, flow in enumerate(flows):
            if j in stopped:
                continue
            lowest = min(lowest, (cap[j] / flow.weight, j, cap[j]))
            for link, factor in flow.factor.items():

                def load(level: float, j: int = j, link: int = link, factor: float = factor) -> float:
                    total = factor * flows[j].weight * level
                    for k, other in enumerate(flows):
                        if k != j and link in other.factor and other.traffic:
                            rate = stopped.get(k, other.weight * level)
                            total += other.factor[link] * pace(other, rate) if rate else 0.0
                    return total

                level = root(load, capacity[link], 2 * cap[j] / flow.weight)
                lowest = min(lowest, (level, j, flow.weight * level))
        stopped[lowest[1]] = lowest[2]
    if rule == "staggered":
        return [f.traffic / stopped[j] if f.traffic else f.compute for j, f in enumerate(flows)]
    return [f.time(stopped[j]) for j, f in enumerate(flows)]


def misfit(jobs: list[Spec], capacity: list[float], rates: list[float]) -> float:
    """The largest relative distance of a rate from what the definition of max-min says, given the others."""
    flows = [Flow(job, capacity) for job in jobs]
    worst = 0.0
    for j, flow in enumerate(flows):
        best = flow.alone
        for link, factor in flow.factor.items():
            others = [
                (f, r)
                for k, (f, r) in enumerate(zip(flows, rates, strict=True))
                if k != j and link in f.factor
            ]

            def load(level: float, factor: float = factor, link: int = link, others: Any = others) -> float:
                met = (f.factor[link] * f.mean(min(r, f.weight * level)) for f, r in others if level)
                return factor * flow.weight * level + sum(met)  # noqa: B023

            best = min(best, flow.weight * root(load, capacity[link], 2 * flow.alone / flow.weight))
        worst = max(worst, abs(best - rates[j]) / rates[j])
    return worst


@st.composite
def networks(draw: st.DrawFn, jobs_max: int = 6) -> tuple[list[Spec], list[float]]:
    """A few jobs on a few links, with hidden parts, weights, factors and wide ranges."""
    size = draw(st.integers(1, 4))
    capacity = draw(st.lists(st.floats(0.1, 10.0), min_size=size, max_size=size))
    jobs = []
    for _ in range(draw(st.integers(1, jobs_max))):
        links = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True))
        compute = draw(st.floats(0.05, 5.0))
        jobs.append(
            spec(
                links,
                compute,
                compute * draw(st.sampled_from([0.0, 0.3, 0.9, 1.0])),
                draw(st.floats(0.01, 10.0)),
                factors=draw(
                    st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=len(links), max_size=len(links))
                ),
                weight=draw(st.sampled_from([0.25, 1.0, 1.0, 4.0])),
            )
        )
    return jobs, capacity


# --- known answers -----------------------------------------------------------------------------


def test_two_equal_jobs_meet_at_the_golden_ratio() -> None:
    golden = (math.sqrt(5) - 1) / 2
    for iteration_s, rate in solved([spec([0]), spec([0])], [1.0]):
        assert iteration_s == pytest.approx(2 + golden, rel=1e-12)
        assert rate == pytest.approx(1 / (1 + golden), rel=1e-12)
        assert (1 / rate) / iteration_s == pytest.approx(golden, rel=1e-12)


def test_a_job_that_always_sends_takes_half_of_what_the_other_sends_at() -> None:
    """C -> 0 is always there: the other is halved (T = 3), and it keeps all but the other's mean rate."""
    light, heavy = solved([spec([0]), spec([0], compute=1e-12)], [1.0])
    assert light == pytest.approx((3.0, 0.5), rel=1e-9)
    assert heavy[1] == pytest.approx(2 / 3, rel=1e-9)


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_equal_jobs_solve_the_quadratic(count: int) -> None:
    """s = V/r with r = B / (1 + (n-1) d), d = s/(C+s): s^2 + (C - nV/B) s - C V/B = 0."""
    half = (1 - count) / 2
    sending_s = -half + math.sqrt(half * half + 1)
    assert times([spec([0])] * count, [1.0]) == pytest.approx([1 + sending_s] * count, rel=1e-11)


def test_weights_share_a_link_when_everybody_sends() -> None:
    heavy, light = solved([spec([0], weight=3.0), spec([0])], [4.0], "together")
    assert heavy[1] == pytest.approx(3.0) and light[1] == pytest.approx(1.0)


def test_a_link_left_by_a_stopped_job_is_the_others() -> None:
    """Two on the narrow link 0 get 1 each; the third takes the other 9 of link 1."""
    jobs = [spec([0]), spec([0, 1]), spec([1])]
    assert [rate for _, rate in solved(jobs, [2.0, 10.0], "together")] == pytest.approx([1.0, 1.0, 9.0])


def test_factors_are_flows_and_flows_are_fair() -> None:
    """Three crossings against one: equal rates per crossing, each a quarter of the link."""
    jobs = [spec([0], factors=[3.0]), spec([0])]
    assert [rate for _, rate in solved(jobs, [1.0], "together")] == pytest.approx([0.25, 0.25])


def test_turns_cost_nothing_while_there_is_time_for_them() -> None:
    assert times([spec([0]), spec([0])], [1.0], "staggered") == [2.0, 2.0]
    assert times([spec([0])] * 4, [1.0], "staggered") == pytest.approx([4.0] * 4)


def test_counting_competitors() -> None:
    network = SharedNetwork([1.0, 0.25], Sharing("counting", 0.5))
    for links in ([0], [0], [0, 1]):
        network.add(**spec(links, hidden=0.5))
    assert [t for _, t, _ in network.settle()] == pytest.approx([0.5 + 4.0, 0.5 + 4.0, 0.5 + 4.0])
    network.remove(0)
    assert [t for _, t, _ in network.settle()] == pytest.approx([0.5 + 2.5])


def test_what_is_hidden_costs_nothing() -> None:
    assert times([spec([0], hidden=1.0, traffic=0.2)] * 2, [1.0]) == [1.0, 1.0]


def test_a_full_hidden_link_is_the_link_itself() -> None:
    """With o = C and a link that is too small, everybody always sends: T = n V / B."""
    assert times([spec([0], hidden=1.0)] * 3, [1.0]) == pytest.approx([3.0] * 3, rel=1e-9)


@pytest.mark.parametrize("rule", [*RULES, "counting", "nothing"])
def test_alone_a_job_has_its_narrowest_link(rule: Rule) -> None:
    job = spec([0, 1], traffic=8.0, factors=[1.0, 4.0], hidden=0.5)
    assert solved([job], [4.0, 8.0], rule) == [(0.5 + 4.0, 2.0)]


@pytest.mark.parametrize("rule", [*RULES, "counting", "nothing"])
def test_nothing_to_send_and_endless_links(rule: Rule) -> None:
    jobs = [spec([0], traffic=0.0), spec([1]), spec([1]), spec([]), spec([0])]
    answers = solved(jobs, [1.0, math.inf], rule)
    assert [t for t, _ in answers] == [1.0, 1.0, 1.0, 1.0, 2.0]
    assert [rate for _, rate in answers] == [math.inf, math.inf, math.inf, math.inf, 1.0]


def test_an_endless_link_joins_nobody() -> None:
    jobs = [spec([0, 2]), spec([1, 2])]
    assert times(jobs, [1.0, 0.5, math.inf]) == [2.0, 3.0]


# --- properties --------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60)
@given(networks())
def test_equals_the_slow_filling(rule: Rule, case: tuple[list[Spec], list[float]]) -> None:
    jobs, capacity = case
    assert times(jobs, capacity, rule) == pytest.approx(filled(jobs, capacity, rule), rel=1e-8)


@settings(max_examples=100)
@given(networks(8))
def test_fulfils_its_definition(case: tuple[list[Spec], list[float]]) -> None:
    jobs, capacity = case
    assert misfit(jobs, capacity, [rate for _, rate in solved(jobs, capacity)]) < 1e-8


@settings(max_examples=100)
@given(networks(8), st.sampled_from(RULES))
def test_no_link_carries_more_than_it_can(case: tuple[list[Spec], list[float]], rule: Rule) -> None:
    jobs, capacity = case
    network = SharedNetwork(capacity, Sharing(rule))
    for job in jobs:
        network.add(**job)
    network.settle()
    assert (network.link_load() <= np.array(capacity) * (1 + 1e-9)).all()


@settings(max_examples=60)
@given(networks(10), st.data())
def test_history_leaves_no_trace(case: tuple[list[Spec], list[float]], data: st.DataObject) -> None:
    """After adds, removals and new weights in any order, every answer is that of a fresh network."""
    jobs, capacity = case
    rule = data.draw(st.sampled_from((*RULES, "counting")))
    network = SharedNetwork(capacity, Sharing(rule, 0.3))
    present: dict[int, Spec] = {}
    answer: dict[int, float] = {}
    for job in jobs * 2:
        present[network.add(**job)] = job
        if data.draw(st.booleans()):
            slot = data.draw(st.sampled_from(sorted(present)))
            if data.draw(st.booleans()):
                network.remove(slot)
                del present[slot]
                answer.pop(slot, None)
            else:
                present[slot] = {**present[slot], "weight": 2.0}
                network.set_weight(slot, 2.0)
        if data.draw(st.booleans()):
            answer.update((slot, iteration_s) for slot, iteration_s, _ in network.settle())
    answer.update((slot, iteration_s) for slot, iteration_s, _ in network.settle())
    fresh = SharedNetwork(capacity, Sharing(rule, 0.3))
    for job in present.values():
        fresh.add(**job)
    expected = [iteration_s for _, iteration_s, _ in fresh.settle()]
    assert sorted(answer) == sorted(present)
    assert [answer[slot] for slot in present] == pytest.approx(expected, rel=1e-8)
    assert network.link_load() == pytest.approx(fresh.link_load(), rel=1e-8)


def test_order_of_arrival_does_not_matter() -> None:
    jobs = [spec([0]), spec([0, 1], traffic=3.0), spec([1], hidden=0.5), spec([1, 2], weight=2.0)]
    capacity = [1.0, 1.5, 0.7]
    expected = times(jobs, capacity)
    for order in permutations(range(len(jobs))):
        assert times([jobs[i] for i in order], capacity) == pytest.approx(
            [expected[i] for i in order], rel=1e-11
        )


def test_a_thousand_jobs_leave_as_they_came() -> None:
    """Slots, rows and lists grow, are freed and used again; what stays is as if nothing had been."""
    rng = np.random.default_rng(3)
    capacity = [1.0] * 50
    network = SharedNetwork(capacity)
    kept = [network.add(**spec([i, i + 25])) for i in range(3)]
    for _ in range(3):
        slots = [
            network.add(**spec(rng.choice(50, rng.integers(1, 40), replace=False).tolist()))
            for _ in range(300)
        ]
        network.settle()
        for slot in rng.permutation(slots):
            network.remove(int(slot))
    assert {slot: t for slot, t, _ in network.settle()} == dict.fromkeys(kept, 2.0)
    assert len(network) == 3


# --- what settle reports -----------------------------------------------------------------------


def test_settle_reports_only_what_changed() -> None:
    network = SharedNetwork([1.0, 1.0])
    first, far = network.add(**spec([0])), network.add(**spec([1]))
    assert network.settle() == [(first, 2.0, 1.0), (far, 2.0, 1.0)]
    assert network.settle() == []
    second = network.add(**spec([0]))
    assert [slot for slot, _, _ in network.settle()] == [first, second]
    network.remove(second)
    assert network.settle() == [(first, pytest.approx(2.0), pytest.approx(1.0))]


def test_a_slot_that_comes_and_goes_unsettled_is_not_reported() -> None:
    network = SharedNetwork([1.0])
    network.settle()
    slot = network.add(**spec([0]))
    network.remove(slot)
    assert network.settle() == []


def test_a_wide_link_spreads_no_change() -> None:
    """Both fit on link 1 at full speed, so a third on link 0 does not touch the one beyond it."""
    network = SharedNetwork([1.0, 5.0, 1.0])
    network.add(**spec([0, 1]))
    beyond = network.add(**spec([1, 2]))
    network.settle()
    network.add(**spec([0]))
    assert beyond not in [slot for slot, _, _ in network.settle()]


def test_link_load_is_the_mean() -> None:
    network = SharedNetwork([1.0, 2.0, math.inf])
    network.add(**spec([0, 1, 2], factors=[1.0, 2.0, 1.0]))
    assert network.link_load().tolist() == [0.0, 0.0, 0.0]
    network.settle()
    assert network.link_load().tolist() == [0.5, 1.0, 0.5]
    network.add(**spec([0]))
    network.settle()
    assert network.link_load()[0] == pytest.approx(2 / 2.618033988749895)


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"compute_s": 0.0}, "compute_s"),
        ({"hidden_s": 1.5}, "hidden_s"),
        ({"traffic_bytes": math.nan}, "traffic_bytes"),
        ({"weight": 0.0}, "weight"),
        ({"links": [2]}, "links"),
        ({"links": [-1]}, "links"),
        ({"links": [0, 0]}, "links"),
        ({"factors": [1.0, 1.0]}, "factors"),
        ({"factors": [0.0]}, "factors"),
    ],
)
def test_impossible_jobs_are_refused(change: Spec, word: str) -> None:
    network = SharedNetwork([1.0, 1.0])
    with pytest.raises(InputError, match=word):
        network.add(**{**spec([0]), **change})
    assert len(network) == 0


def test_impossible_networks_and_slots_are_refused() -> None:
    with pytest.raises(InputError, match="capacity"):
        SharedNetwork([1.0, 0.0])
    network = SharedNetwork([1.0])
    slot = network.add(**spec([0]))
    with pytest.raises(InputError, match="weight"):
        network.set_weight(slot, -1.0)
    network.remove(slot)
    for act in (network.remove, lambda empty: network.set_weight(empty, 1.0)):
        with pytest.raises(InputError, match="holds no job"):
            act(slot)


def test_numba_is_imported_when_a_link_is_first_shared() -> None:
    program = (
        "import sys\n"
        "from hemiola.cost.contention import MaxMin\n"
        "network = MaxMin().network([1.0, 1.0])\n"
        "for link in (0, 1):\n"
        "    network.add(compute_s=1.0, hidden_s=0.0, traffic_bytes=1.0, links=[link])\n"
        "network.settle()\n"
        "network.link_load()\n"
        "network.remove(0)\n"
        "network.settle()\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_warm_up_can_be_repeated() -> None:
    warm_up()
    warm_up()
