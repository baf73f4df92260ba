"""From MSCCL's XML to a strategy."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from hemiola.core.errors import InputError
from hemiola.core.strategy import Place, Strategy
from hemiola.trace.msccl.joined import Joined, Step
from hemiola.trace.msccl.words import BUFFERS, COLLECTIVES, KINDS, RECEIVES, SENDS
from hemiola.trace.reading import read_bytes

__all__ = ["parse_msccl", "read_msccl"]

_MOST = 1 << 16
"""Chunks of a step, and ranks: beyond what any file can mean."""


def read_msccl(path: Path) -> Strategy:
    """Read a file; see `parse_msccl`.

    Raises:
        InputError: it is missing, or says what MSCCL does not know.
        StrategyError: its steps wait for each other, or race.
    """
    return parse_msccl(read_bytes(path), str(path))


def parse_msccl(text: str | bytes, name: str = "the text") -> Strategy:
    """The strategy that an XML document describes; whether it is right is for `Strategy.verify` to say.

    Raises:
        InputError: it is no such document; names the place.
        StrategyError: its steps wait for each other, or two of them use a chunk in no certain order.
    """
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, LookupError) as problem:
        raise InputError(f"{name} is no XML: {problem}", "name an MSCCL XML file") from None
    if root.tag != "algo":
        raise InputError(f"{name} begins with <{root.tag}>", "MSCCL's files begin with <algo>")
    collective = COLLECTIVES.get(root.get("coll", ""))
    if collective is None:
        raise InputError(
            f"{name}: the collective {root.get('coll')!r} is not known",
            f"use one of {', '.join(COLLECTIVES)}",
        )
    ranks, chunks = _number(root, "ngpus", name), _number(root, "nchunksperloop", name)
    if not (1 <= ranks <= _MOST and 1 <= chunks <= _MOST * _MOST):
        raise InputError(f"{name} has {ranks} gpus and {chunks} chunks", "give at least one of each")
    _check_ids(root, "gpu", name)
    steps = [step for gpu in root.iter("gpu") for step in _steps_of(gpu, ranks, name)]
    moves = Joined(steps, name).moves()
    found = Strategy(
        name=root.get("name") or "unnamed", collective=collective, ranks=ranks, chunks=chunks, moves=tuple(moves),
        in_place=root.get("inplace") == "1", source=f"MSCCL: {name}",
    )  # fmt: skip
    return found.ordered()


def _number(element: ElementTree.Element, attribute: str, name: str) -> int:
    value = element.get(attribute, "")
    try:
        return int(value)
    except ValueError:
        where = f"<{element.tag} {' '.join(f'{k}={v!r}' for k, v in list(element.items())[:3])}>"
        raise InputError(f"{name}: {where}: {attribute} is {value!r}", "give a whole number") from None


def _check_ids(parent: ElementTree.Element, tag: str, where: str) -> None:
    """Refuse an id that two elements have: what waits for them names them by it."""
    seen: set[int] = set()
    for element in parent.iter(tag):
        number = _number(element, "id", where)
        if number in seen:
            raise InputError(f"{where}: there are two {tag} {number}", f"give every {tag} an id of its own")
        seen.add(number)


def _steps_of(gpu: ElementTree.Element, ranks: int, name: str) -> list[Step]:
    rank = _number(gpu, "id", name)
    if not 0 <= rank < ranks:
        raise InputError(f"{name}: there is a gpu {rank} of {ranks}", f"number them from 0 to {ranks - 1}")
    _check_ids(gpu, "tb", f"{name}: gpu {rank}")
    found: list[Step] = []
    for block in gpu.iter("tb"):
        number, channel = _number(block, "id", name), _number(block, "chan", name)
        to, of = _number(block, "send", name), _number(block, "recv", name)
        for due, step in enumerate(block.iter("step")):
            kind = step.get("type", "")
            where = f"{name}: gpu {rank}, tb {number}, step {step.get('s')}"
            if _number(step, "s", where) != due:
                raise InputError(
                    f"{where}: it stands where step {due} should", "number a tb's steps 0, 1, 2, ..."
                )
            if kind not in KINDS:
                raise InputError(f"{where}: the type {kind!r} is not known", f"use one of {', '.join(KINDS)}")
            for peer, needed in ((to, kind in SENDS), (of, kind in RECEIVES)):
                if needed and not (0 <= peer < ranks and peer != rank):
                    raise InputError(
                        f"{where}: {kind!r} has the peer {peer}", f"name one of {ranks} other ranks"
                    )
            count = _number(step, "cnt", name)
            if kind != "nop" and not 1 <= count <= _MOST:
                raise InputError(f"{where}: cnt is {count}", f"give 1 to {_MOST}")
            depends = (_number(step, "depid", name), _number(step, "deps", name))
            found.append(
                Step(
                    rank, number, due, kind, _place(step, rank, "src", where), _place(step, rank, "dst", where),
                    count, [depends] if depends[0] >= 0 else [], (to, channel), (of, channel),
                )
            )  # fmt: skip
    return found


def _place(step: ElementTree.Element, rank: int, which: str, where: str) -> Place:
    letter = step.get(f"{which}buf", "")
    if letter not in BUFFERS:
        raise InputError(f"{where}: {which}buf is {letter!r}", "use i, o or s")
    return Place(rank, BUFFERS[letter], _number(step, f"{which}off", where))
