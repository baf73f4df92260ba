"""What a chart is before anything draws it: Plotly traces and layout as plain values.

Colours are names of CSS variables ("--policy-0"); the page replaces them, so that one chart
serves light and dark. Nothing here imports Plotly.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Any

__all__ = ["Chart", "Drawing", "policy_color", "policy_dash", "time_scale", "words_for"]

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
