"""The live demo over several seeds: what Dally's waiting for one rack is worth on a real Slurm, end to end.

    sudo python benchmarks/live_placement.py [--seeds 3] [--write docs/results/live-placement.md]

Each seed's stream of real PyTorch jobs runs four times, one after the other, on a Slurm with a shaped network
(`examples/live_demo`): under Slurm's own scheduler; under Slurm's with `--switches=1`, by which a user asks for one rack
and waits for it; under Hemiola with Dally that never waits, so that the order is Hemiola's; and under Dally.
Needs root, Slurm's packages, and two quiet cores. Five to eight minutes per seed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import fmean, stdev

from page import machine, write_page

from hemiola.core.job import Demand, Profile, batch_job
from hemiola.simulator.cluster import Costs
from hemiola.simulator.rules import Semantics
from hemiola.simulator.simulate import simulate
from hemiola.trace.topologies import read_topology

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from live_demo.arms import ARMS
from live_demo.compare import Compared, compare
from live_demo.measured import Alone, Figures, figures
from live_demo.network import Network
from live_demo.stream import GRADIENT_BYTES, START_S, Mix, stream
from live_demo.words import COLUMNS, change, told

SIMULATED = 24
READ = """\
How to read it:

- Between Slurm and Dally that never waits, the order differs, and which of the free nodes are taken: all jobs have the same
  time limit, so Slurm's backfilling lets hardly any job pass another, and Dally lets pass whoever fits. Between that and
  Dally, nothing differs but that jobs decline a place across racks.
- There is much to gain where jobs wait (seed 1), and nothing where racks have room (a mean wait of a second or two):
  streams of one load differ much in that, being short.
- `--switches=1` is Slurm's own means to the same end, and reaches most of it here, where every two-node job suffers across
  racks and its user says so. Slurm then waits up to `max_switch_wait` (300 s), whatever the job would lose. Dally needs
  nobody to say it, and waits for a place only as long as the job would lose without.
