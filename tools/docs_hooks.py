"""What MkDocs does beside its own work: formulas become MathML, and a page that fetches from elsewhere is an error.

Browsers draw MathML by themselves, so that pages need no script for formulas and can be read without a network.
"""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

__all__ = ["fetched", "formulas", "on_page_content", "on_post_build"]

_FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>',  # as pymdownx.arithmatex leaves them
    re.DOTALL,
)
_ELSEWHERE = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "embed": "src", "object": "data"}
_LINKED = {
    "stylesheet",
    "preload",
    "modulepreload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "icon",
    "manifest",
}
_IN_STYLE = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")


def on_page_content(content: str, **_: Any) -> str:
    """Called by MkDocs with the HTML of each page."""
    return formulas(content)


def on_post_build(config: Any) -> None:
    """Called by MkDocs when all is written."""
    from mkdocs.exceptions import PluginError

    found = fetched(Path(config["site_dir"]))
    if found:
        raise PluginError("pages would fetch from elsewhere: " + "; ".join(found[:5]))


def formulas(content: str) -> str:
    """HTML with every formula as MathML.

    Raises:
        ValueError: one has a command that is not known; names it.
    """
    return _FORMULA.sub(_formula, content)


def _formula(match: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    tag, bracket, text = match.groups()
    found = convert(html.unescape(text), display="block" if bracket == "[" else "inline")
    unknown = re.search(r"\\[a-zA-Z]+", found)
    if unknown:
        raise ValueError(f"the formula {text} has {unknown[0]}, which has no MathML")
    return f'<{tag} class="arithmatex">{found}</{tag}>'


def fetched(site: Path) -> list[str]:
    """What pages and style sheets would load from another host, as file and address: links to follow are none."""
    found = []
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        text = path.read_text(encoding="utf-8")
        found += [
            f"{path.relative_to(site)}: {address}"
            for address in (_of_style(text) if path.suffix == ".css" else _of_page(text))
            if _ELSEWHERE.match(address)
        ]
    return found


def _of_page(text: str) -> list[str]:
    page = _Page()
    page.feed(text)
    return page.found


def _of_style(text: str) -> list[str]:
    return [address or imported for address, imported in _IN_STYLE.findall(text)]


class _Page(HTMLParser):
    """Collects what a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element's addresses."""
        said = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        if tag in _LOADED:
            self.found.append(said.get(_LOADED[tag], ""))
        if tag == "link" and _LINKED & set(said.get("rel", "").lower().split()):
            self.found.append(said.get("href", ""))
        self.found += _of_style(said.get("style", ""))
        if "mermaid" in said.get("class", "").split():
            self.found.append("https://unpkg.com (the theme loads mermaid from there)")

    def handle_data(self, data: str) -> None:
        """What stands in a style element."""
        if self._in_style:
            self.found += _of_style(data)
