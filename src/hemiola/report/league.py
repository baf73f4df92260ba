"""A league as people read it: who won which cell, by how much, and how sure that is; as a page, as Markdown and as JSON.

Every figure is computed here from completion times; what is drawn knows no policy by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hemiola.analysis.league import PairedChange, false_discoveries, paired_change, ranks
from hemiola.core.errors import InputError
from hemiola.core.units import format_duration
from hemiola.report.document import write_page
from hemiola.report.job.page import card, table
from hemiola.report.network.page import head, page
from hemiola.simulator.league import League, LeagueCell, is_clairvoyant
from hemiola.trace.atomic import replacing

__all__ = [
    "LEAGUE_SCHEMA",
    "LeagueScore",
    "Match",
    "Standing",
    "render_league",
    "write_league",
    "write_league_json",
]

LEAGUE_SCHEMA = "hemiola.league/1"
BETTER, TIE, WORSE = "better", "tie", "worse"


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """The champion against the best other policy of a cell that goes by no true run times.

    Attributes:
        cell: its name.
        rival: the policy with the least mean completion time there but for the champion.
        change: from the rival to the champion.
        verdict: "better", "tie" or "worse", at the league's rate of false discoveries over all cells.
        rank: of the champion among all that go by no true run times.
    """

    cell: str
    rival: str
    change: PairedChange
    verdict: str
    rank: float


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A policy over all of its cells.

    Attributes:
        clairvoyant: whether it goes by true run times; such a one has no rank.
        rank_mean: its mean rank in its cells.
        best_of: cells in which its mean completion time is the least of all that have a rank.
        over_bound: mean completion time over what no schedule can beat, less 1; the median of the cells.
        over_certificate: how far below its own certificate it stayed, the median where runs report one.
        better, tied, worse: cells in which the champion is so against it, at the same rate of false discoveries.
        change: median of the champion's change to it.
        unfinished: jobs that it left, though they could run.
        cpu_s: what its runs took.
    """

    policy: str
    clairvoyant: bool
    cells: int
    rank_mean: float | None
    best_of: int
    over_bound: float
    over_certificate: float | None
    better: int
    tied: int
    worse: int
    change: float | None
    unfinished: int
    cpu_s: float


class LeagueScore:
    """What follows from a league's cells.

    Args:
        cells: those with a slice at least count.

    Raises:
        InputError: there is none, or the champion has nobody to be compared with.
    """

    def __init__(self, league: League, cells: Sequence[LeagueCell]) -> None:
        self.league = league
        self.cells = [cell for cell in cells if cell.slices]
        if not self.cells:
            raise InputError(
                "no cell of the league was played to its end", "go on with the same command and --keep"
            )
        names = dict.fromkeys(name for cell in self.cells for name in cell.policies)
        self.clairvoyant = {name: is_clairvoyant(name) for name in names}
        if not any(name != league.champion and not knows for name, knows in self.clairvoyant.items()):
            raise InputError(
                f"{league.champion} has no rival that goes by no true run times",
                "name another policy, such as tiresias",
            )

    @cached_property
    def matches(self) -> list[Match]:
        """One for each cell."""
        rivals = [self._rival(cell) for cell in self.cells]
        changes = [self.change(cell, rival) for cell, rival in zip(self.cells, rivals, strict=True)]
        verdicts = self._verdicts(changes)
        return [
            Match(
                cell=cell.name,
                rival=rival,
                change=change,
                verdict=verdict,
                rank=self.ranks(cell)[self.league.champion],
            )
            for cell, rival, change, verdict in zip(self.cells, rivals, changes, verdicts, strict=True)
        ]

    @cached_property
    def standings(self) -> list[Standing]:
        """Every policy, the best mean rank first and those without one last."""
        found = [self._standing(name) for name in self.clairvoyant]
        return sorted(found, key=lambda one: (one.rank_mean is None, one.rank_mean or one.over_bound))

    @property
    def verdicts(self) -> Counter[str]:
        """In how many cells the champion is better than, as good as, and worse than the best other one."""
        return Counter(match.verdict for match in self.matches)

    @property
    def median_change(self) -> float:
        """Of the champion to the best other one, over the cells."""
        return float(np.median([match.change.mean for match in self.matches]))

    @property
    def median_foresight(self) -> float | None:
        """Of the best policy that goes by true run times to the same rival: what knowing them would be worth."""
        found = []
        for cell, match in zip(self.cells, self.matches, strict=True):
            knowing = [cell.times_bound(name) for name in cell.policies if self.clairvoyant[name]]
            if knowing:
                found.append(min(knowing) / cell.times_bound(match.rival) - 1)
        return float(np.median(found)) if found else None

    def change(self, cell: LeagueCell, rival: str) -> PairedChange:
        """From a rival to the champion in a cell. Slices with the same arrivals, as of a short trace, are one: their mean."""
        ours, theirs = (_by_stretch(cell, name) for name in (self.league.champion, rival))
        return paired_change(ours, theirs, block=self.league.block)

    def ranks(self, cell: LeagueCell) -> dict[str, float]:
        """Of those that go by no true run times."""
        ranked = [name for name in cell.policies if not self.clairvoyant[name]]
        return dict(zip(ranked, ranks([cell.times_bound(name) for name in ranked]), strict=True))

    def _rival(self, cell: LeagueCell) -> str:
        """The best other one; one that leaves more jobs than the champion is none."""
        champion = self.league.champion
        most = cell.unfinished(champion)
        others = [name for name in cell.policies if name != champion and not self.clairvoyant[name]]
        whole = [name for name in others if cell.unfinished(name) <= most] or others
        return min(whole, key=cell.times_bound)

    def _verdicts(self, changes: Sequence[PairedChange]) -> list[str]:
        found = false_discoveries([change.p_value for change in changes], self.league.rate)
        return [
            TIE if not sure else BETTER if change.mean < 0 else WORSE
            for change, sure in zip(changes, found, strict=True)
        ]

    def _standing(self, name: str) -> Standing:
        cells = [cell for cell in self.cells if name in cell.policies]
        runs = [one.entries[name] for cell in cells for one in cell.slices]
        own = name == self.league.champion
        changes = [] if own else [self.change(cell, name) for cell in cells]
        verdicts = Counter(self._verdicts(changes))
        placed = [] if self.clairvoyant[name] else [self.ranks(cell)[name] for cell in cells]
        reached = [
            1 - run.utility / run.certificate for run in runs if run.certificate and run.utility is not None
        ]
        return Standing(
            policy=name, clairvoyant=self.clairvoyant[name], cells=len(cells),
            rank_mean=float(np.mean(placed)) if placed else None, best_of=sum(rank < 2 for rank in placed),
            over_bound=float(np.median([cell.times_bound(name) for cell in cells])) - 1,
            over_certificate=float(np.median(reached)) if reached else None,
            better=verdicts[BETTER], tied=verdicts[TIE], worse=verdicts[WORSE],
            change=float(np.median([one.mean for one in changes])) if changes else None,
            unfinished=sum(cell.unfinished(name) for cell in cells), cpu_s=sum(run.cpu_s for run in runs),
        )  # fmt: skip


