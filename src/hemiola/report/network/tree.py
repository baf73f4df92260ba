"""A topology as a tree that fits into a picture: hosts and domains that are alike become one node where they are many.

Three degrees of detail: every host; hosts of one domain that are alike together; domains that are alike together too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any

from hemiola.report.network.figures import NetworkFigures, Rate, joined
from hemiola.report.network.words import domain_names, names_words

__all__ = ["COLUMNS", "LEAVES", "ROWS", "TreeNode", "columns", "fitting_tree", "leaves"]

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
