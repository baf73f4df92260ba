"""A tree of a schedule drawn: its root on top, or on the left where it is much deeper than wide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

from hemiola.core.collective.schedule import ChunkMove, CollectiveSchedule
from hemiola.report.network.picture import text

__all__ = ["MOST_RANKS", "RankTree", "is_wide", "shape", "tree_picture", "trees_of"]


# The trees that a schedule's chunks go along, if that is what they do.


@dataclass(frozen=True)
class RankTree:
    """One tree of all ranks.

    Attributes:
        parents: of each rank; -1 for the root.
        share: of the data that goes along it.
        chunks: that do.
    """

    parents: tuple[int, ...]
    share: float
    chunks: tuple[int, ...]

    @property
    def root(self) -> int:
        """The rank without a parent."""
        return self.parents.index(-1)


def trees_of(schedule: CollectiveSchedule) -> tuple[RankTree, ...]:
    """The trees of an all-reduce, a broadcast or a reduce, equal ones as one, the largest share first.

    () if some chunk's sums do not go up the tree that its result comes down, or a place holds first one chunk and
    then another.
    """
    if schedule.collective not in ("all-reduce", "broadcast", "reduce") or schedule.ranks < 2:
        return ()
    moves: list[list[ChunkMove]] = [[] for _ in range(schedule.chunks)]
    for move in schedule.moves:
        if (move.source.buffer, move.source.index) != (move.target.buffer, move.target.index):
            return ()
        if move.source.buffer != "input" or move.source.index + move.count > schedule.chunks:
            return ()
        for chunk in range(move.source.index, move.source.index + move.count):
            moves[chunk].append(move)
    weights = schedule.weights or (1 / schedule.chunks,) * schedule.chunks
    chunks: dict[tuple[int, ...], list[int]] = {}
    for chunk, mine in enumerate(moves):
        parents = _parents(schedule, mine)
        if not parents:
            return ()
        chunks.setdefault(parents, []).append(chunk)
    found = [RankTree(parents, sum(weights[c] for c in own), tuple(own)) for parents, own in chunks.items()]
    return tuple(sorted(found, key=lambda tree: (-tree.share, tree.chunks)))


def _parents(schedule: CollectiveSchedule, moves: Iterable[ChunkMove]) -> tuple[int, ...]:
    """Of one chunk; () if its moves are no tree, or its sums go another way than its result."""
    up: dict[int, int] = {}
    down: dict[int, int] = {}
    for move in moves:
        child, parent = (
            (move.source.rank, move.target.rank) if move.adds else (move.target.rank, move.source.rank)
        )
        ways = up if move.adds else down
        if child in ways:
            return ()
        ways[child] = parent
    expected = {"all-reduce": [up, down], "broadcast": [down], "reduce": [up]}[schedule.collective]
    first = expected[0]
    if any(one != first for one in expected) or len(first) != schedule.ranks - 1:
        return ()
    return tuple(first.get(rank, -1) for rank in range(schedule.ranks))


MOST_RANKS = 256
"""Of a tree that is drawn."""
NARROW, WIDE = 340, 1120
STEP_MOST, RADIUS_MOST, LABELLED = 58.0, 15.0, 7.5
_SLIM = 10
"""Leaves, or ranks one behind the other, that fit into the narrow picture."""


@dataclass(frozen=True)
class TreeShape:
    """A tree laid out.

    Attributes:
        across: of each rank, in leaves from the first.
        deep: of each rank, hops from the root.
        leaves: how many.
        most: children of one rank.
    """

    across: tuple[float, ...]
    deep: tuple[int, ...]
    leaves: int
    most: int

    @property
    def depth(self) -> int:
        """Hops from the farthest rank to the root."""
        return max(self.deep)

    @property
    def lies(self) -> bool:
        """Whether it is drawn from left to right."""
        return self.depth > 2 * self.leaves


def shape(tree: RankTree) -> TreeShape:
    """Lay a tree out: leaves side by side, each parent in the middle of its children."""
    children: list[list[int]] = [[] for _ in tree.parents]
    for rank, parent in enumerate(tree.parents):
        if parent >= 0:
            children[parent].append(rank)
    order, deep = [tree.root], [0] * len(tree.parents)
    stack = list(reversed(children[tree.root]))
    while stack:
        rank = stack.pop()
        order.append(rank)
        deep[rank] = deep[tree.parents[rank]] + 1
        stack += reversed(children[rank])
    across, leaves = [0.0] * len(order), 0
    for rank in order:
        if not children[rank]:
            across[rank], leaves = float(leaves), leaves + 1
    for rank in reversed(order):
        if children[rank]:
            across[rank] = (across[children[rank][0]] + across[children[rank][-1]]) / 2
    return TreeShape(tuple(across), tuple(deep), leaves, max(map(len, children)))


def is_wide(tree: RankTree) -> bool:
    """Whether it needs the page's whole width."""
    found = shape(tree)
    return (found.depth if found.lies else found.leaves) > _SLIM


