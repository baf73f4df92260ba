"""`hemiola serve` and `release`: the policy on a live cluster, and back to the engine's own scheduler."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from hemiola.cli.engines import chosen_engine, with_engine_flags
from hemiola.live.engines.registry import DEFAULT

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from hemiola.core.topology import Topology
    from hemiola.live.journal import Journal
    from hemiola.live.service import LiveService


__all__ = ["lend", "ranks", "release", "serve"]


Switch = Parameter(negative="")
Several = Annotated[tuple[str, ...], Parameter(name="--allow-host", consume_multiple=True, negative="")]
Shadows = Annotated[tuple[str, ...], Parameter(name="--shadow", consume_multiple=True, negative="")]
FOLDER = Path("/var/lib/hemiola")


@with_engine_flags("serve")
def serve(
    *,
    engine: str,
    policy: str,
    mode: Literal["observe", "advise", "enforce"] = "observe",
    partition: str = "hemiola",
    topology: str = "",
    journal: str = "",
    fallback: str = "fifo-backfill",
    profiles: Path | None = None,
    kill_switch: Path | None = None,
    alive: Path | None = None,
    reports: Path | None = None,
    web: str = "",
    web_tokens: Path | None = None,
    web_cert: Path | None = None,
    web_key: Path | None = None,
    allow_host: Several = (),
    shadow: Shadows = (),
    keep: str = "",
    dry_run: Annotated[bool, Switch] = False,
    log_json: Annotated[bool, Switch] = False,
    **options: Any,
) -> None:
    """Run a policy on a live cluster: the same object that "hemiola simulate" compares.

    Parameters
    ----------
    engine
        What runs the jobs: slurm, ray, or your own engine as package.module:NAME[,option=value].
    policy
        As in "hemiola simulate": dally, tiresias, "dally:timer=break-even".
    mode
        observe decides on the live queue and changes nothing; advise writes each decision into the job's
        AdminComment (of Ray: its log); enforce holds jobs, places them and starts them.
    partition
        The one that Hemiola manages. Of Ray it is all.
    topology
        The network, as in "hemiola simulate --cluster"; from Slurm's own configuration or the labels of Ray's nodes
        unless given.
    journal
        A file or a postgresql:// address; /var/lib/hemiola/PARTITION.db, or in the home folder, unless given.
    fallback
        The policy that takes over from one that raises or hangs.
    profiles
        A file of job profiles beside those that come with Hemiola.
    kill_switch
        A file: while it is there, nothing is changed.
    alive
        A file that says when Hemiola last turned, for job_submit.lua and "hemiola release --when-silent".
    reports
        The folder in which jobs report their iterations and hosts their traffic ("hemiola counters"); mode 1777.
    web
        Serve the page, the API and metrics there: 127.0.0.1:8470.
    web_tokens
        A file of lines "view TOKEN" and "operate TOKEN", of mode 0600; needed for addresses that others reach.
    web_cert
        A certificate for TLS, with --web-key.
    web_key
        Its key.
    allow_host
        Names by which the page may be called, beside the address itself.
    shadow
        Policies that the page compares on what really ran: dally tiresias.
    keep
        Forget runs and jobs that ended so long ago, once a day: 90d. Everything is kept unless given.
    dry_run
        Print the requests that would be made; implies observe.
    log_json
        One JSON object per line.
    """
    from hemiola.live.engines.base import engine_service
    from hemiola.live.journal import Journal
    from hemiola.live.logging_setup import set_up
    from hemiola.live.service import SessionSettings

    keep_s = _kept_s(keep)
    set_up(as_json=log_json)
    mode = "observe" if dry_run else mode
    its, to = chosen_engine(
        engine, options, partition=partition, has_topology=bool(topology), acts=mode == "enforce"
    )
    client = its.connect(to)
    network = _topology(topology) or its.topology(client)
    settings = SessionSettings(
        policy=policy, fallback=fallback, mode=mode, engine=its.signature(client), kill_switch=kill_switch,
        alive=alive, reports=reports, keep_s=keep_s, show_requests=dry_run,
    )  # fmt: skip
    where = journal or _journal(partition)
    page = Page(web, web_tokens, web_cert, web_key, allow_host, shadow, kill_switch)
    with Journal.open(where) as opened:
        _check_engine(opened, settings.engine)
        service = engine_service(its, client, settings, opened, network, profiles=profiles)
        with page.serving(service, opened, where):
            _serve(service)


def _topology(given: str) -> Topology | None:
    from hemiola.trace.topologies.read import read_topology

    return read_topology(given, keep_unusable=True) if given else None


@with_engine_flags("release")
def release(
    *,
    engine: str = DEFAULT,
    partition: str = "hemiola",
    alive: Path | None = None,
    when_silent: str = "",
    watch: Annotated[bool, Switch] = False,
    **options: Any,
) -> None:
    """Hand every held job back to the engine's own scheduler, untouched. Needs no running daemon.

    Parameters
    ----------
    engine
        What runs the jobs, as in "hemiola serve".
    partition
        The one that Hemiola manages. Of Ray it is all.
    alive
        The file that "hemiola serve --alive" writes.
    when_silent
        Only if Hemiola has said nothing for so long: 60s, 5min. Needs --alive.
    watch
        Go on looking, and hand back whenever it is silent.
    """
    import time

    from hemiola.core.errors import EngineError, InputError
    from hemiola.core.units import format_duration, parse_duration
    from hemiola.live.leadership import silent_s

    if bool(when_silent) != (alive is not None):
        raise InputError("--when-silent and --alive belong together", "give both, or neither to release now")
    if watch and not when_silent:
        raise InputError(
            "--watch looks whether Hemiola is silent", "say for how long: --when-silent 60s --alive FILE"
        )
    its, to = chosen_engine(engine, options, partition=partition, acts=True)
    limit_s = parse_duration(when_silent) if when_silent else 0.0
    while True:
        try:
            quiet_s = silent_s(alive, time.time()) if alive is not None else float("inf")
            if quiet_s >= limit_s:
                with its.connected(to) as client:
                    released, held = its.release(client)
                _say(released, held, its.title, quietly=watch)
            elif not watch:
                print(f"Hemiola spoke {format_duration(quiet_s)} ago: nothing to do")
        except EngineError as problem:
            if not watch:
                raise
            print(f"not now: {problem.what}", flush=True)
        if not watch:
            return
        time.sleep(max(1.0, limit_s / 4))


def ranks() -> None:
    """Within a Slurm job: print a host per rank, in the order that Hemiola chose.

    For SLURM_HOSTFILE: "hemiola ranks > hosts.txt; SLURM_HOSTFILE=hosts.txt srun -m arbitrary train.sh".
    """
    import os
    import sys

    from hemiola.live.engines.slurm.client import Slurm
    from hemiola.live.engines.slurm.requests import ranks as ordered

    hosts, ours = ordered(Slurm(), os.environ)
    print("\n".join(hosts))
    if not ours:
        print("hemiola ranks: nobody chose an order; this is Slurm's", file=sys.stderr)


def _say(released: list[str], held: list[str], title: str, *, quietly: bool) -> None:
    if held:
        print(f"still held: {', '.join(held)} (does this user operate {title}?)", flush=True)
    if released or not quietly:
        print(
            f"released {len(released)} job{'s' * (len(released) != 1)}: {', '.join(released) or 'none was held'}",
            flush=True,
        )
    if held and not quietly:
        raise SystemExit(1)


@dataclass(frozen=True)
class Page:
    """What was said of the page."""

    address: str
    tokens: Path | None
    certificate: Path | None
    key: Path | None
    hosts: tuple[str, ...]
    shadow: tuple[str, ...]
    kill_switch: Path | None

    def serving(
        self, service: LiveService, journal: Journal, where: str | Path
    ) -> AbstractContextManager[object]:
        """While the block lasts; nothing where no address was given."""
        from contextlib import nullcontext

        from hemiola.core.errors import InputError

        if (self.certificate is None) != (self.key is None):
            raise InputError("--web-cert and --web-key belong together", "give both, or neither")
        if not self.address:
            return nullcontext()
        from hemiola.live.web.server import WebServer
        from hemiola.live.web.shadow import Shadow

        return WebServer(
            service, journal, address=self.address, tokens=self.tokens, allowed_hosts=self.hosts,
            tls=(self.certificate, self.key) if self.certificate and self.key else None, kill_switch=self.kill_switch,
            shadow=Shadow(where, self.shadow) if self.shadow else None,
        )  # fmt: skip


def _kept_s(keep: str) -> float | None:
    from hemiola.core.errors import InputError
    from hemiola.core.units import parse_duration

    if not keep:
        return None
    if (keep_s := parse_duration(keep)) <= 0:
        raise InputError(f"--keep {keep} keeps nothing", "give a time above 0, such as 90d")
    return keep_s


def _serve(service: LiveService) -> None:
    import os
    import signal
    import threading

    asked, ask = os.pipe()

    def stop() -> None:
        while os.read(asked, 1):
            service.stop()

    threading.Thread(target=stop, name="hemiola-stop", daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        # The handler takes no lock: the main thread, which it interrupts, may hold that very one.
        signal.signal(number, lambda *_: os.write(ask, b"."))
    service.run()


def _check_engine(journal: Journal, version: str) -> None:
    """Only one engine's daemon could lead in it, and jobs of the other one would stay open there for ever."""
    from hemiola.core.errors import InputError
    from hemiola.live.engines.registry import is_same_engine

    runs = journal.runs()
    before = runs[-1].opening.engine if runs else ""
    if before and not is_same_engine(before, version):
        raise InputError(
            f"{journal.name} is the journal of {before}, and this is {version}",
            "name another one, here and wherever it is read: --journal FILE, or --partition NAME",
        )


