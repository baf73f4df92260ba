"""Jobs, profiles and placements: interpolation by hand, and profiles that cannot be."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.decisions import Placement
from hemiola.core.errors import InputError
from hemiola.core.job import Demand, Profile
from hemiola.core.timeline import Timeline

LADDER = (Demand(2, 1.0, 100.0), Demand(8, 3.0, 300.0), Demand(16, 4.0, 100.0))


def made(demands: tuple[Demand, ...] = LADDER, **more: Any) -> Profile:
    return Profile(name="m", demands=demands, **more)


@pytest.mark.parametrize(
    ("gpus", "compute_s", "traffic_bytes"),
    [
        (1, 1.0, 0.0),  # one GPU alone sends nothing
        (2, 1.0, 100.0),
        (4, 2.0, 200.0),  # halfway between 2 and 8 on the scale of log2
        (8, 3.0, 300.0),
        (16, 4.0, 100.0),
        (64, 4.0, 100.0),  # beyond the last: the nearest holds
    ],
)
def test_demands_between_measurements(gpus: int, compute_s: float, traffic_bytes: float) -> None:
    demand = made().demand(gpus)
    assert demand.gpus == gpus
    assert demand.compute_s == pytest.approx(compute_s)
    assert demand.traffic_bytes == pytest.approx(traffic_bytes)


def test_one_gpu_sends_nothing_whatever_was_measured() -> None:
    """Either such a profile is refused, or its traffic on one GPU is nothing."""
    try:
        profile = made((Demand(1, 1.0, 50.0), Demand(8, 1.0, 100.0)))
    except InputError:
        return
    assert profile.demand(1).traffic_bytes == 0.0


@given(st.integers(1, 64), st.integers(1, 64))
def test_an_interpolated_demand_lies_between_its_neighbours(a: int, b: int) -> None:
    profile = made((Demand(1, 1.0, 0.0), Demand(7, 2.0, 10.0), Demand(50, 9.0, 90.0)))
    low, high = profile.demand(min(a, b)), profile.demand(max(a, b))
    assert low.compute_s <= high.compute_s * (1 + 1e-12)
    assert low.traffic_bytes <= high.traffic_bytes * (1 + 1e-12)


@pytest.mark.parametrize(
    "wrong",
    [
        {"demands": ()},
        {"demands": (Demand(8, 1.0, 1.0), Demand(2, 1.0, 1.0))},
        {"demands": (Demand(2, 1.0, 1.0), Demand(2, 1.0, 1.0))},
        {"demands": (Demand(0, 1.0, 1.0),)},
        {"demands": (Demand(1, 0.0, 0.0),)},
        {"demands": (Demand(1, math.nan, 0.0),)},
        {"demands": (Demand(1, math.inf, 0.0),)},
        {"demands": (Demand(2, 1.0, -1.0),)},
        {"demands": (Demand(2, 1.0, math.inf),)},
        {"demands": (Demand(2, 1.0, math.nan),)},
        {"overlap": -0.1},
        {"overlap": 1.1},
        {"overlap": math.nan},
        {"checkpoint_s": -1.0},
        {"restore_s": math.inf},
        {"gpu_speed": {"V100": 0.0}},
        {"gpu_speed": {"V100": -1.0}},
        {"gpu_speed": {"V100": math.nan}},
    ],
    ids=str,
)
def test_profiles_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        made(**{"demands": LADDER, **wrong})
    assert "'m'" in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("gpu_type", "speed"),
    [
        ("V100", 2.0),
        ("v100", 2.0),
        ("Tesla-V100-SXM2-16GB", 2.0),
        ("nvidia_k80", 0.25),
        ("NVIDIA GeForce RTX-3090", 4.0),
        ("v100s", None),  # another word
        ("3090", None),
        ("V100+K80", None),  # which of the two?
        ("H100", None),
    ],
)
def test_a_type_of_gpu_is_found_however_it_is_written(gpu_type: str, speed: float | None) -> None:
    profile = made(gpu_speed={"V100": 2.0, "K80": 0.25, "RTX-3090": 4.0})
    assert profile.speed(gpu_type) == (speed or 1.0)
    assert profile.knows(gpu_type) == (speed is not None)


def test_the_type_as_it_is_written_goes_first() -> None:
    profile = made(gpu_speed={"a100": 1.0, "A100": 2.0, "A100-80GB": 3.0}, gpu_type="Tesla T4")
    assert [profile.speed(kind) for kind in ("a100", "A100", "a100-80gb", "")] == [1.0, 2.0, 3.0, 1.0]
    assert profile.knows("TESLA T4") and not profile.knows("A30")


def test_a_placement_lists_its_ranks_in_order() -> None:
    placement = Placement((5, 3), (0b1010, 0b1))
    assert placement.gpus == 3
    assert placement.ranks() == [(5, 1), (5, 3), (3, 0)]


@given(st.lists(st.integers(1, 2**16 - 1), min_size=1, max_size=6))
def test_a_placement_has_a_rank_for_every_bit(masks: list[int]) -> None:
    placement = Placement(tuple(range(len(masks))), tuple(masks))
    ranks = placement.ranks()
    assert len(ranks) == placement.gpus == len(set(ranks))
    assert all(masks[host] >> gpu & 1 for host, gpu in ranks)


def test_a_timeline_of_nothing_has_its_columns() -> None:
    empty = Timeline.from_rows([])
    assert len(empty.job) == len(empty.outcome) == 0
    one = Timeline.from_rows([(3, 2, 1 << 63, 0.5, 2.5, 1.0, 1, 0)])
    assert int(one.gpu_mask[0]) == 1 << 63
    assert (one.start_s[0], one.end_s[0], one.resume_s[0]) == (0.5, 2.5, 1.0)
