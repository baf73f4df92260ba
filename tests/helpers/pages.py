"""Pages as a reader of HTML and a real browser find them."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

from patience import patience

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def without_plotly(page: str) -> str:
    """The page less its longest script."""
    scripts = re.findall(r"<script>.*?</script>", page, flags=re.S)
    return page.replace(max(scripts, key=len), "")


class Elements(HTMLParser):
    """Complains about elements that are not closed in order."""

    EMPTY = frozenset({"meta", "link", "br", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def browse(page: Path, folder: Path, scheme: int) -> tuple[str, list[str]]:
    """The page's elements after its script ran, and what the console said of errors."""
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--enable-logging=stderr",
        "--virtual-time-budget=20000",
    ]
    command = [
        CHROMIUM, *flags, f"--user-data-dir={folder}", f"--blink-settings=preferredColorScheme={scheme}",
        "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(120), check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
