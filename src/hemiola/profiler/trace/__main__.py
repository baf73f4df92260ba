"""`python -m hemiola.profiler.trace FOLDER FILE`: merge the parts in a folder into one file."""

from __future__ import annotations

import sys
from pathlib import Path

from hemiola.core.errors import InputError
from hemiola.profiler.trace.merge import collect
from hemiola.trace.jobs.timeline_json import write_timeline


def main() -> None:
    """Merge."""
    folder, target = map(Path, sys.argv[1:3])
    try:
        write_timeline(collect(folder, target.name), target)
    except InputError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