def _by_stretch(cell: LeagueCell, policy: str) -> list[NDArray[np.float64]]:
    """Completion times per stretch of the trace: seeds that only drew other models are no new arrivals."""
    found: dict[bytes, list[NDArray[np.float64]]] = {}
    for one in cell.slices:
        found.setdefault(one.submit_s.tobytes(), []).append(one.jct_s(policy))
    return [np.mean(several, axis=0) for several in found.values()]


# ---- JSON


def write_league_json(score: LeagueScore, path: Path) -> None:
    """Every figure of the page, and each policy's mean completion time in each cell (schema "hemiola.league/1").

    Raises:
        InputError: the path cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(_as_json(score)), indent=1)
    with replacing(path) as stream:
        stream.write(text + b"\n")


def _as_json(score: LeagueScore) -> dict[str, Any]:
    return {
        "schema": LEAGUE_SCHEMA,
        "league": score.league,
        "verdicts": dict(score.verdicts),
        "median_change": score.median_change,
        "median_foresight": score.median_foresight,
        "standings": score.standings,
        "cells": [
            {
                "trace": cell.trace, "fabric": cell.fabric, "load": cell.load, "subset": cell.subset,
                "slices": len(cell.slices), "jobs": sum(len(one.submit_s) for one in cell.slices),
                "jobs_left_out": sum(one.left_out for one in cell.slices), "match": match,
                "policies": {name: _figures(score, cell, name) for name in cell.policies},
            }
            for cell, match in zip(score.cells, score.matches, strict=True)
        ],
    }  # fmt: skip


def _figures(score: LeagueScore, cell: LeagueCell, name: str) -> dict[str, Any]:
    exposed = [e for one in cell.slices if (e := one.entries[name].exposed_fraction) is not None]
    return {
        "jct_mean_s": float(np.mean([times.mean() for times in cell.jct_s(name)])),
        "over_bound": cell.times_bound(name) - 1,
        "rank": None if score.clairvoyant[name] else score.ranks(cell)[name],
        "unfinished": cell.unfinished(name),
        "preemptions": sum(one.entries[name].preemptions for one in cell.slices),
        "exposed_communication_fraction": float(np.mean(exposed)) if exposed else None,
    }


# ---- words


def finding(score: LeagueScore) -> str:
    """What came out, in two or three sentences."""
    counts, cells, foresight = score.verdicts, len(score.cells), score.median_foresight
    known = (
        f" That of the best policy that knows all run times: by {percent(foresight)}."
        if foresight is not None
        else ""
    )
    return (
        f"Against the best other policy of each cell, {score.league.champion} is better in {counts[BETTER]} of {cells} cells, "
        f"ties in {counts[TIE]} and is worse in {counts[WORSE]} (false discoveries at most {score.league.rate:.0%}). "
        f"In the median cell its mean completion time differs by {percent(score.median_change)}.{known}"
    )


def how_sure() -> str:
    """How differences were judged."""
    return (
        "The rival of a cell is the best of all others there, chosen on the same slices: that flatters the rival. Changes are paired "
        "job by job; intervals resample blocks of consecutive arrivals; which cells count as different is "
        "decided over all cells together (Benjamini and Hochberg). Policies that go by true run times are shown and have no rank."
    )


def percent(value: float) -> str:
    """A change with its sign."""
    return f"{value:+.1%}".replace("-", "−").replace("%", " %")


def _interval(change: PairedChange) -> str:
    return f"{percent(change.mean)} ({percent(change.low)} to {percent(change.high)})"


STANDING_HEADS = (
    "policy", "mean rank", "best of", "over the bound", "below certificate", "better", "tie", "worse", "median change",
    "unfinished", "CPU",
)  # fmt: skip
MATCH_HEADS = ("cell", "rival", "change", "verdict", "rank", "bound", "champion over bound")


def standing_rows(score: LeagueScore) -> list[tuple[str, ...]]:
    """Each policy's cells for `STANDING_HEADS`."""
    return [
        (
            one.policy + (" (oracle)" if one.clairvoyant else ""),
            "–" if one.rank_mean is None else f"{one.rank_mean:.2f}",
            f"{one.best_of} of {one.cells}",
            percent(one.over_bound),
            "–" if one.over_certificate is None else percent(-one.over_certificate),
            *(("–", "–", "–", "–") if one.change is None else (str(one.better), str(one.tied), str(one.worse), percent(one.change))),
            str(one.unfinished),
            format_duration(one.cpu_s),
        )
        for one in score.standings
    ]  # fmt: skip


