"""A topology's or a schedule's page: a picture and tables in one file, without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hemiola.report.document import asset, document
from hemiola.report.job.page import card, table
from hemiola.report.network.figures import SLACK, NetworkFigures
from hemiola.report.network.picture import KEYS, network_picture
from hemiola.report.network.words import (
    about_groups,
    facts,
    finding,
    host_rows,
    reasons,
    short_rate,
    uplink_rows,
)

__all__ = ["head", "keys", "page", "render_network"]


def render_network(figures: NetworkFigures, title: str = "") -> str:
    """A topology's page as text."""
    topology = figures.topology
    heading = title or topology.name
    source = f"<dl><dt>source</dt><dd>{escape(topology.source)}</dd></dl>" if topology.source else ""
    uplinks = [
        card(f"Uplinks of {level.name}s", "Narrowest first. Oversubscription: how many times what an uplink carries the hosts below it could send.", table(*uplink_rows(figures, number)))
        for number, level in enumerate(topology.levels)
    ]  # fmt: skip
    return page(
        heading,
        [
            head(heading, facts(figures), finding(figures), reasons(figures), _numbers(figures)),
            _picture(figures),
            card("Hosts", f"Slowest first. {about_groups()}", table(*host_rows(figures))),
            *uplinks,
            card("Where this came from", "", source) if source else "",
        ],
    )


def _numbers(figures: NetworkFigures) -> list[tuple[str, str]]:
    slowest, usual = figures.slowest, figures.median_bytes_per_s
    found = [(short_rate(usual), "the median host, by its slower direction")]
    if slowest.each_bytes_per_s < (1 - SLACK) * usual:
        each = (
            f", {short_rate(slowest.each_bytes_per_s)} for each host behind it" if slowest.hosts > 1 else ""
        )
        found.append((short_rate(slowest.rate.bytes_per_s), f"the narrowest link: {slowest.name}{each}"))
    worst = max((one.oversubscription for every in figures.domains for one in every), default=0.0)
    return [*found, (f"{worst:.3g}", "the largest oversubscription of an uplink")] if worst else found


def _picture(figures: NetworkFigures) -> str:
    text = (
        "A link four times as fast is drawn twice as wide. In brackets what measuring gave, from the lowest to the highest; "
        "4:1 is an uplink whose hosts could send four times what it carries. Where there are many hosts, those that are alike "
        "stand together; point at one for its figures."
    )
    drawn = network_picture(figures)
    return card("The network", text, keys([key for key in KEYS if f"var({key[1]})" in drawn]) + drawn)


def keys(colors: Sequence[tuple[str, str]]) -> str:
    """What the colours mean."""
    told = "".join(
        f'<span><i style="background-color:var({color})"></i>{escape(words)}</span>'
        for words, color in colors
    )
    return f'<div class="tools"><div class="keys">{told}</div></div>'


def head(
    title: str, about: Sequence[str], said: str, more: Sequence[str], numbers: Sequence[tuple[str, str]]
) -> str:
    """Title, what it is in a line, the finding and what else is worth knowing, and the main figures."""
    listed = (
        f'<ul class="reasons">{"".join(f"<li>{escape(text)}</li>" for text in more)}</ul>' if more else ""
    )
    cells = "".join(
        f'<div class="figure"><b>{escape(value)}</b><span>{escape(words)}</span></div>'
        for value, words in numbers
    )
    return (
        f'<header><p class="brand">Hemiola</p><h1>{escape(title)}</h1><p class="facts">{escape(" · ".join(about))}</p>'
        f'<p class="finding">{escape(said)}</p>{listed}<div class="figures">{cells}</div></header>'
    )


def page(title: str, body: Sequence[str]) -> str:
    """The whole page."""
    return document(title, asset("report", "report.css") + asset("report.job", "job.css"), body)
