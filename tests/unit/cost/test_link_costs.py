"""Latency and bandwidth from measured sizes."""

from __future__ import annotations

import pytest

from hemiola.core.errors import HardwareError
from hemiola.cost.collective.library import fit_collective

SIZES = [4.0, 1e3, 1e5, 1e6, 1e7, 6.4e7]
STEPS = {
    ("all-reduce", 2): 2,
    ("all-reduce", 4): 6,
    ("broadcast", 4): 2,
    ("send", 2): 1,
    ("all-gather", 4): 3,
}
SHARES = {
    ("all-reduce", 2): 1,
    ("all-reduce", 4): 1.5,
    ("broadcast", 4): 2,
    ("send", 2): 1,
    ("all-gather", 4): 0.75,
}


@pytest.mark.parametrize(("collective", "ranks"), list(STEPS))
def test_the_law_is_found_back(collective: str, ranks: int) -> None:
    steps, share = STEPS[collective, ranks], SHARES[collective, ranks]
    points = [(s, steps * 1e-4 + share * s / 1.25e8, steps * 2e-5 + share * s * 5e-10) for s in SIZES]
    found = fit_collective("gloo", collective, [f"h{i}" for i in range(ranks)], points, runs=7)
    assert found.alpha_s == pytest.approx(1e-4)
    assert found.bytes_per_s == pytest.approx(1.25e8)
    assert found.cpu_s_per_step == pytest.approx(2e-5)
    assert found.cpu_s_per_byte == pytest.approx(5e-10)
    assert (found.ranks, found.runs, len(found.points)) == (ranks, 7, len(SIZES))
    assert found.spread < 1e-6


@pytest.mark.parametrize("place", range(len(SIZES)))
def test_one_disturbed_size_changes_little(place: int) -> None:
    points = [(s, 2e-4 + s / 1e9, 1e-4) for s in [*SIZES, 2e6, 16.0]]
    points[place] = (points[place][0], 40 * points[place][1], 1e-4)
    found = fit_collective("gloo", "all-reduce", ["a", "b"], points)
    assert found.alpha_s == pytest.approx(1e-4, rel=0.05)
    assert found.bytes_per_s == pytest.approx(1e9, rel=0.15)


def test_what_a_shaper_lets_pass_at_once_does_not_count() -> None:
    """A token bucket of 125 kB on 1 Gbit/s, as measured between two hosts of a lab."""
    points = [
        (4.0, 205e-6, 0.0),
        (65_536.0, 253e-6, 0.0),
        (1_048_576.0, 8484e-6, 0.0),
        (8_388_608.0, 70_381e-6, 0.0),
    ]
    found = fit_collective("gloo", "all-reduce", ["h0", "h1"], points)
    assert found.bytes_per_s == pytest.approx(1.2e8, rel=0.06)
    assert found.alpha_s == pytest.approx(1e-4, rel=0.05)


@pytest.mark.parametrize("points", [[(4.0, 1e-3, 0.0)], [(4.0, 1e-3, 0.0), (1e6, 1e-4, 0.0)]])
def test_what_cannot_be_fitted_is_refused(points: list[tuple[float, float, float]]) -> None:
    with pytest.raises(HardwareError):
        fit_collective("gloo", "all-reduce", ["a", "b"], points)


def test_one_rank_alone_has_no_links() -> None:
    with pytest.raises(HardwareError, match="1 ranks"):
        fit_collective("gloo", "all-reduce", ["a"], [(4.0, 1e-6, 0.0), (1e6, 2e-6, 0.0)])
