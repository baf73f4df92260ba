"""A page of HTML that needs nothing else: its frame, what is packed into it, and how it is written."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib import resources
from pathlib import Path

from hemiola.trace.atomic import replacing

__all__ = ["asset", "document", "write_page"]


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
