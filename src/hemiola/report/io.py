"""What a probe of a store found, to read and to look at: a table, advice by loader, and the surface as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from hemiola.core.units import format_bytes, format_duration
from hemiola.cost.io import MeasuredRange, StoreProbe
from hemiola.plan.io.advice import loader_advice

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

__all__ = ["StoreTable", "surface_picture"]

SIZES = (2**16, 2**18, 2**20, 2**22)
FLIGHTS = (1, 2, 4, 8, 16, 32, 64)
COLOURS = ("#7a5195", "#ef5675", "#ffa600", "#2f8f4e")


class StoreTable:
    """A probe for a terminal: what the store gives, the surface, and what to set where.

    Args:
        probe: what was found.
        sample_bytes: what one sample reads, for the advice.
    """

    def __init__(self, probe: StoreProbe, sample_bytes: float | None = None) -> None:
        self.probe, self.sample_bytes = probe, sample_bytes

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """What to draw."""
        yield from self._found()
        yield self._surface()
        yield from self._knee()
        yield self._advice()

    def _found(self) -> Iterator[str]:
        probe = self.probe
        yield f"{probe.url}: {format_bytes(probe.size_bytes)}"
        yield f"  L  first byte   {_times(probe.latency_s)}; a new connection {format_duration(probe.connect_s)} more"
        yield f"  b  one stream   {_rates(probe.stream_bytes_per_s)}"
        reached = "" if probe.saturated else "; not reached: more requests may give more"
        yield f"  C  all streams  {_rates(probe.share_bytes_per_s)}{reached}"
        again = "a cache answers the second time" if probe.cached else "no cache seen"
        yield (
            f"  the same range twice: {format_duration(probe.cold_s)}, then {format_duration(probe.warm_s)}: {again}"
        )
        yield f"  read {format_bytes(probe.read_bytes_total)} in {probe.seconds:.1f} s; 90 % intervals"

    def _surface(self) -> RenderableType:
        from rich import box
        from rich.table import Table

        model = self.probe.model()
        measured = {(p.read_bytes, p.in_flight): p.goodput_bytes_per_s for p in self.probe.surface}
        sizes = sorted({*SIZES, *(size for size, _ in measured)})
        drawn = Table(
            box=box.SIMPLE_HEAD, pad_edge=False, title="MB/s by the model; * measured", title_justify="left"
        )
        drawn.add_column("read")
        for flights in FLIGHTS:
            drawn.add_column(f"c={flights}", justify="right")
        drawn.add_column("knee", justify="right")
        for size in sizes:
            cells = [
                f"{measured[size, c] / 1e6:.1f}*"
                if (size, c) in measured
                else f"{model.goodput(size, c) / 1e6:.1f}"
                for c in FLIGHTS
            ]
            drawn.add_row(_size(size), *cells, str(model.knee(size)))
        return drawn

    def _knee(self) -> Iterator[str]:
        model = self.probe.model()
        read = model.read_bytes()
        knee = model.knee(read)
        yield (
            f"{knee} request{'s' * (knee != 1)} of {_size(read)} at once fill it; one at a time reaches "
            f"{100 * model.goodput(read, 1) / model.share_bytes_per_s:.0f} %. More only wait."
        )

    def _advice(self) -> RenderableType:
        from rich import box
        from rich.table import Table

        drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("loader", "set", "because"):
            drawn.add_column(name, overflow="fold")
        for advice in loader_advice(self.probe.model(), self.sample_bytes):
            drawn.add_row(*advice)
        return drawn


def surface_picture(probe: StoreProbe) -> str:
    """The surface as SVG: a curve of the model for each read size, measured points on it, the knees."""
    model = probe.model()
    top = 1.25 * max(
        model.share_bytes_per_s, *(p.goodput_bytes_per_s for p in probe.surface), model.goodput(2**16, 1)
    )
    low = model.goodput(SIZES[0], 1) / 1.5
    left, right, upper, lower = 70.0, 560.0, 50.0, 340.0

    def x(flights: float) -> float:
        return left + (right - left) * math.log2(flights) / 6

    def y(rate: float) -> float:
        return lower - (lower - upper) * math.log(max(rate, low) / low) / math.log(top / low)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 400" font-family="sans-serif" font-size="12">',
        '<rect width="700" height="400" fill="#fff"/>',
        f'<text x="{left}" y="22" font-size="14" font-weight="bold">Goodput by requests in flight and read size</text>',
        f'<text x="{left}" y="39" fill="#555">{escape(_caption(probe))}</text>',
    ]
    for flights in FLIGHTS:
        parts.append(_line(x(flights), upper, x(flights), lower, "#eee"))
        parts.append(f'<text x="{x(flights):.1f}" y="{lower + 18}" text-anchor="middle">{flights}</text>')
    for rate in _ticks(low, top):
        parts.append(_line(left, y(rate), right, y(rate), "#eee"))
        parts.append(
            f'<text x="{left - 8}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate / 1e6:g} MB/s</text>'
        )
    share = model.share_bytes_per_s
    parts.append(_line(left, y(share), right, y(share), "#444", dashed=True))
    parts.append(f'<text x="{right + 8}" y="{y(share) - 6:.1f}" fill="#444">C {share / 1e6:.1f} MB/s</text>')
    sizes = sorted({*SIZES, *(p.read_bytes for p in probe.surface)})
    for size in sizes:
        colour = _colour(size)
        steps = [2 ** (k / 8) for k in range(49)]
        path = " ".join(f"{x(c):.1f},{y(model.goodput(size, c)):.1f}" for c in steps)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        knee = min(64, model.knee(size))
        parts.append(
            f'<path d="M{x(knee):.1f} {y(model.goodput(size, knee)) - 3:.1f} l-5 -9 h10 z" fill="{colour}"/>'
        )
    for point in probe.surface:
        parts.append(
            f'<circle cx="{x(point.in_flight):.1f}" cy="{y(point.goodput_bytes_per_s):.1f}" r="5" '
            f'fill="{_colour(point.read_bytes)}" stroke="#fff" stroke-width="1.5"/>'
        )
    for row, size in enumerate(sizes):
        at = lower - 20 * (len(sizes) - row)
        parts.append(_line(right + 10, at, right + 30, at, _colour(size), width=3))
        parts.append(f'<text x="{right + 36}" y="{at + 4}">{_size(size)}</text>')
    parts.append(
        f'<text x="{(left + right) / 2}" y="{lower + 42}" text-anchor="middle">'
        "requests in flight (curves: model; dots: measured; triangles: knees)</text></svg>"
    )
    return "\n".join(parts)


def _caption(probe: StoreProbe) -> str:
    return (
        f"L {format_duration(probe.latency_s.value)}, b {probe.stream_bytes_per_s.value / 1e6:.1f} MB/s, "
        f"C {probe.share_bytes_per_s.value / 1e6:.1f} MB/s"
    )


def _line(
    x1: float, y1: float, x2: float, y2: float, colour: str, *, dashed: bool = False, width: int = 1
) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"{dash}/>'
    )


def _ticks(low: float, top: float) -> Iterator[float]:
    decade = 10 ** math.floor(math.log10(low))
    while decade < top:
        for step in (1, 2, 5):
            if low <= step * decade <= top:
                yield step * decade
        decade *= 10


def _colour(size: int) -> str:
    nearest = min(range(len(SIZES)), key=lambda i: abs(math.log2(SIZES[i] / size)))
    return COLOURS[nearest]


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:g} MiB" if size_bytes >= 2**20 else f"{size_bytes / 1024:.0f} KiB"


def _times(interval: MeasuredRange) -> str:
    return f"{1e3 * interval.value:.1f} ms ({1e3 * interval.low:.1f}-{1e3 * interval.high:.1f})"


def _rates(interval: MeasuredRange) -> str:
    return f"{interval.value / 1e6:.1f} MB/s ({interval.low / 1e6:.1f}-{interval.high / 1e6:.1f})"
