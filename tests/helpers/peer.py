"""A rank of its own process for the tests: prints its port, reads everybody's, says "ready", then waits.

Given a size as fourth word it exchanges messages of so many bytes with the other of two ranks all the time (none at all
if it is 0), and answers each line with how many it has got, or what went wrong.
"""

from __future__ import annotations

import json
import sys
import threading

from hemiola.comm.transport import Endpoint, TransportOptions
from hemiola.core.errors import TransportError


class Exchange:
    """Messages to and from the other of two ranks."""

    def __init__(self, end: Endpoint, size: int) -> None:
        self._end, self._size, self._got, self._problem = end, size, 0, ""
        if size:
            threading.Thread(target=self._always, daemon=True).start()

    def _always(self) -> None:
        try:
            while True:
                self._once(self._size)
        except TransportError as problem:
            self._problem = str(problem)

    def _once(self, size: int) -> None:
        other = 1 - self._end.rank
        got = self._end.receive(other, 1, bytearray(size))
        self._end.send(other, 1, bytes(size)).wait()
        got.wait()
        self._got += 1

    def state(self) -> str:
        """How many, or what went wrong."""
        return self._problem or " ".join(self._end.lost.values()) or str(self._got)


def main(rank: int, ranks: int, options: dict[str, object], size: int | None) -> None:
    end = Endpoint(rank, ranks, b"for tests only", TransportOptions(interface="127.0.0.1", **options))
    print(end.address[1], flush=True)
    end.connect([("127.0.0.1", port) for port in json.loads(sys.stdin.readline())])
    print("ready", flush=True)
    if size is None:
        sys.stdin.readline()
        return
    exchange = Exchange(end, size)
    for _ in sys.stdin:
        print(exchange.state().replace("\n", " "), flush=True)


if __name__ == "__main__":
    given = int(sys.argv[4]) if len(sys.argv) > 4 else None
    main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), given)
