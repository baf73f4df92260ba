"""Lists of host names as Slurm, PDSH and ClusterShell write them: `n[0-3,7],gpu[08-11]-ib`.

The order of names and their zero padding are kept, so `expand(compress(names)) == names`.
Knows nothing of hosts: the same text names switches and device files.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from hemiola.core.errors import InputError

__all__ = ["MAX_NAMES", "compress", "expand", "is_loopback"]


MAX_NAMES = 1_000_000
_DIGITS_MAX = 15

_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\],\s]+)")
_RANGE = re.compile(rf"([0-9]{{1,{_DIGITS_MAX}}})(?:-([0-9]{{1,{_DIGITS_MAX}}}))?")
_FORBIDDEN = re.compile(r"[\[\],\s]")
_NUMBERS = re.compile(r"([0-9]+)")


def expand(text: str) -> list[str]:
    """The names that a hostlist stands for, in order; several brackets in a name are a product.

    Args:
        text: names separated by commas; a bracket holds numbers and ranges. "" is no name at all.

    Raises:
        InputError: what is wrong and at which character, or more than `MAX_NAMES` names.

    Example:
        >>> expand("n[0-2,7],gpu[08-10]-ib")
        ['n0', 'n1', 'n2', 'n7', 'gpu08-ib', 'gpu09-ib', 'gpu10-ib']
    """
    names: list[str] = []
    if not text.strip():
        return names
    for start, item in _items(text):
        parts = _parts(text, start, item)
        count = prod(sum(hi - lo + 1 for lo, hi, _ in part) for part in parts if not isinstance(part, str))
        if len(names) + count > MAX_NAMES:
            raise InputError(
                f"the hostlist {_shown(text)} stands for more than {MAX_NAMES:,} names",
                "look for a slip in a range, or split the list",
            )
        names.extend(map("".join, product(*(_choices(part) for part in parts))))
    return names


def compress(names: Sequence[str]) -> str:
    """A short hostlist that expands to these names, in this order.

    Neighbours that differ in one number share a bracket, the last number first; for the shortest
    text sort the names before.

    Raises:
        InputError: a name that a hostlist cannot hold (empty, or with a bracket, comma or space).

    Example:
        >>> compress(["r0n8", "r0n9", "r0n10", "r1n8", "r1n9", "r1n10", "login"])
        'r[0-1]n[8-10],login'
    """
    items = [_tokens(name) for name in names]
    before = -1
    while len(items) != before:
        before = len(items)
        items = list(_fold(items))
    folded, plain = ",".join("".join(item) for item in items), ",".join(names)
    return folded if len(folded) <= len(plain) + 1 else plain  # n[0-1] reads better than n0,n1


def _items(text: str) -> Iterator[tuple[int, str]]:
    """Pieces between the commas that stand outside brackets, each with its place in the text."""
    start, depth = 0, 0
    for place, char in enumerate(text + ","):
        if char == "," and (depth == 0 or place == len(text)):
            piece = text[start:place]
            yield start + len(piece) - len(piece.lstrip()), piece.strip()
            start = place + 1
        depth += (char == "[") - (char == "]")


def _parts(text: str, start: int, item: str) -> list[str | list[tuple[int, int, int]]]:
    """A name's fixed texts and its brackets; a bracket is a list of (low, high, width)."""
    parts: list[str | list[tuple[int, int, int]]] = []
    place = 0
    while place < len(item):
        match = _PART.match(item, place)
        if match is None:
            problem = "has no partner" if item[place] in "[]" else "does not belong in a name"
            raise _refusal(text, start + place, f"{item[place]!r} {problem}")
        parts.append(match[2] if match[1] is None else [*_ranges(text, start + match.start(1), match[1])])
        place = match.end()
    if not parts:
        raise _refusal(text, start, "a name is missing")
    return parts


def _ranges(text: str, start: int, body: str) -> Iterator[tuple[int, int, int]]:
    for piece in body.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None:
            raise _refusal(text, start, f"{piece!r} is neither a number nor a range such as 0-7")
        low, high = match[1], match[2] or match[1]
        width = len(low) if low.startswith("0") else 1
        if int(high) < int(low):
            raise _refusal(text, start, f"the range {piece} runs backwards")
        if high != f"{int(high):0{width}d}":
            raise _refusal(text, start, f"the ends of {piece} are padded differently")
        yield int(low), int(high), width
        start += len(piece) + 1


def _choices(part: str | list[tuple[int, int, int]]) -> list[str]:
    if isinstance(part, str):
        return [part]
    return [f"{number:0{width}d}" for low, high, width in part for number in range(low, high + 1)]


def _refusal(text: str, place: int, problem: str) -> InputError:
    return InputError(
        f"the hostlist {_shown(text)}, character {place + 1}: {problem}",
        "write names and ranges such as n[0-3,7],gpu[08-11]",
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def _tokens(name: str) -> tuple[str, ...]:
    """The name cut into texts (even places) and numbers (odd places)."""
    if not name or _FORBIDDEN.search(name):
        raise InputError(
            f"a hostlist cannot hold the name {name!r}", "use names without brackets, commas and spaces"
        )
    return tuple(_NUMBERS.split(name))


def _fold(items: list[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Join neighbours that differ in one number which stands left of every bracket so far."""
    group: list[tuple[str, ...]] = []
    field = -1
    for item in items:
        if group and (place := _differing(group[-1], item)) >= 0 and field in (-1, place):
            field = place
            group.append(item)
            continue
        if group:
            yield _joined(group, field)
        group, field = [item], -1
    if group:
        yield _joined(group, field)


def _differing(left: tuple[str, ...], right: tuple[str, ...]) -> int:
    """The one place where two items differ, if a bracket may go there; else -1."""
    if len(left) != len(right):
        return -1
    places = [i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b]
    if len(places) != 1 or places[0] % 2 == 0 or any(part.startswith("[") for part in left[: places[0] + 1]):
        return -1
    plain = max(len(left[places[0]]), len(right[places[0]])) <= _DIGITS_MAX and right[places[0]][0] != "["
    return places[0] if plain else -1


def _joined(group: list[tuple[str, ...]], field: int) -> tuple[str, ...]:
    if len(group) == 1:
        return group[0]
    runs: list[list[str]] = []
    for number in (item[field] for item in group):
        if runs and number == _following(runs[-1]):
            runs[-1].append(number)
        else:
            runs.append([number])
    body = ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    first = group[0]
    return (*first[:field], f"[{body}]", *first[field + 1 :])


def _following(run: list[str]) -> str:
    """The number that would continue the run, padded as its first is."""
    width = len(run[0]) if run[0].startswith("0") else 1
    return f"{int(run[-1]) + 1:0{width}d}"


# Whether an address is this host's own.


def is_loopback(host: str) -> bool:
    """Of a name or an address; names other than localhost are not looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