def tree_picture(tree: RankTree, number: int) -> str:
    """The picture as an SVG element."""
    found = shape(tree)
    width = WIDE if is_wide(tree) else NARROW
    long, short = (found.depth + 1, found.leaves) if found.lies else (found.leaves, found.depth + 1)
    pitch = min(width / long, 90.0)
    step = min(STEP_MOST, max(pitch, 34.0)) if found.lies else STEP_MOST
    radius = min(RADIUS_MOST, 0.42 * pitch, 0.42 * step)
    height = step * short + 4
    shift = (width - pitch * long) / 2

    def place(rank: int) -> tuple[float, float]:
        along, down = (
            (found.deep[rank], found.across[rank]) if found.lies else (found.across[rank], found.deep[rank])
        )
        return shift + (along + 0.5) * pitch, 2 + (down + 0.5) * step

    edges = [
        _edge(place(rank), place(parent), rank, parent)
        for rank, parent in enumerate(tree.parents)
        if parent >= 0
    ]
    nodes = [_node(place(rank), radius, rank, rank == tree.root) for rank in range(len(tree.parents))]
    return (
        f'<svg viewBox="0 0 {width} {height:.0f}" width="100%" style="display:block;margin-top:10px;max-height:{max(height, 420):.0f}px" role="img" '
        f'aria-label="Tree {number}" font-family="inherit">{"".join((*edges, *_flat(nodes)))}</svg>'
    )


def _edge(child: tuple[float, float], parent: tuple[float, float], rank: int, above: int) -> str:
    return (
        f'<line x1="{child[0]:.1f}" y1="{child[1]:.1f}" x2="{parent[0]:.1f}" y2="{parent[1]:.1f}" stroke="var(--communication)" '
        f'stroke-width="2.5"><title>rank {rank} below rank {above}</title></line>'
    )


def _node(at: tuple[float, float], radius: float, rank: int, is_root: bool) -> Iterator[str]:
    fill, ink = ("var(--communication)", "var(--paper)") if is_root else ("var(--paper)", "var(--ink)")
    yield (
        f'<g><title>{escape(f"rank {rank}" + ", the root" * is_root)}</title><circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius:.1f}" '
        f'fill="{fill}" stroke="var(--communication)" stroke-width="{2 if radius > 5 else 1}"/>'
    )
    if radius >= LABELLED:
        size = min(13.0, radius * 1.9 / max(len(str(rank)), 2) * 1.35)
        yield text(
            at[0],
            at[1] + size * 0.36,
            str(rank),
            ink,
            'text-anchor="middle" font-weight="650" pointer-events="none"',
            size=round(size, 1),
        )
    yield "</g>"


def _flat(nodes: list[Iterator[str]]) -> Iterator[str]:
    for node in nodes:
        yield from node
