"""The page of `benchmarks/collectives.py`: what was wanted, what was found, how it was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date
from statistics import fmean, median
from typing import Protocol

from clocks import machine
from ordering_chart import DotPanel, DotRow, draw_dots

__all__ = ["PICTURE", "page", "picture"]

PICTURE = "collectives.svg"


class _Case(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def target(self) -> float: ...
    @property
    def drifts(self) -> bool: ...
    @property
    def computes(self) -> float | None: ...


class _Outcome(Protocol):
    took_s: dict[int, dict[str, list[float]]]
    opening_s: dict[str, float]
    chosen: list[str]
    bound_s: dict[int, float]
    best: float


Found = Sequence[tuple[str, _Case, _Outcome]]

HEAD = """# Collectives that fit the network

AdapCC (ICDCS 2024) claims communication 2x as fast where links differ. Here all-reduces of four hosts in the
[lab](../guides/lab.md) go by gloo, by Hemiola's process group in its usual way (a ring), and by the same group with
`HEMIOLA_STRATEGY=auto`: it measures the network when it is opened and chooses
[schedules](../concepts/collectives.md) that fit. All take turns in the same processes; a time is that of the slowest rank.

With one slow link no schedule can be more than 2 (N - 1) / N = 1.5 times as fast as a ring in good order (four hosts)."""

HOW = """## How it was measured

Four network namespaces joined by a bridge, tbf queues (burst 1 ms, 20 ms of queue), segmentation offload on, no delay added, TCP as
named; float32, sums; as many in a row as take half a second, at least one; the least, the median and the greatest ratio of neighbouring runs. "Of the bound" is max(M / min B, 2 (N - 1) M / sum B), or what an
uplink has to carry, with headers (1514 bytes on the wire for 1448 of data), over the median. *Opening* is what
making the group took, measuring included. All four hosts share two processors.

Where links drift, every host's link follows another stretch of a recorded series (`bandwidth-hw.txt`, one value
every 5 s, relative to its 95th percentile, of 400 Mbit/s). All-reduces of 2 MiB, which to 400 Mbit/s are what 90 MiB were to the links that were recorded, go on all
the while: by gloo through the whole series, then by Hemiola through the same, and again. The ratio is that of mean times, each step of 5 s counting the same.
*At most* is the ratio of who knew every rate the moment it changes and met the bound with it. A model's iterations are
DDP's, computing included.
"""


def page(found: Found, command: str) -> str:
    """The Markdown."""
    lines = [
        HEAD,
        "",
        f"Measured on {date.today():%Y-%m-%d} with `{command}` on: {machine()}.",
        "",
        f"![Gloo's time over Hemiola's]({PICTURE})",
        "",
        "| TCP | network | size | gloo | ring | fitted | gloo / fitted (least–most) | wanted | of the bound |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    fitted = [one for one in found if one[1].computes is None]
    for control, case, outcome in fitted:
        lines += [_line(control, case, outcome, size) for size in outcome.took_s]
    lines += _late([one for one in found if one[1].computes is not None])
    lines += ["", "## Schedules", "", "| TCP | network | used | opening |", "|---|---|---|---:|"]
    for control, case, outcome in fitted:
        used = ", ".join(outcome.chosen) or "the usual ring"
        lines.append(f"| {control} | {case.name} | {used} | {outcome.opening_s.get('fitted', 0.0):.2f} s |")
    return "\n".join([*lines, "", HOW])


LATE = """
## Late ranks

In every step one rank of four, another one each time, comes to an all-reduce later than the others, as AdapCC recorded it
(`wait_time_heter_bc128.csv`, relative to what 100 MiB take four hosts at 50 Gbit/s, its constants; every so-many-th value).
*Waiting* is Hemiola's usual ring, *relay* and *carry-over* are `HEMIOLA_STRAGGLERS`; times are those of a step, and the gain
is against waiting, the least and the greatest of all rounds. What is exact cannot gain more than the late rank's data take to go out
once instead of what the ring takes: a third of the all-reduce, if all else was done meanwhile.

