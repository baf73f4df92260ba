"""Max-min shares against their definition, and the judge on ranks whose delivery follows their connections."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemiola.core.errors import InputError
from hemiola.cost.io import connection_shares, jain_index
from hemiola.plan.io.fairness import FairnessJudge, FairnessRules, InputReport, InputVerdict, fair_rates

LINK = 50e6
READERS = st.lists(
    st.tuples(st.floats(0.1, 10), st.one_of(st.floats(0, 100), st.just(math.inf))), min_size=1, max_size=6
)


@settings(max_examples=60)
@given(st.floats(1, 100), READERS)
def test_rates_are_max_min(share: float, readers: list[tuple[float, float]]) -> None:
    weights, wants = zip(*readers, strict=True)
    rates = fair_rates(share, weights, wants)
    assert sum(rates) <= share * (1 + 1e-9)
    assert all(rate <= want * (1 + 1e-9) for rate, want in zip(rates, wants, strict=True))
    if sum(rates) < share * (1 - 1e-9):  # Pareto: something is left only if all are content
        assert rates == pytest.approx(wants)
    levels = [rate / weight for rate, weight in zip(rates, weights, strict=True)]
    for rate, want, level in zip(rates, wants, levels, strict=True):
        assert rate >= want * (1 - 1e-9) or level >= max(levels) * (1 - 1e-9)


def test_rates_by_hand() -> None:
    assert fair_rates(40, [2, 1, 1], [math.inf] * 3) == (20, 10, 10)
    assert fair_rates(40, [1, 1, 1], [4, math.inf, math.inf]) == (4, 18, 18)
    with pytest.raises(InputError, match="above 0"):
        fair_rates(1, [0, 1], [1, 1])


def delivered(connections: Sequence[int], verdict: InputVerdict, link: float = LINK) -> list[float]:
    """What each gets: a link that divides itself by connections, among buckets (progressive filling)."""
    rates = [verdict.rates_bytes_per_s.get(rank, math.inf) for rank in range(len(connections))]
    return list(fair_rates(link, connections, rates))


def play(
    judge: FairnessJudge, connections: Sequence[int], seconds: int, start: int = 0, **same: float
) -> list:
    verdicts, verdict = [], InputVerdict(1.0, {})
    for now in range(start, start + seconds):
        for rank, amount in enumerate(delivered(connections, verdict)):
            judge.take(InputReport(rank, now, amount, connections[rank], 0.5, **same))  # type: ignore[arg-type]
        verdict = judge.observe(now)
        verdicts.append((delivered(connections, verdict), verdict))
    return verdicts


@pytest.mark.parametrize("connections", [(16, 4), (32, 2), (2, 2, 20)])
def test_delivery_is_equal_within_five_seconds_and_the_link_is_full(connections: tuple[int, ...]) -> None:
    assert jain_index(connection_shares(connections, LINK)) < 0.9
    got, _ = play(FairnessJudge(), connections, 5)[-1]
    assert max(got) <= 1.1 * min(got)
    assert sum(got) >= 0.95 * LINK


def test_weights_are_kept() -> None:
    judge, verdict, got = FairnessJudge(), InputVerdict(1.0, {}), [0.0]
    for now in range(6):
        got = delivered((4, 8, 1), verdict)
        for rank, weight in enumerate((2, 1, 1)):
            judge.take(InputReport(rank, now, got[rank], (4, 8, 1)[rank], 0.5, weight=weight))
        verdict = judge.observe(now)
    assert got == pytest.approx([LINK / 2, LINK / 4, LINK / 4], rel=0.1)


def test_the_victim_is_named_with_its_cause() -> None:
    judge = FairnessJudge(FairnessRules(act_below=0.0))  # looks on only
    _, verdict = play(judge, (32, 2), 4)[-1]
    assert (verdict.victim, verdict.cause) == (1, "connections")
    assert "rank 1 gets 2.9 MB/s" in verdict.sentence and "2 connections" in verdict.sentence


@pytest.mark.parametrize(
    ("victim", "cause"),
    [
        ({"first_byte_s": 0.2, "stream_bytes_per_s": 1e7}, "store"),
        ({"first_byte_s": 0.02, "stream_bytes_per_s": 1e6}, "host"),
        ({"first_byte_s": 0.02, "stream_bytes_per_s": 1e7, "local": True}, "disk"),
        ({"first_byte_s": 0.02, "stream_bytes_per_s": 1e7}, ""),
    ],
)
def test_causes_by_exclusion(victim: dict, cause: str) -> None:
    judge = FairnessJudge()
    for now in range(3):
        judge.take(InputReport(0, now, 40e6, 4, 0.1, first_byte_s=0.02, stream_bytes_per_s=1e7))
        judge.take(InputReport(1, now, 4e6, 4, 0.9, **victim))
        verdict = judge.observe(now)
    assert (verdict.victim, verdict.cause) == (1, cause)


def test_a_rank_that_computes_is_no_victim() -> None:
    judge = FairnessJudge()
    for now in range(5):
        judge.take(InputReport(0, now, 40e6, 8, 0.5))
        judge.take(InputReport(1, now, 1e6, 2, 0.0, wanted=0.1))
        assert judge.observe(now) == InputVerdict(1.0, {})


def test_a_rank_that_stops_reading_does_not_hold_the_others_shares() -> None:
    judge = FairnessJudge()
    play(judge, (2, 2, 20), 5)
    for now in range(5, 12):
        for rank in (0, 1):
            judge.take(InputReport(rank, now, 20e6, 2, 0.5))
        verdict = judge.observe(now)
    assert 2 not in verdict.rates_bytes_per_s
    assert sum(verdict.rates_bytes_per_s.values()) >= 40e6


def test_nobody_reports_and_nothing_is_set() -> None:
    judge = FairnessJudge()
    play(judge, (32, 2), 3)
    assert judge.observe(60.0) == InputVerdict(1.0, {})
