"""`hemiola io probe`: what a store gives, and what to set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

__all__ = ["probe"]


def probe(
    url: str,
    /,
    *,
    sample: str = "",
    budget: str = "64MiB",
    seconds: float = 10.0,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    picture: Path | None = None,
) -> None:
    """Measure a store by reading one of its objects: hemiola io probe s3://bucket/shard-0.tar

    Prints the time to a first byte, the rate of one stream and of all together, how many requests of which size fill
    the store, and what to set in each loader for that. It reads, within a budget that it says first, and never writes.

    Parameters
    ----------
    url
        An object of some megabytes: a path, http(s)://, s3://, or what fsspec knows.
    sample
        What one sample reads, such as 110KB: for loaders that make one request per sample.
    budget
        Read at most so much.
    seconds
        Take at most so long.
    output
        Write what was found there, as JSON; "hemiola predict --store" takes it.
    picture
        Write the surface there, as SVG.
    """
    from hemiola.cli.output import terminal, writable
    from hemiola.core.errors import InputError
    from hemiola.core.units import parse_size
    from hemiola.report.io import StoreTable, surface_picture
    from hemiola.train.input.probe import ProbeBudget, probe_store

    writable(output, picture)
    if not seconds > 0:
        raise InputError(f"--seconds {seconds:g}", "give a time above 0")
    told = terminal(stderr=True)
    limits = ProbeBudget(bytes_=parse_size(budget), seconds=seconds)
    found = probe_store(url, limits, say=lambda text: told.print(f"hemiola io: {text}", soft_wrap=True))
    terminal(highlight=False).print(StoreTable(found, parse_size(sample) if sample else None))
    if output is not None:
        import msgspec

        output.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    if picture is not None:
        picture.write_text(surface_picture(found), encoding="utf-8")
