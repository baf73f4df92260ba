"""Shares of cores and of a link: worked out by hand, and never more than there is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.errors import PlanError
from hemiola.plan.shares import HostDemand, share

SECONDS = st.floats(0, 10)
DEMANDS = st.builds(
    HostDemand, SECONDS, st.floats(0, 1e9), st.floats(0, 1e9), SECONDS, SECONDS, st.floats(0, 1),
    st.floats(0, 1000), st.floats(0, 0.01),
)  # fmt: skip


def test_one_core_is_shared_by_all():
    found = share(HostDemand(1.0, 100.0, 300.0, communication_s=0.2, server_s=0.1), 1, 1000.0)
    assert found.shared
    assert (found.communication_cores, found.server_cores) == (0, 0)
    assert found.iteration_s == pytest.approx(1.3)


def test_the_link_is_shared_by_bytes_so_that_both_end_together():
    found = share(HostDemand(0.0, 100.0, 300.0), 4, 1000.0)
    assert found.push_bytes_per_s == pytest.approx(250)
    assert found.pull_bytes_per_s == pytest.approx(750)
    assert found.iteration_s == pytest.approx(0.4)


def test_nothing_is_paced_that_sends_nothing():
    found = share(HostDemand(1.0, 100.0, 0.0), 2, 1000.0)
    assert (found.push_bytes_per_s, found.pull_bytes_per_s) == (1000.0, None)


def test_a_link_without_a_limit_is_not_shared():
    found = share(HostDemand(1.0, 12e6, 12e6), 8, math.inf)
    assert (found.push_bytes_per_s, found.pull_bytes_per_s) == (None, None)
    assert found.iteration_s == pytest.approx(1 / 8)


def test_waiting_for_a_core_is_what_cores_of_ones_own_save():
    demand = HostDemand(3.0, 0.0, 0.0, communication_s=0.5, server_s=0.5, messages=100, delay_s=0.01)
    assert share(demand, 4, 1.0).iteration_s == pytest.approx(1.0)  # 3 / 3; shared it is 4 / 4 + 100 * 0.01
    assert share(demand, 4, 1.0).compute_cores == 3
    assert share(HostDemand(3.0, 0.0, 0.0, 0.5, 0.5), 4, 1.0).shared  # as long, and simpler


def test_a_busy_server_gets_a_core_of_its_own():
    demand = HostDemand(2.0, 0.0, 0.0, communication_s=1.0, server_s=1.0, messages=1, delay_s=1.0)
    found = share(demand, 4, 1.0)
    assert (found.compute_cores, found.communication_cores, found.server_cores) == (2, 1, 1)
    assert found.iteration_s == pytest.approx(1.0)


def test_work_that_cannot_be_spread_takes_its_time():
    assert share(HostDemand(2.0, 0.0, 0.0, serial=0.5), 4, 1.0).iteration_s == pytest.approx(1.25)


@given(DEMANDS, st.integers(1, 64), st.floats(1, 1e11))
def test_no_more_is_given_than_there_is_and_no_bound_is_beaten(demand, cores, link):
    found = share(demand, cores, link)
    assert found.compute_cores + found.communication_cores + found.server_cores <= cores
    assert (found.push_bytes_per_s or 0) + (found.pull_bytes_per_s or 0) <= link * (1 + 1e-9)
    work_s = demand.compute_s + demand.communication_s + demand.server_s
    assert found.iteration_s >= 0.999 * max(
        work_s / cores, (demand.push_bytes + demand.answer_bytes) / link, demand.compute_on(cores)
    )


@given(DEMANDS, st.integers(1, 64), st.floats(1, 1e11))
def test_never_worse_than_equal_shares(demand, cores, link):
    """A third of the cores for each side, half of the link for each class."""
    third = cores // 3
    if third:
        equal_s = max(
            demand.compute_on(third), demand.communication_s, demand.server_s,
            2 * demand.push_bytes / link, 2 * demand.answer_bytes / link,
        )  # fmt: skip
        assert share(demand, cores, link).iteration_s <= equal_s * (1 + 1e-9)


@pytest.mark.parametrize("wrong", [{"compute_s": -1.0}, {"serial": 2.0}, {"delay_s": float("nan")}])
def test_impossible_demands_are_named(wrong):
    usual = {"compute_s": 1.0, "push_bytes": 0.0, "answer_bytes": 0.0}
    with pytest.raises(PlanError, match=next(iter(wrong))):
        HostDemand(**(usual | wrong))
    with pytest.raises(PlanError, match="0 cores"):
        share(HostDemand(**usual), 0, 1.0)
