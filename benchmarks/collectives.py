"""All-reduces that fit the network beside gloo's, in a lab, by turns in the same processes.

Cases: one host at a quarter of the rate, two racks behind narrow uplinks with ranks in a good and in a bad order,
equal hosts, small messages, links that drift as recorded ones did, training, ranks that are late as recorded. Hemiola measures the network itself.

    HEMIOLA_SHARED=... python benchmarks/collectives.py --write docs/results/collectives.md      about 25 minutes, root
    python benchmarks/collectives.py --only slow --rounds 2                                      to see that it works
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, Protocol

from page import DotPanel, DotRow, draw_dots, measured_with, write_page

from hemiola.lab import Lab

# The page of `benchmarks/collectives.py`: what was wanted, what was found, how it was measured.

PICTURE = "collectives.svg"


class _Case(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def target(self) -> float: ...
    @property
    def drifts(self) -> bool: ...
    @property
    def computes(self) -> float | None: ...


class _Outcome(Protocol):
    took_s: dict[int, dict[str, list[float]]]
    opening_s: dict[str, float]
    chosen: list[str]
    bound_s: dict[int, float]
    best: float


Found = Sequence[tuple[str, _Case, _Outcome]]

HEAD = """# Collectives that fit the network

AdapCC (ICDCS 2024) claims communication 2x as fast where links differ. Here all-reduces of four hosts in the
[lab](../guides/lab.md) go by gloo, by Hemiola's process group in its usual way (a ring), and by the same group with
`HEMIOLA_STRATEGY=auto`: it measures the network when it is opened and chooses
[schedules](../concepts/collectives.md) that fit. All take turns in the same processes; a time is that of the slowest rank.

With one slow link no schedule can be more than 2 (N - 1) / N = 1.5 times as fast as a ring in good order (four hosts)."""

HOW = """## How it was measured

Four network namespaces joined by a bridge, tbf queues (burst 1 ms, 20 ms of queue), segmentation offload on, no delay added, TCP as
named; float32, sums; as many in a row as take half a second, at least one; the least, the median and the greatest ratio of neighbouring runs. "Of the bound" is max(M / min B, 2 (N - 1) M / sum B), or what an
uplink has to carry, with headers (1514 bytes on the wire for 1448 of data), over the median. *Opening* is what
making the group took, measuring included. All four hosts share two processors.

Where links drift, every host's link follows another stretch of a recorded series (`bandwidth-hw.txt`, one value
every 5 s, relative to its 95th percentile, of 400 Mbit/s). All-reduces of 2 MiB, which to 400 Mbit/s are what 90 MiB were to the links that were recorded, go on all
the while: by gloo through the whole series, then by Hemiola through the same, and again. The ratio is that of mean times, each step of 5 s counting the same.
*At most* is the ratio of who knew every rate the moment it changes and met the bound with it. A model's iterations are
DDP's, computing included.
"""


def page(found: Found, command: str) -> str:
    """The Markdown."""
    lines = [
        HEAD,
        "",
        measured_with(command),
        "",
        f"![Gloo's time over Hemiola's]({PICTURE})",
        "",
        "| TCP | network | size | gloo | ring | fitted | gloo / fitted (least–most) | wanted | of the bound |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    fitted = [one for one in found if one[1].computes is None]
    for control, case, outcome in fitted:
        lines += [_line(control, case, outcome, size) for size in outcome.took_s]
    lines += _late([one for one in found if one[1].computes is not None])
    lines += ["", "## Schedules", "", "| TCP | network | used | opening |", "|---|---|---|---:|"]
    for control, case, outcome in fitted:
        used = ", ".join(outcome.chosen) or "the usual ring"
        lines.append(f"| {control} | {case.name} | {used} | {outcome.opening_s.get('fitted', 0.0):.2f} s |")
    return "\n".join([*lines, "", HOW])


LATE = """
## Late ranks

In every step one rank of four, another one each time, comes to an all-reduce later than the others, as AdapCC recorded it
(`wait_time_heter_bc128.csv`, relative to what 100 MiB take four hosts at 50 Gbit/s, its constants; every so-many-th value).
*Waiting* is Hemiola's usual ring, *relay* and *carry-over* are `HEMIOLA_STRAGGLERS`; times are those of a step, and the gain
is against waiting, the least and the greatest of all rounds. What is exact cannot gain more than the late rank's data take to go out
once instead of what the ring takes: a third of the all-reduce, if all else was done meanwhile.

