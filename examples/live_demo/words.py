"""The live demo in words: the columns of its tables, what came out in one sentence, and what was done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from live_demo.measured import Alone, Figures, Run, figures
from live_demo.network import Network
from live_demo.stream import COMPUTE_S, GRADIENT_BYTES

__all__ = ["COLUMNS", "Column", "change", "finding", "told"]


@dataclass(frozen=True)
class Column:
    """A figure that lower is better for.

    Attributes:
        value: of a run.
        form: how it is written.
    """

    title: str
    about: str
    value: Callable[[Figures], float]
    form: str

    def cell(self, own: Figures) -> str:
        """The figure, written out."""
        return self.form.format(self.value(own))


COLUMNS = (
    Column("mean completion", "from submission to end", lambda own: own.jct_mean_s, "{:.1f} s"),
    Column("90th percentile", "of completion", lambda own: own.jct_p90_s, "{:.1f} s"),
    Column("mean wait", "from submission to start", lambda own: own.queued_mean_s, "{:.1f} s"),
    Column("makespan", "until the last job's end", lambda own: own.makespan_s, "{:.0f} s"),
    Column("iteration", "of two-node jobs", lambda own: 1e3 * own.pair_iteration_s, "{:.0f} ms"),
    Column("communicating", "share of their iterations", lambda own: own.communicated, "{:.0%}"),
    Column("across racks", "two-node jobs in more than one rack", lambda own: own.crossed, "{:.0f}"),
    Column("over uplinks", "sent out of all racks", lambda own: own.uplink_bytes / 1e9, "{:.2f} GB"),
)


def change(own: float, base: float) -> str:
    """A difference in percent; nothing where there is no base."""
    return f"{own / base - 1:+.0%}" if base else ""


def finding(runs: Sequence[Run]) -> str:
    """What the last run changed against the first."""
    base, own = figures(runs[0]), figures(runs[-1])
    jobs = f"{own.crossed} of {own.pairs} two-node jobs across racks instead of {base.crossed}"
    return (
        f"{runs[-1].name}: mean completion {own.jct_mean_s:.1f} s, {change(own.jct_mean_s, base.jct_mean_s)} against "
        f"{runs[0].name}'s {base.jct_mean_s:.1f} s, with {jobs}."
    )


def told(network: Network, alone: Alone, machine: str) -> Iterator[str]:
    """What was done, a sentence or two each."""
    yield (
        f"A real Slurm of {network.nodes} nodes, one network namespace each, on {machine}. Links have the rates said "
        f"(token buckets): racks of {network.per_rack} nodes, uplinks oversubscribed {network.oversubscription:g}:1. "
        "Slurm runs sched/backfill, select/cons_tres and topology/tree, so it knows the racks, too."
    )
    yield (
        f"A two-node job is two processes of PyTorch that sum {GRADIENT_BYTES / 1e6:.1f} MB of gradients by gloo in each "
        f"iteration while the backward pass goes on; what a GPU would compute is a pause of {1e3 * COMPUTE_S:.0f} ms. "
        "A one-node job sends nothing and only holds its node."
    )
    yield (
        "The same jobs were submitted at the same times each time, with plain sbatch and the same options: to the "
        "partition that Slurm schedules by itself, and to the one that hemiola serve --mode enforce manages."
    )
    yield (
        f"What Hemiola knows of the model was measured at the beginning on one job in one rack ({1e3 * alone.near_s:.0f} "
        f"ms an iteration). Its forecast across racks was {1e3 * alone.forecast_s:.0f} ms; measured were "
        f"{1e3 * alone.far_s:.0f} ms. It knows no job's run time but the limit, and no job is stopped or moved."
    )
