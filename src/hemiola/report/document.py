"""A page of HTML that needs nothing else: its frame, what is packed into it, and how it is written."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from hemiola.trace.atomic import replacing

__all__ = [
    "Chart",
    "Drawing",
    "asset",
    "document",
    "policy_color",
    "policy_dash",
    "time_scale",
    "words_for",
    "write_page",
]


def asset(package: str, name: str) -> str:
    """The text of a file beside a package's code: asset("report.job", "job.css")."""
    return resources.files(f"hemiola.{package}").joinpath("assets", name).read_text(encoding="utf-8")


def document(title: str, styles: str, main: Iterable[str], scripts: Iterable[str] = ()) -> str:
    """The page as text.

    Args:
        title: of the browser's tab, after "Hemiola: ".
        styles: the style sheet.
        main: elements, one below the other.
        scripts: elements behind them.
    """
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<link rel="icon" href="data:,">',
            f"<title>Hemiola: {escape(title)}</title>",
            f"<style>{styles}</style></head><body><main>",
            *main,
            "</main>",
            *scripts,
            "</body></html>\n",
        ]
    )


def write_page(text: str, path: Path) -> None:
    """Write a page; of words from a command line, which need not be text, what can be written.

    Raises:
        InputError: the path cannot be written.
    """
    with replacing(path) as stream:
        stream.write(text.encode(errors="replace"))


# What a chart is before anything draws it: Plotly traces and layout as plain values.

POLICY_COLORS = 8
"""How many --policy-N colours the style sheet has; policies beyond them differ in their dashes."""

_DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class Drawing:
    """One state of a chart: its traces and its layout, as Plotly takes them."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """A chart with its words.

    Attributes:
        id: unique on the page.
        about: one or two sentences below the title: what is drawn, in which unit.
        drawings: by label; with more than one the reader chooses.
        height_px: of the drawing area.
        small: whether several stand side by side.
    """

    id: str
    title: str
    about: str
    drawings: dict[str, Drawing]
    height_px: int = 360
    small: bool = False


def policy_color(index: int) -> str:
    """The colour of the policy at that place, the same in every chart."""
    return f"--policy-{index % POLICY_COLORS}"


def policy_dash(index: int) -> str:
    """The dash of its lines: a second sign beside the colour."""
    return _DASHES[(index + index // POLICY_COLORS) % len(_DASHES)]


def time_scale(longest_s: float) -> tuple[float, str]:
    """(seconds per unit, unit's name) that suits times up to `longest_s`."""
    for scale, name in ((2 * 86400.0, "days"), (2 * 3600.0, "hours"), (2 * 60.0, "minutes")):
        if longest_s >= scale:
            return scale / 2, name
    return 1.0, "seconds"


def words_for(text: str, width: int = 18) -> str:
    """A name as a label: nothing in it is markup, and a long one is broken after its signs."""
    if len(text) <= width:
        return html.escape(text)
    lines = [""]
    for part in re.split(r"(?<=[:,;/ +])", text):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "<br>".join(html.escape(line) for line in lines)
