"""The live demo as one web page that needs no network: what came out, who held which nodes, what the uplinks carried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from hemiola.report.document import POLICY_COLORS, Chart, Drawing, asset, document, policy_color
from hemiola.report.html import card, charts_json
from live_demo.measured import Alone, Ran, Run, figures
from live_demo.network import Network
from live_demo.words import COLUMNS, change, finding, told

__all__ = ["Shown", "charts", "page"]

STEP_S = 2.0
MBIT = 8e-6


@dataclass(frozen=True)
class Shown:
    """What the page is about.

    Attributes:
        runs: one or more; the first is what the others are compared with.
        seed: of the stream.
        machine: in words.
    """

    network: Network
    runs: Sequence[Run]
    alone: Alone
    seed: int
    machine: str


def page(shown: Shown) -> str:
    """The page as text (about 5 MB, most of it Plotly)."""
    from plotly.offline import get_plotlyjs

    drawn = charts(shown)
    scripts = [
        f'<script type="application/json" id="charts">{charts_json(drawn)}</script>',
        f"<script>{get_plotlyjs()}</script>",
        f"<script>{asset('report', 'report.js')}</script>",
    ]
    return document("a real Slurm, twice", asset("report", "report.css"), _body(shown, drawn), scripts)


def _body(shown: Shown, drawn: list[Chart]) -> Iterator[str]:
    jobs, network = shown.runs[0].jobs, shown.network
    facts = [
        f"{len(jobs)} jobs, {sum(len(job.hosts) > 1 for job in jobs)} of them of two nodes",
        f"{network.nodes} nodes in {network.racks} racks",
        f"{network.rate_mbit} Mbit/s each, uplinks {network.uplink_mbit} Mbit/s",
        f"seed {shown.seed}",
    ]
    yield (
        '<header><p class="brand">Hemiola</p><h1>The same jobs on a real Slurm, placed by Slurm and by Hemiola</h1>'
        f'<p class="facts">{" · ".join(facts)}</p><p class="finding">{escape(finding(shown.runs))}</p></header>'
    )
    yield _table(shown.runs)
    yield from (card(chart) for chart in drawn)
    done = "".join(f"<li>{escape(line)}</li>" for line in told(network, shown.alone, shown.machine))
    yield f'<section class="card"><h2>What was done</h2><ul>{done}</ul></section>'


def _table(runs: Sequence[Run]) -> str:
    heads = "".join(f'<th title="{escape(column.about)}">{escape(column.title)}</th>' for column in COLUMNS)
    base = figures(runs[0])
    rows = []
    for index, run in enumerate(runs):
        own = figures(run)
        cells = "".join(
            f"<td>{column.cell(own)}{_small(column, own, base, index)}</td>" for column in COLUMNS
        )
        swatch = f'<span class="swatch" style="background:var({policy_color(index)})"></span>'
        rows.append(f"<tr><th>{swatch}{escape(run.name)}</th>{cells}</tr>")
    return (
        '<section class="card"><h2>What came out</h2><p class="about">By the clocks of the jobs themselves. Small '
        f"print: difference to {escape(runs[0].name)}.</p>"
        f'<div class="scroll"><table><thead><tr><th>placed by</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _small(column: Any, own: Any, base: Any, index: int) -> str:
    if index == 0 or (text := change(column.value(own), column.value(base))) == "":
        return ""
    kind = "good" if column.value(own) <= column.value(base) else "bad"
    return f'<small class="{kind}">{text}</small>'


def charts(shown: Shown) -> list[Chart]:
    """Who held which nodes, by scheduler; iterations; uplinks."""
    last_s = max(job.end_s for run in shown.runs for job in run.jobs)
    ganttes = [
        Chart(
            id=f"gantt{index}",
            title=f"Who held which nodes: {run.name}",
            about="A bar is a job on a node, grey if it has one node; two bars of one colour are one job. Hatched: "
            "its two nodes are in different racks. Lines part racks.",
            drawings={"": _gantt(run, shown.network, last_s)},
            height_px=90 + 24 * shown.network.nodes,
        )
        for index, run in enumerate(shown.runs)
    ]
    return [*ganttes, _iterations(shown), _uplinks(shown, last_s)]


def _gantt(run: Run, network: Network, last_s: float) -> Drawing:
    single = [job for job in run.jobs if len(job.hosts) == 1]
    near = [job for job in run.jobs if len(job.hosts) > 1 and run.racks(job) == 1]
    far = [job for job in run.jobs if run.racks(job) > 1]
    traces = [
        _bars("one node", single, {"color": "--idle-2"}),
        _bars("two nodes in one rack", near, {"color": [color(job) for job in near for _ in job.hosts]}),
        _bars(
            "two nodes across racks", far,
            {"color": [color(job) for job in far for _ in job.hosts], "pattern": {"shape": "/"}},
        ),
    ]  # fmt: skip
    nodes = [f"h{node}" for node in range(network.nodes)]
    edges = [rack * network.per_rack - 0.5 for rack in range(1, network.racks)]
    layout = {
        "barmode": "overlay",
        "bargap": 0.12,
        "shapes": [_rule(edge) for edge in edges],
        "xaxis": {"title": {"text": "seconds since the first submission"}, "range": [0, last_s]},
        "yaxis": {
            "range": [network.nodes - 0.5, -0.5], "tickvals": list(range(len(nodes))), "ticktext": nodes,
            "showgrid": False,
        },
    }  # fmt: skip
    return Drawing([trace for trace in traces if trace["x"]], layout)


def color(job: Ran) -> str:
    """The same job has the same colour in every run."""
    return policy_color(int(job.name[1:]) % POLICY_COLORS)


def _bars(name: str, jobs: list[Ran], marker: dict[str, Any]) -> dict[str, Any]:
    bars = [(job, host) for job in jobs for host in job.hosts]
    return {
        "type": "bar", "orientation": "h", "name": name,
        "base": [round(job.start_s, 2) for job, _ in bars],
        "x": [round(job.end_s - job.start_s, 2) for job, _ in bars],
        "y": [int(host[1:]) for _, host in bars],
        "marker": {"line": {"color": "--paper", "width": 1}, **marker},
        "customdata": [[job.name, round(job.start_s - job.submit_s, 1)] for job, _ in bars],
        "hovertemplate": "<b>%{customdata[0]}</b> held it for %{x:.1f} s after waiting %{customdata[1]} s<extra></extra>",
    }  # fmt: skip


def _rule(edge: float) -> dict[str, Any]:
    line = {"color": "--soft", "width": 1}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": edge, "y1": edge, "line": line}


def _iterations(shown: Shown) -> Chart:
    traces = []
    for index, run in enumerate(shown.runs):
        pairs = [job for job in run.jobs if len(job.hosts) > 1]
        traces.append(
            {
                "type": "bar", "name": run.name, "x": [job.name for job in pairs],
                "y": [round(1e3 * job.mean_iteration_s, 1) for job in pairs],
                "marker": {"color": policy_color(index)},
                "customdata": [" and ".join(job.hosts) for job in pairs],
                "hovertemplate": "<b>%{x}</b> on %{customdata}: %{y:.0f} ms<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
    alone = shown.alone
    return Chart(
        id="iterations",
        title="An iteration of each two-node job",
        about=f"Mean, in milliseconds. One such job alone takes {1e3 * alone.near_s:.0f} ms in one rack and "
        f"{1e3 * alone.far_s:.0f} ms across two; jobs that share an uplink slow each other further.",
        drawings={
            "": Drawing(
                traces,
                {"barmode": "group", "yaxis": {"title": {"text": "ms"}}, "xaxis": {"type": "category"}},
            )
        },
        height_px=320,
    )


def _uplinks(shown: Shown, last_s: float) -> Chart:
    drawings = {}
    for run in shown.runs:
        traces = []
        for rack in range(shown.network.racks):
            x, y = rates(run, rack)
            traces.append(
                {
                    "type": "scatter", "mode": "lines", "name": f"rack {rack}", "x": x, "y": y,
                    "line": {"color": policy_color(rack), "width": 1.6, "shape": "hv"},
                    "hovertemplate": "%{y:.0f} Mbit/s at %{x:.0f} s<extra>%{fullData.name}</extra>",
                }
            )  # fmt: skip
        layout = {
            "xaxis": {"title": {"text": "seconds since the first submission"}, "range": [0, last_s]},
            "yaxis": {"title": {"text": "Mbit/s"}, "range": [0, 1.1 * shown.network.uplink_mbit]},
        }
        drawings[run.name] = Drawing(traces, layout)
    return Chart(
        id="uplinks",
        title="What the racks' uplinks carried",
        about=f"Sent out of each rack, by the kernel's counters, over {STEP_S:g} s each. "
        f"An uplink carries {shown.network.uplink_mbit} Mbit/s at most.",
        drawings=drawings,
        height_px=300,
    )


def rates(run: Run, rack: int) -> tuple[list[float], list[float]]:
    """When (s), and how much an uplink carried from then on (Mbit/s)."""
    kept = [sample for number, sample in enumerate(run.uplinks) if number % 4 == 0]
    x, y = [], []
    for (from_s, before), (to_s, after) in pairwise(kept):
        x.append(round(from_s - run.origin_s, 2))
        y.append(round(MBIT * (after[rack] - before[rack]) / (to_s - from_s), 2))
    return x, y
