"""A network's figures in plain words, the same in the terminal and on the page."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from hemiola.core.errors import InputError
from hemiola.core.hostlist import compress
from hemiola.core.units import format_rate
from hemiola.report.job.words import duration, percent
from hemiola.report.network.figures import APART, SLOW, Domains, HostGroup, NetworkFigures, Rate, is_slow

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType


__all__ = [
    "NetworkTable",
    "about_groups",
    "domain_names",
    "facts",
    "finding",
    "interval",
    "lines_table",
    "names_words",
    "rate_words",
    "reasons",
    "share_words",
    "short_rate",
]


_LONGEST = 44
"""Characters of a list of names; a longer one is cut, and says so."""
_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def names_words(names: Sequence[str]) -> str:
    """Names as a hostlist, short."""
    try:
        text = compress(names)
    except InputError:
        text = ",".join(names)
    if len(text) <= _LONGEST:
        return text
    return f"{', '.join(names[:2])} and {len(names) - 2:,} more" if len(names) > 2 else text


def host_names(figures: NetworkFigures, group: HostGroup) -> str:
    """Of a group's hosts."""
    return names_words([figures.topology.hosts.names[host] for host in group.hosts])


def domain_names(figures: NetworkFigures, level: int, numbers: Sequence[int]) -> str:
    """Of a level's domains by their numbers: "racks 0-3"; what calls itself a rack stays as it is."""
    kind = figures.topology.levels[level]
    text = names_words([kind.domains[number] for number in numbers])
    bare = re.fullmatch(r"\[([^\[\]]*)\]", text)
    if kind.name.lower() in text.lower():
        return text
    return f"{kind.name}{'s' * (len(numbers) > 1)} {bare[1] if bare else text}"


def short_rate(bytes_per_s: float) -> str:
    """A rate with three digits."""
    return format_rate(bytes_per_s if math.isinf(bytes_per_s) else float(f"{8 * bytes_per_s:.3g}") / 8)


def interval(rate: Rate) -> str:
    """From where to where a rate was measured, in the unit that `short_rate` gives it; "" if it was not."""
    if not rate.is_measured or not math.isfinite(rate.high):
        return ""
    unit = short_rate(rate.bytes_per_s).partition(" ")[2]
    scale = _SCALES[unit.removesuffix("bit/s")]
    low, high = (float(f"{8 * value / scale:.3g}") for value in (rate.low, rate.high))
    return f"({low:g}–{high:g})"


def rate_words(rate: Rate) -> str:
    """A rate, and its interval if there is one."""
    return f"{short_rate(rate.bytes_per_s)} {interval(rate)}".rstrip()


def oversubscribed(domains: Domains) -> str:
    """How much more the hosts below could send than the uplink carries."""
    ratio = domains.oversubscription
    return f"{ratio:.3g}" if ratio else "–"


def finding(figures: NetworkFigures) -> str:
    """Where the network is narrowest, in one sentence."""
    return next(iter(_sentences(figures)))


def reasons(figures: NetworkFigures) -> list[str]:
    """What else is worth knowing, each a sentence that stands alone."""
    return list(_sentences(figures))[1:]


def facts(figures: NetworkFigures) -> list[str]:
    """What the topology is, in a few words."""
    topology = figures.topology
    levels = [
        f"{len(level.domains):,} {level.name}{'s' * (len(level.domains) > 1)}" for level in topology.levels
    ]
    hosts, gpus = len(topology.hosts), topology.gpus
    told = [f"{hosts:,} host{'s' * (hosts > 1)}", f"{gpus:,} GPU{'s' * (gpus > 1)}", *levels]
    return [*told, "measured" if figures.is_measured else "as described, not measured"]


def _sentences(figures: NetworkFigures) -> Iterator[str]:
    found = [*_slow_hosts(figures), *_narrow_uplinks(figures)]
    if not found:
        yield _nothing_narrow(figures)
    yield from (text for _, text in sorted(found))


def _slow_hosts(figures: NetworkFigures) -> Iterator[tuple[float, str]]:
    """(share of the median, sentence) of the slowest hosts, if they are slow."""
    group, usual = figures.groups[0], figures.median_bytes_per_s
    if not is_slow(group.slower, usual):
        return
    share = group.slower.bytes_per_s / usual
    way = "" if not group.is_apart else "out " if group.slower is group.out else "in "
    many = len(group.hosts) > 1
    yield (
        share,
        f"{host_names(figures, group)} {'are' if many else 'is'} the slowest: {way}{rate_words(group.slower)}, "
        f"{percent(share)} of the median host's {short_rate(usual)}.",
    )


