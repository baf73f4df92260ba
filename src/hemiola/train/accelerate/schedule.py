"""All-reduces as steps of messages between pairs of ranks: who sends which elements to whom, and when.

Ring and halving-doubling after Thakur, Rabenseifner and Gropp (IJHPCA 2005, section 4); "direct" is their
reduce-scatter by pairwise exchange followed by an all-gather of the same kind: two steps, however many ranks.
Every element is summed by one rank alone and handed to the others, so all ranks end with the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from hemiola.core.errors import InputError

__all__ = ["ElementRange", "MessageStep", "schedule"]


@dataclass(frozen=True, slots=True)
class ElementRange:
    """Elements from `start` up to `stop`, to or from a peer."""

    peer: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class MessageStep:
    """What is sent and received at once; the next step begins once all of it has come.

    Attributes:
        sends, receives: the messages; empty parts are left out.
        joins: whether what comes is added to what is there, in the order of ranks; else it takes its place.
    """

    sends: tuple[ElementRange, ...]
    receives: tuple[ElementRange, ...]
    joins: bool


def schedule(algorithm: str, rank: int, ranks: int, count: int) -> tuple[MessageStep, ...]:
    """The steps of one rank.

    Args:
        algorithm: "ring", "halving-doubling" (on other than powers of two ranks, and for "": "direct"), "direct".
        count: elements.

    Raises:
        InputError: there is no such algorithm.
    """
    bounds = [i * count // ranks for i in range(ranks + 1)]
    if algorithm == "ring":
        found = _ring(rank, ranks, bounds)
    elif algorithm == "halving-doubling" and not ranks & (ranks - 1):
        found = _halving_doubling(rank, ranks, count)
    elif algorithm in ("", "direct", "halving-doubling"):
        found = _direct(rank, ranks, bounds)
    else:
        raise InputError(
            f"there is no all-reduce by {algorithm!r}", "use ring, halving-doubling, direct or nothing"
        )
    return tuple(
        MessageStep(
            tuple(part for part in step.sends if part.stop > part.start),
            tuple(part for part in step.receives if part.stop > part.start),
            step.joins,
        )
        for step in found
    )


def _ring(rank: int, ranks: int, bounds: list[int]) -> list[MessageStep]:
    left, right = (rank - 1) % ranks, (rank + 1) % ranks

    def step(sent: int, received: int, joins: bool) -> MessageStep:
        out, into = sent % ranks, received % ranks
        return MessageStep(
            (ElementRange(right, bounds[out], bounds[out + 1]),), (ElementRange(left, bounds[into], bounds[into + 1]),), joins
        )

    turns = range(ranks - 1)
    return [step(rank - t, rank - t - 1, True) for t in turns] + [
        step(rank + 1 - t, rank - t, False) for t in turns
    ]


def _direct(rank: int, ranks: int, bounds: list[int]) -> list[MessageStep]:
    others = [(rank + turn) % ranks for turn in range(1, ranks)]
    theirs = tuple(ElementRange(peer, bounds[peer], bounds[peer + 1]) for peer in others)
    own = tuple(ElementRange(peer, bounds[rank], bounds[rank + 1]) for peer in others)
    return [MessageStep(theirs, own, True), MessageStep(own, theirs, False)]


def _halving_doubling(rank: int, ranks: int, count: int) -> list[MessageStep]:
    """Near ranks meet first, with the largest parts."""
    start, stop, bit = 0, count, 1
    halving: list[MessageStep] = []
    doubling: list[MessageStep] = []
    while bit < ranks:
        peer, middle = rank ^ bit, (start + stop) // 2
        low, high = (start, middle), (middle, stop)
        mine, other = (high, low) if rank & bit else (low, high)
        halving.append(MessageStep((ElementRange(peer, *other),), (ElementRange(peer, *mine),), True))
        doubling.insert(0, MessageStep((ElementRange(peer, *mine),), (ElementRange(peer, *other),), False))
        start, stop = mine
        bit <<= 1
    return halving + doubling