def _journal(partition: str) -> Path:
    """Where it lies unless somebody says otherwise."""
    import os

    from hemiola.core.errors import InputError

    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "hemiola"
    folder = FOLDER if os.access(FOLDER if FOLDER.exists() else FOLDER.parent, os.W_OK) else home
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(
            f"the folder {folder} of the journal cannot be made: {problem.strerror}",
            f"name a journal with --journal, or make {FOLDER} for this user: install -d -m 700 -o USER {FOLDER}",
        ) from problem
    return folder / f"{partition}.db"


# `hemiola lend`: nodes from one of Slurm's partitions to another.


def lend(
    nodes: str,
    *,
    to: str,
    from_: Annotated[str, Parameter(name="--from")] = "hemiola",
    now: Annotated[bool, Switch] = False,
    slurm_conf: Path | None = None,
) -> None:
    """Lend nodes to another Slurm partition, or take them back, while everything runs. Of the moment: slurm.conf stays.

    Parameters
    ----------
    nodes
        Which, as Slurm writes them: n[0-3],n7.
    to
        The partition that gets them.
    from_
        The partition that has them.
    now
        Send its jobs that run there back into the queue, rather than wait for their ends.
    slurm_conf
        The slurm.conf of the cluster.
    """
    from hemiola.live.engines.slurm.client import Slurm
    from hemiola.live.engines.slurm.lending import lend as lend_nodes

    lent = lend_nodes(Slurm(slurm_conf), nodes, giver=from_, taker=to, now=now)
    count = len(lent.hosts)
    print(f"{count} node{'s' * (count != 1)} went from {from_} to {to}")
    if lent.requeued:
        print(f"back in the queue: {', '.join(lent.requeued)}")
    if lent.stay:
        why = (
            "may not be requeued, and run on there"
            if now
            else "run on there to their ends (--now requeues them)"
        )
        print(f"{', '.join(lent.stay)} {why}")
    print(f"to take them back: {shlex.join(['hemiola', 'lend', nodes, '--from', to, '--to', from_])}")