def match_rows(score: LeagueScore) -> list[tuple[str, ...]]:
    """Each cell's cells for `MATCH_HEADS`."""
    champion = score.league.champion
    return [
        (
            match.cell, match.rival, _interval(match.change), match.verdict, f"{match.rank:g}",
            format_duration(float(np.mean([one.bound_s for one in cell.slices]))), percent(cell.times_bound(champion) - 1),
        )
        for cell, match in zip(score.cells, score.matches, strict=True)
    ]  # fmt: skip


def markdown(score: LeagueScore, command: str = "") -> str:
    """The same as a section of a page in Markdown."""
    made = f"`{command}`\n\n" if command else ""
    return (
        f"{made}**{finding(score)}** {how_sure()}\n\n### Standings\n\n{_lines(STANDING_HEADS, standing_rows(score))}\n\n"
        f"### Cell by cell\n\n{_lines(MATCH_HEADS, match_rows(score))}\n"
    )


def _lines(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1), *body])


# ---- the page


def write_league(score: LeagueScore, path: Path) -> None:
    """Write the page.

    Raises:
        InputError: the path cannot be written.
    """
    write_page(render_league(score), path)


def render_league(score: LeagueScore) -> str:
    """The page as text: one file, no scripts."""
    counts, champion = score.verdicts, score.league.champion
    jobs = sum(len(one.submit_s) for cell in score.cells for one in cell.slices)
    facts = [
        f"{len(score.cells)} cells", f"{len(score.clairvoyant)} policies",
        f"{sum(len(cell.slices) for cell in score.cells)} slices, {jobs:,} jobs",
    ]  # fmt: skip
    numbers = [
        (str(counts[BETTER]), "cells in which it is better"),
        (str(counts[TIE]), "ties"),
        (str(counts[WORSE]), "cells in which it is worse"),
        (percent(score.median_change), "mean completion time, median cell"),
    ]
    return page(
        f"{champion} against the field",
        [
            head(f"{champion} against the field", facts, finding(score), [how_sure()], numbers),
            card(
                "Cell by cell",
                f"Change of the mean completion time from the best other policy to {champion}, with 95 % intervals. Left of the line is "
                "shorter. Hollow marks are ties.",
                _forest(score),
            ),
            card(
                "Every policy in every cell",
                "Mean completion time over a bound that no schedule can beat (1.00: nothing left to gain). The darker the longer, "
                "against the best of the cell; the best that goes by no true run times is in bold.",
                _heat(score),
            ),
            card("Standings", f"Better, tie and worse are {champion}'s against the policy of the line.", table(STANDING_HEADS, standing_rows(score))),
            card("Figures", "", table(MATCH_HEADS, match_rows(score))),
            card("What was played", "", _about(score.league)),
        ],
    )  # fmt: skip


