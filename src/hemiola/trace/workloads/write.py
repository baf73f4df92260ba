"""One way out: a workload as a native table or native JSON, plain or gzip."""

from __future__ import annotations

from pathlib import Path

from hemiola.core.errors import FormatError
from hemiola.core.job import Workload
from hemiola.trace.atomic import replacing
from hemiola.trace.workloads.native_csv import to_csv
from hemiola.trace.workloads.native_json import to_json

__all__ = ["write_workload"]


def write_workload(workload: Workload, path: str | Path) -> None:
    """Write `workload` to `path`: .csv or .json, with .gz behind it to pack it.

    Reading it back gives the same jobs. Equal workloads give equal files.

    Raises:
        FormatError: the name has another ending.
        InputError: a table cannot hold one of the jobs, or the file cannot be written.
    """
    name = Path(path).name
    plain = name.removesuffix(".gz")
    if plain.endswith(".csv"):
        text = to_csv(workload)
    elif plain.endswith(".json"):
        text = to_json(workload)
    else:
        raise FormatError(
            f"{path}: the ending tells how to write it", "end it in .csv or .json, .gz may follow"
        )
    with replacing(Path(path)) as stream:
        stream.write(text.encode())
