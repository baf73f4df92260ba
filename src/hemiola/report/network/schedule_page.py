"""A schedule's page: whether it is right, its trees, who sends how much to whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING

from hemiola.core.collective.schedule import ChunkMove, CollectiveSchedule
from hemiola.core.errors import ScheduleError
from hemiola.report.job.page import card, table
from hemiola.report.network.page import head, page
from hemiola.report.network.picture import text
from hemiola.report.network.words import lines_table, share_words

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

__all__ = [
    "MOST_RANKS",
    "RankTree",
    "ScheduleFigures",
    "ScheduleTable",
    "facts",
    "is_wide",
    "multiple",
    "proof",
    "rank_rows",
    "render_schedule",
    "schedule_figures",
    "shape",
    "short_name",
    "tree_picture",
    "trees_of",
    "way_words",
]

# Who sends how much to whom, as a matrix: rows send, columns receive; the darker a cell, the more.

CELLS = 64
"""Most rows; of more ranks, neighbours are put together."""
SIDE, CELL_MOST, LEFT, TOP = 600, 46, 74, 46
_WRITTEN = 34
"""Size of a cell that its number fits into."""


def matrix_picture(between: dict[tuple[int, int], float], ranks: int) -> str:
    """The picture as an SVG element.

    Args:
        between: what goes from one rank to another, as a multiple of the data.
    """
    together = ceil(ranks / CELLS)
    count = ceil(ranks / together)
    sums: dict[tuple[int, int], float] = {}
    for (source, target), share in between.items():
        cell = source // together, target // together
        sums[cell] = sums.get(cell, 0.0) + share
    most = max(sums.values(), default=1.0)
    size = min(SIDE / count, CELL_MOST)
    side = size * count
    parts = [
        f'<rect x="{LEFT}" y="{TOP}" width="{side:.1f}" height="{side:.1f}" fill="none" stroke="var(--line)"/>',
        text(LEFT + side / 2, 14, "to rank", "var(--soft)", 'text-anchor="middle"'),
        text(0, TOP - 8, "from rank", "var(--soft)"),
    ]
    for (row, column), share in sorted(sums.items()):
        parts.append(_cell(row, column, share, most, size, together, ranks))
    every = ceil(count / (32 if size >= 18 else 16))
    for number in range(0, count, every):
        at = (number + 0.5) * size
        parts.append(
            text(LEFT + at, TOP - 8, str(number * together), "var(--ink)", 'text-anchor="middle"', size=12)
        )
        parts.append(
            text(LEFT - 8, TOP + at + 4, str(number * together), "var(--ink)", 'text-anchor="end"', size=12)
        )
    width, height = LEFT + side + 4, TOP + side + 4
    return (
        f'<div class="scroll"><svg viewBox="0 0 {width:.0f} {height:.0f}" style="display:block;width:100%;max-width:{width:.0f}px" role="img" '
        f'aria-label="Who sends how much to whom" font-family="inherit">{"".join(parts)}</svg></div>'
    )


def _cell(row: int, column: int, share: float, most: float, size: float, together: int, ranks: int) -> str:
    x, y, dark = LEFT + column * size, TOP + row * size, share / most
    said = f"{_ranks(row, together, ranks)} to {_ranks(column, together, ranks)}: {multiple(share)} the data"
    box = (
        f'<rect x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{size - 1:.1f}" height="{size - 1:.1f}" fill="var(--communication)" '
        f'fill-opacity="{0.12 + 0.88 * dark:.2f}"><title>{said}</title></rect>'
    )
    if size < _WRITTEN:
        return box
    ink = "var(--paper)" if dark > 0.55 else "var(--ink)"
    return box + text(
        x + size / 2,
        y + size / 2 + 4,
        f"{share:.2g}",
        ink,
        'text-anchor="middle" pointer-events="none"',
        size=12,
    )


def _ranks(cell: int, together: int, ranks: int) -> str:
    first, last = cell * together, min((cell + 1) * together, ranks) - 1
    return f"rank {first}" if first == last else f"ranks {first} to {last}"


MOST_TREES = 12
_WAYS = {
    "all-reduce": "Sums go up to the root (filled), the result comes down the same way.",
    "broadcast": "The data comes down from the root (filled).",
    "reduce": "Sums go up to the root (filled).",
}


def render_schedule(figures: ScheduleFigures, title: str = "") -> str:
    """The page as text."""
    heading = title or short_name(figures)
    if figures.problem:
        more = [f"What to do: {figures.problem.remedy}."] if figures.problem.remedy else []
        return page(heading, [head(heading, facts(figures), proof(figures), more, [])])
    return page(
        heading,
        [
            head(heading, facts(figures), proof(figures), [], _numbers(figures)),
            _trees(figures),
            _matrix(figures),
            card(
                "Ranks",
                f"Busiest first, as multiples of the data. {way_words(figures)}",
                table(*rank_rows(figures.groups)),
            ),
        ],
    )


def _numbers(figures: ScheduleFigures) -> list[tuple[str, str]]:
    found = [
        (f"{figures.hops:,}", "hops one after the other on the longest way"),
        (multiple(figures.busiest), "the data: the most that a rank sends or receives"),
        (f"{figures.sent:,}", "moves over the network"),
    ]
    return (
        [*found, (f"{len(figures.trees):,}", f"different tree{'s' * (len(figures.trees) > 1)}")]
        if figures.trees
        else found
    )


def _trees(figures: ScheduleFigures) -> str:
    drawn = figures.trees[:MOST_TREES]
    if not drawn or figures.schedule.ranks > MOST_RANKS:
        return ""
    ways = _WAYS[figures.schedule.collective]
    cards = [
        (is_wide(tree), _card(number, share_words(tree.share), ways, tree_picture(tree, number)))
        for number, tree in enumerate(drawn, 1)
    ]
    narrow = "".join(text for wide, text in cards if not wide)
    told = "".join(text for wide, text in cards if wide)
    left = len(figures.trees) - len(drawn)
    more = f'<p class="aside">{left:,} further trees carry {share_words(sum(tree.share for tree in figures.trees[MOST_TREES:]))} of the data.</p>'
    return (f'<section class="grid">{narrow}</section>' if narrow else "") + told + (more if left else "")


def _card(number: int, share: str, ways: str, picture: str) -> str:
    return f'<section class="card"><h2>Tree {number}: {escape(share)} of the data</h2><p class="about">{escape(ways)}</p>{picture}</section>'


def _matrix(figures: ScheduleFigures) -> str:
    ranks = figures.schedule.ranks
    text = "As multiples of the data, all moves together; the darker, the more."
    if ranks > CELLS:
        text += " Neighbouring ranks share a row and a column."
    return card("Who sends how much to whom", text, matrix_picture(figures.between or {}, ranks))


# A schedule's figures in plain words, the same in the terminal and on the page.

# What a schedule comes to: whether it is proved right, who sends how much to whom, which trees its chunks
# go along.


@dataclass(frozen=True)
class AlikeRanks:
    """Ranks that send and receive alike.

    Attributes:
        ranks: which.
        sends, receives: of each, as a multiple of the data.
        to, of: how many others each sends to, and receives from.
    """

    ranks: tuple[int, ...]
    sends: float
    receives: float
    to: int
    of: int


@dataclass(frozen=True)
class ScheduleFigures:
    """A schedule's figures; of one that is not right, only what is wrong.

    Attributes:
        schedule: of which.
        problem: why it is not right; None if it is proved right.
        hops: over the network one after the other, on the longest way.
        sent: moves over the network.
        between: shares of the data that go from one rank to another, by (source, target); chunks sent twice count twice.
        groups: ranks that are alike, those that send most first.
        trees: that all chunks go along, the largest share first; () if some chunk's moves are no tree.
    """

    schedule: CollectiveSchedule
    problem: ScheduleError | None
    hops: int = 0
    sent: int = 0
    between: dict[tuple[int, int], float] | None = None
    groups: tuple[AlikeRanks, ...] = ()
    trees: tuple[RankTree, ...] = ()

    @property
    def busiest(self) -> float:
        """The most that a rank sends or receives, as a multiple of the data."""
        return max((max(group.sends, group.receives) for group in self.groups), default=0.0)


def schedule_figures(schedule: CollectiveSchedule) -> ScheduleFigures:
    """Prove a schedule and look at it."""
    try:
        schedule.verify()
    except ScheduleError as problem:
        return ScheduleFigures(schedule, problem)
    between: Counter[tuple[int, int]] = Counter()
    shares: dict[tuple[int, int], float] = {}
    for move in schedule.moves:
        if move.is_sent:
            pair = move.source.rank, move.target.rank
            between[pair] += 1
            shares[pair] = shares.get(pair, 0.0) + _share(schedule, move)
    return ScheduleFigures(
        schedule, None, schedule.traffic().hops, between.total(), shares, _groups(schedule.ranks, shares), trees_of(schedule)
    )  # fmt: skip


def _share(schedule: CollectiveSchedule, move: ChunkMove) -> float:
    """Of the data in one move; weights are only allowed where a place's index is its chunk's."""
    if not schedule.weights:
        return move.count / schedule.chunks
    return sum(schedule.weights[move.source.index : move.source.index + move.count])


def _groups(ranks: int, shares: dict[tuple[int, int], float]) -> tuple[AlikeRanks, ...]:
    sends, receives = [0.0] * ranks, [0.0] * ranks
    to, of = Counter(source for source, _ in shares), Counter(target for _, target in shares)
    for (source, target), share in shares.items():
        sends[source] += share
        receives[target] += share
    alike: dict[tuple[float, float, int, int], list[int]] = {}
    for rank in range(ranks):
        key = round(sends[rank], 6), round(receives[rank], 6), to[rank], of[rank]
        alike.setdefault(key, []).append(rank)
    found = [AlikeRanks(tuple(members), *key) for key, members in alike.items()]
    return tuple(sorted(found, key=lambda group: (-max(group.sends, group.receives), group.ranks)))


_LONGEST, _NAME = 44, 60


def facts(figures: ScheduleFigures) -> list[str]:
    """What the schedule is, in a few words."""
    schedule = figures.schedule
    rooted = f" of rank {schedule.root}" if schedule.collective in ("broadcast", "reduce") else ""
    chunks = f"{schedule.chunks:,} chunk{'s' * (schedule.chunks > 1)}"
    pieces = (
        f"in pieces of {schedule.chunk_bytes / 1024:,.4g} KiB"
        if schedule.chunk_bytes
        else "pieces of no given size"
    )
    told = [
        f"{schedule.collective}{rooted}",
        f"{schedule.ranks:,} ranks",
        f"{chunks}{_weights(schedule.weights)}",
        pieces,
    ]
    told.append("in place" if schedule.in_place else "from input to output")
    return [*told, f"made by: {schedule.source}"] if schedule.source else told


def _weights(weights: Sequence[float]) -> str:
    if not weights:
        return ""
    if len(weights) <= 6:
        return f" ({', '.join(share_words(weight) for weight in weights)})"
    least, most = share_words(min(weights)), share_words(max(weights))
    return f" ({least} to {most} each)" if least != most else f" ({most} each)"


def short_name(figures: ScheduleFigures) -> str:
    """The schedule's name; a long one, such as a ring's of many ranks, is cut."""
    name = figures.schedule.name
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"


def proof(figures: ScheduleFigures) -> str:
    """Whether it is right."""
    if figures.problem:
        return f"Not right: {figures.problem.what}."
    moves = len(figures.schedule.moves)
    return f"Proved right: after its {moves:,} move{'s' * (moves != 1)} every rank has its result, each contribution once."


def way_words(figures: ScheduleFigures) -> str:
    """The longest way, and the busiest rank."""
    hops = f"The longest way is {figures.hops:,} hop{'s' * (figures.hops != 1)}"
    return f"{hops}; the busiest rank sends or receives {multiple(figures.busiest)} the data."


def multiple(share: float) -> str:
    """A multiple of the data."""
    return f"{share:.3g} ×"


def ranks_words(ranks: Sequence[int]) -> str:
    """Ranks in their order, neighbours as a range."""
    starts = [0, *(n for n, (a, b) in enumerate(pairwise(ranks), 1) if b != a + 1), len(ranks)]
    runs = [ranks[a:b] for a, b in pairwise(starts)]
    text = ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    if len(text) > _LONGEST:
        text = f"{ranks[0]}, {ranks[1]} and {len(ranks) - 2:,} more"
    return f"rank{'s' * (len(ranks) > 1)} {text}"


def rank_rows(groups: Sequence[AlikeRanks]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and lines of the table of ranks."""
    rows: list[tuple[str, ...]] = [
        (ranks_words(one.ranks), multiple(one.sends), f"{one.to:,}", multiple(one.receives), f"{one.of:,}")
        for one in groups
    ]
    return ("", "each sends", "to so many", "each receives", "from so many"), rows


# A schedule in the terminal: what it is, whether it is right, what each rank sends, along which trees.


class ScheduleTable:
    """The tables, one below the other, as something that Rich can print."""

    def __init__(self, figures: ScheduleFigures) -> None:
        self.figures = figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """What to draw."""
        from rich.text import Text

        figures = self.figures
        yield Text(short_name(figures), style="bold") + Text(
            f": {', '.join(facts(figures))}", style="not bold"
        )
        yield Text(proof(figures), style="bold red" if figures.problem else "bold")
        if figures.problem:
            return
        yield Text(way_words(figures))
        yield from lines_table("Ranks, busiest first", *rank_rows(figures.groups))
        rows = []
        for number, tree in enumerate(figures.trees, 1):
            found = shape(tree)
            rows.append(
                (
                    f"tree {number}",
                    share_words(tree.share),
                    f"rank {tree.root}",
                    f"{found.depth:,}",
                    f"{found.most:,}",
                )
            )
        yield from lines_table(
            "Trees", ("", "of the data", "root", "hops to the root", "most children"), rows
        )


# A tree of a schedule drawn: its root on top, or on the left where it is much deeper than wide.

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
