"""`hemiola lend`: nodes from one of Slurm's partitions to another."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

__all__ = ["lend"]

Switch = Parameter(negative="")


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