| TCP | network | size | gloo | waiting | relay | carry-over | gain of relay | of carry-over | wanted |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"""


def _late(found: Found) -> list[str]:
    """Step times, if there are any."""
    lines = []
    for control, case, outcome in found:
        for size, took in outcome.took_s.items():
            times = " | ".join(
                _words(median(took[name])) for name in ("gloo", "usual", "relay", "carry-over")
            )
            parts = []
            for name in ("relay", "carry-over"):
                gain, least, most = gains(took, name)
                parts.append(f"**{gain:.1%}** ({least:.0%}–{most:.0%})")
            reached = gains(took, "relay")[0] >= case.target
            wanted = f"{case.target:.0%}{'' if reached else ' (relay: missed)'}" if case.target else ""
            lines.append(
                f"| {control} | {case.name} | {_size(size)} | {times} | {' | '.join(parts)} | {wanted} |"
            )
    return [LATE, *lines] if lines else []


def gains(took: Mapping[str, list[float]], name: str) -> tuple[float, float, float]:
    """By how much a step is shorter than with waiting: the median, the least, the greatest of all rounds."""
    each = [1 - ours / waiting for waiting, ours in zip(took["usual"], took[name], strict=True)]
    return median(each), min(each), max(each)


def _line(control: str, case: _Case, outcome: _Outcome, size: int) -> str:
    took = outcome.took_s[size]
    ratio, least, most = ratios(case, took)
    ring = _words(median(took["usual"])) if "usual" in took else ""
    bound = outcome.bound_s.get(size, 0.0)
    part = f"{bound / median(took['fitted']):.0%}" if bound and size >= 1 << 20 else ""
    part = f"at most {outcome.best:.2f}" if outcome.best else part
    wanted = f"{case.target:.2f}{'' if ratio >= case.target else ' (missed)'}" if case.target else ""
    return (
        f"| {control} | {case.name} | {_size(size)} | {_words(_middle(case, took['gloo']))} | {ring} | "
        f"{_words(_middle(case, took['fitted']))} | **{ratio:.2f}** ({least:.2f}–{most:.2f}) | {wanted} | {part} |"
    )


def ratios(case: _Case, took: Mapping[str, list[float]]) -> tuple[float, float, float]:
    """Gloo's time over ours: the median or mean, the least, the greatest."""
    each = [theirs / ours for theirs, ours in zip(took["gloo"], took["fitted"], strict=True)]
    middle = fmean(took["gloo"]) / fmean(took["fitted"]) if case.drifts else median(each)
    return middle, min(each), max(each)


def _middle(case: _Case, times: Sequence[float]) -> float:
    return fmean(times) if case.drifts else median(times)


def _words(seconds: float) -> str:
    return (
        f"{seconds * 1e6:.0f} µs"
        if seconds < 1e-3
        else f"{seconds * 1e3:.1f} ms"
        if seconds < 1
        else f"{seconds:.2f} s"
    )


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size >= 1 << 10 else f"{size} B"


def picture(found: Found) -> str:
    """Ratios by case, a panel for each kind of TCP; "" where none was measured."""
    panels = []
    for control in dict.fromkeys(control for control, _, _ in found):
        rows = []
        for other, case, outcome in found:
            if other != control or case.computes is not None:
                continue
            for size, took in outcome.took_s.items():
                ratio, least, most = ratios(case, took)
                dots = {"measured": ratio, **({"wanted": case.target} if case.target else {})}
                rows.append(DotRow(f"{case.name}, {_size(size)}", dots, (least, most)))
        most = max((row.span[1] for row in rows if row.span), default=1.0)
        panels.append(DotPanel(control, rows, tuple(range(math.ceil(most) + 1)), "least to most"))
    if not any(panel.rows for panel in panels):
        return ""
    return draw_dots(panels, "Gloo's time over Hemiola's, fitted to the network", "times as fast")


JOB = Path(__file__).with_name("collectives_job.py")
CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
MB = 1 << 20
STEP_S = 5.0
"""Of the recorded rates."""


@dataclass(frozen=True)
class Case:
    """One network and what is sent over it.

    Attributes:
        name: for people.
        lab: its arguments.
        sizes_bytes: of the all-reduces.
        order: hosts of ranks 0, 1, ...; () for all in order.
        target: the least ratio of gloo's time to ours; 0 for none.
        seconds: several in a row where one takes less.
        drifts: whether its links follow a recorded series.
        computes: if not None, one rank is late in every step, as recorded, and a step computes so many times as long
            as an all-reduce takes; `target` is the least gain in step time, as a share.
        model: of prediction_job, trained with DDP.
    """

    name: str
    lab: dict[str, Any]
    sizes_bytes: tuple[int, ...]
    order: tuple[str, ...] = ()
    target: float = 0.0
    seconds: float = 0.5
    drifts: bool = False
    computes: float | None = None
    model: str = ""
    groups: tuple[str, ...] = ("gloo", "usual", "fitted")


