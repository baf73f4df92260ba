"""A topology drawn: the core on top, domains, hosts beneath; a link's width says its rate, its colour what is wrong.

Every node spans what is below it, so that every link goes straight up. Few leaves stand side by side, more of them
below each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil
from statistics import median
from typing import Any

from hemiola.report.job.words import percent
from hemiola.report.network.figures import SLOW, NetworkFigures, Rate, are_apart, is_slow, joined
from hemiola.report.network.words import domain_names, interval, names_words, rate_words, short_rate

__all__ = ["KEYS", "TreeNode", "columns", "fitting_tree", "leaves", "network_picture", "text"]


# A topology as a tree that fits into a picture: hosts and domains that are alike become one node where
# they are many.

LEAVES, WIDE_LEAVES = 16, 10
"""Most leaves that stand side by side: single hosts, and several hosts together, whose names are longer."""
ROWS = 16
"""Most that stand below each other."""
COLUMNS = 8
"""Of such."""
CHILDREN = 8
"""Most children of a node when all that is alike is together already; the fastest of more become one."""


@dataclass(frozen=True)
class TreeNode:
    """Hosts or domains that are alike, or the core of the network.

    Attributes:
        title: their names.
        tier: 0 for hosts, then the levels' numbers from 1; the core stands above all.
        count: of them below each one of the node above.
        all: of them in the whole network.
        hosts: below each; below all `count` of several that are not alike.
        out, into: of the link above each.
        children: below each.
        kinds: whether it stands for several that are not alike.
        sent_bytes_per_s: what the hosts below each could send together; of several that are not alike, the median.
    """

    title: str
    tier: int
    count: int
    all: int
    hosts: int
    out: Rate
    into: Rate
    children: tuple[TreeNode, ...] = ()
    kinds: bool = False
    sent_bytes_per_s: float = 0.0


@dataclass(frozen=True)
class _Item:
    """Members of one tier by their numbers, what makes them alike, and what is below."""

    sign: Any
    tier: int
    members: tuple[int, ...]
    below: tuple[_Item, ...] = ()


def fitting_tree(figures: NetworkFigures) -> TreeNode:
    """The tree with most detail that fits."""
    for detail in (0, 1):
        if len(figures.topology.hosts) > (COLUMNS * ROWS if detail == 0 else 1 << 14):
            continue
        node = _Builder(figures, detail).root()
        if len(list(leaves(node))) <= (WIDE_LEAVES if detail else LEAVES) or columns(node) <= COLUMNS:
            return node
    return _Builder(figures, 2).root()


def leaves(node: TreeNode) -> Iterator[TreeNode]:
    """The nodes without children, from left to right."""
    if not node.children:
        yield node
    for child in node.children:
        yield from leaves(child)


def columns(node: TreeNode) -> int:
    """How many columns its leaves need if they stand below each other."""
    if all(not child.children for child in node.children):
        return max(ceil(len(node.children) / ROWS), 1)
    return sum(columns(child) for child in node.children)


class _Builder:
    """Makes the tree at one degree of detail."""

    def __init__(self, figures: NetworkFigures, detail: int) -> None:
        self.figures = figures
        self.detail = detail
        self.levels = figures.topology.levels
        self.host_sign = {host: n for n, group in enumerate(figures.groups) for host in group.hosts}
        self.domain_sign = [
            {number: n for n, one in enumerate(every) for number in one.numbers} for every in figures.domains
        ]
        self.inside = [self._inside(tier) for tier in range(len(self.levels))]

    def _inside(self, tier: int) -> list[list[int]]:
        """For each domain of a level, the numbers of what is below: hosts, or the domains of the level below."""
        home = self.levels[tier].domain_of_host.tolist()
        found: list[dict[int, None]] = [{} for _ in self.levels[tier].domains]
        below = range(len(home)) if tier == 0 else self.levels[tier - 1].domain_of_host.tolist()
        for host, number in enumerate(below):
            found[home[host]][number] = None
        return [list(one) for one in found]

    def root(self) -> TreeNode:
        """The core and all below it; a widest level of one domain is the core itself."""
        tiers = len(self.levels)
        hosts = len(self.figures.topology.hosts)
        title, top = "network", tiers
        if tiers and len(self.levels[-1].domains) == 1:
            title, top = domain_names(self.figures, tiers - 1, [0]), tiers - 1
        numbers = range(len(self.levels[top - 1].domains) if top else hosts)
        below = self._together([self._item(top, number) for number in numbers], self.detail > 1 or top == 0)
        nothing = Rate(0.0, 0.0, 0.0)
        return TreeNode(title, top + 1, 1, 1, hosts, nothing, nothing, self._few(self._nodes(below, 1)))

    def _item(self, tier: int, number: int) -> _Item:
        if tier == 0:
            return _Item(self.host_sign[number], 0, (number,))
        items = [self._item(tier - 1, inner) for inner in self.inside[tier - 1][number]]
        below = self._together(items, self.detail > 1 or tier == 1)
        sign = (self.domain_sign[tier - 1][number], tuple((one.sign, len(one.members)) for one in below))
        return _Item(sign, tier, (number,), below)

    def _together(self, items: Sequence[_Item], may: bool) -> tuple[_Item, ...]:
        """Items that are alike as one, the slowest first; at full detail each by itself."""
        if not (may and self.detail):
            return tuple(items)
        alike: dict[Any, list[_Item]] = {}
        for item in items:
            alike.setdefault(item.sign, []).append(item)
        return tuple(_joined(alike[sign]) for sign in sorted(alike))

    def _nodes(self, items: Sequence[_Item], parents: int) -> tuple[TreeNode, ...]:
        return tuple(self._node(item, parents) for item in items)

    def _few(self, nodes: tuple[TreeNode, ...]) -> tuple[TreeNode, ...]:
        """Those that are shown of a node's children."""
        if self.detail < 2 or len(nodes) <= CHILDREN:
            return nodes
        return (*nodes[: CHILDREN - 1], _rest(nodes[CHILDREN - 1 :]))

    def _node(self, item: _Item, parents: int) -> TreeNode:
        figures, members = self.figures, item.members
        of = [figures.out, figures.into] if item.tier == 0 else [figures.uplinks[item.tier - 1]] * 2
        out, into = (joined([rates[number] for number in members]) for rates in of)
        below = self._nodes(item.below, len(members))
        hosts = sum(node.hosts * node.count for node in below) or 1
        sent = (
            sum(min(node.out.bytes_per_s, node.into.bytes_per_s) * node.count for node in below)
            if item.tier == 1
            else sum(node.sent_bytes_per_s * node.count for node in below)
        )
        return TreeNode(
            self._title(item), item.tier, len(members) // parents, len(members), hosts, out, into, self._few(below),
            sent_bytes_per_s=sent,
        )  # fmt: skip

    def _title(self, item: _Item) -> str:
        if item.tier:
            return domain_names(self.figures, item.tier - 1, item.members)
        return names_words([self.figures.topology.hosts.names[host] for host in item.members])


