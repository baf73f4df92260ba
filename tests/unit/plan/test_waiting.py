"""Ski rental: AdapCC's own decisions come out, and nobody who knows the future pays less than half."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.errors import InputError
from hemiola.plan.collective.waiting import WaitingCosts, adapcc_costs, clairvoyant_s, decide


@pytest.mark.shared_data
def test_adapccs_decisions_come_out(shared: Path) -> None:
    cases = json.loads((shared / "data" / "comm" / "collectives" / "adapcc_relay.json").read_text())
    for case in cases:
        costs = adapcc_costs(len(case["arrivals"]))
        found = decide(case["arrivals"], costs, slot_s=0.005, patience_s=0.1, fewer=False)
        assert found.after_s == pytest.approx(case["decide_after_s"])
        assert list(found.active) == case["active"]
        assert costs.full_s == pytest.approx(case["rent0"])
        if 1 < len(found.active) < costs.ranks:
            assert costs.partial_s[len(found.active) - 1] == pytest.approx(case["buy"])
    assert len(cases) >= 6


def test_three_start_without_the_fourth_as_adapcc_has_it() -> None:
    """Three of four are ready after 2 ms, the last after 500: 2 / 3 of 23.4 ms over 3 / 4, and 15.6 ms to catch up."""
    costs = adapcc_costs(4)
    assert costs.full_s == pytest.approx(0.0234375)
    assert costs.partial_s == pytest.approx((math.inf, 0.03125, 0.0364583333))
    found = decide([0, 0.001, 0.002, 0.5], costs, slot_s=0.005, patience_s=0.1, fewer=False)
    assert found.after_s == pytest.approx(0.015) and found.active == (0, 1, 2)


costs_of = st.builds(
    lambda full, extra: WaitingCosts(full, tuple(full + e for e in extra)),
    st.floats(0, 5), st.lists(st.floats(0, 10), max_size=5),
)  # fmt: skip
"""A start without all costs at least as much as one with all."""


@given(costs_of, st.data())
def test_nobody_pays_less_than_half(costs: WaitingCosts, data: st.DataObject) -> None:
    arrivals = [data.draw(st.floats(0, 20)) for _ in range(costs.ranks)]
    found = decide(arrivals, costs)
    best = clairvoyant_s(arrivals, costs)
    assert best * (1 - 1e-9) <= found.cost_s <= 2 * best * (1 + 1e-9) + 1e-12


@given(costs_of, st.data())
def test_what_is_still_to_come_does_not_matter(costs: WaitingCosts, data: st.DataObject) -> None:
    arrivals = [data.draw(st.floats(0, 20)) for _ in range(costs.ranks)]
    found = decide(arrivals, costs)
    first = min(arrivals)
    later = [a if a - first <= found.after_s else a + data.draw(st.floats(0, 50)) for a in arrivals]
    assert decide(later, costs) == found


def test_a_lone_ready_rank_decides_too() -> None:
    """Alone it pays 3 instead of 1: it waits 2 s, and no longer."""
    costs = WaitingCosts(1.0, (3.0,))
    assert decide([0.0, 1.9], costs).cost_s == pytest.approx(2.9)
    alone = decide([0.0, 100.0], costs)
    assert alone.active == (0,) and alone.after_s == pytest.approx(2.0) and alone.cost_s == pytest.approx(5.0)


def test_patience_ends_what_would_go_on() -> None:
    costs = WaitingCosts(1.0, (50.0, 40.0))
    found = decide([0.0, 1.0, 99.0], costs, patience_s=2.0)
    assert found.active == (0, 1) and found.after_s == pytest.approx(2.0)


def test_what_cannot_be_is_named() -> None:
    with pytest.raises(InputError, match="2 arrivals with the costs of 3 ranks"):
        decide([0.0, 1.0], WaitingCosts(1.0, (1.0, 1.0)))
    with pytest.raises(InputError, match="full_s is -1"):
        WaitingCosts(-1.0, ())
    with pytest.raises(InputError, match="0 ranks"):
        adapcc_costs(0)