- Streams, jobs and network are small and short: what is shown is that the mechanism works end to end on the real thing,
  not how much it is worth on another cluster. For that, replay its trace: `hemiola simulate`.""".splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1, help="seed")
    parser.add_argument("--jobs", type=int, default=Mix.jobs)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    network, compared = Network(), {}
    for seed in range(given.first, given.first + given.seeds):
        compared[seed] = measure(network, seed, given.jobs, given.arms)
        print(*rows(seed, compared[seed]), sep="\n", file=sys.stderr, flush=True)
    text = page(network, compared, given)
    if given.write:
        write_page(given.write, text)
    print(text)


def measure(network: Network, seed: int, jobs: int, arms: Sequence[str]) -> Compared:
    asks = stream(seed, Mix(jobs=jobs, nodes=network.nodes))
    with tempfile.TemporaryDirectory() as folder:
        return compare(
            network, asks, [ARMS[arm] for arm in arms], folder=Path(folder), said=lambda *now: None
        )


def rows(seed: int, compared: Compared) -> list[str]:
    """A line of a table for each run."""
    base = figures(compared.runs[0])
    found = []
    for run in compared.runs:
        own = figures(run)
        cells = [column.cell(own) for column in COLUMNS]
        if own is not base and run is not compared.runs[0]:
            cells[0] += f" ({change(own.jct_mean_s, base.jct_mean_s)})"
        cells[COLUMNS.index(crossing())] += f" of {own.pairs}"
        found.append(f"| {seed} | {run.name} | {' | '.join(cells)} |")
    return found


def crossing() -> object:
    return next(column for column in COLUMNS if column.title == "across racks")


def summary(compared: dict[int, Compared]) -> list[str]:
    """Each way against the first over all seeds: mean, and by seed."""
    first, *others = next(iter(compared.values())).runs
    lines = [f"| against {first.name} | mean completion | by seed | makespan |", "|---|---|---|---|"]
    for number, run in enumerate(others, start=1):
        pairs = [
            (figures(found.runs[number]), figures(found.runs[0])) for _, found in sorted(compared.items())
        ]
        lines.append(
            f"| {run.name} | **{mean_change(pairs, 'jct_mean_s')}** | "
            f"{', '.join(change(own.jct_mean_s, base.jct_mean_s) for own, base in pairs)} | "
            f"{mean_change(pairs, 'makespan_s')} |"
        )
    return lines


def simulated(network: Network, alone: Alone, jobs: int, seed: int) -> float:
    """What the simulator says that Dally changes of strict order's mean completion on a seed's stream."""
    compute_s = alone.near_s - alone.communication_s
    profile = Profile(
        name="live-demo", demands=(Demand(1, compute_s, 0.0), Demand(2, compute_s, float(GRADIENT_BYTES)))
    )
    asked = [
        batch_job(
            id=ask.name, submit_s=ask.submit_s, gpus=ask.hosts, hosts=ask.hosts, profile=profile, pinned=True,
            duration_s=ask.work_s + START_S * (ask.hosts > 1),
        )
        for ask in stream(seed, Mix(jobs=jobs, nodes=network.nodes))
    ]  # fmt: skip
    speeds = ",".join(f"{name}={value}" for name, value in network.speeds.items())
    cluster = f"leaf-spine:hosts={network.nodes},gpus_per_host=1,hosts_per_rack={network.per_rack},{speeds}"
    semantics = Semantics(costs=Costs(scale=0.0))
    runs = simulate(asked, read_topology(cluster), ["fifo", ARMS["dally"].policy], semantics=semantics).runs
    strict, dally = (fmean(job.finish_s - job.submit_s for job in run.records) for run in runs)
    return dally / strict - 1


def forecast(network: Network, compared: dict[int, Compared], jobs: int) -> list[str]:
    """The same streams, and many others, in the simulator."""
    alone = next(iter(compared.values())).alone
    own = [simulated(network, alone, jobs, seed) for seed in compared]
    many = [simulated(network, alone, jobs, seed) for seed in range(1, SIMULATED + 1)]
    return [
        "`hemiola simulate` on the same streams, with strict order in Slurm's place: "
        f"{', '.join(f'{one:+.0%}' for one in own)} by seed; over seeds 1 to {SIMULATED} {fmean(many):+.0%} in the mean, "
        f"from {max(many):+.0%} to {min(many):+.0%}."
    ]


def needless(compared: dict[int, Compared]) -> str:
    """Whether the first way could have done better at what it knows."""
    found = [figures(one.runs[0]) for one in compared.values()]
    name = next(iter(compared.values())).runs[0].name
    return (
        f"Of the {sum(own.crossed for own in found)} jobs that crossed racks under {name}, "
        f"{sum(own.needless for own in found)} started while a rack had room."
    )


def mean_change(pairs: Sequence[tuple[Figures, Figures]], name: str) -> str:
    """Of a figure, over the seeds, with the standard deviation."""
    changes = [getattr(own, name) / getattr(base, name) - 1 for own, base in pairs]
    spread = f" ± {100 * stdev(changes):.0f} points" if len(changes) > 1 else ""
    return f"{fmean(changes):+.0%}{spread}"


def page(network: Network, compared: dict[int, Compared], given: argparse.Namespace) -> str:
    alone = next(iter(compared.values())).alone
    titles = " | ".join(column.title for column in COLUMNS)
    lines = [
        "# Placement by Dally on a real Slurm", "",
        f"`python benchmarks/live_placement.py --seeds {given.seeds}`, {date.today()}, on {machine()}.", "",
        *(line.strip() for line in (__doc__ or "").splitlines()[4:9]), "",
        *(f"- {line}" for line in told(network, alone, "this machine")), "",
        "## What came out", "", *summary(compared), "",
        "± is one standard deviation over the seeds. " + needless(compared), "",
        *forecast(network, compared, given.jobs), "", *READ, "",
        "## Each run", "",
        f"| seed | placed by | {titles} |", "|---|---|" + "---|" * len(COLUMNS),
        *(row for seed, found in compared.items() for row in rows(seed, found)), "",
        *("; ".join(f"{column.title}: {column.about}" for column in COLUMNS) + ".").splitlines(), "",
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    main()