def _joined(items: Sequence[_Item]) -> _Item:
    """Items of one sign; what is below them has the same signs in the same order."""
    if len(items) == 1:
        return items[0]
    below = tuple(_joined(same) for same in zip(*(item.below for item in items), strict=True))
    members = tuple(number for item in items for number in item.members)
    return _Item(items[0].sign, items[0].tier, members, below)


def _rest(nodes: Sequence[TreeNode]) -> TreeNode:
    """Nodes that are not alike, as one."""
    count, every = sum(node.count for node in nodes), sum(node.all for node in nodes)
    out, into = joined([node.out for node in nodes]), joined([node.into for node in nodes])
    hosts = sum(node.hosts * node.count for node in nodes)
    sent = median(node.sent_bytes_per_s for node in nodes)
    return TreeNode(
        f"{count:,} others", nodes[0].tier, count, every, hosts, out, into, kinds=True, sent_bytes_per_s=sent
    )


# Boxes and texts of the pictures, as SVG. Knows no network.

LETTER = 7.1
"""Width of a letter, about, at 13 px."""
_GAP, _LINE = 10, 15


def box(
    lines: tuple[str, str], left: float, top: float, width: float, height: float, said: str, *, stacked: bool
) -> str:
    """A box with a title and a note; one for several that are alike is a stack. `said` is told when pointed at."""
    x, wide = left + _GAP / 2, width - _GAP
    behind = [_rect(x + shift, top + shift, wide - 6, height - 6) for shift in (6, 3)] if stacked else []
    inner, high = (wide - 6, height - 6) if stacked else (wide, height)
    middle, (title, note) = x + inner / 2, lines
    parts = [_rect(x, top, inner, high)]
    parts.append(
        text(
            middle,
            top + high / 2 + (-3 if note else 5),
            cut(title, inner),
            "var(--ink)",
            'font-weight="650" text-anchor="middle"',
        )
    )
    if note:
        parts.append(
            text(
                middle, top + high / 2 + 12, cut(note, inner), "var(--soft)", 'text-anchor="middle"', size=12
            )
        )
    return f"<g><title>{escape(said)}</title>{''.join(behind + parts)}</g>"


def label(lines: Sequence[str], x: float, y: float) -> str:
    """Lines around a place, the first one bold, on a ground of their own so that they can lie on a link."""
    wide, high = max(map(len, lines)) * LETTER + 4, _LINE * len(lines) + 4
    ground = f'<rect x="{x - wide / 2:.1f}" y="{y - high / 2:.1f}" width="{wide:.1f}" height="{high}" rx="4" fill="var(--paper)"/>'
    first = y - high / 2 + 13
    looks = ['text-anchor="middle" font-weight="650"', *['text-anchor="middle"'] * (len(lines) - 1)]
    texts = [
        text(x, first + _LINE * n, line, "var(--ink)", look)
        for n, (line, look) in enumerate(zip(lines, looks, strict=True))
    ]
    return ground + "".join(texts)


def text(x: float, y: float, said: str, fill: str, look: str = "", size: float = 13) -> str:
    """A line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}" {look}>{escape(said)}</text>'


def cut(said: str, width: float) -> str:
    """A text that is not wider."""
    most = max(int(width / LETTER), 3)
    return said if len(said) <= most else f"{said[: most - 1]}…"


def _rect(x: float, y: float, width: float, height: float) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6" fill="var(--page)" stroke="var(--soft)"/>'


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
