"""`hemiola league`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hemiola.cli.output import terminal, writable

if TYPE_CHECKING:
    from hemiola.report.league import LeagueScore
    from hemiola.simulator.league import League

__all__ = ["league"]

Several = Parameter(consume_multiple=True, negative="")
Switch = Parameter(negative="")
WIDE = 120
ON_WIDE = ("bound", "champion over bound", "below certificate", "CPU", "unfinished", "rank")
"""Columns that only a terminal of so many columns shows."""


def league(
    *traces: str,
    cluster: Annotated[tuple[str, ...], Several] = (),
    policy: Annotated[tuple[str, ...], Several] = (),
    champion: str = "",
    load: Annotated[tuple[str, ...], Several] = (),
    seeds: int | None = None,
    first_seed: int | None = None,
    jobs: int | None = None,
    longest: str | None = None,
    recorded_on: str = "",
    mix: str = "",
    subset: Annotated[tuple[str, ...], Several] = (),
    file: Path | None = None,
    keep: Path | None = None,
    json: Path | None = None,
    report: Path | None = None,
    markdown: Path | None = None,
    ray: str = "",
    workers: int | None = None,
    skip_bad_rows: Annotated[bool, Switch] = False,
) -> None:
    """Play every policy on every trace, cluster and load, and say who wins where, and how sure that is.

    All policies see the same slices of each trace; one policy, the champion, is compared with the best other one of each
    cell. Without a trace it plays generated ones, and the published ones in the folder that HEMIOLA_SHARED names.

    Parameters
    ----------
    traces
        Workload files ("jobs.csv", or "many/*.csv": one for each seed in turn) or generators' specs; "NAME=FILE" gives a
        name.
    cluster
        Topologies, each a file or a spec; "NAME=SPEC" gives a name.
    policy
        Policies, with parameters; all that are registered unless given.
    champion
        The policy that is compared with the others; hemiola unless given.
    load
        Arrivals are stretched to each of these; "recorded" leaves them as they are. 0.8 and 1.2 unless given (the default league: 0.7, 1.0 and 1.5).
    seeds
        Slices per cell, each another stretch of the trace.
    first_seed
        The first of them; another one than 0 confirms on fresh slices what was chosen on the first.
    jobs
        Consecutive jobs that make a slice.
    longest
        Run times are cut there ("24h"); never unless given (the default league: 24h).
    recorded_on
        The cluster that run times were measured on.
    mix
        How models are drawn for jobs that name none.
    subset
        Slow policies, which play one slice of each trace only, against all others. Where no policy is named, those that ask
        a solver.
    file
        A TOML file with all of this and more; flags given here go before it.
    keep
        A folder that keeps each finished run: the same league, started again, goes on.
    json
        Write every figure there.
    report
        Write a page there (HTML).
    markdown
        Write the tables there (Markdown).
    ray
        Spread the runs over a Ray cluster, as in "hemiola simulate".
    workers
        Spread the runs over so many processes; as many as there are cores, if that is worth it, unless given.
    skip_bad_rows
        Leave out rows of traces that cannot be used.
    """
    import msgspec

    from hemiola.simulator.league import (
        DEFAULT_LEAGUE,
        SLOW,
        League,
        data_folder,
        load_league,
        with_published,
    )

    named_traces, named_clusters = _named(traces), _named(cluster)
    asked = load_league(file) if file else DEFAULT_LEAGUE if not traces else League(longest="", subset=SLOW)
    if not file and not traces and (folder := data_folder()) is not None:
        asked, missing = with_published(asked, folder)
        asked = msgspec.structs.replace(asked, skip_bad_rows=True)
        if missing:
            terminal(stderr=True).print(f"{folder} has no {', '.join(missing)}", highlight=False)
    texts = {"champion": champion, "recorded_on": recorded_on}
    numbers = {"seeds": seeds, "first_seed": first_seed, "jobs": jobs, "longest": longest}
    changes: dict[str, object] = {name: value for name, value in texts.items() if value}
    changes |= {name: value for name, value in numbers.items() if value is not None}
    lists = {
        "policies": policy,
        "loads": load,
        "subset": subset,
        "traces": named_traces,
        "fabrics": named_clusters,
    }
    changes |= {name: value for name, value in lists.items() if value}
    if policy and not subset and not file:
        changes["subset"] = ()
    if named_clusters and not recorded_on and not file:
        changes["recorded_on"] = ""
    if named_traces:
        changes["mixes"] = {}
    if mix:
        changes["mixes"] = dict.fromkeys(named_traces or asked.traces, mix)
    if skip_bad_rows:
        changes["skip_bad_rows"] = True
    writable(json, report, markdown)
    _play(msgspec.structs.replace(asked, **changes), keep, (json, report, markdown), ray, workers)


def _named(given: tuple[str, ...]) -> dict[str, str]:
    """By name; what has none is called by its file, or by the kind of its spec."""
    from hemiola.core.errors import InputError

    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        own = bool(equals) and not set(name) & set(":,/.")
        kind, colon, _ = text.partition(":")
        short = kind if colon and kind not in found and "/" not in kind else text
        key = name if own else short if colon else Path(text).name
        if key in found:
            raise InputError(f"{key!r} was given twice", "give each a name of its own: NAME=FILE")
        found[key] = value if own else text
    return found


def _play(
    league: League,
    keep: Path | None,
    outputs: tuple[Path | None, Path | None, Path | None],
    ray: str,
    workers: int | None,
) -> None:
    """Play with a progress bar; print the tables and write the files."""
    from hemiola.report.league import LeagueScore, markdown, write_league, write_league_json
    from hemiola.report.table import ProgressBar
    from hemiola.simulator.league import play
    from hemiola.simulator.sweep import executor_for
    from hemiola.trace.atomic import replacing

    console = terminal(stderr=True)
    executor = executor_for(ray=ray, workers=workers)
    with ProgressBar(console) as bar:
        cells, missing = play(league, executor, folder=keep, progress=bar.update, say=bar.say)
    if missing:
        remedy = "the same command goes on" if keep else "with --keep FOLDER, what was done is not done again"
        console.print(f"interrupted: {missing:,} runs are not done; {remedy}", highlight=False)
        if not any(cell.slices for cell in cells):
            raise SystemExit(130)
    score = LeagueScore(league, cells)
    _show(score)
    json, report, told = outputs
    if json:
        write_league_json(score, json)
    if report:
        write_league(score, report)
    if told:
        with replacing(told) as stream:
            stream.write(markdown(score).encode())
    for path in filter(None, outputs):
        console.print(f"wrote {path}", style="dim", highlight=False, soft_wrap=True)
    if missing:
        raise SystemExit(130)


def _show(score: LeagueScore) -> None:
    """The tables in as many columns as a terminal has room for; files have all."""
    from rich.table import Table

    from hemiola.report.league import MATCH_HEADS, STANDING_HEADS, finding, match_rows, standing_rows

    out = terminal()
    for heads, rows, left in ((MATCH_HEADS, match_rows(score), 2), (STANDING_HEADS, standing_rows(score), 1)):
        shown = [place for place, name in enumerate(heads) if out.width >= WIDE or name not in ON_WIDE]
        drawn = Table(box=None, header_style="dim")
        for place in shown:
            drawn.add_column(heads[place], justify="left" if place < left else "right")
        for row in rows:
            drawn.add_row(*(row[place] for place in shown))
        out.print(drawn, "")
    out.print(finding(score), highlight=False)
