"""A topology drawn: the core on top, domains, hosts beneath; a link's width says its rate, its colour what is wrong.

Every node spans what is below it, so that every link goes straight up. Few leaves stand side by side, more of them
below each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from hemiola.report.job.words import percent
from hemiola.report.network.figures import SLOW, NetworkFigures, Rate, are_apart, is_slow
from hemiola.report.network.shapes import LETTER, box, cut, label, text
from hemiola.report.network.tree import LEAVES, ROWS, TreeNode, columns, fitting_tree, leaves
from hemiola.report.network.words import interval, rate_words, short_rate

__all__ = ["KEYS", "network_picture"]

KEYS = (
    ("link", "--communication"), (f"below {100 * SLOW:.0f} % of the median of its kind", "--wire"),
    (f"uplink below {100 * SLOW:.0f} % of what its hosts could send", "--others"),
)  # fmt: skip

WIDTH = 1120
BOX, ZONE, TOP = 46, 92, 6
HEAD, LINE, BRANCH, MARGIN = 22, 14, 24, 16
WIDEST, NARROWEST = 26.0, 1.6
PITCH_LEAST, PITCH_MOST, COLUMN_LEAST = 70, 200, 130


def network_picture(figures: NetworkFigures) -> str:
    """The picture as an SVG element."""
    return _Picture(figures).svg()


class _Picture:
    """Where everything stands."""

    def __init__(self, figures: NetworkFigures) -> None:
        self.figures = figures
        self.root = fitting_tree(figures)
        self.side_by_side = len(list(leaves(self.root))) <= LEAVES
        rates = [rate.bytes_per_s for node in _all(self.root) for rate in (node.out, node.into)]
        self.fastest = max((rate for rate in rates if math.isfinite(rate)), default=0.0)
        self.bottom = 0.0

    def svg(self) -> str:
        """The element."""
        units = self._units(self.root)
        least, most = (PITCH_LEAST, PITCH_MOST) if self.side_by_side else (COLUMN_LEAST, WIDTH)
        width = max(WIDTH, least * units)
        pitch = min(width / units, most)
        parts = [*self._node(self.root, (width - pitch * units) / 2, pitch, TOP)]
        return (
            f'<div class="scroll"><svg viewBox="0 0 {width} {self.bottom + 8:.0f}" width="100%" style="min-width:{0.68 * width:.0f}px;display:block" '
            f'role="img" aria-label="The network" font-family="inherit" font-size="13">{"".join(parts)}</svg></div>'
        )

    def _units(self, node: TreeNode) -> int:
        return len(list(leaves(node))) if self.side_by_side else columns(node)

    def _node(self, node: TreeNode, left: float, pitch: float, top: float) -> Iterator[str]:
        """A node's box and all below it."""
        lines = (node.title, self._note(node))
        yield box(lines, left, top, pitch * self._units(node), BOX, self._said(node), stacked=node.count > 1)
        self.bottom = max(self.bottom, top + BOX)
        if not self.side_by_side and all(not child.children for child in node.children):
            yield from self._rows(node, left, pitch, top + BOX)
            return
        for child in node.children:
            width = pitch * self._units(child)
            yield from self._link(child, left + width / 2, top + BOX, width)
            yield from self._node(child, left, pitch, top + BOX + ZONE)
            left += width

    def _link(self, node: TreeNode, x: float, top: float, width: float) -> Iterator[str]:
        """The link above a node, straight up, with its rate in the middle."""
        ways = _ways(node)
        room = width / len(ways)
        for number, (arrow, rate) in enumerate(ways):
            at = x + (number - (len(ways) - 1) / 2) * min(room, 100)
            dashes = "" if math.isfinite(rate.bytes_per_s) else ' stroke-dasharray="4 5"'
            yield (
                f'<g><title>{escape(self._said(node))}</title><line x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{top + ZONE}" '
                f'stroke="var({self._color(node, rate)})" stroke-width="{self._thickness(rate):.1f}"{dashes}/>'
                f"{label(self._label(node, rate, arrow, room - 8), at, top + ZONE / 2)}</g>"
            )

    def _label(self, node: TreeNode, rate: Rate, arrow: str, room: float) -> list[str]:
        """What stands at a link, in lines that fit."""
        lines = [f"{_times(node)}{arrow}{short_rate(rate.bytes_per_s)}"]
        if len(lines[0]) * LETTER > room:
            lines = lines[0].rsplit(" ", 1)
        if measured := interval(rate):
            lines.append(measured)
        if self._is_slow(node, rate):
            share = percent(rate.bytes_per_s / self._usual(node))
            lines.append(f"{share} of the median" if room > 125 else share)
        return lines

    def _rows(self, node: TreeNode, left: float, pitch: float, top: float) -> Iterator[str]:
        """Leaves below each other, each at a branch of a thin trunk."""
        room = pitch - BRANCH - MARGIN - 14
        for first in range(0, len(node.children), ROWS):
            x, y, last = left + first // ROWS * pitch + MARGIN, top + 14.0, top
            drawn = []
            for child in node.children[first : first + ROWS]:
                lines = list(self._row_lines(child, room))
                drawn.append(self._row(child, lines, x, y, room))
                last, y = y + HEAD - 4, y + HEAD + LINE * len(lines) + 4
            yield f'<line x1="{x}" x2="{x}" y1="{top}" y2="{last}" stroke="var(--soft)" stroke-width="1.5"/>'
            yield from drawn
            self.bottom = max(self.bottom, y)

    def _row_lines(self, node: TreeNode, room: float) -> Iterator[tuple[str, bool]]:
        """What stands below a leaf's name: (text, whether it is of a slow link)."""
        for arrow, rate in _ways(node):
            slow, said = self._is_slow(node, rate), f"{_times(node)}{arrow}{rate_words(rate)}"
            if len(said) * LETTER <= room:
                yield said, slow
            else:
                yield said.partition(" (")[0], slow
                yield from ((one, slow) for one in [interval(rate)] if one)

    def _row(self, node: TreeNode, lines: Sequence[tuple[str, bool]], x: float, y: float, room: float) -> str:
        parts = [f"<title>{escape(self._said(node))}</title>"]
        ways = _ways(node)
        for number, (_, rate) in enumerate(ways):
            at, thick = y + HEAD - 4 + (number - (len(ways) - 1) / 2) * 16, self._thickness(rate) * 0.6
            parts.append(
                f'<line x1="{x}" x2="{x + BRANCH}" y1="{at:.1f}" y2="{at:.1f}" stroke="var({self._color(node, rate)})" stroke-width="{thick:.1f}"/>'
            )
        left = x + BRANCH + 6
        parts.append(text(left, y + 14, cut(node.title, room), "var(--ink)", 'font-weight="650"'))
        for number, (said, slow) in enumerate(lines):
            look = ("var(--bad)", 'font-weight="650"') if slow else ("var(--soft)", "")
            parts.append(text(left, y + 14 + LINE * (number + 1), cut(said, room), *look, size=12))
        return f"<g>{''.join(parts)}</g>"

    def _usual(self, node: TreeNode) -> float:
        """The median of this kind of link."""
        return self.figures.median_uplink(node.tier - 1) if node.tier else self.figures.median_bytes_per_s

    def _is_slow(self, node: TreeNode, rate: Rate) -> bool:
        return not node.kinds and is_slow(rate, self._usual(node))

    def _color(self, node: TreeNode, rate: Rate) -> str:
        if not math.isfinite(rate.bytes_per_s):
            return "--soft"
        if self._is_slow(node, rate):
            return "--wire"
        return (
            "--others" if node.tier and rate.bytes_per_s < SLOW * node.sent_bytes_per_s else "--communication"
        )

    def _thickness(self, rate: Rate) -> float:
        """Twice as wide for four times the rate."""
        if not (math.isfinite(rate.bytes_per_s) and self.fastest):
            return NARROWEST
        return max(NARROWEST, WIDEST * math.sqrt(rate.bytes_per_s / self.fastest))

    def _note(self, node: TreeNode) -> str:
        """The second line of a box."""
        if node is self.root:
            return f"{node.hosts:,} host{'s' * (node.hosts > 1)}"
        if not node.tier:
            each = " each" if node.count < node.all else ""
            return f"{node.count:,} hosts{each}" if node.count > 1 and not node.kinds else ""
        ratio = node.sent_bytes_per_s / node.out.bytes_per_s
        over = f", {ratio:.3g}:1" if ratio > 1 / SLOW and not node.kinds else ""
        times = "" if node.kinds else _times(node)
        return f"{times}{node.hosts:,} host{'s' * (node.hosts > 1)}{over}"

    def _said(self, node: TreeNode) -> str:
        """What is told of a node when it is pointed at."""
        if node is self.root:
            return node.title
        said = [node.title]
        if node.kinds:
            return f"{node.title}: not alike; the table has them"
        each = "each " if node.count > 1 else ""
        if len(_ways(node)) > 1:
            said.append(f"{each}out {rate_words(node.out)}, in {rate_words(node.into)}")
        else:
            said.append(f"{each}{rate_words(node.out)}")
        slower = min(node.out, node.into, key=lambda rate: rate.bytes_per_s)
        usual = self._usual(node)
        if math.isfinite(slower.bytes_per_s) and math.isfinite(usual):
            said.append(
                f"{percent(slower.bytes_per_s / usual)} of the median {'uplink' if node.tier else 'host'}"
            )
        if node.tier:
            said.append(f"the hosts below could send {short_rate(node.sent_bytes_per_s)}")
        return "; ".join(said)


def _all(node: TreeNode) -> Iterator[TreeNode]:
    yield node
    for child in node.children:
        yield from _all(child)


def _times(node: TreeNode) -> str:
    return f"{node.count:,} × " if node.count > 1 else ""


def _ways(node: TreeNode) -> list[tuple[str, Rate]]:
    """The link above a node, or its two directions where they differ."""
    if are_apart(node.out, node.into):
        return [("↑ ", node.out), ("↓ ", node.into)]
    return [("", min(node.out, node.into, key=lambda rate: rate.bytes_per_s))]