def _narrow_uplinks(figures: NetworkFigures) -> Iterator[tuple[float, str]]:
    """(share of what the hosts below could send, sentence) of each level's narrowest uplinks."""
    for level, every in enumerate(figures.domains):
        one = every[0]
        if one.oversubscription <= 1 / SLOW:
            continue
        many = len(one.numbers) > 1
        yield (
            1 / one.oversubscription,
            f"The uplink{'s' * many} of {domain_names(figures, level, one.numbers)} {'are' if many else 'is'} narrow: "
            f"{rate_words(one.uplink)}{' each' * many} for {one.hosts:,} hosts that could send "
            f"{short_rate(one.below_bytes_per_s)} (oversubscription {oversubscribed(one)}).",
        )


def _nothing_narrow(figures: NetworkFigures) -> str:
    groups, slowest = figures.groups, figures.slowest
    uplinks = ", and no uplink is narrower than the hosts below it" if figures.domains else ""
    rates = [rate.bytes_per_s for group in groups for rate in (group.out, group.into)]
    if (len(groups) == 1 and not groups[0].is_apart) or min(rates) == max(rates):
        hosts = len(figures.topology.hosts)
        who = "The host has" if hosts == 1 else f"All {hosts:,} hosts are alike:"
        return f"{who} {rate_words(groups[0].slower)}{uplinks}."
    each = f", {short_rate(slowest.each_bytes_per_s)} for each host" if slowest.hosts > 1 else ""
    share = slowest.each_bytes_per_s / figures.median_bytes_per_s
    against = f": {percent(share)} of the median host" if math.isfinite(share) else ""
    return f"The slowest link is {slowest.name}, {rate_words(slowest.rate)}{each}{against}."


def share_words(share: float) -> str:
    """A share with one digit behind the point, unless it is 0."""
    return percent(share, 1).replace(".0 %", " %")


def latency_words(group: HostGroup) -> str:
    """A group's latency."""
    return duration(group.latency_s)


def about_groups() -> str:
    """When hosts are put together."""
    return (
        "Hosts stand together where one rate lies within all their intervals, each taken at least 3 % wide; "
        f"out and in are told apart where they differ by more than {percent(APART)}."
    )


# A topology in the terminal: where it is narrow, hosts that are alike, uplinks, where it came from.

MOST = 12
"""Lines of a table; what is left out is told."""


class NetworkTable:
    """The tables, one below the other, as something that Rich can print."""

    def __init__(self, figures: NetworkFigures) -> None:
        self.figures = figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """What to draw."""
        from rich.text import Text

        figures = self.figures
        name = Text(figures.topology.name, style="bold")
        yield name + Text(f": {', '.join(facts(figures))}", style="not bold")
        yield Text(finding(figures), style="bold")
        yield from (Text(f"- {line}") for line in reasons(figures))
        heads, rows = host_rows(figures)
        yield from lines_table("Hosts, slowest first", heads, rows)
        for level in range(len(figures.domains)):
            heads, rows = uplink_rows(figures, level)
            yield from lines_table(
                f"Uplinks of {figures.topology.levels[level].name}s, narrowest first", heads, rows
            )
        if figures.topology.source:
            yield Text(f"Source: {figures.topology.source}", style="dim")


def host_rows(figures: NetworkFigures) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and lines of the table of hosts."""
    apart = any(group.is_apart for group in figures.groups)
    rows = []
    for group in figures.groups:
        rates = (rate_words(group.out), rate_words(group.into)) if apart else (rate_words(group.slower),)
        gpus = f"{group.gpus} {group.gpu_type}".strip()
        rows.append((host_names(figures, group), f"{len(group.hosts):,}", *rates, latency_words(group), gpus))
    return ("", "hosts", *(("out", "in") if apart else ("rate",)), "latency", "GPUs each"), rows


def uplink_rows(figures: NetworkFigures, level: int) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and lines of the table of a level's uplinks."""
    rows: list[tuple[str, ...]] = [
        (
            domain_names(figures, level, one.numbers), f"{len(one.numbers):,}", f"{one.hosts:,}", rate_words(one.uplink),
            oversubscribed(one),
        )
        for one in figures.domains[level]
    ]  # fmt: skip
    word = figures.topology.levels[level].name
    return ("", f"{word}s", "hosts each", "uplink", "oversubscription"), rows


def lines_table(
    title: str, heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]
) -> Iterator[RenderableType]:
    """A table whose first column is named by its title; nothing without lines."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    if not rows:
        return
    more = f" ({MOST} of {len(rows):,} lines)" if len(rows) > MOST else ""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left")
    table.title = Text(title + more, style="bold not italic")
    table.add_column(
        heads[0], overflow="fold", style="bold", min_width=min(20, max(len(row[0]) for row in rows[:MOST]))
    )
    for head in heads[1:]:
        table.add_column(Text(head), justify="right", overflow="fold")
    for row in rows[:MOST]:
        table.add_row(*map(Text, row))
    yield table
