"""Endpoints of one process, connected over loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hemiola.comm.transport import Endpoint, TransportOptions

SECRET = b"for tests only"


@contextmanager
def connected(ranks: int = 2, **options: object) -> Iterator[list[Endpoint]]:
    """So many endpoints that know each other."""
    given = {"interface": "127.0.0.1", "timeout_s": 10.0} | options
    ends = [Endpoint(rank, ranks, SECRET, TransportOptions(**given)) for rank in range(ranks)]
    try:
        together(lambda end: end.connect([other.address for other in ends]), ends)
        yield ends
    finally:
        together(lambda end: end.close(), ends)


def together(action, ends: list[Endpoint]) -> list[BaseException | None]:
    """Do it on all of them at once; what each raised."""
    raised: list[BaseException | None] = [None] * len(ends)

    def one(place: int) -> None:
        try:
            action(ends[place])
        except BaseException as problem:
            raised[place] = problem

    threads = [threading.Thread(target=one, args=(place,)) for place in range(len(ends))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised
