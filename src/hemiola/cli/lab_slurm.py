"""`hemiola lab slurm up`, `status`, `env` and `down`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from hemiola.lab.slurm.record import Record

__all__ = ["down", "env", "status", "up"]

Several = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")]
Switch = Parameter(negative="")


def up(
    *,
    nodes: int = 8,
    gpus: int = 8,
    gpu_types: str = "",
    racks: int = 1,
    rate: str | None = None,
    uplink: str | None = None,
    name: str = "slurm",
    partition: str = "hemiola",
    hold: bool = True,
    set: Several = (),
    rest: Annotated[bool, Switch] = False,
) -> None:
    """Make a Slurm of several nodes on this machine, and return when all of them are idle.

    Parameters
    ----------
    nodes
        How many; they are named h0, h1, ...
    gpus
        Per node: stand-ins that Slurm counts and hands out.
    gpu_types
        Of the racks' GPUs, in turn: h100,a100.
    racks
        Divide the nodes among so many leaf switches of Slurm's topology.
    rate
        Give each node a network of its own, on which it sends and receives at this rate: 800mbit. Needs root.
    uplink
        What each rack can exchange with the others on that network: 400mbit.
    name
        The Slurm's name; several can stand at once.
    partition
        The default partition, which Hemiola manages; the partition `other` is left alone.
    hold
        Hold the jobs of that partition at submission, until an operator releases them.
    set
        Lines of slurm.conf over the lab's own: MinJobAge=5.
    rest
        Run slurmrestd beside the controller; needs the packages slurmrestd and slurm-wlm-jwt-plugin.
    """
    from hemiola.lab.slurm.cluster import SlurmLab

    lab = SlurmLab(
        nodes,
        gpus=gpus,
        racks=racks,
        rate=rate,
        uplink=uplink,
        name=name,
        partition=partition,
        hold=hold,
        settings=_pairs(set),
        gpu_types=tuple(filter(None, gpu_types.split(","))),
        rest=rest,
    ).up(stays=True)
    print(f"{name}: {nodes} node{'s' * (nodes != 1)} with {gpus} GPU{'s' * (gpus != 1)} each, all idle")
    print(f'find it from a shell: eval "$(hemiola lab slurm env --name {name})"')
    if rest:
        print(f"slurmrestd listens at {lab.rest_url}")
        print("a token for it: scontrol token username=root lifespan=86400")


def env(*, name: str = "") -> None:
    """Print what a shell needs so that sbatch, squeue and scontrol find a Slurm of the lab.

    Parameters
    ----------
    name
        The Slurm; not needed where only one stands.
    """
    import shlex

    from hemiola.lab.slurm.daemons import environ
    from hemiola.lab.slurm.record import choose

    for variable, value in environ(choose(name)).items():
        print(f"export {variable}={shlex.quote(value)}")


def status(*, name: str = "") -> None:
    """Show the Slurms that stand: their nodes by state, jobs, processes, and what is stale.

    Parameters
    ----------
    name
        Only this one.
    """
    from hemiola.lab.slurm.record import load, load_all

    records = (load(name),) if name else load_all()
    if not records:
        print("no Slurm stands")
    for record in records:
        _show(record)


def down(*, name: str = "", all: Annotated[bool, Switch] = False) -> None:
    """Cancel the jobs of a Slurm, end its daemons and remove it.

    Parameters
    ----------
    name
        The Slurm; not needed where only one stands.
    all
        Every one, but for those of programs that still run.
    """
    from hemiola.lab.slurm.record import choose, load_all
    from hemiola.lab.slurm.teardown import tear_down

    for record in load_all() if all else (choose(name),):
        if all and record.owner is not None and record.owner.lives:
            _say(f"{record.spec.name} belongs to process {record.owner.pid}: left; to remove it, name it")
            continue
        tear_down(record)
        print(f"removed {record.spec.name}")


def _show(record: Record) -> None:
    from collections import Counter

    from hemiola.core.errors import LabError
    from hemiola.lab.slurm import daemons
    from hemiola.lab.slurm.daemons import find

    kinds = Counter(role.kind for role in find(record).values())
    print(f"{record.spec.name}: {_condition(record)}")
    try:
        if "slurmctld" not in kinds:
            raise LabError("the controller does not run")
        states = Counter(daemons.node_states(record, limit_s=3.0).values())
        jobs = Counter(daemons.ask(record, ["squeue", "-h", "-o", "%T"], limit_s=3.0).lower().split())
        print(f"  nodes      {_counted(states)}")
        print(f"  jobs       {_counted(jobs)}")
    except LabError as error:
        print(f"  {error.what}")
    if record.spec.rest:
        print(f"  slurmrestd http://127.0.0.1:{record.rest_port}")
    print(f"  processes  {_counted(kinds)}")
    print(f"  logs       {record.logs}")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items())) or "none"


def _condition(record: Record) -> str:
    """What is to be said of a Slurm first."""
    owner = record.owner
    if owner is not None and not owner.lives:
        made = "belonged to" if record.built else "was being made by"
        remedy = f"remove it: hemiola lab slurm down --name {record.spec.name}"
        return f"stale: it {made} process {owner.pid}, which is gone; {remedy}"
    if owner is None:
        return "up"
    return f"up, until process {owner.pid} ends" if record.built else f"being made by process {owner.pid}"


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    from hemiola.core.errors import LabError

    for text in texts:
        if "=" not in text:
            raise LabError(f"--set {text!r}", "write PARAMETER=VALUE, such as MinJobAge=5")
    return dict(text.split("=", 1) for text in texts)


def _say(text: str) -> None:
    import sys

    print(f"hemiola lab slurm: {text}", file=sys.stderr)