WIDE, LEFT, RIGHT, ROW, TOP = 1160, 380, 330, 24, 30


def _forest(score: LeagueScore) -> str:
    """An interval for each cell, the greatest gain first."""
    matches = sorted(score.matches, key=lambda match: match.change.mean)
    far = max(0.05, *(min(1.0, max(abs(m.change.low), abs(m.change.high))) for m in matches))
    scale = (WIDE - LEFT - RIGHT) / (2 * far)
    middle = LEFT + scale * far
    height = TOP + ROW * len(matches) + 16
    parts = [
        f'<svg viewBox="0 0 {WIDE} {height}" role="img" aria-label="changes by cell" style="width:100%;font-size:13px">',
        *(_tick(middle + scale * at, height, at) for at in (-far, -far / 2, 0.0, far / 2, far)),
        *(
            _bar(match, TOP + ROW * place + ROW / 2, middle, scale, far)
            for place, match in enumerate(matches)
        ),
        "</svg>",
    ]
    return "".join(parts)


def _tick(x: float, height: float, value: float) -> str:
    width = 1.5 if value == 0 else 0.5
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{height - 10}" stroke="var(--ground)" stroke-width="{width}"/>'
        f'<text x="{x:.1f}" y="{TOP - 14}" text-anchor="middle" fill="var(--soft)">{percent(value) if value else "0"}</text>'
    )


def _bar(match: Match, y: float, middle: float, scale: float, far: float) -> str:
    low, mean, high = (
        middle + scale * max(-far, min(far, v))
        for v in (match.change.low, match.change.mean, match.change.high)
    )
    colour = {BETTER: "--good", WORSE: "--bad", TIE: "--soft"}[match.verdict]
    fill = "var(--paper)" if match.verdict == TIE else f"var({colour})"
    return (
        f'<text x="{LEFT - 14}" y="{y + 4:.1f}" text-anchor="end" fill="var(--ink)">{escape(match.cell)}</text>'
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="var({colour})" stroke-width="2"/>'
        f'<circle cx="{mean:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="var({colour})" stroke-width="2"/>'
        f'<text x="{WIDE - RIGHT + 14}" y="{y + 4:.1f}" fill="var(--soft)">{percent(match.change.mean)} {escape(match.verdict)}, {escape(_cut(match.rival))}</text>'
    )


def _cut(name: str, most: int = 30) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _heat(score: LeagueScore) -> str:
    """A table of colours."""
    names = [one.policy for one in score.standings]
    heads = "".join(
        f"<th>{escape(name).replace(':', ':<wbr>').replace('=', '=<wbr>')}</th>" for name in names
    )
    rows = "".join(
        f"<tr><th style='white-space:nowrap'>{escape(cell.name)}</th>{_heat_row(score, cell, names)}</tr>"
        for cell in score.cells
    )
    return f'<div class="scroll"><table><thead><tr><th>cell</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _heat_row(score: LeagueScore, cell: LeagueCell, names: Sequence[str]) -> str:
    values = {name: cell.times_bound(name) for name in names if name in cell.policies}
    least = min(value for name, value in values.items() if not score.clairvoyant[name])
    cells = []
    for name in names:
        if name not in values:
            cells.append("<td>–</td>")
            continue
        share = min(1.0, max(0.0, np.log(values[name] / least) / np.log(2.0)))
        bold = "font-weight:700;" if values[name] == least else ""
        tint = f"color-mix(in srgb, var(--heat-3) {share:.0%}, var(--paper))"
        cells.append(f'<td style="{bold}background:{tint}">{values[name]:.2f}</td>')
    return "".join(cells)


def _about(league: League) -> str:
    rows = [
        *((f"trace {name}", where) for name, where in league.traces.items()),
        *((f"fabric {name}", where) for name, where in league.fabrics.items()),
        ("loads", ", ".join(league.loads)),
        ("slices", f"{league.seeds} of {league.jobs} consecutive jobs, seeds from {league.first_seed}, run times cut at {league.longest or 'nothing'}"),
        ("recorded on", league.recorded_on or "each fabric itself"),
        ("subset", f"{', '.join(league.subset) or 'none'}; {league.subset_seeds} slices of each trace's first load on the first fabric"),
        ("blocks", f"{league.block} consecutive arrivals"),
    ]  # fmt: skip
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(value)}</dd>' for name, value in rows)}</dl>"
