"""One rank of `hemiola probe --hosts`; what the first one found goes where `hemiola run` looks for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from hemiola.comm.probe.measure import probe
from hemiola.core.errors import HemiolaError


def main() -> None:
    """`python -m hemiola.comm.probe SECONDS [INTERFACE]`."""
    try:
        found = probe(float(sys.argv[1]), "".join(sys.argv[2:3]))
    except HemiolaError as problem:
        print(f"error: {problem}", file=sys.stderr)
        raise SystemExit(2) from None
    if found is not None:
        Path(os.environ["HEMIOLA_RUN_REPORT"]).write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
