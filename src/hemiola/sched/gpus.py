"""Which GPUs of one host a job gets: inside one NVLink island where it fits, tightest first."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["pick"]


@lru_cache(maxsize=65536)
def pick(free: int, count: int, islands: tuple[int, ...]) -> int:
    """A mask of `count` of the free GPUs.

    Prefers the island with the fewest free GPUs that suffice; else takes whole islands, fullest
    first, so that the job spans as few as possible.

    Example:
        >>> bin(pick(0b11110001, 2, (0b1111, 0b11110000)))
        '0b110000'
    """
    fitting = [(island & free).bit_count() for island in islands]
    enough = [(n, i) for i, n in enumerate(fitting) if n >= count]
    if enough:
        return _lowest(free & islands[min(enough)[1]], count)
    mask = 0
    for n, i in sorted(((n, i) for i, n in enumerate(fitting)), key=lambda pair: (-pair[0], pair[1])):
        part = _lowest(free & islands[i], min(n, count))
        mask |= part
        count -= part.bit_count()
        if not count:
            break
    return mask


def _lowest(bits: int, count: int) -> int:
    mask = 0
    for _ in range(count):
        low = bits & -bits
        mask |= low
        bits ^= low
    return mask