@dataclass
class Outcome:
    """What was measured.

    Attributes:
        took_s: by size and by group, every round; where links drift, the mean of every step of their rates.
        opening_s: of a group, measuring included.
        chosen: schedules that were used.
        bound_s: by size: what no schedule is faster than, headers included.
        best: where links drift, the ratio of who knew every rate at once and met the bound with it.
    """

    took_s: dict[int, dict[str, list[float]]]
    opening_s: dict[str, float]
    chosen: list[str]
    bound_s: dict[int, float] = field(default_factory=dict)
    best: float = 0.0


FOUR: dict[str, Any] = {"hosts": 4, "rate": "400mbit"}
SLOW = {**FOUR, "host_rates": {"h3": "100mbit"}}
CASES = {
    "slow": Case("one host at a quarter", SLOW, (MB, 16 * MB, 64 * MB), target=1.4),
    "racks": Case("two racks, good order", {**FOUR, "racks": 2, "uplink": "200mbit"}, (16 * MB,), target=1.4),
    "bad": Case(
        "two racks, bad order", {**FOUR, "racks": 2, "uplink": "200mbit"}, (16 * MB,), ("h0", "h2", "h1", "h3"), 2.5
    ),
    "fast": Case("one host at twice the rate", {"hosts": 4, "rate": "200mbit", "host_rates": {"h3": "400mbit"}}, (16 * MB,)),
    "equal": Case("equal hosts", FOUR, (MB, 16 * MB, 64 * MB), target=0.97),
    "small": Case("small, equal hosts", FOUR, (4, 256, 4096, 16 << 10, 64 << 10), target=1 / 1.2, seconds=0.1),
    "drift": Case("drifting links", FOUR, (2 * MB,), target=1.3, drifts=True, groups=("gloo", "fitted")),
    "resnet": Case("ResNet, one host at a quarter", SLOW, (), target=1.31, model="ResNet"),
    "gpt2": Case("GPT-2, one host at a quarter", SLOW, (), target=1.31, model="GPT-2"),
    "late": Case(
        "one rank late", FOUR, (16 * MB,), target=0.15, computes=0.0, groups=("gloo", "usual", "relay", "carry-over")
    ),
    "busy": Case(
        "one rank late, computing", FOUR, (16 * MB,), computes=1.0, groups=("gloo", "usual", "relay", "carry-over")
    ),
}  # fmt: skip
ADAPCC_S = 100 * MB / (50e9 / 8) * 1.5
"""What 100 MiB take four hosts at 50 Gbit/s, as AdapCC has them: its recorded waits are taken relative to this."""
STEPS = 12
"""Of a round with late ranks."""


@contextmanager
def congestion(name: str) -> Iterator[None]:
    """TCP's congestion control of namespaces made meanwhile."""
    before = CONGESTION.read_text()
    CONGESTION.write_text(name)
    try:
        yield
    finally:
        CONGESTION.write_text(before)


def run(
    case: Case, rounds: int, series: Sequence[Sequence[float]] = (), waits: Sequence[float] = ()
) -> Outcome:
    """Measure one case.

    Args:
        series: of a drifting case, every host's rates relative to its own, one for each `STEP_S`.
        waits: of a case with late ranks, how late, relative to an all-reduce.
    """
    with Lab(**case.lab) as lab:
        hosts = case.order or lab.hosts
        places = lab.rendezvous(hosts)
        usual_s = bound_s(lab, case.sizes_bytes[0]) if waits else 0.0
        how = {
            "sizes_bytes": case.sizes_bytes, "model": case.model, "rounds": rounds, "groups": case.groups, "seconds": case.seconds,
            "steps": len(series[0]) if series else 0, "step_s": STEP_S, "late_s": [usual_s * wait for wait in waits],
            "compute_s": usual_s * (case.computes or 0.0),
        }  # fmt: skip
        ranks = [
            lab.start(
                host, [sys.executable, str(JOB), json.dumps(how)], env={**places[host], "OMP_NUM_THREADS": "1"},
                stdout=None if number else subprocess.PIPE, text=True,
            )
            for number, host in enumerate(hosts)
        ]  # fmt: skip
        said = ""
        assert ranks[0].stdout is not None
        for said in ranks[0].stdout:
            if said == "begins\n":
                _drive(lab, series)
        if any(rank.wait(timeout=60) for rank in ranks):
            raise SystemExit(f"{case.name} failed: look at what its ranks printed")
        found = json.loads(said)
        bound = {} if series else {size: bound_s(lab, size) for size in case.sizes_bytes}
    took = {int(size): times for size, times in found["took_s"].items()}
    return Outcome(took, found["opening_s"], found["chosen"], bound, best(series) if series else 0.0)


