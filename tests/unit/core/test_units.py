"""Quantities as people write them: every unit, every refusal, and back again."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.errors import UnitError
from hemiola.core.units import (
    format_bytes,
    format_duration,
    format_rate,
    parse_duration,
    parse_rate,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10ns", 1e-8), ("10us", 1e-5), ("10 µs", 1e-5), ("250ms", 0.25), ("30s", 30), ("30 sec", 30),
        ("2min", 120), ("1.5h", 5400), (" 1d ", 86400), (".5s", 0.5), ("5.s", 5), ("1e3s", 1000), ("0", 0),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512B", 512), ("64KiB", 65536), ("25MB", 25e6), ("2GB", 2e9), ("1TiB", 2**40), ("3PB", 3e15),
        ("1kB", 1e3), ("1KB", 1e3), ("0", 0),
    ],
)  # fmt: skip
def test_sizes(text: str, size: float) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100gbit", 12.5e9), ("100Gbit/s", 12.5e9), ("400 Gbps", 50e9), ("25GB/s", 25e9), ("25GBps", 25e9),
        ("8b/s", 1), ("8bps", 1), ("1B/s", 1), ("1GiB/s", 2**30), ("1Kibit", 128), ("800mbit/s", 1e8),
        ("800Mbits/s", 1e8), ("inf", math.inf), ("Unlimited", math.inf), ("0", 0),
    ],
)  # fmt: skip
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("parse", [parse_duration, parse_size, parse_rate])
@pytest.mark.parametrize("text", ["", "fast", "100", "-5s", "-5B", "-1gbit", "nan", "1e999s", "1 2s", "1,5h"])
def test_what_is_no_quantity_is_refused_with_a_remedy(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse(text)
    assert repr(text) in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_duration, "5 GB"), (parse_duration, "5 m"), (parse_duration, "5 weeks"), (parse_size, "5Mb"),
        (parse_size, "5Mbit"), (parse_size, "5B/s"), (parse_size, "5XB"), (parse_size, "5s"),
        (parse_rate, "5GB"), (parse_rate, "5s"), (parse_rate, "5Xbit"), (parse_rate, "-inf"),
    ],
)  # fmt: skip
def test_a_unit_of_something_else_is_refused(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(UnitError):
        parse(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (1e-9, "1.0 ns"), (5e-6, "5.00 µs"), (0.25, "250.00 ms"), (1, "1.00 s"), (90, "1.50 min"),
        (5400, "1.50 h"), (86400, "1.00 d"), (-90, "-1.50 min"), (math.inf, "never"), (-math.inf, "-inf"),
    ],
)  # fmt: skip
def test_durations_as_a_person_says_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_sizes_and_rates_as_they_are_sold() -> None:
    assert format_bytes(2.5e9) == "2.50 GB"
    assert format_bytes(512) == "512.00 B"
    assert format_rate(12.5e9) == "100 Gbit/s"
    assert format_rate(1) == "8 bit/s"
    assert format_rate(math.inf) == "unlimited"


@given(st.floats(1e-8, 1e8))
def test_a_formatted_duration_reads_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.05)


@given(st.floats(1.0, 1e16))
def test_formatted_sizes_and_rates_read_back(value: float) -> None:
    assert parse_size(format_bytes(value)) == pytest.approx(value, rel=0.006)
    assert parse_rate(format_rate(value)) == pytest.approx(value, rel=0.006)
