"""`hemiola lab up`, `run`, `status` and `down`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from hemiola.lab.state import LabState

__all__ = ["down", "run", "status", "up"]

Several = Annotated[tuple[str, ...], Parameter(name="--host-rate", consume_multiple=True, negative="")]
Command = Annotated[str, Parameter(allow_leading_hyphen=True)]
Switch = Parameter(negative="")


def up(
    *,
    hosts: int,
    rate: str = "1gbit",
    host_rate: Several = (),
    racks: int | None = None,
    uplink: str | None = None,
    name: str = "lab",
) -> None:
    """Make several hosts on this machine, joined by links of given rates. Needs root.

    Parameters
    ----------
    hosts
        How many; they are named h0, h1, ...
    rate
        What each host can send and can receive: 1gbit, 25MB/s, unlimited.
    host_rate
        Other rates for some hosts: h3=250mbit.
    racks
        Divide the hosts among so many racks; needs --uplink.
    uplink
        What each rack can exchange with the others: 500mbit.
    name
        The lab's name; several can stand at once.
    """
    from hemiola.lab.lab import Lab

    lab = Lab(hosts, rate, host_rates=_pairs(host_rate), racks=racks, uplink=uplink, name=name).up(stays=True)
    print(lab.settings())
    print(f"run a command on every host: hemiola lab run --name {name} -- COMMAND")


def run(*command: Command, name: str = "", hosts: str = "") -> None:
    """Run a command on every host of a lab, with a rendezvous set; write it behind two dashes.

    Parameters
    ----------
    command
        What to run: -- python train.py --lr 0.1
    name
        The lab; not needed where only one stands.
    hosts
        Only these hosts, rank 0 first: h0,h2.
    """
    from hemiola.core.errors import LabError
    from hemiola.lab.lab import attach

    if hosts and not all(map(str.strip, hosts.split(","))):
        raise LabError(f"--hosts {hosts!r} names an empty host", "write them with commas between: h0,h2")
    lab = attach(_meant(name))
    outcome = lab.run(command, hosts=tuple(map(str.strip, hosts.split(","))) if hosts else ())
    if outcome.status:
        first = next(host for host, status in outcome.statuses.items() if status)
        _say(f"{first} failed first, with status {outcome.status}; the hosts that still ran were ended")
    raise SystemExit(outcome.status)


def status(*, name: str = "") -> None:
    """Show the labs that stand: their hosts, how they are set, what runs in them, and what is stale.

    Parameters
    ----------
    name
        Only this lab.
    """
    from hemiola.lab.state import check_rights, load, load_all

    check_rights()
    labs = (load(name),) if name else load_all()
    if not labs:
        print("no lab stands")
    for lab in labs:
        _show(lab)


def down(*, name: str = "", all: Annotated[bool, Switch] = False) -> None:
    """End what runs in a lab, and remove it.

    Parameters
    ----------
    name
        The lab; not needed where only one stands.
    all
        Every lab, but for those of programs that still run.
    """
    from hemiola.lab.network import tear_down
    from hemiola.lab.state import check_rights, load, load_all

    check_rights()
    for lab in load_all() if all else (load(_meant(name)),):
        if all and lab.owner is not None and lab.owner.lives:
            _say(f"{lab.spec.name} belongs to process {lab.owner.pid}: left; to remove it, name it")
            continue
        for namespace in tear_down(lab):
            _say(f"left the namespace {namespace}: someone else made it")
        print(f"removed {lab.spec.name}")


def _show(lab: LabState) -> None:
    from hemiola.core.errors import LabError
    from hemiola.lab.network import missing, running
    from hemiola.lab.settings import read_settings

    lost = missing(lab)
    print(f"{lab.spec.name}: {_condition(lab, lost)}")
    if lost:
        print(f"  missing: {', '.join(lost)}")
        return
    try:
        print(read_settings(lab))
    except LabError:
        print("  it is being taken down")
        return
    for host in lab.spec.hosts:
        count = running(lab, host)
        print(f"  {host:6} {lab.address(host):15} {count} process{'es' * (count != 1)}")


def _condition(lab: LabState, lost: tuple[str, ...]) -> str:
    """What is to be said of a lab first."""
    remedy = f"remove it: hemiola lab down --name {lab.spec.name}"
    if lab.owner is not None and not lab.owner.lives:
        made = "belonged to" if lab.built else "was being made by"
        return f"stale: it {made} process {lab.owner.pid}, which is gone; {remedy}"
    if not lab.built:
        return f"being made by process {lab.owner.pid}" if lab.owner else f"stale: never finished; {remedy}"
    if lost:
        return f"stale: parts of it are gone; {remedy}"
    return f"up, until process {lab.owner.pid} ends" if lab.owner else "up"


def _meant(name: str) -> str:
    """The lab named, or else the only one that no living program calls its own."""
    from hemiola.lab.state import choose, load_all

    free = (lab for lab in load_all() if lab.owner is None or not lab.owner.lives)
    return choose(name, () if name else tuple(lab.spec.name for lab in free))


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    from hemiola.core.errors import LabError

    for text in texts:
        if "=" not in text:
            raise LabError(f"--host-rate {text!r}", "write HOST=RATE, such as h3=250mbit")
    return dict(text.split("=", 1) for text in texts)


def _say(text: str) -> None:
    import sys

    print(f"hemiola lab: {text}", file=sys.stderr)
