"""A rank of its own process for the tests: prints its port, reads everybody's, says "ready", then waits."""

from __future__ import annotations

import json
import sys

from hemiola.run.transport import Endpoint, Options

if __name__ == "__main__":
    rank, ranks, options = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    end = Endpoint(rank, ranks, b"for tests only", Options(interface="127.0.0.1", **options))
    print(end.address[1], flush=True)
    end.connect([("127.0.0.1", port) for port in json.loads(sys.stdin.readline())])
    print("ready", flush=True)
    sys.stdin.readline()
