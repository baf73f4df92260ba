"""Quantities written by people ("100gbit", "25 GB/s", "10us"), in seconds and bytes.

Inside Hemiola time is seconds, size is bytes, rate is bytes per second, always as floats.
Text must carry its unit: a bare number is refused, because a file that says 100 may mean
gigabits or gigabytes and nobody can tell.
"""

from __future__ import annotations

import math
import re

from hemiola.core.errors import UnitError

__all__ = ["format_bytes", "format_duration", "format_rate", "parse_duration", "parse_rate", "parse_size"]

_NUMBER = re.compile(r"^\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/]*)\s*$")

_PER_SECOND = {"ns": 1e9, "us": 1e6, "µs": 1e6, "ms": 1e3}  # dividing keeps 5us exactly 5e-6
_SECONDS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DECIMAL = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_BINARY = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}


def parse_duration(text: str) -> float:
    """Seconds from text such as "1.5h", "250 ms" or "10us".

    >>> parse_duration("1.5h")
    5400.0
    """
    number, unit = _split(text, "duration", "write a unit: 10us, 5ms, 30s, 2min, 1h, 1d")
    if unit in _PER_SECOND:
        return number / _PER_SECOND[unit]
    if unit not in _SECONDS:
        raise UnitError(
            f"{text!r} has no known unit of time", f"use one of {', '.join((*_PER_SECOND, *_SECONDS))}"
        )
    return number * _SECONDS[unit]


def parse_size(text: str) -> float:
    """Bytes from text such as "25MB" (decimal) or "64KiB" (binary).

    >>> parse_size("64KiB")
    65536.0
    """
    number, unit = _split(text, "size", "write a unit: 512B, 64KiB, 25MB, 2GB")
    if not unit.endswith(("B", "b")) or unit.endswith("b"):
        raise UnitError(f"{text!r} is not a size in bytes", "write B for bytes: 512B, 64KiB, 25MB")
    return number * _prefix(text, unit[:-1].lower())


def parse_rate(text: str) -> float:
    """Bytes per second from text such as "100gbit", "25GB/s" or "400 Gbps".

    Bits are written bit, bit/s, bps or b/s; bytes B/s or Bps.

    >>> parse_rate("100gbit")
    12500000000.0
    """
    if text.strip().lower() in ("inf", "infinite", "unlimited"):
        return math.inf
    number, unit = _split(text, "rate", "write a unit: 100gbit, 25GB/s, 400Gbps")
    for ending, scale in (
        ("bit/s", 0.125), ("bits/s", 0.125), ("bit", 0.125), ("B/s", 1.0), ("Bps", 1.0),
        ("b/s", 0.125), ("bps", 0.125),
    ):  # fmt: skip
        if unit.endswith(ending):
            return number * _prefix(text, unit[: -len(ending)].lower()) * scale
    raise UnitError(f"{text!r} is not a rate", "write bits or bytes per second: 100gbit, 25GB/s, 400Gbps")


def _split(text: str, kind: str, remedy: str) -> tuple[float, str]:
    match = _NUMBER.match(text)
    if match is None:
        raise UnitError(f"{text!r} is not a {kind}", remedy)
    number, unit = float(match[1]), match[2]
    if not math.isfinite(number) or number < 0:
        raise UnitError(f"{text!r} is not a {kind}: it must be finite and not negative", remedy)
    if not unit and number != 0:
        raise UnitError(f"{text!r} has no unit", remedy)
    return number, unit or {"duration": "s", "size": "B", "rate": "B/s"}[kind]


def _prefix(text: str, prefix: str) -> float:
    if prefix in _DECIMAL:
        return _DECIMAL[prefix]
    if prefix in _BINARY:
        return _BINARY[prefix]
    raise UnitError(f"{text!r} has the unknown prefix {prefix!r}", "use k, M, G, T or Ki, Mi, Gi, Ti")


def format_duration(duration_s: float) -> str:
    """A duration as a person would say it.

    >>> format_duration(5400)
    '1.50 h'
    """
    if not math.isfinite(duration_s):
        return "never" if duration_s > 0 else str(duration_s)
    for unit, scale in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(duration_s) >= scale:
            return f"{duration_s / scale:.2f} {unit}"
    return "0 s" if duration_s == 0 else f"{duration_s / 1e-9:.1f} ns"


def format_bytes(size_bytes: float) -> str:
    """A size with a decimal prefix.

    >>> format_bytes(2.5e9)
    '2.50 GB'
    """
    return f"{_decimal(size_bytes)}B"


def format_rate(rate_bytes_per_s: float) -> str:
    """A rate in bits per second, as networks are sold.

    >>> format_rate(12.5e9)
    '100 Gbit/s'
    """
    if math.isinf(rate_bytes_per_s):
        return "unlimited"
    number, prefix = _decimal(rate_bytes_per_s * 8).rstrip().partition(" ")[::2]
    return f"{float(number):g} {prefix}bit/s"


def _decimal(value: float) -> str:
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.2f} {prefix}"
    return f"{value:.2f} "
