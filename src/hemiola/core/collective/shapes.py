"""Schedules of usual shapes: rings, trees, everybody to everybody, halving and doubling."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

import msgspec

from hemiola.core.collective.schedule import (
    Buffer,
    ChunkMove,
    ChunkPlace,
    Collective,
    CollectiveSchedule,
    check_result,
)
from hemiola.core.errors import ScheduleError

__all__ = [
    "all_pairs",
    "binomial",
    "chain",
    "double_tree",
    "halving_doubling",
    "relayed",
    "ring",
    "star_of_each",
    "stars",
    "trees",
]


def ring(order: Sequence[int], collective: Collective = "all-reduce") -> CollectiveSchedule:
    """Chunks go round: added up on the first way round, handed on on the second.

    Args:
        order: the ranks, each before the one that it sends to; the last sends to the first.
        collective: "all-reduce", "reduce-scatter" or "all-gather".

    Raises:
        ScheduleError: the order does not name every rank once, or rings do not do this collective.
    """
    _check_permutation(order)
    if collective not in ("all-reduce", "reduce-scatter", "all-gather"):
        raise ScheduleError(f"a ring does no {collective}", "use trees or all_pairs")
    count = len(order)
    buffer: Buffer = "output" if collective == "all-gather" else "input"

    places = [[ChunkPlace(rank, buffer, chunk) for chunk in range(count)] for rank in range(count)]

    def round_trip(first: int, adds: bool) -> Iterator[ChunkMove]:
        """Everybody sends the chunk that it got before; at first the one `first` places before its own."""
        for step in range(count - 1):
            for at, rank in enumerate(order):
                chunk, to = order[(at - first - step) % count], order[(at + 1) % count]
                yield ChunkMove(places[rank][chunk], places[to][chunk], adds=adds)

    moves = list(round_trip(1, True)) if collective != "all-gather" else []
    moves += list(round_trip(0, False)) if collective != "reduce-scatter" else []
    return CollectiveSchedule(
        name=f"ring {'-'.join(map(str, order))}", collective=collective, ranks=count, chunks=count,
        moves=tuple(moves), source="ring",
    )  # fmt: skip


def trees(
    parents: Sequence[Sequence[int]], weights: Sequence[float] = (), collective: Collective = "all-reduce"
) -> CollectiveSchedule:
    """Each tree carries one chunk: added up on the way to its root, handed down from there.

    Args:
        parents: of every tree, the parent of each rank; -1 for its root.
        weights: each tree's share of the data; () for equal ones.
        collective: "all-reduce", or "broadcast" or "reduce" by trees of one root.

    Raises:
        ScheduleError: one of them is no tree of all ranks, or trees do not do this collective.
    """
    if collective not in ("all-reduce", "broadcast", "reduce"):
        raise ScheduleError(f"trees do no {collective}", "use a ring or all_pairs")
    if not parents:
        raise ScheduleError("there is no tree", "give at least one")
    orders = [_from_root(tree) for tree in parents]
    moves = []
    if collective != "broadcast":
        for chunk, (tree, order) in enumerate(zip(parents, orders, strict=True)):
            for rank in reversed(order[1:]):
                moves.append(
                    ChunkMove(
                        ChunkPlace(rank, "input", chunk), ChunkPlace(tree[rank], "input", chunk), adds=True
                    )
                )
    if collective != "reduce":
        for chunk, (tree, order) in enumerate(zip(parents, orders, strict=True)):
            for rank in order[1:]:
                moves.append(
                    ChunkMove(ChunkPlace(tree[rank], "input", chunk), ChunkPlace(rank, "input", chunk))
                )
    roots = {order[0] for order in orders}
    if collective != "all-reduce" and len(roots) > 1:
        raise ScheduleError(f"the trees' roots are {sorted(roots)}", f"a {collective} has one root")
    return CollectiveSchedule(
        name=f"{len(parents)} tree{'s' * (len(parents) > 1)}", collective=collective, ranks=len(parents[0]), chunks=len(parents),
        moves=tuple(moves), root=0 if collective == "all-reduce" else min(roots), weights=tuple(weights), source="trees",
    )  # fmt: skip


def star_of_each(weights: Sequence[float]) -> CollectiveSchedule:
    """An all-reduce by stars: every rank with a share above 0 is the middle of one."""
    middles = [rank for rank, weight in enumerate(weights) if weight > 0]
    parents = [[-1 if rank == middle else middle for rank in range(len(weights))] for middle in middles]
    return trees(parents, [weights[middle] for middle in middles])


def chain(order: Sequence[int]) -> list[int]:
    """The parents of a tree in which each rank has the one before it.

    Raises:
        ScheduleError: the order does not name every rank once.
    """
    _check_permutation(order)
    parents = [-1] * len(order)
    for before, rank in itertools.pairwise(order):
        parents[rank] = before
    return parents


def binomial(ranks: int, root: int = 0) -> list[int]:
    """The parents of a tree in which twice as many ranks have the data after each step."""
    parents = [-1] * ranks
    for place in range(1, ranks):
        parents[(place + root) % ranks] = ((place & (place - 1)) + root) % ranks
    return parents


def double_tree(order: Sequence[int]) -> list[list[int]]:
    """The parents of two binary trees: who has two or three neighbours in one has one in the other.

    In the first, every other rank is a leaf; the second is its mirror image, or, among an odd number of ranks, the
    first moved on by one (Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
    scan", 2009; NCCL's trees between hosts).

    Args:
        order: the ranks, neighbours in the network one after the other.

    Raises:
        ScheduleError: the order does not name every rank once.
    """
    _check_permutation(order)
    count = len(order)
    second = list(reversed(order)) if count % 2 == 0 else [*order[1:], order[0]]
    return [_binary(order), _binary(second)]


def _binary(order: Sequence[int]) -> list[int]:
    """Parents in a tree whose leaves stand at the odd places of an order."""
    parents = [-1] * len(order)
    for place in range(1, len(order)):
        bit = place & -place
        above = (place ^ bit) | bit << 1
        parents[order[place]] = order[above if above < len(order) else place ^ bit]
    return parents


def all_pairs(ranks: int, collective: Collective = "all-reduce") -> CollectiveSchedule:
    """Everybody sends to everybody, and nothing is sent on.

    Raises:
        ScheduleError: there is no rank, or everybody is not needed for this collective.
    """
    if ranks < 1:
        raise ScheduleError(f"{ranks} ranks", "give at least one")
    pairs = [(rank, (rank + turn) % ranks) for turn in range(1, ranks) for rank in range(ranks)]
    moves = []
    if collective == "all-to-all":
        moves = [ChunkMove(ChunkPlace(a, "input", b), ChunkPlace(b, "output", a)) for a, b in pairs]
        moves += [ChunkMove(ChunkPlace(a, "input", a), ChunkPlace(a, "output", a)) for a in range(ranks)]
    elif collective not in ("all-reduce", "reduce-scatter", "all-gather"):
        raise ScheduleError(f"all pairs do no {collective}", "use trees")
    buffer: Buffer = "output" if collective == "all-gather" else "input"
    if collective in ("all-reduce", "reduce-scatter"):
        moves += [ChunkMove(ChunkPlace(a, buffer, b), ChunkPlace(b, buffer, b), adds=True) for a, b in pairs]
    if collective in ("all-reduce", "all-gather"):
        moves += [ChunkMove(ChunkPlace(a, buffer, a), ChunkPlace(b, buffer, a)) for a, b in pairs]
    return CollectiveSchedule(
        name="all pairs", collective=collective, ranks=ranks, chunks=ranks, moves=tuple(moves),
        in_place=collective != "all-to-all", source="all pairs",
    )  # fmt: skip


def halving_doubling(ranks: int) -> CollectiveSchedule:
    """An all-reduce in which partners twice as near exchange half as much each time, and then the other way round.

    Raises:
        ScheduleError: the number of ranks is no power of two.
    """
    if ranks < 1 or ranks & (ranks - 1):
        raise ScheduleError(f"{ranks} ranks are no power of two", "use a ring or trees")
    moves, back = list[ChunkMove](), list[ChunkMove]()
    half = ranks // 2
    while half:
        there, again = list[ChunkMove](), list[ChunkMove]()
        for rank in range(ranks):
            partner = rank ^ half
            start = partner // half * half  # of the part that the partner goes on with
            there.append(
                ChunkMove(
                    ChunkPlace(rank, "input", start),
                    ChunkPlace(partner, "input", start),
                    count=half,
                    adds=True,
                )
            )
            own = rank // half * half
            again.append(
                ChunkMove(ChunkPlace(rank, "input", own), ChunkPlace(partner, "input", own), count=half)
            )
        moves += there
        back = again + back
        half //= 2
    return CollectiveSchedule(
        name="halving and doubling", collective="all-reduce", ranks=ranks, chunks=ranks, moves=(*moves, *back),
        source="halving and doubling",
    )  # fmt: skip


def _check_permutation(order: Sequence[int]) -> None:
    if sorted(order) != list(range(len(order))) or not order:
        raise ScheduleError(
            f"the order {'-'.join(map(str, order))} does not name every rank once",
            "name ranks from 0, each once",
        )


def _from_root(parents: Sequence[int]) -> list[int]:
    """The ranks, each after its parent."""
    ranks = len(parents)
    children: dict[int, list[int]] = {}
    for rank, parent in enumerate(parents):
        if not -1 <= parent < ranks:
            raise ScheduleError(
                f"rank {rank} has the parent {parent}", f"give 0 to {ranks - 1}, or -1 for the root"
            )
        children.setdefault(parent, []).append(rank)
    roots = children.get(-1, [])
    order = list(roots)
    for rank in order:
        order.extend(children.get(rank, ()))
    if len(roots) != 1 or len(order) != ranks:
        raise ScheduleError(
            f"the parents {list(parents)} are no tree of {ranks} ranks: {len(roots)} roots, {len(order)} of them below one",
            "give one root (-1), and no circle",
        )
    return order


# A schedule among whom only some give: the others relay, and get the result all the same.


def relayed(
    schedule: CollectiveSchedule, active: Collection[int], takers: Collection[int] | None = None
) -> CollectiveSchedule:
    """An all-reduce of what the active ranks give, along the same ways.

    What is empty is not sent, and what comes first to an empty place is put there instead of being added. So a rank
    that gives nothing passes on what comes, and adds only where two things meet (AdapCC, `csrc/control.cu`: hasSend,
    hasRecv, hasKernel). What no taker needs is not sent either. It is proved that every active rank contributes
    once, nobody else does, and all takers have the result.

    Args:
        active: ranks that give.
        takers: ranks that are to have the result; None for all.

    Raises:
        ScheduleError: it is no all-reduce, or nobody is active.
    """
    if schedule.collective != "all-reduce":
        raise ScheduleError(f"{schedule.name!r} is a {schedule.collective}", "only all-reduces are relayed")
    givers = sorted({rank for rank in active if 0 <= rank < schedule.ranks})
    wanted = range(schedule.ranks) if takers is None else sorted(set(takers))
    if not givers:
        raise ScheduleError(f"{schedule.name!r}: nobody is active", "name at least one rank")
    if len(givers) == len(wanted) == schedule.ranks:
        return schedule
    full = {ChunkPlace(rank, "input", chunk) for rank in givers for chunk in range(schedule.chunks)}
    made = [one for move in schedule.moves for one in _made(move, full)]
    buffer: Buffer = "input" if schedule.in_place else "output"
    needed = {ChunkPlace(rank, buffer, chunk) for rank in wanted for chunk in range(schedule.chunks)}
    moves = tuple(reversed([move for move in reversed(made) if _is_needed(move, needed)]))
    found = msgspec.structs.replace(schedule, name=f"{schedule.name} of {len(givers)} ranks", moves=moves)
    check_result(found, givers, wanted)
    return found


def stars(ranks: int, active: Collection[int], takers: Collection[int] | None = None) -> CollectiveSchedule:
    """An all-reduce of what the active ranks give, among equal hosts, for which the others' links are used too.

    Every rank is the middle of one star. Stars around active ranks have them send to each other, and one of them to
    the takers; stars around the others have every active rank send once, and the middle to all takers. Both kinds
    have such shares of the data that active ranks and others send alike.

    Args:
        active, takers: as for `relayed`.
    """
    givers = set(active)
    others = [rank for rank in range(ranks) if rank not in givers]
    wanted = set(range(ranks)) if takers is None else set(takers)
    mine = (len(givers) - 1 + len(wanted | givers) - 1) / len(givers)
    theirs = sum(len(wanted - {other}) for other in others) / max(1, len(others)) ** 2
    share = min(1.0, mine / (theirs + mine - 1)) if others and mine else 0.0
    weights = [share / len(others) if rank in others else (1 - share) / len(givers) for rank in range(ranks)]
    whole = star_of_each(weights)
    return relayed(msgspec.structs.replace(whole, name="stars"), givers, takers)


def _is_needed(move: ChunkMove, needed: set[ChunkPlace]) -> bool:
    """Whether a move is, if these places are needed after it; which are needed before it follows."""
    if needed.isdisjoint(move.targets()):
        return False
    if not move.adds:
        needed.difference_update(move.targets())
    needed.update(move.sources())
    return True


def _made(move: ChunkMove, full: set[ChunkPlace]) -> Iterator[ChunkMove]:
    """What is left of a move: one for each row of chunks to which the same happens. Keeps book of full places."""
    first, kind = 0, ""
    kinds = []
    for source, target in zip(move.sources(), move.targets(), strict=True):
        kinds.append("" if source not in full else "adds" if move.adds and target in full else "puts")
        if source in full:
            full.add(target)
        elif not move.adds:
            full.discard(target)  # nothing is put there
    for at, this in enumerate([*kinds, None]):
        if at and this != kind:
            if kind:
                yield _part(move, first, at - first, kind == "adds")
            first = at
        kind = this or ""


def _part(move: ChunkMove, first: int, count: int, adds: bool) -> ChunkMove:
    source, target = (
        msgspec.structs.replace(place, index=place.index + first) for place in (move.source, move.target)
    )
    return msgspec.structs.replace(move, source=source, target=target, count=count, adds=adds)
