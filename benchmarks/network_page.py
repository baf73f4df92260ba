"""The page of the study of network sensitivity, in Markdown: every sentence with a figure is computed."""

from __future__ import annotations

from collections.abc import Sequence

from clocks import table
from network_ablations import laws_section, resets_section, timers_section
from network_claims import claims_section, nothing_section
from network_findings import Best, Points
from network_grid import DALLY, POLICIES, Study
from network_points import GPUS, HOSTS, HOSTS_PER_RACK, MIXES, REFERENCE
from network_short import short_section
from network_sweeps import fabric_section, load_section, oversubscription_section
from network_words import listed, sweep

HEAD = """# What network-awareness buys

Dally (delay scheduling by network tier, network-sensitive pre-emption, self-tuning timers) against schedulers that
consolidate at any price, as best effort, or by migration: over fabric speed, oversubscription, load and kind of jobs. Every figure on this page
is computed by one command from replays that it makes itself."""

NOT_SHOWN = f"""## What this does not show

- **Not the paper's Dally.** Its formulas, traces and baselines are not public to us; ours is
  [in its style](../reference/policies.md). A figure that is not reached here does not refute it, nor does one that is
  reached confirm it.
- **A simulation.** Contention is a mean-field law, collectives are rings, no host fails, loading data is free.
  Nothing on this page was run on GPUs.
- **Profiles.** Muri's models were measured at an assumed 100 Gbit/s and are extrapolated to other speeds by one
  bandwidth term: overhead that is not bandwidth shrinks with it too. The GPTs are ideal rings
  ([profiles](../reference/profiles.md)). At 10 Gbit/s many of these jobs run several times slower across hosts than inside one; few
  people would run them so, without compressing, accumulating gradients or splitting the model otherwise. The largest gains come from such cells.
- **The reference fabric.** Had the run times been recorded on a slower fabric, jobs would have fewer iterations and
  slow fabrics would be less overloaded.
- **Makespan** of jobs that arrive over time is mostly the longest job's, and on raw Philly it says next to nothing.
- **Mean JCT** is mostly that of the many jobs that fit one host, which least attained service favours with or without a network.
- **{GPUS} GPUs, one kind of host, mostly powers of two.** Odd sizes fragment more, larger clusters less.
- **Gandiva** does not put several jobs on one GPU here, and each half-hour slice costs a save and a load.
- **The grid is a choice.** It has more slow and busy cells than there are such clusters: counts of cells are not odds."""


def page(points: Points, study: Study, found: Sequence[Best], about: str, pictures: dict[str, str]) -> str:
    """The whole page.

    Args:
        about: command, machine, time and versions.
        pictures: file names by the section that they belong to.
    """
    sections = [
        HEAD,
        about,
        short_section(points, study, found),
        claims_section(points, study, found)
        + _picture(pictures, "claims", "Dally's difference over fabric speed"),
        nothing_section(points, study),
        setup_section(points, study),
        fabric_section(points, study)
        + _picture(pictures, "exposed", "Exposed communication over fabric speed"),
        oversubscription_section(points, study),
        load_section(points, study) + _picture(pictures, "load", "Dally's difference over load"),
        timers_section(points, study)
        + _picture(pictures, "timers", "Regret of each timer over fabric speed"),
        resets_section(points, study),
        laws_section(points, study),
        NOT_SHOWN,
    ]
    return "\n\n".join(sections) + "\n"


def _picture(pictures: dict[str, str], name: str, says: str) -> str:
    return f"\n\n![{says}]({pictures[name]})" if name in pictures else ""


def setup_section(points: Points, study: Study) -> str:
    """What was replayed, and what the words mean."""
    mixes = "\n".join(
        f"- **{mix}**, {round(MIXES[mix].jobs * study.scale):,} jobs: {MIXES[mix].says}."
        for mix in study.mixes
    )
    return f"""## What was replayed

{GPUS} GPUs: {HOSTS} hosts of 8 in racks of {HOSTS_PER_RACK}, one NIC per host. NICs of {study.nics[0]:g} to {study.nics[-1]:g} Gbit/s behind uplinks
{study.over:g} times oversubscribed at load 1; some of these fabrics at other oversubscriptions
({listed(sorted({over for _, over in study.others}))}) and loads ({listed(study.loads)}{", and all jobs at once" if study.batch_nics else ""}).
{study.seeds} seeds per cell; all policies see the same jobs of a seed.

{mixes}

**Iterations are held fixed.** What a workload calls a job's run time is taken as its run time alone on its best
placement on a fabric of {REFERENCE[0]:g} Gbit/s with full bisection. On a slower fabric the same iterations take longer;
otherwise completion times could not be compared across fabrics. So "load 1" is load 1 *there*. If every job had its best
place to itself, the same jobs would offer each fabric of the sweep

{_offered(points, study)}

of what it can do while they arrive. Where that is above 1, what is compared is how a backlog is worked off.

**Exposed communication** is GPU-seconds spent waiting for communication that nothing hid, inside hosts too. Part of it no
scheduler can avoid: jobs of more than 8 GPUs must cross hosts, jobs of more than {8 * HOSTS_PER_RACK} racks. *The floor* is what the same jobs
would expose each alone on its best placement on that fabric.

**Differences** are means over seeds of the paired relative difference with a 95 % t interval; less is better, so negative is
good. *Better* and *worse* mean that the whole interval is on that side of zero and the mean beyond 1 %; of cells in which nothing differs,
one in twenty will seem to. **Consolidated** waits, for ever, for the narrowest tier that can hold a job; Tiresias, Gandiva and Dally choose the
narrowest tier that has room. {_ended(points, study)}"""


def _offered(points: Points, study: Study) -> str:
    rows = [
        [mix, *(f"{points.mean(cell, DALLY, 'offered').mean:.2f}" for cell in sweep(study, mix))]
        for mix in study.mixes
    ]
    return table(["NIC Gbit/s", *(listed([nic]) for nic in study.nics)], rows)


def _ended(points: Points, study: Study) -> str:
    unfinished = sum(
        row["unfinished"]
        for cell in study.cells()
        for policy in POLICIES
        for row in points.seeds(cell, policy).values()
    )
    return f"{unfinished} jobs did not finish." if unfinished else "Every job finished in every replay."