| TCP | network | size | gloo | waiting | relay | carry-over | gain of relay | of carry-over | wanted |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"""


def _late(found: Found) -> list[str]:
    """Step times, if there are any."""
    lines = []
    for control, case, outcome in found:
        for size, took in outcome.took_s.items():
            times = " | ".join(
                _words(median(took[name])) for name in ("gloo", "usual", "relay", "carry-over")
            )
            parts = []
            for name in ("relay", "carry-over"):
                gain, least, most = gains(took, name)
                parts.append(f"**{gain:.1%}** ({least:.0%}–{most:.0%})")
            reached = gains(took, "relay")[0] >= case.target
            wanted = f"{case.target:.0%}{'' if reached else ' (relay: missed)'}" if case.target else ""
            lines.append(
                f"| {control} | {case.name} | {_size(size)} | {times} | {' | '.join(parts)} | {wanted} |"
            )
    return [LATE, *lines] if lines else []


def gains(took: Mapping[str, list[float]], name: str) -> tuple[float, float, float]:
    """By how much a step is shorter than with waiting: the median, the least, the greatest of all rounds."""
    each = [1 - ours / waiting for waiting, ours in zip(took["usual"], took[name], strict=True)]
    return median(each), min(each), max(each)


def _line(control: str, case: _Case, outcome: _Outcome, size: int) -> str:
    took = outcome.took_s[size]
    ratio, least, most = ratios(case, took)
    ring = _words(median(took["usual"])) if "usual" in took else ""
    bound = outcome.bound_s.get(size, 0.0)
    part = f"{bound / median(took['fitted']):.0%}" if bound and size >= 1 << 20 else ""
    part = f"at most {outcome.best:.2f}" if outcome.best else part
    wanted = f"{case.target:.2f}{'' if ratio >= case.target else ' (missed)'}" if case.target else ""
    return (
        f"| {control} | {case.name} | {_size(size)} | {_words(_middle(case, took['gloo']))} | {ring} | "
        f"{_words(_middle(case, took['fitted']))} | **{ratio:.2f}** ({least:.2f}–{most:.2f}) | {wanted} | {part} |"
    )


def ratios(case: _Case, took: Mapping[str, list[float]]) -> tuple[float, float, float]:
    """Gloo's time over ours: the median or mean, the least, the greatest."""
    each = [theirs / ours for theirs, ours in zip(took["gloo"], took["fitted"], strict=True)]
    middle = fmean(took["gloo"]) / fmean(took["fitted"]) if case.drifts else median(each)
    return middle, min(each), max(each)


def _middle(case: _Case, times: Sequence[float]) -> float:
    return fmean(times) if case.drifts else median(times)


def _words(seconds: float) -> str:
    return (
        f"{seconds * 1e6:.0f} µs"
        if seconds < 1e-3
        else f"{seconds * 1e3:.1f} ms"
        if seconds < 1
        else f"{seconds:.2f} s"
    )


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size >= 1 << 10 else f"{size} B"


def picture(found: Found) -> str:
    """Ratios by case, a panel for each kind of TCP; "" where none was measured."""
    panels = []
    for control in dict.fromkeys(control for control, _, _ in found):
        rows = []
        for other, case, outcome in found:
            if other != control or case.computes is not None:
                continue
            for size, took in outcome.took_s.items():
                ratio, least, most = ratios(case, took)
                dots = {"measured": ratio, **({"wanted": case.target} if case.target else {})}
                rows.append(DotRow(f"{case.name}, {_size(size)}", dots, (least, most)))
        most = max((row.span[1] for row in rows if row.span), default=1.0)
        panels.append(DotPanel(control, rows, tuple(range(math.ceil(most) + 1)), "least to most"))
    if not any(panel.rows for panel in panels):
        return ""
    return draw_dots(panels, "Gloo's time over Hemiola's, fitted to the network", "times as fast")