def _drive(lab: Lab, series: Sequence[Sequence[float]]) -> None:
    """Set the hosts' rates, step after step."""
    begun_s = time.monotonic()
    for number, step in enumerate(zip(*series, strict=True)):
        time.sleep(max(0.0, begun_s + number * STEP_S - time.monotonic()))
        for host, share in zip(lab.hosts, step, strict=True):
            lab.set_rate(host, f"{400 * share:.1f}mbit")


HEADERS = 1514 / 1448
"""Bytes on the wire for each of data."""


def bound_s(lab: Lab, size_bytes: int) -> float:
    """No all-reduce takes less."""
    from hemiola.cost.collective.duration import bounds
    from hemiola.cost.places import place_ranks

    topology = lab.topology()
    return bounds("all-reduce", size_bytes * HEADERS, place_ranks(topology, topology.gpus)).seconds


def drift(folder: Path, hosts: int, steps: int) -> list[list[float]]:
    """Recorded rates of a cloud, one stretch for each host, relative to what 95 % of them are below; at most 1."""
    text = (folder / "data/comm/traces/bandwidth-hw.txt").read_text(encoding="utf-8")
    rates = [float(rate) for rate in ast.literal_eval(re.sub(r"\s+", " ", text.strip()))]
    top = sorted(rates)[int(0.95 * len(rates))]
    stride = len(rates) // hosts
    return [
        [min(1.0, max(0.05, rate / top)) for rate in rates[k * stride : k * stride + steps]]
        for k in range(hosts)
    ]


def best(series: Sequence[Sequence[float]]) -> float:
    """How much faster than rings anything can be on average on hosts with these rates."""
    steps = list(zip(*series, strict=True))
    hosts = len(series)
    ring = sum(2 * (hosts - 1) / hosts / min(step) for step in steps)
    return ring / sum(max(1 / min(step), 2 * (hosts - 1) / sum(step)) for step in steps)


def late(folder: Path, count: int) -> list[float]:
    """Recorded waits for the last rank of a step, one of every so many, relative to an all-reduce."""
    lines = (folder / "data/comm/traces/wait_time_heter_bc128.csv").read_text(encoding="utf-8").split()
    found = [float(line) / 1e3 / ADAPCC_S for line in lines]
    return found[:: len(found) // count][:count]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument(
        "--rounds", type=int, default=7, help="of drifting links, one for every four of these"
    )
    parser.add_argument("--steps", type=int, default=24, help="of 5 s, of drifting links")
    parser.add_argument("--congestion", nargs="+", default=["reno", "cubic"])
    parser.add_argument(
        "--shared", type=Path, default=os.environ.get("HEMIOLA_SHARED"), help="recorded rates"
    )
    parser.add_argument("--write", type=Path, help="the page; its picture goes beside it")
    given = parser.parse_args(arguments)
    if given.only != list(CASES) and not given.shared:
        for name in given.only:
            if CASES[name].drifts or CASES[name].computes is not None:
                parser.error(f"{name} needs recorded rates: give --shared")
    found: list[tuple[str, Case, Outcome]] = []
    for control in given.congestion:
        for name in given.only:
            case = CASES[name]
            recorded = case.drifts or case.computes is not None
            if (recorded and not given.shared) or (
                (recorded or case.model) and control != given.congestion[0]
            ):
                continue
            series = drift(Path(given.shared), 4, given.steps) if case.drifts else ()
            waits = late(Path(given.shared), STEPS * given.rounds) if case.computes is not None else ()
            start = time.monotonic()
            rounds = -(-given.rounds // 4) if case.drifts else given.rounds
            with congestion(control):
                outcome = run(case, rounds, series, waits)
            found.append((control, case, outcome))
            print(
                f"{control:6s} {case.name:24s} {time.monotonic() - start:5.0f} s {outcome.chosen}", flush=True
            )
            for size, times in outcome.took_s.items():
                words = ", ".join(
                    f"{group} {sorted(each)[len(each) // 2]:.4f} s" for group, each in times.items()
                )
                print(
                    f"    {size:>9,} bytes: {words}; bound {outcome.bound_s.get(size, 0.0):.4f} s", flush=True
                )
    command = f"python benchmarks/collectives.py {' '.join(arguments or sys.argv[1:])}".strip()
    if given.write:
        drawing = picture(found)
        write_page(given.write, page(found, command), {PICTURE: drawing} if drawing else None)
    else:
        print(page(found, command))


if __name__ == "__main__":
    main()
